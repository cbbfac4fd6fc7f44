"""Random worlds by seed, fast enough to hunt mutants with. `worlds.py` plays thousands."""

from __future__ import annotations

import random
from typing import Any

from asks import DECLARED, Ask, Wish
from curse import HARM, Curse, curses
from drawn import FIRST, chosen
from stage import CHOICES, HOSTS
from world import World

from omni_runtime.scheduler.policy import POLICIES

Move = tuple[Any, ...]
POOLS = (4, 9, 17, 40)  # the largest request of some programs fills 17 or 34, some never fit into 4 or 9
STOPS = ((), (), ("la lo",), ("é!", "日"))
PRIORITIES = ("high", "normal", "low")
SOON = (None, 0.001, 0.3, 100.0)  # seconds until something is wanted
BUSY = (1e-6, 1e-3)  # seconds of a batch: a stream can be promised, or is too slow


# Worlds below a million draw from the choices that there were when what they found was found; newer ones from all.
FOUND_AMONG, NEWER = 16, 10**6


class Mood:
    """What a world is like. Each lacks some kinds of trouble and some requests, so that the others meet more often."""

    def __init__(
        self,
        r: random.Random,
        reuse: bool,
        wishes: random.Random | None = None,
        drawn: random.Random | None = None,
        known: int = len(CHOICES),
    ) -> None:
        self.r = r
        self.wishes = wishes  # draws how things are wanted: apart, so that what is wanted stays the same; None: just so
        self.tenants = ("", "a", "b") if wishes is None or wishes.random() < 0.6 else ("a",)
        self.choices = r.sample(range(known), r.choice((1, 2, 4, known)))
        if drawn is not None:  # programs that nobody wrote, beside those that somebody did
            self.choices = [*self.choices[:2], *(FIRST + drawn.randrange(10**9) for _ in range(drawn.choice((1, 2, 4))))]
        self.prompts = r.choice(((1, 2, 3), (9, 13, 20), (1, 2, 3, 5, 9, 20, 63, 64)))
        if reuse:  # prompts long enough to share their beginning
            self.choices, self.prompts = r.choice(((10,), (10, 11, 12))), (5, 9, 13, 20)
        self.promised = wishes.choice((0.0, 0.5, 0.9)) if wishes is not None else 0.0
        if wishes is not None and self.promised and not reuse:  # sound, and the same again, so that paces get known
            self.choices = wishes.choice(([4], [3, 6], [9], self.choices))
        self.cursed = r.choice((0.0, 0.3, 0.6))
        self.harm = r.choice((HARM, ("op", "transient")))
        trouble = {"cancel": 8, "lose": 3, "late": 2, "repeat": 2, "wrong": 3, "host": 5, "restart": 4, "preempt": 8}
        self.moves = {"ask": 30, "answer": 40} | {what: often for what, often in trouble.items() if r.random() < 0.6}

    def ask(self) -> Ask:
        r = self.r
        return Ask(
            choice=r.choice(self.choices),
            seed=r.randrange(6),
            prompt=r.choice(self.prompts),
            most=r.choice((0, 1, 2, 4, 7, None)),
            steps=r.randint(1, 4),
            stop=r.choice(STOPS),
        )

    def wish(self) -> Wish:
        w = self.wishes
        if w is None:
            return Wish()
        return Wish(w.choice(self.tenants), w.choice(SOON), w.choice(SOON), w.random() < self.promised)

    def curse(self, ask: Ask) -> Curse | None:
        r = self.r
        if r.random() >= self.cursed:
            return None
        nodes = sorted(chosen(ask.choice)[0].nodes)
        return Curse(r.choice(nodes), r.choice(self.harm), r.randrange(6))

    def move(self) -> Move:
        r = self.r
        if self.wishes is not None and self.wishes.random() < 0.05:
            return ("played", self.wishes.randrange(9), self.wishes.choice((0.0, 1e-3, 5.0)))
        what = r.choices(list(self.moves), weights=list(self.moves.values()))[0]
        if what == "ask":
            ask = self.ask()
            return ("ask", ask, self.curse(ask), r.choice(PRIORITIES), self.wish())
        if what == "host":
            return ("host", r.choice(HOSTS), r.randint(1, 2))
        if what == "lose":
            return ("lose", r.randrange(12), r.random() < 0.7)
        if what == "restart":
            return ("restart", r.randrange(4), r.random() < 0.8)
        if what == "late":
            return ("late", r.randrange(8), r.random() < 0.5)
        if what == "wrong":
            return ("wrong", r.randrange(4), r.choice((-1, 1)))
        return (what, r.randrange(12))


def inputs(world: World, move: Move) -> list[Any]:
    what, *args = move
    if what == "host":
        return world.host(*args) if len(world.executors) < 4 else []
    if what in ("cancel", "preempt"):
        return {"cancel": world.stop, "preempt": world.preempt}[what](max(1, len(world.asked) - args[0]))
    return {
        "ask": world.ask,
        "answer": world.answer,
        "lose": world.lose,
        "restart": world.restart,
        "late": world.answer_late,
        "repeat": world.repeat,
        "wrong": world.answer,
        "played": world.played,
    }[what](*args)


def play(seed: int, longest: int = 60) -> World:
    """One world: everything about it follows from the seed."""
    r = random.Random(seed)
    with curses():
        reuse = r.random() < 0.4
        wishes = random.Random(f"wishes {seed}") if seed % 2 else None
        more: dict[str, Any] = {}
        if wishes is not None:
            policy, tenants = wishes.choice([*POLICIES, "deadline"]), wishes.choice((None, DECLARED))
            more = {"policy": policy, "tenants": tenants, "seconds": wishes.choice(BUSY)}
        world = World(r.choice(POOLS), r.choice((2, 5, 20_000, 20_000)), reuse, **more)
        known = FOUND_AMONG if seed < NEWER else len(CHOICES)
        mood = Mood(r, reuse, wishes, random.Random(f"programs {seed}") if seed % 3 == 2 else None, known)
        world.turn(world.host(None, r.randint(1, 2)))
        for _ in range(r.randint(5, longest)):
            burst = [mood.move() for _ in range(r.choice((1, 1, 1, 3, 7)))]
            world.turn([item for move in burst for item in inputs(world, move)], later=r.choice((0.0, 0.001, 0.3, 3.0)))
            for _ in range(r.choice((0, 0, 2, 6))):
                world.turn(world.answer(r.randrange(4)), later=0.001)
        world.drain()
    return world


def search(first: int, last: int, longest: int = 60) -> None:
    """Plays worlds until one fails.

    Raises:
        AssertionError: naming the seed.
    """
    for seed in range(first, last):
        try:
            play(seed, longest)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
