"""Every public op hands what it is given, in order, to the form that was asked for.

Not collected by name, see `test_triton_forms.py`.
"""

import inspect
from importlib import import_module

import pytest
import torch

from omni_runtime import kernels

MODULES = {
    "rms_norm": "norm", "add_rms_norm": "norm", "product": "matrix", "silu_mul": "swiglu", "rotary": "rope",
    "norm_rotary": "rope", "store_kv": "kv", "paged_attention": "attention", "joint_attention": "joint", "fused_moe": "moe",
    "draw_tokens": "sample", "modulate": "adaln", "gate": "adaln", "guided_euler": "euler", "snake_beta": "snake",
    "causal_conv": "conv", "causal_transposed_conv": "conv", "convnext_block": "convnext",
}  # fmt: skip


def test_the_list_is_whole() -> None:
    ops = [
        name
        for name, value in vars(kernels).items()
        if inspect.isfunction(value) and "form" in inspect.signature(value).parameters
    ]
    assert [op for op in ops if op != "choose"] == list(MODULES)


@pytest.mark.parametrize("op", MODULES)
def test_the_form_that_was_asked_for_runs(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = getattr(kernels, op)
    names = [name for name in inspect.signature(public).parameters if name != "form"]
    x = torch.ones(1)
    given = {name: object() for name in names} | {names[0]: (x,) if op == "joint_attention" else x}
    for form, suffix in (("torch", ""), ("triton", "_triton"), (None, "")):  # on a CPU nobody asked for Triton
        module = import_module(f"omni_runtime.kernels.{MODULES[op]}{suffix}")
        taken = list(inspect.signature(getattr(module, op)).parameters)
        assert taken[: len(names)] == names
        monkeypatch.setattr(module, op, lambda *got, answer=f"{op} {suffix}": (answer, got))
        answer, got = public(**given, form=form)
        assert answer == f"{op} {suffix}" and got == tuple(given.values())
        monkeypatch.undo()


@pytest.mark.parametrize("op", MODULES)
def test_triton_on_a_cpu_is_refused_and_not_replaced(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    public = getattr(kernels, op)
    others = [None] * (sum(p.default is p.empty for p in inspect.signature(public).parameters.values()) - 1)
    with pytest.raises(kernels.OmniError, match="the tensors are on cpu"):
        public((torch.ones(1),) if op == "joint_attention" else torch.ones(1), *others, form="triton")
