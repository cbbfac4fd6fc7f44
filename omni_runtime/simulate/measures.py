"""What a simulated or recorded workload came to, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct, field, structs

from omni_runtime.simulate.outcome import Outcome

SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}


class Measures(Struct):
    """All that a table or a report shows. Seconds, and per second.

    `span` is from the first request's coming to the last one's end, and everything "a second" is over it: a workload that is
    short against its longest answer therefore shows less throughput than the same load would for ever.
    """

    requests: int
    completed: int  # that ended with reason "done"
    refused: int  # that ended with "overloaded" or "too_large"
    failed: int  # all others
    span: float
    units: int  # of requests that ended
    throughput: float  # completed requests a second
    units_per_s: float
    goodput: float  # requests a second that completed, were silent for at most 50 ms in all, and kept the times set for them
    good_share: float  # of all requests that came
    first_token: dict[str, float]  # p50, p90, p99 of the seconds from a request's coming to its first text, if it gave any
    first_sound: dict[str, float]  # the same to its first sound
    total: dict[str, float]  # the same to its end, of completed requests
    sound: float  # seconds of sound delivered
    silence: float  # seconds of silence between pieces, playing assumed from the first delivery on, over seconds of sound
    interrupted: float  # share of the requests with sound that had a single silence above 50 ms
    utilisation: dict[str, float] = field(default_factory=dict)  # device-seconds an expert was busy / (its devices * span)
    tenants: dict[str, float] = field(default_factory=dict)  # goodput by tenant, where there are several

    def as_dict(self) -> dict[str, Any]:
        return structs.asdict(self)


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """p50, p90, p99: the smallest value that at least that share of all values does not exceed. Nothing of nothing."""
    ordered = sorted(values)
    return {name: ordered[max(0, ceil(share * len(ordered)) - 1)] for name, share in SHARES.items()} if ordered else {}


def measure(
    outcomes: Sequence[Outcome], busy: Mapping[str, float] | None = None, devices: Mapping[str, int] | None = None
) -> Measures:
    """
    Args:
        outcomes: of all requests of a workload, ended.
        busy: device-seconds by expert.
        devices: how many executors host each expert; 1 where nothing is said.
    """
    done = [o for o in outcomes if o.reason == "done"]
    refused = [o for o in outcomes if o.reason in ("overloaded", "too_large")]
    begin = min((o.arrival for o in outcomes), default=0.0)
    span = max(max((o.ended or o.arrival for o in outcomes), default=0.0) - begin, 1e-9)
    units = sum(o.units for o in outcomes)
    good = [o for o in outcomes if o.good]
    sound = sum(o.sound for o in outcomes)
    heard = [o for o in outcomes if o.sound]
    tenants = sorted({o.tenant for o in outcomes})
    return Measures(
        requests=len(outcomes),
        completed=len(done),
        refused=len(refused),
        failed=len(outcomes) - len(done) - len(refused),
        span=span,
        units=units,
        throughput=len(done) / span,
        units_per_s=units / span,
        goodput=len(good) / span,
        good_share=len(good) / len(outcomes) if outcomes else 0.0,
        first_token=percentiles(o.first_token - o.arrival for o in outcomes if o.first_token is not None),
        first_sound=percentiles(o.first_sound - o.arrival for o in outcomes if o.first_sound is not None),
        total=percentiles(o.ended - o.arrival for o in done if o.ended is not None),
        sound=sound,
        silence=sum(o.silence for o in outcomes) / sound if sound else 0.0,
        interrupted=sum(bool(o.underruns) for o in heard) / len(heard) if heard else 0.0,
        utilisation={e: s / (span * (devices or {}).get(e, 1)) for e, s in sorted((busy or {}).items())},
        tenants={t: sum(o.tenant == t for o in good) / span for t in tenants} if len(tenants) > 1 else {},
    )
