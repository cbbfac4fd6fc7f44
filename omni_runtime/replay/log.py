"""Writes what a core is fed into a file, before and after each feed: whatever stops the process, the file tells until when."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO
from warnings import warn

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from omni_runtime.card import ModelCard
from omni_runtime.core import Core
from omni_runtime.errors import RequestError
from omni_runtime.program import Plan
from omni_runtime.replay.digest import decided, digest
from omni_runtime.replay.encode import Encoder
from omni_runtime.replay.looks import Looks, looks, told
from omni_runtime.replay.redact import Redactor, error
from omni_runtime.work import Answer, Broken, End, ExecutorDown, RunBatch, Submit

FORMAT = 1
KNOWN = 64  # plans that are recognised without being packed again


class Recording(Struct, frozen=True):
    """Where a log goes, and what of it: `Runtime(record=Recording("log.jsonl", redact=True))`."""

    path: str | Path
    redact: bool = False  # stand-ins for what is private, see designs/0019-replay.md
    full: bool = False  # decisions themselves, and not only their digests


class RecordLog:
    """An observer that writes a log, from the first feed of its core on. It adds itself to the core's observers.

    Args:
        recording: where and what.
        core: to be recorded.
        cards: of all programs that will be fed.

    Raises:
        RequestError: the core was fed already.
        OSError: the file cannot be written.

    A file that is there is renamed to NAME.old. Where writing fails later (the disk is full, say), a warning tells so, and the
    requests go on.
    """

    def __init__(self, recording: Recording, core: Core, cards: Iterable[ModelCard]) -> None:
        if core.scheduler.executors or core.flow.runs:
            raise RequestError(f"record: {recording.path} would begin in the middle; record a core from its first feed on")
        self.path = Path(recording.path)
        self.feeds = 0
        self._full = recording.full
        known = {card.name: card for card in cards}
        self._encoder = Encoder(known)
        self._redactor = Redactor() if recording.redact else None
        self._plans: dict[bytes, int] = {}
        self._numbers: dict[int, tuple[Plan, int]] = {}  # by id; the plan itself, so that its id stays its own
        self._looks: dict[int, dict[str, Looks]] = {}  # number of a plan -> ports at which somebody looks, by step
        self._runs: dict[int, dict[str, Looks]] = {}  # the same of requests that are alive
        self._flying: dict[int, tuple[str, list[tuple[int, str]]]] = {}  # batch -> executor, its rows
        self._open = False  # a feed has begun and is not done
        if self.path.is_file():  # perhaps of the process that hung
            self.path.replace(self.path.with_name(f"{self.path.name}.old"))
        self._file: BinaryIO | None = open(self.path, "wb", buffering=0)  # noqa: SIM115  it is closed by `close`
        self._write(msgspec.json.encode(self._head(core, known)) + b"\n")
        core.observers.append(self)

    def _head(self, core: Core, cards: dict[str, ModelCard]) -> dict[str, Any]:
        scheduler, pack = core.scheduler, self._encoder.pack
        return {
            "log": "omni_runtime",
            "format": FORMAT,
            "version": _version(),
            "redacted": self._redactor is not None,
            "policy": scheduler.policy.name,
            "tenants": {t.name: t.weight for t in scheduler.tenants.values()},
            "max_runs": scheduler.max_runs,
            "max_waiting": scheduler.admission.most,
            "watchdog": core.watchdog,
            "limits": [[expert, op, pack(limits)] for (expert, op), limits in scheduler.limits.items()],
            "costs": scheduler.costs.save(),
            "gaps": scheduler.costs.gaps,
            "cards": {name: {"hash": card_hash(c), "card": _card(c)} for name, c in cards.items()},
        }

    # -- What the core tells

    def before(self, now: float, inputs: Sequence[Any]) -> None:
        """See `core.Observer`."""
        if self._file is None:
            return
        try:
            packed = [self._encoder.pack(self._input(item)) for item in inputs]
            self._open = True
            self._write(b'{"now":%s,"in":%s' % (msgspec.json.encode(now), msgspec.json.encode(packed)))
        except Exception as failure:
            self._fail(failure)

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Any]) -> None:
        """See `core.Observer`."""
        if not self._open or self._file is None:
            return
        try:
            for command in commands:
                if type(command) is RunBatch:
                    self._flying[command.batch] = command.executor, [(row.run, row.loop) for row in command.rows]
                elif type(command) is End:
                    self._forget(command.run)
            line = b',"out":"%s"' % digest(said, commands, self._redactor is not None).encode()
            if self._full and self._redactor is None:
                line += b',"full":' + msgspec.json.encode(self._encoder.pack((*decided(said), *commands)))
            self._write(line + b"}\n")
            self._open = False
            self.feeds += 1
        except Exception as failure:
            self._fail(failure)

    def close(self) -> None:
        """No more is written; idempotent. A feed that never came back stands there without what was decided."""
        if self._file is not None:
            file, self._file = self._file, None
            try:
                if self._open:
                    file.write(b"}\n")
            finally:
                file.close()

    # -- How it is written

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        if self._file.write(data) != len(data):
            raise OSError(f"{self.path}: only a part could be written; is the disk full?")

    def _fail(self, failure: Exception) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
        warn(f"{self.path}: recording ended at feed {self.feeds}: {failure!r}; the requests go on", RuntimeWarning, stacklevel=2)

    def _input(self, item: Any) -> Any:
        """An input as it is written."""
        kind = type(item)
        if kind is Answer:
            return self._answer(item)
        if kind is Submit:
            number = self._plan(item.plan)
            self._runs[item.run] = self._looks[number]
            if self._redactor is not None:
                item = self._redactor.submit(item)
            return replace(item, plan=number)
        if self._redactor is not None and kind is Broken:
            item = replace(item, error=error(item.error))
        elif self._redactor is not None and kind is ExecutorDown:
            item = replace(item, reason=error(item.reason))
        if kind is Broken:
            self._landed(item)
        elif kind is ExecutorDown:
            self._flying = {batch: flight for batch, flight in self._flying.items() if flight[0] != item.executor}
        return item

    def _landed(self, item: Answer | Broken) -> list[tuple[int, str]] | None:
        """The rows of a batch that is back; None where it is not in flight, or not there."""
        if (flight := self._flying.get(item.batch)) is None or flight[0] != item.executor:
            return None
        return self._flying.pop(item.batch)[1]

    def _answer(self, item: Answer) -> Answer:
        rows = self._landed(item)
        if rows is not None and len(rows) != len(item.results):
            rows = None  # the batch counts as broken
        results = []
        for at, result in enumerate(item.results):
            slot = rows[at] if rows is not None else None
            ports = self._runs.get(slot[0], {}).get(slot[1].partition("#")[0], {}) if slot is not None else {}
            if self._redactor is not None:
                result = self._redactor.result(slot, result, ports)
            results.append(told(result, ports) if ports and result.items else result)
        return replace(item, results=results)

    def _plan(self, plan: Plan) -> int:
        """The number of a plan, which is written before its first use."""
        known = self._numbers.get(id(plan))
        if known is not None:
            return known[1]
        packed = msgspec.json.encode(self._encoder.pack(plan))
        number = self._plans.get(packed)
        if number is None:
            number = self._plans[packed] = len(self._plans) + 1
            self._looks[number] = looks(plan)
            self._write(b'{"plan":%d,"is":%s}\n' % (number, packed))
        if len(self._numbers) >= KNOWN:
            self._numbers.clear()
        self._numbers[id(plan)] = plan, number
        return number

    def _forget(self, run: int) -> None:
        self._runs.pop(run, None)
        if self._redactor is not None:
            self._redactor.forget(run)


def card_hash(card: ModelCard) -> str:
    """Sixteen letters that are equal for equal cards."""
    text = msgspec.json.encode(Encoder().pack(card), order="sorted")
    return blake2b(text, digest_size=8).hexdigest()


def _card(card: ModelCard) -> Any:
    """A card without the options of its experts: paths of this machine, which decide nothing."""
    experts = {name: spec.model_copy(update={"options": {}}) for name, spec in card.experts.items()}
    return Encoder().pack(card.model_copy(update={"experts": experts}))


def _version() -> str:
    try:
        return version("omni_runtime")
    except PackageNotFoundError:
        return "unknown"


def check_writable(path: str | Path) -> None:
    """Whether a log may be written there, before models are loaded.

    Raises:
        RequestError: naming the path and what is wrong.
    """
    path = Path(path)
    folder = path.resolve().parent
    if not folder.is_dir():
        raise RequestError(f"record: {path}: its folder does not exist; make it first")
    if path.is_dir():
        raise RequestError(f"record: {path}: is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise RequestError(f"record: {path}: cannot be written")
