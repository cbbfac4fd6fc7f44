"""What `designs/adding-a-model.md` promises: in less than 100 lines, a family that is none of ours hears, sees and speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import third_family  # noqa: E402

from omni_runtime.errors import CardError  # noqa: E402
from omni_runtime.runtime import Runtime  # noqa: E402

RNG = np.random.default_rng(2)
IMAGE = {"type": "image", "image": RNG.integers(0, 256, (24, 40, 3)).astype(np.uint8)}
SOUND = {"type": "audio", "audio": (0.2 * RNG.standard_normal(9000)).astype(np.float32), "rate": 16_000}
CLIP = {"type": "video", "video": RNG.integers(0, 256, (6, 16, 16, 3)).astype(np.uint8), "fps": 2.0}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "And?"}]}]


ASKED = [user(), user(IMAGE), user(SOUND), user(CLIP, IMAGE), user(SOUND, SOUND, CLIP)]


def test_it_is_short() -> None:
    lines = Path(third_family.__file__).read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) < 100, len(lines)


@pytest.mark.parametrize("executor", ["loopback", "process"])
def test_it_answers_alone_as_in_company(tmp_path: Path, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(third_family.__file__).parent), prepend=":")  # where a worker finds it
    card = third_family.card(str(third_family.write(tmp_path / "third")))
    program = third_family.program(card)
    with Runtime([card], executor=executor, threads=1) as runtime:
        given = {"max_tokens": 12, "min_tokens": 3, "seed": 1}
        alone = [runtime.submit(program, messages=messages, **given).result(60) for messages in ASKED]
        crowd = [runtime.submit(program, messages=messages, **given) for messages in ASKED]
        for one, handle in zip(alone, crowd, strict=True):
            other = handle.result(60)
            assert other.outputs["tokens"] == one.outputs["tokens"] and len(other.audio) > 0
            np.testing.assert_array_equal(other.audio, one.audio)
            assert len(one.audio) in [third_family.PITCH * (len(one.outputs["tokens"]) - end) for end in (0, 1)]
        assert len({tuple(one.outputs["tokens"]) for one in alone}) == len(ASKED), "what is heard and seen changes nothing"


def test_a_family_that_is_none_is_told(tmp_path: Path) -> None:
    card = third_family.card(str(third_family.write(tmp_path / "third")))
    for name, said in (("third_family:CARD", "cannot be found"), ("third_family:NAMES", "is a tuple"), ("nowhere:X", "nowhere")):
        spec = card.experts["prepare"]
        wrong = spec.model_copy(update={"options": {**spec.options, "family": name}})
        broken = card.model_copy(update={"experts": {**card.experts, "prepare": wrong}})
        with pytest.raises(CardError, match=said):
            Runtime([broken], executor="loopback", threads=1)
