"""A workload played to the core, on ghosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from omni_runtime.card import ModelCard, seeds
from omni_runtime.core import Observer
from omni_runtime.errors import RequestError
from omni_runtime.find import find
from omni_runtime.program import Plan, Program
from omni_runtime.request import resolve
from omni_runtime.scheduler.cost import Costs
from omni_runtime.sim import Simulation
from omni_runtime.simulate.ghost import devices
from omni_runtime.simulate.outcome import Outcome
from omni_runtime.simulate.parts import Part, Script, clauses_of, parts, prompt
from omni_runtime.simulate.prose import PER_TOKEN, Prose, variant
from omni_runtime.simulate.workload import Arrival

KV_BYTES = 1 << 30  # for each expert of each device that keeps KV, as a Runtime has


class Busy:
    """Seconds that experts kept their devices busy, by stretches of `width` seconds."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.by: dict[str, dict[int, float]] = {}  # expert -> stretch -> device-seconds

    def add(self, expert: str, begin: float, end: float) -> None:
        cells = self.by.setdefault(expert, {})
        width = self.width
        at, last = int(begin / width), int(end / width)
        if at == last:
            cells[at] = cells.get(at, 0.0) + end - begin
            return
        for cell in range(at, last + 1):
            part = min(end, (cell + 1) * width) - max(begin, cell * width)
            cells[cell] = cells.get(cell, 0.0) + part


class Replay(Simulation):
    """Requests come when the workload says, and what they give is counted instead of kept.

    Args:
        cards: of all programs that come.
        truth: prices and paces as they are. What it lacks is taken from the cards, and named in `assumed`.
        count: devices, each with all experts.
        believed: what the core knows at the start; None: what is true, which is a runtime that has been up for a while.
        seed: of noise and of texts; None: no noise.
        kv_bytes: see `Runtime`.
        slots: see `Runtime`.
        options: further arguments of `Simulation`.
    """

    def __init__(
        self,
        cards: Sequence[ModelCard],
        truth: Costs,
        count: int = 1,
        *,
        believed: Costs | None = None,
        seed: int | None = 0,
        kv_bytes: int = KV_BYTES,
        slots: int = 1,
        width: float = 1.0,
        observers: Iterable[Observer] = (),
        **options: Any,
    ) -> None:
        self.truth = copied(truth, cards)
        self.assumed: list[str] = []
        known = {key for key, model in truth.models.items() if model.batches}
        self.assumed = sorted(f"{expert}.{op}" for expert, op in seeds(*cards) if (expert, op) not in known)
        self.scripts: dict[int, Script] = {}
        self.plays: dict[int, Arrival] = {}
        self.seed = seed or 0
        self.count = count
        self.busy_by = Busy(width)
        self._parts: dict[tuple[str, tuple[str, ...]], dict[str, Part]] = {}
        self._prose: dict[str, Prose] = {}
        made = devices(count, cards, self.truth, self.scripts, kv_bytes=kv_bytes, seed=seed, slots=slots)
        believes = copied(believed if believed is not None else truth, cards)
        super().__init__(*made, cards=tuple(cards), max_runs=1 << 30, costs=believes, observers=observers, **options)
        for ghost in made:
            ghost.bills = self.core.scheduler.executors[ghost.name].bills

    def play(self, arrivals: Iterable[Arrival]) -> list[Outcome]:
        """Plays a workload to its end; returns what became of each request, in the order of the workload."""
        programs: dict[str, Program] = {}
        heard = []
        finish = self.finish
        for arrival in arrivals:
            program = programs.get(arrival.program)
            if program is None:
                program = programs[arrival.program] = named(arrival.program)
            while finish:
                name = min(finish, key=finish.__getitem__)
                if finish[name] > arrival.at:
                    break
                self.complete(name)
            self.now = max(self.now, arrival.at)
            heard.append(self.ask(program, arrival))
        while finish:
            self.complete(min(finish, key=finish.__getitem__))
        return heard

    def ask(self, program: Program, arrival: Arrival) -> Outcome:
        """A request comes now."""
        self.runs += 1
        run = self.runs
        given, fields = self.words(program, arrival, run)
        _, submit = resolve(run, program, 0, given, seed=0, **fields)
        plan: Plan = submit.plan
        found = self._parts.get(key := (plan.program, plan.outputs))
        if found is None:
            found = self._parts[key] = parts(plan, self.truth, self.seed)
        self.scripts[run] = Script(found, run, variant(run), arrival.prompt_tokens or 0, arrival.shared_tokens)
        outcome = self.handles[run] = heard(arrival, plan, self.now)
        self.feed(submit)
        return outcome

    def words(self, program: Program, arrival: Arrival, run: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """A request as `submit` takes it: its inputs and parameters, and the fields of `Request`."""
        plan = program.plan(arrival.outputs)
        given: dict[str, Any] = dict(arrival.params)
        characters = arrival.characters or round((arrival.prompt_tokens or 32) * PER_TOKEN)
        for step in plan.steps:
            for slot, edge, _ in step.reads:
                name = edge.port.port
                if edge.port.node or name in given:
                    continue
                kind = step.spec.reads[slot].type
                given[name] = (
                    prompt(run, arrival.prompt_tokens or 32, arrival.shared_tokens)
                    if kind == "token"
                    else self._text(program, plan, run, characters)
                )
        if arrival.tokens is not None:
            for name, count in answers(plan, self.truth, arrival.tokens).items():
                given[name] = {**given.get(name, {}), "max_tokens": count}
        fields = {name: getattr(arrival, name) for name in FIELDS if getattr(arrival, name) != Arrival.model_fields[name].default}
        return given, fields

    def _text(self, program: Program, plan: Plan, run: int, characters: int) -> str:
        """Clauses as the program's own loops saw them."""
        prose = self._prose.get(program.name)
        if prose is None:
            prose = self._prose[program.name] = Prose(*clauses_of(plan, self.truth), seed=self.seed)
        return prose.text(run, characters)

    def hosts(self) -> dict[str, int]:
        """How many executors host each expert."""
        found: dict[str, int] = {}
        for executor in self.executors.values():
            for expert in executor.up.experts:
                found[expert] = found.get(expert, 0) + 1
        return found

    def complete(self, name: str) -> None:
        head: Any = self.mail[name][0]
        ghost: Any = self.executors[name]
        end = self.finish[name] - ghost.gap
        self.busy_by.add(head.expert, end - ghost.spent, end)
        super().complete(name)


FIELDS = ("outputs", "priority", "n", "tenant", "guarantee", "deadline_s", "first_output_s")


def named(name: str) -> Program:
    """
    Raises:
        RequestError: there is no such program.
        OmniError: see `find`.
    """
    found = find(name)
    if isinstance(found, ModelCard):
        raise RequestError(f"program={name!r} is a card; give a program")
    return found


def answers(plan: Plan, costs: Costs, tokens: int) -> dict[str, int]:
    """Tokens of every loop that draws some: of the first as the workload says, of others in the learned
    proportion."""
    found: dict[str, int] = {}
    first = 0.0
    for step in plan.steps:
        if step.spec.kind != "ar_decode":
            continue
        pace = costs.paces.get((plan.program, step.name))
        units = pace.units if pace is not None and pace.runs else 0.0
        found[step.name] = round(tokens * units / first) if found and units and first else tokens
        first = first or units
    return found


def heard(arrival: Arrival, plan: Plan, now: float) -> Outcome:
    """An ear for a request."""
    sounds: dict[str, int] = {}
    texts = []
    for step in plan.steps:
        for port, outputs in step.outputs.items():
            kind = step.spec.ports[port].type
            for output in outputs:
                if kind == "samples":
                    sounds[output] = getattr(step.spec, "sample_rate", 0) or 24_000
                elif kind == "text":
                    texts.append(output)
    deadline = now + arrival.deadline_s if arrival.deadline_s is not None else None
    first = now + arrival.first_output_s if arrival.first_output_s is not None else None
    return Outcome(now, sounds, frozenset(texts), arrival.program, arrival.tenant, deadline, first)


def copied(costs: Costs, cards: Iterable[ModelCard]) -> Costs:
    """Costs of their own, with the guesses of cards for what is not known, at the speed that is usual: what was saved in a slow
    minute is not slow for ever."""
    made = Costs(seeds(*cards))
    made.load(costs.save())
    for model in made.models.values():
        model.speed = model.usual
    return made


def cards_of(arrivals: Iterable[Arrival]) -> list[ModelCard]:
    """The cards of all programs of a workload.

    Raises:
        OmniError: a program is not there, or two have different cards of one name.
    """
    found: dict[str, ModelCard] = {}
    for name in dict.fromkeys(arrival.program for arrival in arrivals):
        for card in named(name).cards.values():
            if found.setdefault(card.name, card) != card:
                raise RequestError(f"program={name!r}: its card {card.name!r} differs from another program's of that name")
    return list(found.values())
