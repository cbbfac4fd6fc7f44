"""The executor in a process of its own: started, watched, and started again when it dies."""

from __future__ import annotations

import builtins
import os
import pickle
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Annotated

import msgspec
from msgspec.structs import replace
from pydantic import Field, StrictBool, model_validator

from omni_runtime import errors
from omni_runtime.card import ExpertSpec, Value
from omni_runtime.errors import CardError, LoadError, unknown
from omni_runtime.executors.child import Child, zmq_module
from omni_runtime.executors.workbench import Exact
from omni_runtime.executors.worker import Config, Failed, Loaded
from omni_runtime.work import Broken, ExecutorDown, ExecutorUp, Message, Report, RunBatch, base

STEADY_S = 2.0  # after which an incarnation that has answered was no failed start: the next one comes without delay


class Settings(Value):
    """What a `ProcessExecutor` may be told; see there."""

    name: str = Field(pattern=r"^[^#\s]+(#[1-9]\d*)?$")
    pools: Mapping[str, Annotated[int, Field(ge=0)]] = {}
    device: str = Field(min_length=1)
    slots: int = Field(ge=1, le=64)
    threads: int | None = Field(default=None, ge=1, le=1024)
    reuse: StrictBool = False
    load_s: float = Field(gt=0.0, allow_inf_nan=False)
    silence_s: float = Field(ge=1.0, allow_inf_nan=False)
    backoff_s: tuple[Annotated[float, Field(ge=0.0, le=3600.0)], Annotated[float, Field(ge=0.0, le=3600.0)]]
    loads: int = Field(ge=1)
    stop_s: float = Field(ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _rises(self) -> Settings:
        if self.backoff_s[0] > self.backoff_s[1]:
            raise ValueError(f"backoff_s={self.backoff_s}: the first pause is the shortest; write (shortest, longest)")
        return self


class ProcessExecutor:
    """Runs batches in a worker process, in the order given.

    A worker that dies is reported at once and started again, each time a little later; messages for the dead one are dropped. The
    worker ends with this process, however that ends, and leaves nothing behind.

    Args:
        name: of the first incarnation: "cpu#1".
        experts: "card/expert" -> its line on the card; built in the worker.
        pools: "card/expert" -> KV blocks that may be in use at once.
        device: as torch names it.
        slots: batches that may lie in the mailbox, or be queued on the device, at once.
        threads: of torch on a CPU, in the worker; None leaves its default.
        reuse: keep the KV of ended loops while there is room, for requests that begin with the same text.
        exact: batch-invariant mode, and what is asked of the experts in it; None: off.
        load_s: seconds in which the experts must be there.
        silence_s: seconds without a heartbeat after which a worker that still exists is given up. An op may hold the interpreter
            for long, so be generous; `lose` is for ops that hang.
        backoff_s: seconds before it is started again, at first and at most; doubled with every death in a row.
        loads: failed starts in a row after which it stays down.
        stop_s: seconds that `close` waits for the batch that is running.
    """

    def __init__(
        self,
        name: str,
        experts: Mapping[str, ExpertSpec],
        pools: Mapping[str, int],
        device: str = "cpu",
        slots: int = 1,
        threads: int | None = None,
        reuse: bool = False,
        exact: Exact | None = None,
        *,
        load_s: float = 600.0,
        silence_s: float = 120.0,
        backoff_s: tuple[float, float] = (0.1, 30.0),
        loads: int = 5,
        stop_s: float = 10.0,
    ) -> None:
        zmq_module()
        asked = Settings(
            name=name,
            pools=pools,
            device=device,
            slots=slots,
            threads=threads,
            reuse=reuse,
            load_s=load_s,
            silence_s=silence_s,
            backoff_s=backoff_s,
            loads=loads,
            stop_s=stop_s,
        )
        if strangers := sorted(asked.pools.keys() - set(experts)):
            raise CardError("pools: " + unknown("expert", strangers[0], experts))
        first = f"{base(name)}#{name.partition('#')[2] or 1}"
        self.up = ExecutorUp(first, tuple(experts), dict(pools), slots, reuse, exact is not None)
        self.specs, self.device, self.threads = dict(experts), device, threads
        self.exact = None if exact is None else {name: tuple(ops) for name, ops in exact.items()}
        self._load_s, self._silence_s, self._backoff_s, self._loads, self._stop_s = load_s, silence_s, backoff_s, loads, stop_s
        self._child: Child | None = None  # the one whose reports count
        self._lock = Lock()  # held while anything is sent or reported, so that nothing of an incarnation follows its end
        self._closing = False
        self._first: SimpleQueue[Exception | ExecutorUp] = SimpleQueue()
        self._told: list[tuple[str, str]] = []  # warnings of the first load
        self._thread: Thread | None = None
        self._ear, self._wake = -1, -1
        self._early: list[Report] = []  # before anybody asked how it started
        self._report: Callable[[Report], None] = self._early.append

    @property
    def name(self) -> str:
        return self.up.executor

    @property
    def pid(self) -> int | None:
        """Of the worker that serves now."""
        child = self._child
        return None if child is None else child.pid

    # -- From any thread

    def launch(self) -> None:
        """Begins to load, and returns at once: several executors can load at the same time. Harmless when it has begun."""
        if self._thread is None:
            self._ear, self._wake = os.pipe()
            self._thread = Thread(target=self._run, name=f"omni-{self.name}", daemon=True)
            self._thread.start()

    def start(self, report: Callable[[Report], None]) -> ExecutorUp:
        """Waits until the experts are loaded.

        Raises:
            OmniError: a card, a checkpoint or a missing package, as in this process; LoadError: the worker did not come so far.
        """
        self.launch()
        first = self._first.get()
        if not isinstance(first, ExecutorUp):
            raise first
        with self._lock:  # it may have died since then
            self._report = report
            for early in self._early:
                report(early)
        for kind, text in self._told:
            warnings.warn(text, getattr(errors, kind), stacklevel=2)
        return first

    def send(self, message: Message) -> None:
        with self._lock:
            child = self._child
            if child is None or message.executor != self.name:
                return
            try:
                data = child.wire.encode(message)
            except Exception as error:  # what cannot travel is its batch's fault, and in the end one request's
                if not isinstance(message, RunBatch):
                    raise
                self._report(Broken(self.name, message.batch, f"cannot travel to an executor: {error}"))
                return
            child.batches += isinstance(message, RunBatch)
            child.send(data)

    def lose(self, reason: str) -> None:
        child = self._child
        if child is not None and self._fence(child, reason):
            child.kill()

    def close(self) -> None:
        with self._lock:
            self._closing = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        os.write(self._wake, b".")
        if threading.current_thread() is not thread:
            thread.join()
            os.close(self._ear)
            os.close(self._wake)

    def _fence(self, child: Child, reason: str) -> bool:
        """The end of an incarnation: what it says from now on is not passed on. False: that was already so."""
        with self._lock:
            if child is not self._child:
                return False
            self._child = None
            if not self._closing:
                self._report(ExecutorDown(self.name, reason, back=True))
            return True

    # -- The thread that makes the workers, and lives as long as any of them

    def _run(self) -> None:
        """Whatever ends this thread is told: nobody may wait for it."""
        try:
            self._supervise()
        except BaseException as error:
            self._first.put(LoadError(f"executor {self.name!r}: its supervisor broke, which is a bug of omni_runtime: {error!r}"))
            with self._lock:
                self._child = None
                if not self._closing:
                    self._report(ExecutorDown(self.name, f"its supervisor broke, which is a bug of omni_runtime: {error!r}"))

    def _supervise(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it: Ctrl-C is for us to handle
        least, most = self._backoff_s
        first, failures, delay, number = True, 0, least, int(self.name.partition("#")[2])
        while not self._closing:
            child: Child | None = None
            try:
                child = Child(f"{base(self.name)}#{number}", self._ear)
                self._load(child, first)
            except Exception as error:
                if child is not None:
                    child.end()
                if first:
                    self._first.put(error)
                    return
                failures += 1
                if failures >= self._loads:
                    with self._lock:
                        if not self._closing:
                            self._report(ExecutorDown(self.name, f"{failures} starts failed, the last: {error}"))
                    return
            else:
                began, failures = time.monotonic(), 0
                answered = self._serve(child, first, number)
                # Who dies over a batch has loaded well: the batch is to blame, which is for the core to deal with.
                if child.batches or (answered and time.monotonic() - began > STEADY_S):
                    delay = least
                first, number = False, number + 1
            self._pause(delay)
            delay = min(most, 2 * delay)
        if first:
            self._first.put(LoadError(f"executor {self.name!r} was closed while it loaded"))

    def _load(self, child: Child, first: bool) -> None:
        """Until the experts are loaded, or it is clear that they will not be."""
        try:
            pools, slots = self.up.pools, self.up.slots
            config = pickle.dumps(Config(child.name, self.specs, pools, self.device, self.threads, slots, self.exact))
        except Exception as error:
            raise CardError(f"experts of {self.name!r}: options that cannot go to another process: {error!r}") from None
        deadline = time.monotonic() + self._load_s
        while not self._closing:
            for frame in child.hear(deadline - time.monotonic()):
                if not frame:
                    child.connected()
                    child.send(config)
                    continue
                said: Loaded | Failed = msgspec.msgpack.decode(frame, type=Loaded | Failed)
                if isinstance(said, Failed):
                    raise _as_here(said)
                if first:
                    self._told = said.warnings
                return
            if child.gone:
                raise LoadError(f"executor {self.name!r} could not load: {child.why()}")
            if time.monotonic() >= deadline:
                raise LoadError(f"executor {self.name!r} has not loaded within {self._load_s:g} s; give it more with load_s")
        raise LoadError(f"executor {self.name!r} was closed while it loaded")

    def _serve(self, child: Child, first: bool, number: int) -> bool:
        """Passes on what a worker says until it is gone; returns whether it answered anything."""
        with self._lock:
            self._child = child
            self.up = replace(self.up, executor=f"{base(self.name)}#{number}")
            if first:
                self._first.put(self.up)
            else:
                self._report(self.up)
        reason = ""
        try:
            return self._until_gone(child)
        except Exception as error:
            reason = f"worker process {child.pid} cannot be watched: {error!r}"
            return False
        finally:
            self._fence(child, reason)
            child.end()

    def _until_gone(self, child: Child) -> bool:
        """Passes on what a worker says; returns whether that was anything, once the incarnation is fenced off."""
        answered, reason = False, ""
        child.beat = time.monotonic()
        while not (self._closing or reason):
            try:
                answered = self._pass_on(child, self._silence_s) or answered
            except Exception as error:
                reason = f"worker process {child.pid} cannot be understood: {error!r}"
            if reason:
                continue
            if child is not self._child:
                reason = "lost"
            elif child.gone:
                reason = child.why()
            elif time.monotonic() - child.beat > self._silence_s:
                reason = f"worker process {child.pid} gave no sign of life for {self._silence_s:g} s"
        if self._closing:
            self._stop(child)
        self._fence(child, reason)
        return answered

    def _stop(self, child: Child) -> None:
        """Lets the batch that runs end, for a while."""
        os.read(self._ear, 1)
        with self._lock:
            child.send(b"")
        deadline = time.monotonic() + self._stop_s
        while not child.gone and (left := deadline - time.monotonic()) > 0:
            self._pass_on(child, left)

    def _pass_on(self, child: Child, wait_s: float) -> bool:
        frames = child.hear(wait_s)
        for frame in frames:
            report = child.wire.report(frame)
            with self._lock:
                if child is self._child:
                    self._report(report)
        return bool(frames)

    def _pause(self, seconds: float) -> None:
        select.select([self._ear], [], [], 0.0 if self._closing else seconds)


def _as_here(failed: Failed) -> Exception:
    """The error that building in this process would have raised."""
    kind = getattr(errors, failed.kind, None) or getattr(builtins, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(*failed.text)
        except TypeError:
            pass
    return LoadError(f"{failed.kind}: {'; '.join(failed.text)}")
