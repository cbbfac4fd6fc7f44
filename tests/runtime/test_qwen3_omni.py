"""A tiny Qwen3-Omni through the whole runtime: text tokens and codes equal transformers' `generate`, waves to 1e-4."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from omni_oracle import ASKED, CARD, PROGRAM, answer, same, wish  # noqa: E402

from omni_runtime.runtime import Runtime  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime([CARD], executor="loopback", threads=1) as made:
        yield made
        assert made.idle


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_the_references(runtime: Runtime, name: str) -> None:
    same(runtime.submit(PROGRAM, **wish(name)).result(60), name)
    assert len(set(answer(name).codes)) > 3, "an answer of equal frames proves nothing"
