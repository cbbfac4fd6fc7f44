"""The benchmark for a GPU at tiny sizes: every case runs and is right, a wrong kernel gets no time.

Not collected by name: `test_triton_forms.py` runs it.
"""

import importlib.util
import json
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import against  # noqa: F401  (the repaired interpreter)
import pytest
import torch

from omni_runtime import kernels

PATH = Path(__file__).parents[2] / "benchmarks" / "kernels.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_kernels", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


def test_every_case_is_right_and_measured(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "microseconds", lambda call: 10.0 if call() is not None else 0.0)
    monkeypatch.setattr(torch, "compile", lambda call, dynamic: call)
    names = []
    for case in benchmark.cases(benchmark.Maker("cpu", tiny=True)):
        row = benchmark.measure(case, {"copy": 1e9, "matmul": 1e9}, lambda: False)
        assert row["right"], row
        times = {name: value for name, value in row.items() if name.endswith("_us")}
        assert set(times.values()) == {10.0}, row  # a text is a failure
        assert case.moved > 0 and row["of_copy"] == round(case.moved / 1e4, 3)
        names.append(case.name)
    ops = [op for op, value in vars(kernels).items() if "form" in getattr(value, "__annotations__", {}) and op != "choose"]
    assert [op for op in ops if not any(name.startswith(op) for name in names)] == []


def test_a_wrong_kernel_has_no_time(benchmark: ModuleType) -> None:
    wrong = benchmark.Case("wrong", lambda form: torch.ones(3) if form == "torch" else torch.ones(3) * 1.1, 1.0)
    assert benchmark.measure(wrong, {}, lambda: False) == {"name": "wrong", "error": pytest.approx(0.1), "right": False}
    late = benchmark.Case("late", lambda form: torch.ones(3), 1.0, compiles=False)
    assert benchmark.measure(late, {}, lambda: True)["ours_us"] == "too late"


def test_public_kernels_stand_beside_ours_where_they_are_there(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins: one that is right, one that is wrong, one that breaks on import, and those that nobody has."""

    def attend(q, k, v, starts, ends, count, length, causal):
        assert causal and starts.tolist()[-1] == len(q) and ends.tolist()[-1] == len(k)
        rows = [x.unflatten(0, (len(starts) - 1, -1)).transpose(1, 2) for x in (q, k, v)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=count > 1, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=attend))
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "flashinfer.norm", SimpleNamespace(rmsnorm=lambda x, weight, eps: x))
    monkeypatch.setattr(benchmark, "microseconds", lambda call: 10.0)
    monkeypatch.setattr(torch, "compile", lambda call, dynamic: call)
    make = benchmark.Maker("cpu", tiny=True)
    rows = [
        benchmark.measure(case, {"copy": 1e9, "matmul": 1e9}, lambda: False)
        for case in (next(benchmark.token_ops(make)), *islice(benchmark.attention_ops(make), 2))
    ]
    assert rows[0]["flashinfer_us"].startswith("differs from the definition by") and rows[0]["torch_op_us"] == 10.0
    assert [row.get("flash_attn_us") for row in rows] == [None, 10.0, 10.0]
    assert not any(name.startswith(("vllm", "liger")) for row in rows for name in row)
    assert set(benchmark.there()) == {"flash_attn", "vllm", "flashinfer", "liger"}
    assert benchmark.peers(broken=("a_module:function", print)) == {}


def test_without_a_gpu_it_says_so(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    benchmark.main()
    assert "not run on a GPU" in capsys.readouterr().out
    assert json.loads((tmp_path / "kernels.json").read_text())["run"] == "not run on a GPU"
