"""What a command offers to whoever wants to look on: files when it ends, a live view while it works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from omni_runtime.core import Observer
from omni_runtime.errors import MissingExtra, RequestError
from omni_runtime.observe import timeline, trace
from omni_runtime.observe.recorder import Recorder
from omni_runtime.replay.log import Recording, check_writable


class Watch:
    """Around a runtime, which is given its `observers`; the files are written when it ends, however it ends.

    Args:
        timeline: HTML file, see `observe.timeline`.
        trace: JSON file, see `observe.trace`.
        live: draw a live view; None where standard output is a terminal that can, and rich is installed.
        title: of the timeline.
        record: log of all that the core is fed, see `replay`.
        redact: with stand-ins for what is private in that log.
        stats: somebody asks the recorder when all is done.

    Raises:
        RequestError: a file could not be written there.
    """

    def __init__(
        self,
        timeline: Path | None = None,
        trace: Path | None = None,
        live: bool | None = None,
        title: str = "omni_runtime",
        record: Path | None = None,
        redact: bool = False,
        stats: bool = False,
    ) -> None:
        for path in (timeline, trace):
            if path is not None:
                _check(path)
        if record is not None:
            check_writable(record)
        elif redact:
            raise RequestError("redact: only a log is redacted; add --record FILE")
        self.recording = Recording(record, redact) if record is not None else None
        self.timeline, self.trace, self.title = timeline, trace, title
        self.live = sys.stdout.isatty() and live is not False and _rich(live is True)
        self.recorder, self._stats = Recorder(), stats

    @property
    def observers(self) -> list[Observer]:
        """For the runtime; none when nobody looks."""
        return [self.recorder] if self.live or self._stats or self.timeline is not None or self.trace is not None else []

    @contextmanager
    def stream(self) -> Iterator[Callable[[str], object]]:
        """What to write streamed text with: to standard output, above the live view where there is one."""
        if self.live:
            from rich.console import Console

            from omni_runtime.observe.live import LiveView, possible

            console = Console(highlight=False)
            if possible(console):
                with LiveView(self.recorder, console) as view:
                    yield view.write
                return
        yield _print

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None) -> None:
        if self.timeline is not None:
            timeline.write(self.timeline, self.recorder, self.title)
        if self.trace is not None:
            trace.write(self.trace, self.recorder)


def _print(text: str) -> None:
    print(text, end="", flush=True)


def _check(path: Path) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise RequestError(f"{path}: its folder does not exist; make it first")
    if path.is_dir():
        raise RequestError(f"{path}: is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise RequestError(f"{path}: cannot be written")


def _rich(wanted: bool) -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        if wanted:
            raise MissingExtra("the live view needs rich: pip install 'omni_runtime[cli]'") from None
        return False
    return True
