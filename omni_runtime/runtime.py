"""The public face: load cards, submit programs."""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

from pydantic import Field

from omni_runtime import costs_file
from omni_runtime.card import ModelCard, Value, batch_limits, seeds
from omni_runtime.core import Core, Observer
from omni_runtime.engine import Engine
from omni_runtime.errors import CardError, RequestError, unknown
from omni_runtime.executors.base import Executor
from omni_runtime.executors.lineup import Kind, kind_named, lineup
from omni_runtime.handle import MAX_TIMEOUT, Handle, OutputKind
from omni_runtime.media_files import check_decoders, read_source
from omni_runtime.program import Program
from omni_runtime.replay.log import Recording, RecordLog, check_writable
from omni_runtime.request import SEEDS, resolve
from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.policy import policy_named


class Options(Value):
    """What a runtime may be told; see `Runtime`."""

    device: str = Field(default="cpu", min_length=1)
    kv_bytes: int = Field(default=1 << 30, ge=1)
    max_requests: int = Field(default=20_000, ge=1)
    slots: int | None = Field(default=None, ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=1024)
    prefix_cache: bool = True
    policy: Literal["deadline", "first_come", "stages", "requests"] = "deadline"
    tenants: Mapping[str, Annotated[float, Field(gt=0.0, le=1e6)]] = {}
    max_waiting: int = Field(default=64, ge=0)
    replicas: int = Field(default=1, ge=1, le=64)
    workers: Mapping[str, tuple[str, ...]] = {}
    hang_after_s: float | None = Field(default=120.0, gt=0.0, allow_inf_nan=False)
    hang_factor: float = Field(default=20.0, ge=1.0, allow_inf_nan=False)
    batch_invariant: bool = Field(default=False, strict=True)


class Runtime:
    """Loads the experts of some cards and serves requests until it is closed.

    Args:
        cards: the models; at least one.
        device: where experts run that are not the host's, as torch names it.
        executor: where the device's experts run: "thread"; "process", a worker process, which may die and is started again; or
            "loopback", a thread to which every message is encoded both ways, as the tests do.
        workers: names of executors, each with the "card/expert"s that it hosts: `{"a": ["smollm2/thinker"], "b": [...]}`. An
            expert that stands in several is served by all of them. By default one executor hosts all that the device has.
        replicas: so many executors, each with all experts of the device.
        executors: instead of the ones that would be made from `cards`, `device` and `executor`.
        kv_bytes: memory for the KV caches of each expert that has one.
        max_requests: live requests before new ones are refused as overload.
        slots: batches that may be at an executor at once; with 2, as is usual on a GPU, a batch of another group is queued behind
            the one that runs. 1 elsewhere.
        observers: are told of every step, such as `observe.Recorder()`; one that raises hurts nobody.
        record: path of a log of all that the core is fed, for `omni replay`; or a `replay.Recording`, which can be redacted.
        threads: that torch uses for one op on a CPU, a setting of the whole process; None leaves it.
        policy: in which order steps run: "deadline"; the others are there to compare with, see `scheduler/policy.py`.
        tenants: weight of each tenant's share of the devices. Without any, every tenant that comes has the same; with some,
            others are refused.
        costs: what earlier runs learned, as `runtime.costs()` gives it, or the path of a file of it (`omni calibrate`, or
            `costs_file.write(path, runtime.costs())`); without any the cards' guesses are the beginning.
        max_waiting: requests that may wait until their guarantee can be kept, before more are refused.
        hang_after_s: seconds that every batch may take before its executor counts as hung: it is declared lost and started
            again, and its requests go on elsewhere or later; None: for ever.
        hang_factor: it may also take so many times what was predicted for it.
        prefix_cache: keep the KV of ended requests while there is room, for those that begin with the same text.
        batch_invariant: outputs are the same to the bit alone and in any crowd, and after any preemption or loss, on the same
            machine with the same number of `threads`. It costs speed where pictures and sounds are read or painted.

    Raises:
        CardError, CheckpointError, MissingExtra: a card cannot be loaded.
        LoadError: a worker process did not come so far.
    """

    def __init__(
        self,
        cards: Iterable[ModelCard],
        *,
        device: str = "cpu",
        executor: Kind = "thread",
        executors: list[Executor] | None = None,
        kv_bytes: int = 1 << 30,
        max_requests: int = 20_000,
        slots: int | None = None,
        threads: int | None = None,
        prefix_cache: bool = True,
        policy: Literal["deadline", "first_come", "stages", "requests"] = "deadline",
        tenants: Mapping[str, float] | None = None,
        costs: Mapping[str, Any] | str | Path | None = None,
        max_waiting: int = 64,
        workers: Mapping[str, Sequence[str]] | None = None,
        replicas: int = 1,
        hang_after_s: float | None = 120.0,
        hang_factor: float = 20.0,
        observers: Iterable[Observer] = (),
        record: Recording | str | Path | None = None,
        batch_invariant: bool = False,
    ) -> None:
        if isinstance(cards, ModelCard | str | Program):
            raise CardError(f"cards: a list of ModelCards is needed, not {str(cards)[:60]!r}; write [card]")
        cards = list(cards)
        if odd := [card for card in cards if not isinstance(card, ModelCard)]:
            raise CardError(f"cards: {str(odd[0])[:60]!r} is a {type(odd[0]).__name__}, not a ModelCard")
        options = Options(
            device=device,
            kv_bytes=kv_bytes,
            max_requests=max_requests,
            slots=slots,
            threads=threads,
            prefix_cache=prefix_cache,
            policy=policy,
            tenants=tenants or {},
            max_waiting=max_waiting,
            replicas=replicas,
            workers=_tuples(workers or {}),
            hang_after_s=hang_after_s,
            hang_factor=hang_factor,
            batch_invariant=batch_invariant,
        )
        watching = _observers(observers)
        recording = record if record is None or isinstance(record, Recording) else Recording(record)
        if recording is not None:
            check_writable(recording.path)
        self.cards = {card.name: card for card in cards}
        if not cards or len(self.cards) < len(cards):
            raise CardError(f"give one or more cards of different names, not {[c.name for c in cards]}")
        kind_named(executor)
        if executors is not None:
            _bring_your_own(executors, options, executor)
        else:
            executors = lineup(
                cards,
                executor,
                device,
                kv_bytes,
                workers=options.workers,
                replicas=replicas,
                slots=slots,
                threads=threads,
                reuse=prefix_cache,
                batch_invariant=batch_invariant,
            )
        self._ids = count(1)
        learned = Costs(seeds(*cards))
        if isinstance(costs, str | Path):
            costs_file.read(costs, learned)
        elif costs is not None:
            try:
                if not isinstance(costs, Mapping):
                    raise ValueError(f"a mapping or a path is needed, not a {type(costs).__name__}")
                learned.load(costs)
            except ValueError as error:
                raise CardError(f"costs: {error}; give what runtime.costs() gave") from None
        self._tenants = options.tenants
        watchdog = None if hang_after_s is None else (hang_after_s, hang_factor)
        core = Core(batch_limits(*cards), max_requests, watching, learned, policy_named(policy), options.tenants, watchdog)
        core.scheduler.admission.most = max_waiting
        self._record = log = RecordLog(recording, core, cards) if recording is not None else None
        try:
            self._engine = Engine(core, executors, time.monotonic)
        except BaseException:
            if log is not None:
                log.close()
            raise
        # A runtime that is dropped, or alive when Python ends, is closed: a thread inside an op at exit aborts the process.
        self._closing = weakref.finalize(self, _close, self._engine, log)

    def submit(
        self,
        program: Program,
        *,
        outputs: Sequence[str] | str | None = None,
        seed: int | None = None,
        n: int = 1,
        priority: Literal["high", "normal", "low"] = "normal",
        label: str = "",
        tenant: str = "",
        deadline_s: float | None = None,
        first_output_s: float | None = None,
        guarantee: Literal["no-underrun"] | None = None,
        **given: Any,
    ) -> Handle:
        """Takes a request and returns at once.

        Args:
            program: what to run; its cards must be loaded.
            outputs: the outputs that are wanted; loops that serve none of them do not run. All by default.
            seed: 0 .. 2**63-1. The same seed gives the same answer, alone or in a crowd. One is drawn if there is none.
            n: how many samples; they share all work before the first draw, and sample i has seed + i.
            priority: how long the request's steps may wait for others'.
            label: the caller's own name for the request.
            tenant: whose share of the devices it uses.
            deadline_s: seconds by which all of it is wanted. It steers the order; `result().missed` tells whether it was met.
            first_output_s: the same, of the first piece of every output.
            guarantee: "no-underrun": once its sound has begun it goes on without a gap. Such a request waits until that can be
                kept (`handle.waiting` says about how long), or is refused with `Overloaded.retry_after`; its first sound comes
                later, when enough is made to be safe.
            given: the program's inputs by name; parameters of loops, either `think={"max_tokens": 8}` or, where one loop
                only takes it, `max_tokens=8`.

        Raises:
            ProgramError: the program is wrong.
            RequestError: an argument is unknown, missing or out of range.
            MissingExtra: a file in its messages needs a package that is not installed.
            EngineStopped: the runtime is closed.

        A request that can never fit, or that comes when too many are alive, is refused through its handle.
        """
        if not isinstance(program, Program):
            call = "; call it" if callable(program) else ""
            raise RequestError(f"program: a Program is needed, not {str(program)[:60]!r}{call}")
        for name, card in program.cards.items():
            if self.cards.get(name) != card:
                what = (
                    unknown("card", name, self.cards) if name not in self.cards else f"card {name!r} is loaded as another version"
                )
                raise RequestError(f"program {program.name!r}: {what}; load it with Runtime([...])")
        run = next(self._ids)
        wanted = outputs if outputs is None or isinstance(outputs, str) else list(outputs)
        request, submit = resolve(
            run,
            program,
            secrets.randbelow(SEEDS),
            given,
            outputs=wanted,
            seed=seed,
            n=n,
            priority=priority,
            label=label,
            tenant=tenant,
            deadline_s=deadline_s,
            first_output_s=first_output_s,
            guarantee=guarantee,
            read=read_source,
        )
        check_decoders(submit.inputs.values())
        if self._tenants and request.tenant not in self._tenants:
            raise RequestError("tenant: " + unknown("tenant", request.tenant, self._tenants))
        kinds = {}
        steps = {step.name: step for step in submit.plan.steps}
        for name in submit.plan.outputs:
            port = program.outputs[name]
            spec = program.spec(port.node)
            shared = not (steps[port.node].apart or spec.draws)
            kinds[name] = OutputKind(spec.ports[port.port].type, shared, getattr(spec, "sample_rate", 0))
        handle = Handle(
            run, request.label, submit.seed, submit.n, kinds, time.monotonic(), self._engine.cancel, self._engine.played
        )
        self._engine.submit(submit, handle)
        return handle

    def story(self, handle: Handle) -> list[str]:
        """What led a request to where it is, oldest first: for a human who asks why nothing comes."""
        return self._engine.story(handle.id)

    def costs(self) -> dict[str, Any]:
        """What was learned so far of what steps cost and how loops advance, as plain numbers: save it as JSON, give it to the
        next `Runtime(costs=...)`, or to a simulation."""
        return self._engine.costs()

    def accounts(self) -> dict[str, dict[str, float]]:
        """By tenant: device-seconds so far, requests that came, how many are alive, and its weight."""
        return self._engine.accounts()

    @property
    def idle(self) -> bool:
        """Whether no request is alive and every book is closed."""
        return self._engine.idle

    def close(self, grace_s: float = 0.0) -> None:
        """Takes nothing new, ends what is alive, waits for the batches that run, and lets go of everything; idempotent.

        Args:
            grace_s: seconds that requests which are alive may go on. What has not ended then ends with `EngineStopped`.
        """
        if not isinstance(grace_s, int | float) or not 0.0 <= grace_s <= MAX_TIMEOUT:
            raise ValueError(f"grace_s={grace_s!r}: seconds from 0 to {MAX_TIMEOUT:.0f} are needed")
        self._engine.close(grace_s)
        if self._record is not None:
            self._record.close()
        self._closing.detach()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _close(engine: Engine, log: RecordLog | None) -> None:
    try:
        engine.close()
    finally:
        if log is not None:
            log.close()


def _tuples(workers: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    if not isinstance(workers, Mapping):
        raise CardError(f"workers={workers!r}: names with lists of experts are needed, as in {{'a': ['card/expert']}}")
    for name, experts in workers.items():
        if isinstance(experts, str) or not isinstance(experts, Iterable):
            raise CardError(f"workers[{name!r}]: a list of experts is needed, not {experts!r}; write [{experts!r}]")
    return {name: tuple(experts) for name, experts in workers.items()}


def _observers(observers: Iterable[Observer]) -> list[Observer]:
    if callable(getattr(observers, "see", None)) or not isinstance(observers, Iterable):
        raise CardError(f"observers: a list is needed, not a {type(observers).__name__}; write [recorder]")
    found = list(observers)
    for one in found:
        if isinstance(one, type) or not callable(getattr(one, "see", None)):
            raise CardError(f"observers: {one!r} cannot look on; give an object with a method see, such as Recorder()")
    return found


def _bring_your_own(executors: Sequence[Executor], options: Options, kind: str) -> None:
    """Options of executors that would be made are refused where executors are given: they would be ignored in silence."""
    if not isinstance(executors, list) or not executors or not all(callable(getattr(ex, "send", None)) for ex in executors):
        raise CardError(f"executors: a list of at least one executor is needed, not {executors!r}")
    usual = Options(
        max_requests=options.max_requests,
        policy=options.policy,
        tenants=options.tenants,
        max_waiting=options.max_waiting,
        hang_after_s=options.hang_after_s,
        hang_factor=options.hang_factor,
    )
    for name in Options.model_fields:
        if getattr(options, name) != getattr(usual, name):
            raise CardError(f"{name}={getattr(options, name)!r}: the executors that were given bring their own; leave it out")
    if kind != "thread":
        raise CardError(f"executor={kind!r}: executors were given; wrap each in LoopbackExecutor, or leave one of both out")
