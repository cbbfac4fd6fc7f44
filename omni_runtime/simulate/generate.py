"""Workloads made by dice: Poisson or bursty arrivals, lengths by distribution, a mix of programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from omni_runtime.errors import RequestError
from omni_runtime.simulate.workload import Arrival

GRAMMAR = "a number, LOW-HIGH for uniform, or lognormal:MEDIAN,SIGMA"


class Lengths(Struct, frozen=True):
    """How long things are: `fixed` (low), `uniform` whole numbers low..high, or `lognormal` with median low and sigma high.

    A lognormal length is rounded, at least 1, and at most LONGEST medians: without a bound one request in a million is the
    whole load.
    """

    kind: Literal["fixed", "uniform", "lognormal"]
    low: float
    high: float = 0.0

    def draw(self, dice: np.random.Generator) -> int:
        if self.kind == "uniform":
            return int(dice.integers(int(self.low), int(self.high) + 1))
        if self.kind == "lognormal":
            drawn = min(self.low * np.exp(self.high * dice.standard_normal()), LONGEST * self.low)
            return max(1, round(float(drawn)))
        return int(self.low)

    @property
    def mean(self) -> float:
        """Of the distribution, where the bound of a lognormal is not counted."""
        if self.kind == "uniform":
            return (self.low + self.high) / 2
        return self.low * float(np.exp(self.high**2 / 2)) if self.kind == "lognormal" else self.low


LONGEST = 20


def lengths(text: str, name: str = "lengths") -> Lengths:
    """Reads "48", "16-64" or "lognormal:40,0.6".

    Raises:
        RequestError: it is none of these, beginning with `name`.
    """
    kind, _, rest = text.partition(":")
    try:
        if rest:
            median, sigma = (float(x) for x in rest.split(","))
            made = Lengths("lognormal", median, sigma) if kind == "lognormal" else None
        elif "-" in text[1:]:
            low, high = (int(x) for x in text.split("-"))
            made = Lengths("uniform", low, high) if 1 <= low <= high else None
        else:
            made = Lengths("fixed", int(text))
    except ValueError:
        made = None
    if made is None or not 1 <= made.low < 1e6 or not 0 <= made.high < 1e6 or (made.kind == "lognormal" and made.high > 3):
        raise RequestError(f"{name}={text!r}: {GRAMMAR} is needed, from 1 on, sigma at most 3")
    return made


class Kind(Struct, frozen=True):
    """One sort of request in a mix."""

    program: str
    share: float = 1.0  # of the requests, against the other kinds'
    outputs: tuple[str, ...] | None = None
    prompt: Lengths | None = None  # tokens; None: as the mix says
    tokens: Lengths | None = None
    params: Mapping[str, Any] = {}
    fields: Mapping[str, Any] = {}  # further ones of `Arrival`, such as first_output_s


def mix(text: str) -> list[Kind]:
    """Reads "speak" or "speak=3,paint=1": programs and their shares.

    Raises:
        RequestError: a share is no number above 0.
    """
    found = []
    for part in text.split(","):
        name, _, share = part.strip().rpartition("=") if "=" in part else (part.strip(), "", "1")
        try:
            kind = Kind(name, float(share))
        except ValueError:
            kind = Kind("", 0.0)
        if not kind.program or not 0.0 < kind.share < 1e9:
            raise RequestError(f"mix={text!r}: {part!r} is no program and share; write speak or speak=3,paint=1")
        found.append(kind)
    return found


def generate(
    kinds: list[Kind],
    *,
    rate: float,
    requests: int,
    burst: float = 1.0,
    prompt: Lengths = Lengths("uniform", 24, 80),  # noqa: B008  (a frozen value)
    tokens: Lengths = Lengths("uniform", 24, 72),  # noqa: B008
    shared: int = 0,
    seed: int = 0,
    **fields: Any,
) -> list[Arrival]:
    """So many requests, the same for the same seed.

    Args:
        kinds: who comes, each drawn by its share.
        rate: requests a second.
        requests: how many.
        burst: coefficient of variation of the time from one to the next, which is Gamma distributed: 1 is Poisson, 3 comes in
            bursts, 0.1 is nearly a clock.
        prompt, tokens: lengths in tokens, where a kind does not say.
        shared: tokens that every prompt begins with; the lengths count them.
        seed: of all dice.
        fields: of every `Arrival` whose kind does not say, such as guarantee or deadline_s; tenants=N names N tenants in turn.

    Raises:
        RequestError: an argument is out of range.
    """
    for name, value, least in (("rate", rate, 0.0), ("burst", burst, 0.0), ("requests", requests, 0)):
        if not value > least or not value < 1e9:
            raise RequestError(f"{name}={value}: a number above {least:g} is needed")
    tenants = fields.pop("tenants", 1)
    dice = np.random.default_rng([seed, 7])
    shape = 1.0 / (burst * burst)
    times = np.cumsum(dice.gamma(shape, 1.0 / (shape * rate), requests))
    shares = np.array([kind.share for kind in kinds])
    picked = dice.choice(len(kinds), requests, p=shares / shares.sum())
    found = []
    for i, (at, which) in enumerate(zip(times.tolist(), picked.tolist(), strict=True)):
        kind = kinds[which]
        if tenants > 1:
            fields["tenant"] = f"tenant{i % tenants}"
        found.append(
            Arrival(
                at=round(at, 6),
                program=kind.program,
                outputs=kind.outputs,
                prompt_tokens=(kind.prompt or prompt).draw(dice),
                shared_tokens=shared,
                tokens=(kind.tokens or tokens).draw(dice),
                params=kind.params,
                **{**fields, **kind.fields},
            )
        )
    return found
