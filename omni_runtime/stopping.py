"""What Ctrl-C and SIGTERM do to a command: the first asks it to stop, the second stops it."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

AGAIN = "omni: stopping, what is alive is cancelled; once more stops at once"


class Stopping:
    """Signal handlers of a process whose main thread runs a command.

    The first signal raises KeyboardInterrupt there, so that every `with` is left in order: requests are cancelled, batches that
    run are waited for, files are closed. The second ends the process; its workers notice by themselves.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def install(self) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(one) is not signal.SIG_IGN:  # a shell's background jobs are not to be interrupted
                signal.signal(one, self._handle)

    @property
    def status(self) -> int:
        """What a shell expects of a command that was stopped."""
        return 128 + (self.signal or signal.SIGINT)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h")  # a live view hides the cursor
            os._exit(self.status)
        self.signal = signal.Signals(number)
        os.write(2, f"\n{AGAIN}\n".encode())  # print() may be what was interrupted
        raise KeyboardInterrupt
