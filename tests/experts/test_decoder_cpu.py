"""The layers in C: bugs planted in them are noticed against torch, and numbers that are none stay where they are."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import cpu, cpu_build  # noqa: E402
from tiny import CONFIGS, random_tokens, random_weights  # noqa: E402

from omni_runtime.experts.decoder import DecoderLM, Given, Span  # noqa: E402
from omni_runtime.experts.linear import native  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig, Sparse  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
MIXED = replace(CONFIGS["qwen3"], sparse=Sparse(5, 2, 24, True, frozenset({1}), shared=40))  # one layer dense, one a mixture


def logits(config: DecoderConfig, layout: str) -> torch.Tensor:
    """Of three sequences in chunks."""
    model = DecoderLM(config, random_weights(config), layout=layout)
    caches, found = [model.cache() for _ in range(3)], []
    tokens = [random_tokens(40, seed=seed) for seed in range(3)]
    for start, stop in ((0, 21), (21, 22), (22, 40)):
        spans = [Span(cache, start, ids[start:stop], draw=True) for cache, ids in zip(caches, tokens, strict=True)]
        found.append(model.forward(spans)[0])
    return torch.cat(found)


def check() -> None:
    torch.testing.assert_close(logits(MIXED, "native"), logits(MIXED, "plain"), rtol=2e-5, atol=2e-4)


def test_layers_are_those_of_torch() -> None:
    check()


BUGS = {
    "the other way round": ("y[i] = a * cos[i] + b * sin[i];", "y[i] = a * cos[i] - b * sin[i];"),
    "a position too few": ("b->position[row] + 1, E, b->scale", "b->position[row], E, b->scale"),
    "keys of another head": ("2 * l->number * c->layer + g * c->head", "2 * l->number * c->layer"),
    "keys of another layer": ("c->kv + 2 * l->number * c->layer + b->position", "c->kv + b->position"),
    "the norm of queries for keys": ("norm_row(q, l->k_norm, kept", "norm_row(q, l->q_norm, kept"),
    "the tail of a block counts": ("for (long i = count; i < j + 16; i++) s[i] = -INFINITY;", ";"),
    "weights are not made to sum to 1": ("w[c] /= sum;", "w[c] /= 1.0f;"),
    "the likeliest twice": ("p[best] = -1.0f;", ""),
    "the shared expert is not scaled": ("w = 1.0f / (1.0f + expf(-b->route[i * l->experts]));", "w = 1.0f;"),
    "pairs in the order of rows": ("long at = start[b->expert[i]]++;", "long at = i; start[b->expert[i]]++;"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = BUGS[bug]
    for part in cpu_build.PARTS:
        text = part.read_text()
        if part == cpu_build.SOURCES[0]:
            assert text.count(old) == 1, "the text that the bug replaces is gone"
            text = text.replace(old, new)
        (tmp_path / part.name).write_text(text)
    command = [str(cpu_build.compiler()), *cpu_build.FLAGS, "-O1", "-shared", str(tmp_path / "cpu.c"), "-lm"]
    subprocess.run([*command, "-o", str(tmp_path / "bug.so")], check=True)
    wrong: Any = ctypes.CDLL(str(tmp_path / "bug.so"))
    right = cpu.functions()
    for name in ("omni_linear", "omni_layers", "omni_norm"):
        getattr(wrong, name).argtypes = getattr(right, name).argtypes
    monkeypatch.setattr(cpu, "functions", lambda: wrong)
    with pytest.raises(AssertionError):
        check()


def test_a_row_that_is_not_a_number_harms_nobody() -> None:
    """The router of a row of NaN chose expert -1, and its pair was written before the beginning."""
    model = DecoderLM(MIXED, random_weights(MIXED), layout="native")
    ids = random_tokens(9, seed=1)
    alone = model.forward([Span(model.cache(), 0, ids, draw=True)])[0]
    broken = Given(vectors_ND=torch.full((4, MIXED.width), torch.nan))
    both = model.forward([Span(model.cache(), 0, (), draw=True, given=broken), Span(model.cache(), 0, ids, draw=True)])[0]
    assert both[0].isnan().all() and torch.equal(both[1:], alone)


def test_another_form_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(2, 2)
    assert native("auto", weight) == "float32" and native("plain", weight) is None
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    assert native("auto", weight) is None and native("int8", weight) == "int8"
