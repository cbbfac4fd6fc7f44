"""A load and what came of it: arrivals, silence, percentiles. Pure; `step_vs_request.py` is what runs it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

LEAST_TOKENS, MOST_TOKENS = 64, 96
PAUSE = 0.05  # seconds of silence that nobody hears as a gap
THINGS = (
    "rain", "a lighthouse", "the Moon", "a bicycle", "bread", "an octopus", "a violin", "the Roman calendar", "glass", "paper",
    "a volcano", "chess", "a beehive", "the Atlantic Ocean", "a compass", "an orchestra", "yeast", "a glacier", "the alphabet",
)  # fmt: skip
ASKED = (
    "What is {}, and what is it famous for?",
    "Explain {} to a child of seven.",
    "Tell me a short story about {}.",
    "Which three facts about {} surprise most people? Say why.",
    "Someone has never heard of {}. How would you describe it over the phone, in a friendly voice and without technical words?",
)


class Request(Struct, frozen=True):
    """One request; `at` is when it comes, as a share of the time in which all come."""

    question: str
    speaks: bool
    tokens: int  # of the answer, exactly
    seed: int
    at: float


class Served(Struct):
    """What a client saw of a request, in seconds since it should have been sent."""

    state: Literal["done", "refused", "failed"]
    total: float = 0.0
    first_token: float | None = None
    first_sound: float | None = None
    silence: float = 0.0
    sound: float = 0.0
    text: str = ""
    prompt_tokens: int = 0
    told: float | None = None  # how long it would wait for its promise, as first estimated
    waited: float | None = None  # how long it did
    ended: float = 0.0  # on the clock

    @property
    def good(self) -> bool:
        """Whether it was answered, and a listener heard no gap."""
        return self.state == "done" and self.silence <= PAUSE


def requests(count: int, seed: int) -> list[Request]:
    """Half of them speak. They come as a Poisson process does that brings just so many: independent and uniform in the time."""
    draw = random.Random(seed)
    speaks = [i % 2 == 0 for i in range(count)]
    draw.shuffle(speaks)
    at = sorted(draw.random() for _ in range(count))
    return [
        Request(
            draw.choice(ASKED).format(draw.choice(THINGS)),
            speaks[i],
            draw.randint(LEAST_TOKENS, MOST_TOKENS),
            draw.randrange(1 << 31),
            at[i],
        )
        for i in range(count)
    ]


def silence(chunks: Iterable[tuple[float, int]], rate: int) -> float:
    """Seconds without sound between the first chunk and the end, for who plays each as soon as it comes.

    Args:
        chunks: when each came, and how many samples it has.
        rate: samples a second.
    """
    still = 0.0
    dry: float | None = None  # when the buffer is empty
    for came, samples in chunks:
        if dry is None:
            dry = came
        elif came > dry:
            still += came - dry
            dry = came
        dry += samples / rate
    return still


def percentile(values: Sequence[float], share: float) -> float:
    """Between the two nearest ranks, as numpy does; not a number without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Outcome(Struct):
    """A run of a load: requests in the order of their arrival."""

    asked: list[Request]
    served: list[Served]
    wall: float  # from the first submit to the last end

    @property
    def done(self) -> list[Served]:
        return [s for s in self.served if s.state == "done"]

    @property
    def speaking(self) -> list[Served]:
        """Those that asked for sound and were answered."""
        return [s for r, s in zip(self.asked, self.served, strict=True) if r.speaks and s.state == "done"]

    @property
    def throughput(self) -> float:
        """Requests a second."""
        return len(self.done) / self.wall

    @property
    def goodput(self) -> float:
        """Requests a second that were answered, those with sound without a gap of more than PAUSE in all."""
        return sum(s.good for s in self.served) / self.wall

    @property
    def admitted(self) -> float:
        """Share of those that asked for sound which was not refused."""
        speakers = [s for r, s in zip(self.asked, self.served, strict=True) if r.speaks]
        return sum(s.state != "refused" for s in speakers) / len(speakers)

    @property
    def silent(self) -> float:
        """Seconds of silence over seconds of sound."""
        sound = sum(s.sound for s in self.speaking)
        return sum(s.silence for s in self.speaking) / sound if sound else 0.0

    @property
    def off(self) -> float:
        """Mean distance of the wait that was told from the wait that came, in seconds, of those that had to wait."""
        pairs = [(s.told, s.waited) for s in self.served if s.told is not None and s.waited is not None]
        return sum(abs(told - waited) for told, waited in pairs) / len(pairs) if pairs else 0.0

    def numbers(self) -> dict[str, float]:
        """All of it, by name."""
        found: dict[str, float] = {"requests": len(self.asked), "wall_s": self.wall, "throughput": self.throughput}
        columns = {
            "first_sound": [s.first_sound for s in self.speaking if s.first_sound is not None],
            "first_token": [s.first_token for s in self.done if s.first_token is not None],
            "total": [s.total for s in self.done],
        }
        for name, values in columns.items():
            for share in (50, 90, 99):
                found[f"{name}_p{share}_s"] = percentile(values, share / 100)
        waiting = [s.waited for s in self.served if s.waited is not None]
        found |= {
            "silence": self.silent,
            "sound_s": sum(s.sound for s in self.speaking),
            "gaps": sum(not s.good for s in self.speaking),
            "goodput": self.goodput,
            "refused": sum(s.state == "refused" for s in self.served),
            "failed": sum(s.state == "failed" for s in self.served),
            "waited": len(waiting),
            "waited_mean_s": sum(waiting) / len(waiting) if waiting else 0.0,
            "wait_error_s": self.off,
        }
        return found


HEADER = (
    f"{'run':<12} {'policy':<10} {'n':>4} {'wall s':>7} {'per s':>6} | {'first sound p50, 90, 99':>23} | {'first token':>17}"
    f" | {'total':>20} | {'silence':>7} {'gaps':>4} {'good/s':>6} | {'refused':>7} {'waited':>6} {'s':>5} {'off':>5}"
)


def row(name: str, policy: str, outcome: Outcome) -> str:
    """A line under HEADER: seconds at the 50th, 90th and 99th percentile; silence as a share of sound, answers with a gap."""
    n = outcome.numbers()
    sound, token, total = (
        " ".join(f"{n[f'{what}_p{share}_s']:{width}.2f}" for share in (50, 90, 99))
        for what, width in (("first_sound", 7), ("first_token", 5), ("total", 6))
    )
    return (
        f"{name:<12} {policy:<10} {n['requests']:4.0f} {n['wall_s']:7.1f} {n['throughput']:6.3f} | {sound} | {token} | {total}"
        f" | {n['silence']:7.4f} {n['gaps']:4.0f} {n['goodput']:6.3f}"
        f" | {n['refused']:7.0f} {n['waited']:6.0f} {n['waited_mean_s']:5.1f} {n['wait_error_s']:5.1f}"
    )


def differing(outcomes: Iterable[Outcome]) -> int:
    """Answers whose text is not the one that the same request got the first time."""
    first: dict[tuple[str, int, int], str] = {}
    other = 0
    for outcome in outcomes:
        for request, served in zip(outcome.asked, outcome.served, strict=True):
            if served.state == "done":
                other += served.text != first.setdefault((request.question, request.tokens, request.seed), served.text)
    return other
