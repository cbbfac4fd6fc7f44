"""Ops and builders of Qwen2.5-Omni up to the thinker against transformers, and what is told apart of two families."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_qwen3  # noqa: E402
from tiny_qwen25 import folder, reference  # noqa: E402

from omni_runtime import work  # noqa: E402
from omni_runtime.draw import Draw  # noqa: E402
from omni_runtime.errors import CheckpointError, RequestError  # noqa: E402
from omni_runtime.experts import (  # noqa: E402
    omni_encoders,
    omni_prepare,
    qwen3_thinker,
    qwen3_vocoder,
    qwen3_voice,
    qwen25_thinker,
)
from omni_runtime.experts.base import verified  # noqa: E402
from omni_runtime.experts.omni_families import FAMILIES, family_of  # noqa: E402
from omni_runtime.experts.omni_options import Options  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.messages import MEDIA, normal  # noqa: E402
from omni_runtime.work import ArStep, CallStep, Row  # noqa: E402

torch.set_num_threads(1)
OPTIONS = {"checkpoint": str(folder().folder)}
PICTURES = [(1, 4, 6), (2, 8, 14)]


def call(name: str, item: Any, index: int = 0) -> Row:
    return Row(1, "media", 1, 0, (), CallStep(index, {name: (item,)}, {}, {}))


def noise(*shape: int, seed: int = 0) -> Any:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    array.flags.writeable = False  # as what came over a wire is
    return array


def test_hear_keeps_the_vectors_of_the_reference() -> None:
    expert, slots = omni_encoders.build_hearing(OPTIONS, "cpu"), Slots("cpu#1")
    rows = [call("sounds", noise(128, frames, seed=frames), i) for i, frames in enumerate((3, 41, 130))]
    for row, result in zip(rows, verified(expert.hear(rows, slots), rows), strict=True):
        (ref,) = result.tensors["vectors"]
        mel = torch.tensor(row.payload.inputs["sounds"][0])
        with torch.inference_mode():
            expected = reference().thinker.model.audio_tower(mel, feature_lens=torch.tensor([mel.shape[1]])).last_hidden_state
        assert ref.index == row.payload.index
        torch.testing.assert_close(slots.read(ref), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RequestError, match=r"a sound of \(128, 2\), \[128, frames\] is needed, frames at least 3"):
        expert.hear([call("sounds", noise(128, 2))], slots)


def test_see_keeps_vectors_and_nothing_else() -> None:
    expert, slots = omni_encoders.build_seeing(OPTIONS, "cpu"), Slots("cpu#1")
    rows = [call("pictures", noise(*grid, 96, seed=i), i) for i, grid in enumerate(PICTURES)]
    for row, grid, result in zip(rows, PICTURES, verified(expert.see(rows, slots), rows), strict=True):
        assert list(result.tensors) == ["vectors"]
        patches = torch.tensor(row.payload.inputs["pictures"][0]).flatten(0, 2)
        with torch.inference_mode():
            expected = reference().thinker.model.visual(patches, torch.tensor([grid])).pooler_output
        torch.testing.assert_close(slots.read(result.tensors["vectors"][0]), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(RequestError, match=r"\[steps, rows, columns, 96\], rows and columns multiples of 2"):
        expert.see([call("pictures", noise(1, 4, 6, 95))], slots)


# -- From messages to what the talker is fed --------------------------------------------------------------------------------


@lru_cache
def thinker() -> qwen25_thinker.Thinker:
    return qwen25_thinker.build(OPTIONS, "cpu")


class Prompt:
    """A conversation, prepared, heard and seen."""

    def __init__(self, together: bool) -> None:
        rng, self.slots, self.together = np.random.default_rng(5), Slots("cpu#1"), together
        clip = {"type": "video", "video": rng.integers(0, 256, (4, 20, 33, 3)).astype(np.uint8), "fps": 2}
        clip |= {"audio": noise(9000) / 4, "rate": 16000}
        still = {"type": "image", "image": rng.integers(0, 256, (25, 17, 3)).astype(np.uint8)}
        sound = {"type": "audio", "audio": noise(5000, seed=1) / 4, "rate": 16000}
        turns = [{"role": "user", "content": [still, {"type": "text", "text": "this, "}, sound, clip, still]}]
        step = CallStep(0, {"messages": (normal(turns, MEDIA),)}, {}, {"use_audio_in_video": together})
        (result,) = omni_prepare.build(OPTIONS, "cpu").prepare([Row(1, "prepare", 1, 0, (), step)], self.slots)
        self.items = result.items
        self.ids: list[int] = self.items["tokens"]
        heard = [call("sounds", x, i) for i, x in enumerate(self.items["sounds"])]
        seen = [call("pictures", x, i) for i, x in enumerate(self.items["pictures"])]
        made = omni_encoders.build_hearing(OPTIONS, "cpu").hear(heard, self.slots)
        self.vectors = {"sound": [r.tensors["vectors"][0] for r in made]}
        made = omni_encoders.build_seeing(OPTIONS, "cpu").see(seen, self.slots)
        self.vectors["picture"] = [r.tensors["vectors"][0] for r in made]

    def step(self, start: int, stop: int, inner: bool = True) -> ArStep:
        """Tokens start .. stop as `think` asks for them."""
        insets = [
            work.Inset(at, count, self.vectors[kind][index], first, None)
            for at, count, kind, index, first in self.items["insets"]
            if at < stop and start < at + count
        ]
        place, _ = self.items["positions"][0]
        drawn = 0 if stop == len(self.ids) else -1
        how = Draw(0, 1)
        return ArStep(
            start, tuple(self.ids[start:stop]), drawn, how, insets=tuple(insets), inner=inner, positions=place[:, start:stop]
        )

    def expected(self) -> torch.Tensor:
        """v of each token: the hand-off that `generate` makes (Qwen2.5-Omni report, section 2.3)."""
        pictures = self.items["pictures"]
        images = [p for p in pictures if len(p) == 1]
        clips = [p for p in pictures if len(p) > 1]
        longest = max(mel.shape[1] for mel in self.items["sounds"])
        mels = [np.pad(mel, ((0, 0), (0, longest - mel.shape[1]))) for mel in self.items["sounds"]]
        flat = lambda some: torch.from_numpy(np.concatenate([p.reshape(-1, p.shape[3]) for p in some]))  # noqa: E731
        ids = torch.tensor([self.ids])
        with torch.inference_mode():
            ran = reference().thinker(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=flat(images),
                image_grid_thw=torch.tensor([p.shape[:3] for p in images]),
                pixel_values_videos=flat(clips),
                video_grid_thw=torch.tensor([p.shape[:3] for p in clips]),
                video_second_per_grid=torch.tensor([1.0]),
                input_features=torch.from_numpy(np.stack(mels)),
                feature_attention_mask=torch.tensor(
                    [[int(i < m.shape[1]) for i in range(longest)] for m in self.items["sounds"]]
                ),
                use_audio_in_video=self.together,
                output_hidden_states=True,
            )
        t = folder().config.tokens
        text_T1 = torch.tensor([[token not in (t.image, t.video, t.audio)] for token in self.ids])
        return ran.hidden_states[0][0] * text_T1 + ran.hidden_states[-1][0]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("chunk", [1000, 7])
def test_states_are_what_the_reference_hands_on(together: bool, chunk: int) -> None:
    prompt, expert, slots = Prompt(together), thinker(), Slots("cpu#2")
    other = lambda run, *ids, inner: Row(run, "think", 1, 0, (), ArStep(0, ids, 0, Draw(0, 1), inner=inner))  # noqa: E731
    count, parts = len(prompt.ids), []
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        with slots.batch([(ref, prompt.slots.read(ref)) for refs in prompt.vectors.values() for ref in refs]):
            mine = Row(1, "think", 1, 0, (), prompt.step(start, stop))
            rows = [other(2, 5, 6, inner=False), mine, other(3, 7, inner=True)]
            before, found, after = verified(expert.forward(rows, slots), rows)
        (ref,) = found.tensors["states"]
        assert (ref.port, ref.index, ref.shape, ref.dtype) == ("states", start, (stop - start, 64), "float32")
        assert list(found.tensors) == ["states"] and not before.tensors and after.tensors["states"][0].shape == (1, 64)
        rows_NW = slots.read(ref)
        assert rows_NW.untyped_storage().nbytes() == rows_NW.nbytes  # a view would keep the batch alive
        parts.append(rows_NW)
    torch.testing.assert_close(torch.cat(parts), prompt.expected(), rtol=1e-4, atol=1e-4)


def test_hidden_is_the_last_state_whoever_asks_for_inner() -> None:
    expert, slots = thinker(), Slots("cpu#1")
    step = ArStep(0, (5, 6, 7), 0, Draw(0, 1), hidden=True)
    (alone,) = expert.forward([Row(1, "think", 1, 0, (), step)], slots)
    with_inner = ArStep(0, (5, 6, 7), 0, Draw(0, 1), hidden=True, inner=True)
    (both,) = expert.forward([Row(2, "think", 1, 0, (), with_inner)], slots)
    hidden, again = (torch.stack([slots.read(ref) for ref in r.tensors["hidden"]]) for r in (alone, both))
    assert torch.equal(hidden, again) and sorted(both.tensors) == ["hidden", "states"]
    states = slots.read(both.tensors["states"][0])
    torch.testing.assert_close(states, hidden + expert.model.embed([5, 6, 7]), rtol=1e-6, atol=1e-6)


# -- Families ---------------------------------------------------------------------------------------------------------------


def test_a_folder_tells_its_family(tmp_path: Path) -> None:
    assert [family.kind for family in FAMILIES] == ["qwen3_omni_moe", "qwen2_5_omni"]
    for given in (tiny_qwen3.folder(), folder()):
        family = family_of(Options(str(given.folder)))
        assert isinstance(given, family.open)  # type: ignore[arg-type]
        settings = json.loads((given.folder / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**settings, "architectures": None}))
        assert family_of(Options(str(tmp_path))) is family
        assert family.read(tmp_path) == given.config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architectures": ["Qwen2_5OmniModle"]}, "unknown architecture 'Qwen2_5OmniModle'.*mean 'Qwen2_5OmniModel'"),
        ({"architectures": ["LlamaForCausalLM"]}, "'LlamaForCausalLM', known: Qwen2_5Omni.*, Qwen3OmniMoe"),
        ({"architectures": ["Qwen2_5OmniModel", "X"]}, r"unknown architecture \['Qwen2_5OmniModel', 'X'\]"),
        ({"model_type": "llama"}, "model_type: unknown model_type 'llama', known: qwen2_5_omni, qwen3_omni_moe"),
        ({}, "model_type: unknown model_type ''"),
        (None, "there is no such folder"),
    ],
)  # fmt: skip
def test_a_folder_of_no_family(tmp_path: Path, settings: dict[str, Any] | None, message: str) -> None:
    where = tmp_path if settings is not None else tmp_path / "nowhere"
    (tmp_path / "config.json").write_text(json.dumps(settings or {}))
    for build in (omni_prepare.build, omni_encoders.build_hearing, omni_encoders.build_seeing):
        with pytest.raises(CheckpointError, match=message):
            build({"checkpoint": str(where)}, "cpu")


@pytest.mark.parametrize("build", [qwen3_thinker.build, qwen3_voice.build, qwen3_vocoder.build])
def test_a_folder_of_the_other_family(build: Any) -> None:
    found = "unknown architecture 'Qwen2_5OmniForConditionalGeneration', known: Qwen3OmniMoeForConditionalGeneration"
    with pytest.raises(CheckpointError, match=found):
        build(OPTIONS, "cpu")
    with pytest.raises(
        CheckpointError, match="'Qwen3OmniMoeForConditionalGeneration', known: Qwen2_5OmniForConditionalGeneration"
    ):
        qwen25_thinker.build({"checkpoint": str(tiny_qwen3.folder().folder)}, "cpu")
