"""In batch-invariant mode every kind of loop gives the same bits alone and in a crowd, however it was cut and preempted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")

sys.path.append(str(Path(__file__).resolve().parents[1] / "experts"))
import tiny_sd3  # noqa: E402
from crowds import Kind, differ  # noqa: E402
from omni_asked import ASKED, wished  # noqa: E402
from omni_runtime.cards.hibari import hibari  # noqa: E402
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni  # noqa: E402
from omni_runtime.cards.qwen3_omni import qwen3_omni  # noqa: E402
from omni_runtime.kernels import cpu_build  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402
from omni_runtime.programs.say import say  # noqa: E402

from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402

needs_compiler = pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")
torch.set_num_threads(1)
OMNI = ("text", "turns", "image", "audio", "mixed", "loud")
TEXTS = {
    "short": "Yes.",
    "long": "The sea is wide, and the wind is cold; we sail at dawn. Bring bread!",
    "odd": "Ah, one, two. Three?",
}


def speaking(card: Any, end: int) -> Kind:
    draws = {"temperature": 1.0, "logprobs": 2}
    asked = {name: wished(ASKED[name], end, {}) for name in OMNI}
    asked = {name: one | {"think": one["think"] | draws, "seed": i} for i, (name, one) in enumerate(asked.items())}
    return Kind(omni, card, asked)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: Any) -> dict[str, Kind]:
    folder = tmp_path_factory.mktemp("invariant")
    codecs = qwen3_omni(str(write_toy_omni(folder / "qwen3")))
    flow = qwen2_5_omni(str(write_toy_qwen25(folder / "qwen25")))
    painted = tiny_sd3.seen(tiny_sd3.write(folder / "sd3"), save_every=3)
    (paints,) = painted.cards.values()
    pictures: dict[str, dict[str, Any]] = {
        "guided": {"prompt": "two birds", "steps": 7, "seed": 3, "preview_every": 2},
        "plain": {"prompt": "a red cat", "steps": 9, "seed": 4, "guidance_scale": 1.0},
        "against": {"prompt": "a hill", "steps": 5, "seed": 5, "negative_prompt": "a cat, and some dogs", "guidance_scale": 3.0},
        "wide": {"prompt": "boats", "steps": 4, "seed": 6, "width": 32, "height": 16},
        "again": {"prompt": "two birds", "steps": 8, "seed": 7},
    }
    speech = {name: {"text": text, "seed": 1} for name, text in TEXTS.items()}
    return {
        "codecs": speaking(codecs, codecs.loops["think"].stop_tokens[0]),
        "flow": speaking(flow, flow.loops["think"].stop_tokens[0]),
        "pictures": Kind(lambda card: tiny_sd3.wired(card), paints, pictures, least=2),
        "speech": Kind(say, hibari(), speech),
    }


@needs_compiler
@pytest.mark.parametrize("name", ["codecs", "flow", "pictures", "speech"])
def test_a_crowd_says_what_each_says_alone(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    alone = kind.alone()
    assert len({repr(one) for one in alone.values()}) == len(alone), "equal answers prove nothing"
    for seed in (0, 1, 2):
        assert not differ(alone, kind.together(seed))
