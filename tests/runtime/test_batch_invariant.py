"""In batch-invariant mode every kind of loop gives the same bits alone and in a crowd that is cut and preempted by dice."""

from __future__ import annotations

import sys
from dataclasses import replace
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
from omni_runtime.cards.causal_lm import causal_lm  # noqa: E402
from omni_runtime.cards.hibari import hibari  # noqa: E402
from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni  # noqa: E402
from omni_runtime.cards.qwen3_omni import qwen3_omni  # noqa: E402
from omni_runtime.kernels import cpu_build  # noqa: E402
from omni_runtime.programs.omni import omni  # noqa: E402
from omni_runtime.programs.say import say  # noqa: E402

from omni_runtime.errors import CardError  # noqa: E402
from omni_runtime.experts.omni_encoders import Hearing  # noqa: E402
from omni_runtime.experts.qwen3_audio import AudioEncoder  # noqa: E402
from omni_runtime.experts.sd3 import SD3Denoiser  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402
from omni_runtime.weights.toy_folder import write_toy  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25  # noqa: E402
from omni_runtime.weights.toy_qwen3_omni import write_toy_omni  # noqa: E402

needs_compiler = pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")
torch.set_num_threads(1)
OMNI = ("turns", "audio", "mixed", "loud")
TEXTS = {
    "short": "Yes.",
    "long": "The sea is wide; we sail at dawn.",
    "odd": "Ah, one. Two?",
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
        "pictures": Kind(lambda card: tiny_sd3.wired(card), paints, pictures),
        "speech": Kind(say, hibari(), speech),
    }


NAMES = ("codecs", "flow", "pictures", "speech")


@pytest.fixture(scope="module")
def alone(kinds: dict[str, Kind]) -> dict[str, Any]:
    return {name: kinds[name].alone() for name in NAMES}


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_a_crowd_says_what_each_says_alone(kinds: dict[str, Kind], alone: dict[str, Any], name: str) -> None:
    """Cut and preempted; and as it comes, twice each, so that beginnings are copied."""
    assert len({repr(one) for one in alone[name].values()}) == len(kinds[name].asked), "equal answers prove nothing"
    assert not differ(alone[name], kinds[name].together(1, share=0.2 if name == "speech" else 0.02))
    assert not differ(alone[name], kinds[name].together(0, share=0, copies=2, kind="thread"))


@needs_compiler
def test_on_two_threads(kinds: dict[str, Kind]) -> None:
    for name in ("codecs", "pictures"):
        assert not differ(kinds[name].alone(threads=2), kinds[name].together(2, threads=2, share=0))
    torch.set_num_threads(1)


def tells_company(run: Any, at: int) -> Any:
    """A function whose results tell, in a last bit or so, how many there are of its argument number `at`."""

    def told(*given: Any) -> Any:
        found, shift = run(*given), 1 + 1e-6 * len(given[at])
        return tuple(x * shift for x in found) if isinstance(found, tuple) else [x * shift for x in found]

    return told


@needs_compiler
@pytest.mark.parametrize(("name", "which"), [("pictures", (SD3Denoiser, "_step")), ("codecs", (AudioEncoder, "encode"))])
def test_what_tells_its_company_is_noticed(
    kinds: dict[str, Kind], name: str, which: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row by row there is nothing to tell; without the mode, and where an op claims to be exact and is not, it shows."""
    kind = replace(kinds[name], asked={key: kinds[name].asked[key] for key in list(kinds[name].asked)[1:3]})
    monkeypatch.setattr(*which, tells_company(getattr(*which), 1))
    alone = kind.alone()
    assert not differ(alone, kind.together(0, share=0, copies=2))
    assert differ(alone, kind.together(0, mode=False, share=0, copies=2))
    for claims in (SD3Denoiser, Hearing):
        monkeypatch.setattr(claims, "invariant", frozenset({"denoise", "hear"}), raising=False)
    assert differ(alone, kind.together(0, share=0, copies=2))


@pytest.mark.parametrize("layout", ["packed", "plain"])
def test_products_that_tell_their_rows_are_refused(layout: str, tmp_path: Path) -> None:
    made = causal_lm(str(write_toy(tmp_path, "llama")), linear=layout)
    with pytest.raises(
        CardError, match=rf"expert '.*/.*', op 'forward': batch_invariant=True .*linear='{layout}'.*take linear='auto'"
    ):
        Runtime([made], batch_invariant=True)


def test_it_needs_our_kernels(kinds: dict[str, Kind], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    with pytest.raises(CardError, match=r"expert 'qwen3_omni/.*batch_invariant=True .*unset OMNI_KERNELS"):
        Runtime([kinds["codecs"].card], batch_invariant=True)
