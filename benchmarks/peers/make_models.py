"""Writes SmolLM2-135M, as our own loader dequantises it, in every peer's format: folders `hf` and `ort`, and GGUF files.

`convert_openvino.py` makes `ov` of them.

    python benchmarks/peers/make_models.py ROOT
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from decode import transformers_model

from omni_runtime.weights.smollm2 import locate

SPECIAL = 3  # type of such a token in a GGUF file


def tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Peers want one, though all of them are given token ids."""
    words, kinds = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([word for word, kind in zip(words, kinds, strict=True) if kind == SPECIAL])
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    fast.chat_template = fields["tokenizer.chat_template"].contents()
    return fast


def write_gguf(source: gguf.GGUFReader, to: Path, kind: gguf.GGMLQuantizationType, name: int) -> None:
    """All metadata of the source, all matrices of one type, vectors in float32."""
    matrix = kind
    writer = gguf.GGUFWriter(to, "llama")
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, field.contents(), kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(key, field.contents(), kind)
    writer.add_file_type(name)
    writer.add_quantization_version(2)
    for tensor in source.tensors:
        weight = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        kind = matrix if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    source = gguf.GGUFReader(locate())
    if not (root / "hf" / "tokenizer.json").exists():
        model = transformers_model()
        for token in ("bos", "eos", "pad"):
            setattr(model.config, f"{token}_token_id", {"bos": 1, "eos": 2, "pad": 2}[token])
        model.generation_config.eos_token_id = model.generation_config.pad_token_id = 2
        model.save_pretrained(root / "hf")
        tokenizer(source.fields).save_pretrained(root / "hf")
    for name, kind, number in (("model", gguf.GGMLQuantizationType.F32, 0), ("half", gguf.GGMLQuantizationType.F16, 1)):
        if not (root / f"{name}.gguf").exists():
            write_gguf(source, root / f"{name}.gguf", kind, number)
    if not (root / "ort").exists():
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
        subprocess.run([*command, "-i", root / "hf", "-o", root / "ort", "-p", "fp32", "-e", "cpu"], check=True)


if __name__ == "__main__":
    main()
