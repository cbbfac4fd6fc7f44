"""What `submit` returns: the stream of a request, its result, and the way to end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import partial
from numbers import Real
from threading import Condition
from typing import Any

import numpy as np
from msgspec import Struct, field

from omni_runtime.engine import News
from omni_runtime.errors import (
    EngineStopped,
    ExecutorLost,
    OmniError,
    OutputNotAsked,
    Overloaded,
    RequestCancelled,
    RequestError,
    RequestFailed,
    RequestTooLarge,
    TooSlow,
    unknown,
)
from omni_runtime.work import Chunk, End, OutputEnd, Summary, Waiting

ERRORS: dict[str, type[OmniError]] = {
    "cancelled": RequestCancelled,
    "failed": RequestFailed,
    "lost": ExecutorLost,
    "too_large": RequestTooLarge,
    "too_slow": TooSlow,
    "overloaded": Overloaded,
    "stopped": EngineStopped,
}


MAX_TIMEOUT = 1e6  # seconds; beyond a few hundred years the system's clock overflows


class OutputKind(Struct, frozen=True):
    """What an output consists of."""

    type: str  # text | samples | token | ...
    shared: bool = False  # one for all samples of a request: nothing before it draws at random
    sample_rate: int = 0  # Hz, of samples


class StreamChunk(Struct, frozen=True):
    """A piece of one output. `seq` counts the chunks of an output, `start` the items before this one.

    Exactly one of the last four is set: text; samples (float32 in -1..1, mono); tokens (ids); items (anything else).
    """

    output: str
    seq: int
    start: int
    sample: int = 0  # which of n samples
    text: str | None = None
    samples: np.ndarray[Any, np.dtype[np.float32]] | None = None
    tokens: tuple[int, ...] | None = None
    items: tuple[Any, ...] | None = None


class Timings(Struct, frozen=True):
    """Seconds since the request was submitted."""

    first: dict[str, float] = {}  # first chunk, by output
    last: dict[str, float] = {}  # last chunk, by output
    total: float = 0.0
    chunks: dict[str, tuple[tuple[float, int], ...]] = {}  # by output: when each chunk came, and how many items it brought


class Sample(Struct, frozen=True):
    """One answer. `outputs` holds str for text, a float32 array for samples, a list for anything else."""

    outputs: dict[str, Any]
    finish: dict[str, str]  # by output: stop | length | done; an output that did not get to its end is missing
    seed: int  # the same answer comes again when a request for one sample has this seed

    @property
    def text(self) -> str:
        """The output named "text".

        Raises:
            OutputNotAsked: the request has none.
        """
        found: str = self._output("text")
        return found

    @property
    def audio(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The output named "audio".

        Raises:
            OutputNotAsked: the request has none.
        """
        found: np.ndarray[Any, np.dtype[np.float32]] = self._output("audio")
        return found

    def _output(self, name: str) -> Any:
        if name not in self.outputs:
            problem = f"{name}: the request did not ask for this output, only for {', '.join(self.outputs)}"
            # With its name it is not given the object by the interpreter, which would keep the outputs alive.
            raise OutputNotAsked(f"{problem}; submit with outputs={[*self.outputs, name]!r}", name=name)
        return self.outputs[name]


class Result(Struct, frozen=True):
    """All of a request. Where it asked for one sample, `outputs`, `text` and so on are that sample's."""

    samples: tuple[Sample, ...]
    usage: dict[str, dict[str, int]]  # by loop; those of further samples are called "loop#1", ...
    units: dict[str, int]  # WorkUnits run, by loop
    timings: Timings
    sample_rates: dict[str, int] = field(default_factory=dict)
    device_seconds: float = 0.0  # its share of every batch that it was in
    silence: dict[str, float] = field(default_factory=dict)  # seconds in which a sound output had nothing to play, by output
    missed: tuple[str, ...] = ()  # of deadline_s and first_output_s, those that were not met
    rebuilt: int = 0  # how often loops of it had to make again what an executor had kept for them

    @property
    def seed(self) -> int:
        """Of the first sample; the next has one more."""
        return self.samples[0].seed

    @property
    def outputs(self) -> dict[str, Any]:
        """Of the first sample."""
        return self.samples[0].outputs

    @property
    def finish(self) -> dict[str, str]:
        """Of the first sample."""
        return self.samples[0].finish

    @property
    def text(self) -> str:
        """The first sample's output named "text"."""
        return self.samples[0].text

    @property
    def audio(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The first sample's output named "audio"."""
        return self.samples[0].audio


class Handle:
    """A request that was taken.

    Iterate it (`for` or `async for`) for chunks as they are made, or ask for `result()` (or `await` it) for the whole; both
    may be done, in any order and by several readers. A failed or refused request raises its error in both, after the chunks
    that came before; a cancelled one ends the iteration and raises in `result()`.
    """

    def __init__(
        self,
        run: int,
        label: str,
        seed: int,
        n: int,
        kinds: dict[str, OutputKind],
        submitted: float,
        cancel: Callable[[int], None],
        played: Callable[[int, str, float, int], None] | None = None,
    ) -> None:
        self.id = run
        self.label = label
        self.seed = seed
        self.n = n
        self._kinds = kinds
        self._submitted = submitted
        self._cancel = cancel
        self._played = played
        self._waiting: float | None = None
        self._changed = Condition()
        self._chunks: list[StreamChunk] = []
        self._counts: dict[tuple[str, int], int] = {}
        self._times: dict[str, list[tuple[float, int]]] = {}  # when each chunk of an output came, and its items
        self._ends: dict[tuple[str, int], Summary] = {}
        self._end: End | None = None
        self._total = 0.0
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    # -- The engine's side

    def deliver(self, now: float, news: News) -> None:
        with self._changed:
            if isinstance(news, Chunk):
                self._chunks.append(self._chunk(news))
                self._times.setdefault(news.output, []).append((now - self._submitted, len(news.items)))
            elif isinstance(news, OutputEnd):
                self._ends[news.output, news.sample] = news.summary
                return
            elif isinstance(news, Waiting):
                self._waiting = news.seconds
                return
            else:
                self._end = news
                self._total = now - self._submitted
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # that loop is closed, so nobody waits there any more
                continue

    def _chunk(self, news: Chunk) -> StreamChunk:
        which = (news.output, news.sample)
        seq = self._counts.get(which, 0)
        self._counts[which] = seq + 1
        items, kind = news.items, self._kinds[news.output].type
        if kind == "text":
            return StreamChunk(news.output, seq, news.start, news.sample, text="".join(items))
        if kind == "samples":
            sound = np.asarray(items, np.float32).view()
            if sound.ndim != 1:
                raise ValueError(f"samples of shape {sound.shape}, mono sound has one dimension")
            sound.flags.writeable = False  # every reader of the handle sees this array
            return StreamChunk(news.output, seq, news.start, news.sample, samples=sound)
        if kind == "token":
            return StreamChunk(news.output, seq, news.start, news.sample, tokens=tuple(items))
        return StreamChunk(news.output, seq, news.start, news.sample, items=tuple(items))

    # -- The caller's side

    @property
    def sample_rates(self) -> dict[str, int]:
        """Hz, of every output that is sound."""
        return {name: kind.sample_rate for name, kind in self._kinds.items() if kind.sample_rate}

    @property
    def done(self) -> bool:
        """Whether the last word has been said."""
        return self._end is not None

    @property
    def waiting(self) -> float | None:
        """Seconds that the request will about wait until its guarantee can be kept; None where it does not wait."""
        return None if self.done else self._waiting

    def played(self, output: str, seconds: float, sample: int = 0) -> None:
        """Tells how much of a sound output its listener has heard. Without this it is taken to play since it was first delivered.

        Raises:
            ValueError: the request has no such sound, or seconds are negative or no number.
        """
        if output not in self.sample_rates:
            raise ValueError(f"output={output!r}: " + unknown("sound output", output, self.sample_rates))
        if not 0.0 <= seconds < float("inf") or not 0 <= sample < self.n:
            raise ValueError(
                f"seconds={seconds!r}, sample={sample!r}: seconds from 0 on, and a sample below {self.n}, are needed"
            )
        if self._played is not None:
            self._played(self.id, output, float(seconds), 0 if self._kinds[output].shared else sample)

    def cancel(self) -> None:
        """Ends the request now: no chunk comes after its end. Harmless when it has ended already."""
        self._cancel(self.id)

    def __iter__(self) -> Iterator[StreamChunk]:
        at = 0
        while True:
            with self._changed:
                while at == len(self._chunks) and self._end is None:
                    self._changed.wait()
                fresh = self._chunks[at:]
                over = self._end is not None
            yield from fresh
            at += len(fresh)
            if over and at == len(self._chunks):
                self._raise(also_cancelled=False)
                return

    async def __aiter__(self) -> AsyncIterator[StreamChunk]:
        at = 0
        while True:
            await self._wait_until(partial(self._has, at))
            with self._changed:
                fresh, over = self._chunks[at:], self._end is not None
            for chunk in fresh:
                yield chunk
            at += len(fresh)
            if over and at == len(self._chunks):
                self._raise(also_cancelled=False)
                return

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end.

        Args:
            timeout: seconds; None waits as long as it takes.

        Raises:
            RequestError: timeout is no such number.
            TimeoutError: it has not ended yet; it goes on.
            RequestFailed, RequestCancelled: `partial` holds what had been made.
            RequestRefused: it was too large, or the runtime is overloaded.
            EngineStopped: the runtime was closed before it ended, or broke; `partial` holds what had been made.
        """
        if timeout is not None and not (isinstance(timeout, Real) and 0 <= timeout <= MAX_TIMEOUT):
            raise RequestError(f"timeout={timeout!r}: seconds from 0 to {MAX_TIMEOUT:.0f}, or None for as long as it takes")
        with self._changed:
            if not self._changed.wait_for(lambda: self._end is not None, timeout):
                raise TimeoutError(f"request {self.id} has not ended after {timeout} s; it goes on, cancel() ends it")
        self._raise(also_cancelled=True)
        return self._result()

    def __await__(self) -> Generator[Any, None, Result]:
        yield from self._wait_until(lambda: self._end is not None).__await__()
        return self.result()

    def _has(self, at: int) -> bool:
        return at < len(self._chunks) or self._end is not None

    async def _wait_until(self, ready: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                if ready():
                    return
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, future))
            await future

    def _raise(self, also_cancelled: bool) -> None:
        end = self._end
        if end is None or end.reason == "done" or (end.reason == "cancelled" and not also_cancelled):
            return
        what = f" ({self.label})" if self.label else ""
        error = ERRORS[end.reason](
            f"request {self.id}{what} {end.reason.replace('_', ' ')}" + f": {end.detail}" * bool(end.detail)
        )
        if isinstance(error, Overloaded):
            error.retry_after = end.retry_after
        if isinstance(error, RequestFailed | RequestCancelled | EngineStopped):
            error.partial = self._result()
        raise error

    def _result(self) -> Result:
        end = self._end
        assert end is not None
        return Result(
            samples=tuple(self._sample(i) for i in range(self.n)),
            usage=end.usage,
            units=end.units,
            timings=Timings(
                {name: times[0][0] for name, times in self._times.items()},
                {name: times[-1][0] for name, times in self._times.items()},
                self._total,
                {name: tuple(times) for name, times in self._times.items()},
            ),
            sample_rates=self.sample_rates,
            device_seconds=end.seconds,
            silence=end.silence,
            rebuilt=end.rebuilt,
            missed=end.missed,
        )

    def _sample(self, sample: int) -> Sample:
        outputs: dict[str, Any] = {}
        finish: dict[str, str] = {}
        for name, kind in self._kinds.items():
            which = 0 if kind.shared else sample
            mine = [c for c in self._chunks if c.output == name and c.sample == which]
            if kind.type == "text":
                outputs[name] = "".join(c.text or "" for c in mine)
            elif kind.type == "samples":
                outputs[name] = np.concatenate([np.zeros(0, np.float32), *(c.samples for c in mine if c.samples is not None)])
            else:
                outputs[name] = [item for c in mine for item in (c.tokens if c.tokens is not None else c.items or ())]
            if (name, which) in self._ends:
                finish[name] = self._ends[name, which].finish
        return Sample(outputs, finish, self.seed + sample)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
