"""A folder's tensors are all accounted for, or it is refused by name, before anything large is read."""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.kernels import cpu  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from omni_runtime.card import OpLimits  # noqa: E402
from omni_runtime.errors import CardError, CheckpointError, CheckpointWarning  # noqa: E402
from omni_runtime.experts import chat, text_lm  # noqa: E402
from omni_runtime.experts.decoder import DecoderLM, Span  # noqa: E402
from omni_runtime.experts.linear import linear  # noqa: E402
from omni_runtime.weights import memory  # noqa: E402
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes  # noqa: E402
from omni_runtime.weights.folder import FolderWeights  # noqa: E402
from omni_runtime.weights.folder_config import read_config  # noqa: E402
from omni_runtime.weights.report import report  # noqa: E402
from omni_runtime.weights.toy_folder import toy_weights, write_json, write_tensors, write_toy  # noqa: E402

Tensors = dict[str, torch.Tensor]
KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe")


def change(folder: Path, edit: Callable[[Tensors], object]) -> Path:
    """Rewrites the weights of a folder in one file."""
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    write_tensors(folder, weights)
    return folder


def logits(folder: Path) -> torch.Tensor:
    weights = FolderWeights(folder)
    model = DecoderLM(weights.config, weights)
    return model.forward([Span(model.cache(), 0, [1, 2, 3], draw=True)])[0]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_there(tmp_path: Path, kind: str, shards: int) -> None:
    folder = write_toy(tmp_path, kind, shards=shards, seed=2)
    assert len(list(folder.glob("*.safetensors"))) == shards
    weights, expected = FolderWeights(folder), toy_weights(read_config(folder).decoder, 2)
    assert list(weights) == list(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in weights)


def test_types_become_float32(tmp_path: Path) -> None:
    exact = logits(write_toy(tmp_path / "f32"))
    for dtype, error in ((torch.bfloat16, 0.3), (torch.float16, 0.03), (torch.float64, 0.0)):
        folder = write_toy(tmp_path / str(dtype), dtype=dtype)
        assert FolderWeights(folder)["model.norm.weight"].dtype == dtype
        found = logits(folder)
        assert found.dtype == torch.float32
        assert (found - exact).abs().max() <= error


# -- The output head: issue 29 of the collected reports ------------------------------------------------------------------


def test_a_tied_head(tmp_path: Path) -> None:
    without = logits(write_toy(tmp_path / "without", tie_word_embeddings=True))
    equal = write_toy(tmp_path / "equal", tie_word_embeddings=True)
    change(equal, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert torch.equal(logits(equal), without)  # and no warning: they are errors here


@pytest.mark.parametrize("head", [torch.ones(272, 48), torch.ones(272, 48, dtype=torch.float16), torch.ones(3, 48)])
def test_a_different_head_follows_the_config_and_warns(tmp_path: Path, head: torch.Tensor) -> None:
    folder = write_toy(tmp_path / "x", tie_word_embeddings=True)
    expected = logits(folder)
    change(folder, lambda w: w.update({"lm_head.weight": head}))
    with pytest.warns(CheckpointWarning, match="'lm_head.weight' differs from the embedding, but config.json says tie_word"):
        assert torch.equal(logits(folder), expected)
    assert any("lm_head.weight is stored beside" in line for line in report(folder))


def test_no_head_and_not_tied(tmp_path: Path) -> None:
    folder = change(write_toy(tmp_path), lambda w: w.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"'lm_head.weight' is missing.*must say \"tie_word_embeddings\": true"):
        FolderWeights(folder)


def test_extra_tensors(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    expected = logits(folder)
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4), "model.rotary_emb.inv_freq": torch.ones(4)}
    assert torch.equal(logits(change(folder, lambda w: w.update(old))), expected)
    change(folder, lambda w: w.update({"v_head.weight": torch.ones(1), "v_head.bias": torch.ones(1)}))
    with pytest.warns(CheckpointWarning, match=r"tensor 'v_head.bias' and 1 others are not used"):
        assert torch.equal(logits(folder), expected)
    assert any(line.startswith("note: ") and "v_head.bias" in line for line in report(folder))


# -- Damage ----------------------------------------------------------------------------------------------------------------

UP = "model.layers.1.mlp.up_proj.weight"
DAMAGED: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "missing": (lambda w: w.pop(UP), f"tensor '{UP}' is missing, and 0 others"),
    "transposed": (
        lambda w: w.update({UP: w[UP].T.contiguous()}),
        f"tensor '{UP}' has shape (48, 80), config.json asks for (80, 48)",
    ),
    "type": (lambda w: w.update({UP: w[UP].to(torch.int8)}), f"tensor '{UP}' is of type I8"),
    "8 bits": (lambda w: w.update({UP: w[UP].to(torch.float8_e4m3fn)}), f"tensor '{UP}' is of type F8_E4M3"),
    "a bias": (
        lambda w: w.update({UP.replace("weight", "bias"): torch.ones(80)}),
        "tensor 'model.layers.1.mlp.up_proj.bias' and 0",
    ),
    "a layer more": (lambda w: w.update({UP.replace(".1.", ".3."): w[UP].clone()}), "'model.layers.3.mlp.up_proj.weight' and 0"),
    "a scale": (lambda w: w.update({"lm_head.weight_scale": torch.ones(1)}), "tensor 'lm_head.weight_scale' and 0 others"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_tensor_that_does_not_fit(tmp_path: Path, name: str) -> None:
    edit, clause = DAMAGED[name]
    folder = change(write_toy(tmp_path), edit)
    for read in (FolderWeights, report):
        with pytest.raises(CheckpointError) as caught:
            read(folder)
        assert clause in str(caught.value)
        assert str(folder) in str(caught.value)


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    def fuse(w: Tensors) -> None:
        for i in range(6):
            del w[f"model.layers.0.mlp.experts.{i}.gate_proj.weight"]
        w["model.layers.0.mlp.experts.gate_up_proj"] = torch.ones(6, 80, 48)

    with pytest.raises(CheckpointError, match="experts fused into one tensor are not read"):
        FolderWeights(change(write_toy(tmp_path, "qwen3_moe"), fuse))


def index(folder: Path, edit: Callable[[dict[str, str]], object]) -> Path:
    path = folder / "model.safetensors.index.json"
    found = json.loads(path.read_text())
    edit(found["weight_map"])
    write_json(path, found)
    return folder


SECOND = "model-00002-of-00003.safetensors"
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (
        lambda p: [f.unlink() for f in p.glob("model*")],
        "neither model.safetensors nor model.safetensors.index.json",
    ),
    "pickles": (lambda p: [f.rename(p / "pytorch_model.bin") for f in p.glob("model*")], "pytorch_model.bin is a pickle"),
    "a shard is missing": (lambda p: (p / SECOND).unlink(), f"shard '{SECOND}', which holds tensor"),
    "a shard is cut": (lambda p: (p / SECOND).write_bytes((p / SECOND).read_bytes()[:-1]), f"{SECOND} cannot be read"),
    "a shard is empty": (lambda p: (p / SECOND).write_bytes(b""), f"{SECOND} cannot be read"),
    "a shard is text": (lambda p: (p / SECOND).write_text("version https://git-lfs.github.com/spec/v1\n" * 4), "cannot be read"),
    "two of everything": (lambda p: save_file({}, p / "model.safetensors"), "are both there; remove the one that is not meant"),
    "empty index": (lambda p: (p / "model.safetensors.index.json").write_text(""), "index.json is empty"),
    "list as index": (lambda p: (p / "model.safetensors.index.json").write_text("[]"), "this is a list"),
    "no map": (lambda p: write_json(p / "model.safetensors.index.json", {"metadata": {}}), "weight_map: is missing or empty"),
    "a number as file": (lambda p: index(p, lambda m: m.update({UP: 3})), f"weight_map.{UP}: a text is needed"),
    "a file elsewhere": (lambda p: index(p, lambda m: m.update({UP: "../x.safetensors"})), "is no name of a file in this folder"),
    "in no shard": (lambda p: index(p, lambda m: m.update({"lm_head.bias": SECOND})), "'lm_head.bias' should be in"),
    "in another shard": (
        lambda p: index(p, lambda m: m.update(dict.fromkeys([*m][:1], SECOND))),
        f"should be in {SECOND}, but it is in model-00001-of-00003.safetensors",
    ),
    "in two shards": (
        lambda p: save_file(
            {**load_file(p / SECOND), "model.norm.weight": torch.ones(48), "lm_head.weight": torch.ones(1)}, p / SECOND
        ),
        "is in model-0000",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_do_not_fit(tmp_path: Path, name: str) -> None:
    edit, clause = FILES[name]
    folder = write_toy(tmp_path, shards=3)
    edit(folder)
    with pytest.raises(CheckpointError) as caught:
        FolderWeights(folder)
    assert clause in str(caught.value)
    assert str(folder) in str(caught.value)


def test_any_damaged_header_is_refused_or_read(tmp_path: Path) -> None:
    """Each byte of a small header in turn, set to three values."""
    folder = write_toy(tmp_path, num_hidden_layers=1)
    path = folder / "model.safetensors"
    whole, refused = path.read_bytes(), 0
    length = 8 + int.from_bytes(whole[:8], "little")
    for at in range(0, length, 3):
        for value in (0, 0x22, whole[at] ^ 1):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            with warnings.catch_warnings(), contextlib.suppress(CheckpointError):
                warnings.simplefilter("ignore", CheckpointWarning)
                refused += 1
                dict(FolderWeights(folder))
                refused -= 1
    assert refused > 0.9 * length


# -- Memory ----------------------------------------------------------------------------------------------------------------


def test_memory_is_asked_for_before_anything_is_read(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    need = sum(memory.needs(read_config(folder).decoder))
    FolderWeights(folder, max_bytes=need)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError) as caught:
        FolderWeights(folder, max_bytes=need - 1)
    for words in ("weights need 0.30 MiB", "KV of 512 positions 0.19 MiB (384 bytes each)", "max_bytes allows 0.49 MiB"):
        assert words in str(caught.value)
    with pytest.raises(CheckpointError, match=r"weights need 0\.15 MiB, KV of 512 positions 0\.09 MiB \(192 bytes each\)"):
        FolderWeights(folder, "plain", need // 2 - 1, 2)


def test_a_model_that_no_machine_holds(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"hidden_size": 1 << 30, "num_hidden_layers": 9999, "head_dim": 8})
    assert memory.available() is not None
    with pytest.raises(CheckpointError, match="available are"):
        FolderWeights(folder)
    with pytest.raises(CheckpointError):
        report(folder)


@pytest.mark.parametrize("layout", ["auto", "plain", "packed", "native", "int8"])
@pytest.mark.parametrize("kind", [*KINDS, "tied"])
def test_the_sum_is_what_a_decoder_keeps(tmp_path: Path, kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"hidden_size": 768, "intermediate_size": 1024, "num_attention_heads": 6, "num_hidden_layers": 2}
    if kind == "qwen3_moe":
        changes |= {"num_experts": 3}
    folder = write_toy(tmp_path, "llama" if kind == "tied" else kind, **changes, tie_word_embeddings=kind == "tied")
    weights, kept = FolderWeights(folder), 0

    def counted(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, layout: str = "auto") -> object:
        nonlocal kept
        copies = 2 if layout == "auto" and weight_NK.numel() >= memory.PACKED_FROM else 1
        tied_as_stored = weights.config.tied and weight_NK.shape[0] == weights.config.vocab and layout != "packed"
        kept += weight_NK.numel() * (copies - tied_as_stored) + (0 if bias_N is None else bias_N.numel())
        return linear(weight_NK, bias_N, layout)

    def packed(weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None, kind: str = "float32", gated: bool = False) -> object:
        nonlocal kept
        matrices.append((weight_NK.numel(), kind))
        kept += 0 if bias_N is None else bias_N.numel()
        return pack(weight_NK, bias_N, kind, gated)

    matrices: list[tuple[int, str]] = []
    pack = cpu.pack
    monkeypatch.setattr("omni_runtime.experts.decoder.linear", counted)
    monkeypatch.setattr(cpu, "pack", packed)
    if layout in ("auto", "native", "int8"):
        monkeypatch.setattr("omni_runtime.experts.decoder.linear", linear)
    DecoderLM(weights.config, weights, layout=layout)
    if matrices:
        kept += sum(size * {"float32": 4, "int8": 1}[kind] for size, kind in matrices) / 4
    norms = sum(math.prod(s) for name, s in parameter_shapes(weights.config).items() if "norm" in name or "embed" in name)
    assert memory.weight_bytes(weights.config, layout) == 4 * (kept + norms)


# -- Cards and experts -----------------------------------------------------------------------------------------------------


def test_the_card_of_a_folder(tmp_path: Path) -> None:
    drawn = {"do_sample": True, "temperature": 0.7, "top_p": 0.9}
    folder = write_toy(tmp_path / "My model v1.5", "qwen3", generation=drawn)
    card = causal_lm(folder)
    assert card == causal_lm(str(folder))
    think = card.loops["think"]
    assert (card.name, think.context, think.stop_tokens) == ("My-model-v1.5", 512, (266,))
    assert think.defaults == {"temperature": 0.7, "top_p": 0.9}
    assert card.experts["thinker"].bytes_per_position == 3 * 2 * 2 * 16 * 4
    small = causal_lm(folder, name="small", context=100, limits=OpLimits(units=2, size=8))
    assert (small.name, small.loops["think"].context, small.experts["thinker"].ops["forward"].size) == ("small", 100, 8)
    assert think.vocabulary == 272
    assert causal_lm(folder, context=10**6).loops["think"].context == 512
    with pytest.raises(CardError, match="context=0"):
        causal_lm(folder, context=0)
    assert causal_lm(write_toy(tmp_path / "1.7B")).name == "model-1.7B"
    with pytest.raises(CheckpointError, match="there is no such folder"):
        causal_lm(tmp_path / "nowhere")


def test_the_experts_of_a_folder(tmp_path: Path) -> None:
    folder = write_toy(tmp_path)
    options = {"weights": str(folder)}
    assert chat.build(options, "cpu").tokenizer is chat.build(options, "cpu").tokenizer
    assert text_lm.build(options | {"linear": "plain", "max_bytes": 1 << 30}, "cpu").model.config.vocab == 272
    with pytest.raises(CheckpointError, match="max_bytes allows"):
        text_lm.build(options | {"max_bytes": 1000}, "cpu")
    with pytest.raises(CardError, match="option max_bytes='1', a int is needed"):
        text_lm.build(options | {"max_bytes": "1"}, "cpu")


def test_shapes_of_a_config_without_changes() -> None:
    """The names of a plain llama are those that they were before mixtures came."""
    shapes = parameter_shapes(DecoderConfig(8, 4, 1, 2, 1, 2, 6, 16, 1e4, 1e-5))
    assert len(shapes) == 11
