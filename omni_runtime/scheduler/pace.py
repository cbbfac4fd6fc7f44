"""How the loops of a program advance against each other, learned from the requests that ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = 64  # recent weights
# Of the longest gap, after a request: half of it after 700. A clause of 160 characters comes once in 60 answers; with half of it
# lost after 140, a third was forgotten when the next one came, and a promised stream was silent for 0.8 s.
FADE = 0.999


class Pace:
    """One node of a program. Means are over requests, and forget."""

    __slots__ = ("firsts", "gap", "items", "next", "reach", "runs", "second", "size", "units", "weights", "work")

    def __init__(self) -> None:
        self.runs = 0
        self.units = 1.0  # of a request
        self.size = 1.0  # of a unit
        self.work = 1.0  # of a unit: size times weight
        self.reach = 0.0  # of a unit
        self.next = 1.0  # units for one unit of the loop that reads it
        self.second = 0.0  # units for a second of the sound that it leads to
        self.gap = 1.0  # most items that a reader took in one step, forgotten slowly: tokens of the longest clause
        self.items: dict[str, float] = {}  # given for a unit of work, by port
        self.firsts: list[float] = []  # the same of the first units of recent requests: an answer does not begin as it goes on
        self.weights: list[float] = []  # of recent units, the newest last; only where units differ in weight

    def learn(self, **found: float) -> None:
        """Means of a request that ended as it should."""
        self.runs += 1
        self.gap *= FADE
        rate = max(0.05, 1.0 / self.runs)
        for name, value in found.items():
            setattr(self, name, getattr(self, name) + rate * (value - getattr(self, name)))

    def learn_items(self, found: Mapping[str, float]) -> None:
        rate = max(0.05, 1.0 / max(1, self.runs))
        for port, value in found.items():
            old = self.items.get(port, value)
            self.items[port] = old + rate * (value - old)

    def weigh(self, weight: float, first: bool = False) -> None:
        """A unit of a weight other than 1 is done, the first of its request or a later one."""
        if first:
            self.firsts.append(weight)
            del self.firsts[:-KEPT]
        self.weights.append(weight)
        if len(self.weights) > KEPT:
            del self.weights[0]

    def waited(self, items: int) -> None:
        """A reader took so many items in one step."""
        if items > self.gap:
            self.gap = float(items)

    def save(self) -> dict[str, Any]:
        """All of it as plain numbers."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> Pace:
        """
        Raises:
            ValueError: something is missing, unknown, or no number.
        """
        pace = cls()
        if odd := set(saved) ^ set(cls.__slots__):
            raise ValueError(f"{min(odd)} is {'unknown' if min(odd) in saved else 'missing'}")
        for name in cls.__slots__:
            value = saved[name]
            numbers = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
            if not isinstance(value, type(getattr(pace, name))) and not (isinstance(value, int) and name != "runs"):
                raise ValueError(f"{name}: {value!r} is of the wrong kind")
            if not all(isinstance(x, int | float) and 0 <= x < float("inf") for x in numbers):
                raise ValueError(f"{name}: numbers from 0 on are needed, not {value!r}")
            setattr(pace, name, type(getattr(pace, name))(value))
        return pace
