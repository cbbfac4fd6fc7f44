"""The live view: text streams above, what runs stands below. It draws in a thread of its own, at its own pace. Needs rich."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from omni_runtime.observe.recorder import Recorder
from omni_runtime.observe.status import Status

PACE = 8.0  # drawings a second


class LiveView:
    """Finished lines go to the terminal for good. The one that still grows is drawn with the status, as the terminal would.

    Args:
        recorder: that the runtime tells what it does.
        console: a terminal; see `possible`.
        clock: the one that the core is fed with.
        redraw: by itself; otherwise only when text comes.
    """

    def __init__(
        self, recorder: Recorder, console: Console, clock: Callable[[], float] = time.monotonic, redraw: bool = True
    ) -> None:
        self.console = console
        self.status = Status(recorder, clock)
        self._tail = ""
        self._lock = Lock()
        self._live = Live(
            get_renderable=self._region, console=console, refresh_per_second=PACE, auto_refresh=redraw, transient=True
        )

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def write(self, text: str) -> None:
        """More of the text."""
        with self._lock:
            *whole, self._tail = (self._tail + text).split("\n")
            rows = fold(self._tail, self.console.width)
            most = max(1, self.console.height // 3)
            if len(rows) > most:  # a region taller than the screen cannot be drawn again, so the first rows are finished
                whole += rows[:-1]
                self._tail = rows[-1]
        for line in whole:
            self.console.print(Text(line), soft_wrap=True)  # one line, however long: what is copied has no breaks of ours
        if not whole:
            self._live.refresh()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()
        self.console.file.write(self._tail)
        self.console.file.flush()
        self._tail = ""

    def _region(self) -> RenderableType:
        tail = [Text(row, no_wrap=True) for row in fold(self._tail, self.console.width)] if self._tail else []
        return Group(*tail, self.status.lines())


def possible(console: Console) -> bool:
    """Whether something may be drawn again there: it is a terminal, and one that moves its cursor."""
    return console.is_terminal and not console.is_dumb_terminal


def fold(line: str, width: int) -> list[str]:
    """A line as rows, broken where a terminal breaks it."""
    rows, row, used = [], "", 0
    for char in line.expandtabs():
        cells = cell_len(char)
        if used + cells > width:
            rows.append(row)
            row, used = "", 0
        row, used = row + char, used + cells
    return [*rows, row]
