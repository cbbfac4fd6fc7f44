"""Every expert of the house on a fake GPU, whole programs: answers are those of the CPU, and no batch waits more often than told.

`WAITS` is what may be waited for in one batch, whatever its rows: (reads, sends), as `fake_gpu.py` counts them. A read is what
the next step depends on, or what leaves the device. hibari's talker is onnxruntime on the CPU, whatever the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dry_run import DryRun, dry  # noqa: E402
from fake_gpu import Hazard  # noqa: E402
from fake_tensor import Fake  # noqa: E402
from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni  # noqa: E402
from omni_runtime.cards.qwen3_omni import qwen3_omni  # noqa: E402
from omni_runtime.programs.chat import chat  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402

from omni_runtime.errors import RequestFailed  # noqa: E402
from omni_runtime.experts import device_draw  # noqa: E402
from omni_runtime.experts.decoder_gpu import PagedLayers  # noqa: E402
from omni_runtime.experts.device_queue import CudaMark  # noqa: E402
from omni_runtime.experts.staging import Pinned  # noqa: E402
from omni_runtime.program import Program  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.toy import write_toy_checkpoint  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402

WAITS = {
    "text": {"thinker.forward": (2, 0)},  # a step, and before it the one that was queued ahead
    "qwen3_omni": {
        "hearing.hear": (0, 0),
        "seeing.see": (0, 0),
        "thinker.forward": (2, 0),
        "talker.talk": (1, 0),
        "vocoder.decode_audio": (1, 0),
    },
    "qwen2_5_omni": {
        "hearing.hear": (0, 0),
        "seeing.see": (0, 0),
        "thinker.forward": (2, 0),
        "talker.talk": (1, 0),
        "flow.velocity": (1, 84),  # what a speaker is made of, once; without it (1, 0)
        "vocoder.decode_audio": (1, 0),
    },
    "sd3": {
        "text.encode": (0, 0),
        "transformer.denoise": (1, 4),
        "vae.decode": (1, 0),
    },  # sends: a plan of a new shape
    "hibari": {"talker.speak": (0, 0), "vocoder.decode_audio": (1, 0)},
}

Ask = Callable[[Runtime], list[Any]]


def both(program: Program, ask: Ask, waits: dict[str, tuple[int, int]]) -> tuple[list[Any], list[Any], DryRun]:
    """Answers of the CPU and of the fake GPU, whose batches waited as told at most."""
    cards = list(program.cards.values())
    with Runtime(cards, threads=1) as runtime:
        right = ask(runtime)
    with dry(cards) as run:
        ours = ask(run.runtime)
        found = run.most()
        assert found.keys() == waits.keys()
        for op, (reads, sends) in found.items():
            assert reads <= waits[op][0] and sends <= waits[op][1], f"{op}: {reads} reads, {sends} sends\n{run.told(op)}"
        assert any(batch.rows > 1 for batches in run.batches.values() for batch in batches), "nobody had company"
        assert run.runtime.idle
    return right, ours, run


def submit_all(program: Program, given: Sequence[dict[str, Any]], runtime: Runtime) -> list[Any]:
    handles = [runtime.submit(program, **one) for one in given]
    return [handle.result(100) for handle in handles]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = write_toy(tmp_path_factory.mktemp("dry") / "toy", "qwen3", seed=3)
    return chat(causal_lm(folder, context=200, max_bytes=1 << 30))


def greetings(tokens: int = 18) -> list[dict[str, Any]]:
    ways: list[dict[str, Any]] = [{}, {"temperature": 0.8, "top_p": 0.9}, {}]
    return [{"messages": f"Say {i}. " * (i + 1), "seed": i, "max_tokens": tokens + 2 * i, **ways[i]} for i in range(3)]


def test_text_with_graphs_and_steps_ahead(text: Program) -> None:
    right, ours, run = both(text, partial(submit_all, text, greetings()), WAITS["text"])
    assert [list(one.outputs["tokens"]) for one in ours] == [list(one.outputs["tokens"]) for one in right]
    replayed = [batch for batch in run.batches["thinker.forward"] if batch.launches == 1]
    assert len(replayed) > 5, "hardly a step was one launch"


def test_text_with_penalties_and_log_probabilities(text: Program) -> None:
    how = {"repetition_penalty": 1.2, "logprobs": 2, "temperature": 0.7}
    given = [one | how for one in greetings(5)]
    right, ours, _ = both(text, partial(submit_all, text, given), WAITS["text"])
    for a, b in zip(ours, right, strict=True):
        assert list(a.outputs["tokens"]) == list(b.outputs["tokens"])
        told = [[one.logprob for one in answer.outputs["logprobs"]] for answer in (a, b)]
        np.testing.assert_allclose(*told, rtol=0, atol=1e-4)


def seen_and_heard() -> list[dict[str, Any]]:
    dice = np.random.default_rng(5)
    picture = {"type": "image", "image": dice.integers(0, 256, (17, 30, 3)).astype(np.uint8)}
    sound = {"type": "audio", "audio": (0.2 * dice.standard_normal(9_000)).astype(np.float32), "rate": 16_000}
    clip = {"type": "video", "video": dice.integers(0, 256, (4, 17, 24, 3)).astype(np.uint8), "fps": 2.0, "look_fps": 2}
    return [{"role": "user", "content": [picture, sound, clip, {"type": "text", "text": "And?"}]}]


@pytest.mark.parametrize("kind", ["qwen3_omni", "qwen2_5_omni"])
def test_omni(kind: str, tmp_path: Path) -> None:
    write_toy_checkpoint(kind, tmp_path / "omni", 3)
    program = omni((qwen3_omni if kind == "qwen3_omni" else qwen2_5_omni)(str(tmp_path / "omni")))
    talk: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0, "speaker": "ethan", "max_frames": 5}
    talk |= {"predict": {"temperature": 0.0}} if kind == "qwen3_omni" else {}
    given = [{"messages": asked, "seed": 3, "think": {"max_tokens": 5}, "talk": talk} for asked in ("Hello", seen_and_heard())]
    right, ours, _ = both(program, partial(submit_all, program, given), WAITS[kind])
    for a, b in zip(ours, right, strict=True):
        assert list(a.outputs["tokens"]) == list(b.outputs["tokens"])
        assert [tuple(x) for x in a.outputs["codes"]] == [tuple(x) for x in b.outputs["codes"]]
        assert len(b.audio) > 100
        np.testing.assert_allclose(a.audio, b.audio, rtol=0, atol=1e-5)


@pytest.mark.oracle
def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    import tiny_sd3
    from omni_runtime.cards.sd3 import sd3
    from omni_runtime.programs.paint import paint

    program = paint(sd3(str(tiny_sd3.write(tmp_path / "sd3"))))
    told = {"steps": 4, "width": 32, "height": 32}
    given = [{"prompt": prompt, "seed": i, "denoise": told} for i, prompt in enumerate(("a cat", "a dog on a mat"))]
    right, ours, _ = both(program, partial(submit_all, program, given), WAITS["sd3"])
    for a, b in zip(ours, right, strict=True):
        theirs = np.asarray(b.outputs["image"][-1], np.int64)
        assert np.abs(theirs - np.asarray(a.outputs["image"][-1], np.int64)).max() <= 1
        assert theirs.max() - theirs.min() > 20, "a flat picture proves nothing"


@pytest.mark.oracle
def test_speech() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("hibari")
    from omni_runtime.cards.hibari import hibari
    from omni_runtime.programs.say import say

    program = say(hibari())
    given = [{"text": text, "seed": 3} for text in ("Hello.", "Hi there.")]
    right, ours, _ = both(program, partial(submit_all, program, given), WAITS["hibari"])
    for a, b in zip(ours, right, strict=True):
        np.testing.assert_allclose(a.audio, b.audio, rtol=0, atol=1e-5)


# -- planted bugs -------------------------------------------------------------------------------------------------------------


def asks(program: Program) -> tuple[list[list[int]], list[list[int]], DryRun]:
    right, ours, run = both(program, partial(submit_all, program, greetings()), WAITS["text"])
    return *([list(one.outputs["tokens"]) for one in found] for found in (ours, right)), run  # type: ignore[return-value]


def _asks_each_row() -> AbstractContextManager[Any]:
    real = device_draw.draw_there

    def draw(logits_RV: Any, sent: Any) -> Any:
        if not torch.cuda.is_current_stream_capturing():
            for row_V in logits_RV:
                assert row_V.amax().item() > -1e30
        return real(logits_RV, sent)

    return patch.object(device_draw, "draw_there", draw)


def _asks_in_a_graph() -> AbstractContextManager[Any]:
    real = device_draw.draw_there

    def draw(logits_RV: Any, sent: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            logits_RV.amax().item()
        return real(logits_RV, sent)

    return patch.object(device_draw, "draw_there", draw)


def _left_on_the_cpu() -> AbstractContextManager[Any]:
    real = PagedLayers.__init__

    def init(self: Any, *args: Any) -> None:
        real(self, *args)
        self._norm_D = self._norm_D.cpu()

    return patch.object(PagedLayers, "__init__", init)


def _held_by_a_graph() -> AbstractContextManager[Any]:
    """A step that is captured with the positions of its first batch."""
    real = PagedLayers.where

    def where(self: Any, sent: Any, seen: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            sent = {**sent, "positions": Fake(sent["positions"].numbers.clone())}  # behind the graph's back: it cannot change
        return real(self, sent, seen)

    return patch.object(PagedLayers, "where", where)


def _does_not_wait() -> AbstractContextManager[Any]:
    return patch.object(CudaMark, "wait", lambda self: None)


def _lends_too_early() -> AbstractContextManager[Any]:
    return patch.object(Pinned, "lend", Pinned.give)


Planted = tuple[Callable[[], AbstractContextManager[Any]], tuple[type[BaseException], ...], str | None]
PLANTED: dict[str, Planted] = {
    "a wait for each row": (_asks_each_row, (AssertionError,), "reads"),
    "a wait in a graph": (_asks_in_a_graph, (RequestFailed,), "cannot be captured"),
    "a tensor left on the CPU": (_left_on_the_cpu, (RequestFailed,), "same device|cpu tensor"),
    "positions held by a graph": (_held_by_a_graph, (AssertionError,), "other tokens"),
    "no wait for what is read": (_does_not_wait, (RequestFailed, AssertionError), None),
    "pinned memory used too early": (_lends_too_early, (Hazard, RequestFailed, AssertionError), None),
    "nothing": (nullcontext, (), None),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, text: Program) -> None:
    plant, error, told = PLANTED[bug]

    def check() -> None:
        with plant():
            ours, right, _ = asks(text)
        assert ours == right, "other tokens"

    if not error:
        check()
        return
    with pytest.raises(error, match=told):
        check()
