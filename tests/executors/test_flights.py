"""Several batches on a device: whatever the device's pace, what is said and kept is what one batch at a time would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
from flown import KINDS, World, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_runtime.executors.flights import Flight, Flights
from omni_runtime.executors.workbench import Flying, Workbench
from omni_runtime.experts.slots import Batch, Slots
from omni_runtime.work import Broken, Drop, Release

pytestmark = pytest.mark.torch
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1)), max_size=40)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 3), EVENTS)
def test_whatever_the_pace_of_the_device(most: int, events: list[tuple[str, int]]) -> None:
    World(most).play(events)


# -- Planted bugs


def newest_first(self: Flights) -> Flight:
    flight = self._flying.pop()
    self._report(flight.collect())
    return flight


def overtakes(self: Flights) -> None:
    """A batch that is over at once is answered before those that are not."""


def answers_twice(self: Flights, flight: Flight) -> None:
    if flight not in self._flying:
        self._report(flight.collect())
    land(self, flight)


def loses_errors(self: Flights) -> Flight:
    flight = self._flying.popleft()
    if not isinstance(found := flight.collect(), Broken):
        self._report(found)
    return flight


def launches_too_many(self: Flights, message: Any) -> None:
    self._most = 1 << 30
    carry(self, message)


def forgets_who_waits(self: Flights, message: Any) -> None:
    self._waits.clear()
    carry(self, message)


def drops_later(self: Flights, message: Any) -> None:
    later: list[Any] = self.__dict__.setdefault("later", [])
    if isinstance(message, Drop | Release) and self._flying:
        later.append(message)
        return
    if not self._flying:
        for old in later:
            carry(self, old)
        later.clear()
    carry(self, message)


def drops_when_it_collects(self: Flights, message: Any) -> None:
    if isinstance(message, Drop | Release):
        self.rest()
    carry(self, message)


def undoes_the_last(self: Batch, kind: Any, error: Any, trace: Any) -> None:
    """Of the batch that was launched last, as if there were only one."""
    if kind is not None:
        mine = self._kept
        self._kept = self._slots.__dict__["last"]
        leave(self, kind, error, trace)
        self._kept = mine
    leave(self, None, None, None)


def remembers_the_last(self: Slots, brought: Any = ()) -> Batch:
    made = batch(self, brought)
    self.__dict__["last"] = made._kept
    return made


def undoes_what_was_released(self: Batch, kind: Any, error: Any, trace: Any) -> None:
    if kind is not None:
        for ref, _, since in self._kept:
            self._slots._tensors[ref] = since
    leave(self, kind, error, trace)
    if kind is not None:
        for ref, before, _ in self._kept:
            if before is not None:
                self._slots._tensors[ref] = before


def forgets_to_undo(self: Batch, kind: Any, error: Any, trace: Any) -> None:
    leave(self, None, None, None)


def does_not_stay(self: Batch) -> None:
    pass


def copies_behind_all(self: Workbench, results: Any, after: Any = None) -> None:
    copy(self, results)


def collects_early(self: Flying) -> Any:
    self._end.wait = lambda: None  # type: ignore[union-attr, method-assign]
    return collect(self)


land, carry, leave, batch, copy, collect = (
    Flights.land,
    Flights.carry,
    Batch.__exit__,
    Slots.batch,
    Workbench._copy,
    Flying.collect,
)
MUTANTS: list[list[tuple[type, str, Callable[..., Any]]]] = [
    [(Flights, "_collect", newest_first)],
    [(Flights, "rest", overtakes)],
    [(Flights, "land", answers_twice)],
    [(Flights, "_collect", loses_errors)],
    [(Flights, "carry", launches_too_many)],
    [(Flights, "carry", forgets_who_waits)],
    [(Flights, "carry", drops_later)],
    [(Flights, "carry", drops_when_it_collects)],
    [(Batch, "__exit__", undoes_the_last), (Slots, "batch", remembers_the_last)],
    [(Batch, "__exit__", undoes_what_was_released)],
    [(Batch, "__exit__", forgets_to_undo)],
    [(Batch, "stay", does_not_stay)],
    [(Workbench, "_copy", copies_behind_all)],
    [(Flying, "collect", collects_early)],
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant[0][2].__name__)
def test_a_mutant_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: list[tuple[type, str, Callable[..., Any]]]) -> None:
    for change in mutant:
        monkeypatch.setattr(*change)
    for seed in range(200):
        most, events = drawn(seed)
        try:
            World(most).play(events)
        except Exception:
            return
    pytest.fail("200 worlds, and nobody noticed")


def test_the_worlds_of_the_mutants_are_fine_without_them() -> None:
    for seed in range(60):
        most, events = drawn(seed)
        World(most).play(events)
