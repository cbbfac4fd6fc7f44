"""The `omni` command. An error is one sentence and a non-zero exit, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from omni_runtime.errors import MissingExtra, OmniError
from omni_runtime.stopping import Stopping


def main() -> None:
    """Entry point of the `omni` command."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads; a busy neighbour then costs half as much
    stopping = Stopping()
    stopping.install()
    sys.exit(guarded(_command, stopping))


def _command() -> Any:
    try:
        from omni_runtime.commands import cli
    except ImportError as e:
        if e.name in ("typer", "rich", "click"):
            raise MissingExtra("the `omni` command needs typer and rich: pip install 'omni_runtime[cli]'") from None
        raise
    return cli(standalone_mode=False)


def guarded(work: Callable[[], Any], stopping: Stopping) -> int:
    """Runs a command; returns its exit status and says in one sentence what went wrong."""
    try:
        found = work()
        return found if isinstance(found, int) else 0
    except KeyboardInterrupt:
        print("omni: interrupted", file=sys.stderr)
        return stopping.status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say to it
        return 0
    except UnicodeError as e:
        print(f"omni: text that cannot be read or shown here: {e}", file=sys.stderr)
        return 1
    except (OmniError, OSError) as e:
        print(f"omni: {e}", file=sys.stderr)
        return 1
    except Exception as e:
        shown = getattr(e, "show", None)  # a usage error of the command line library
        if shown is not None:
            shown()
            return int(getattr(e, "exit_code", 2))
        if type(e).__name__ == "Abort":  # what typer makes of KeyboardInterrupt
            return stopping.status
        print(f"omni: a bug of omni_runtime: {e!r}", file=sys.stderr)
        return 70
