"""A worker process, as its parent holds it: begun, spoken to, heard, ended. `worker.py` is what runs in it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from omni_runtime.errors import LoadError, MissingExtra
from omni_runtime.executors.codec import Wire
from omni_runtime.executors.ring import Ring
from omni_runtime.executors.worker import Boot

# The worker finds this package and its builders where we do, without our `__main__`: no guard is needed in a user's script.
BOOT = """
import json, socket, sys
life, line = socket.socket(fileno=int(sys.argv[1])), b""
while not line.endswith(b"\\n"):
    part = life.recv(1 << 16)
    if not part:
        sys.exit()
    line += part
path, root = json.loads(line)["path"], sys.argv[2]
sys.path[:] = [root, *path]
from omni_runtime.executors.worker import main
sys.path[:] = path
main(life, line)
"""
KILL_S = 10.0  # seconds that a killed process may take to be gone


def zmq_module() -> Any:
    """ZeroMQ.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import zmq
    except ImportError as error:
        raise MissingExtra(f"a worker process needs pyzmq: pip install 'omni_runtime[process]' ({error})") from None
    return zmq


class Child:
    """One process and everything that was made for it.

    It belongs to the thread that makes it, which must live as long: the kernel kills a child with its parent's *thread*. From
    others only `kill` may be called, and whoever sends must not do so while another does.

    Args:
        name: of the incarnation, for whoever lists processes.
        wake: a descriptor that ends `hear`.
    """

    def __init__(self, name: str, wake: int) -> None:
        self.zmq = zmq_module()
        self.name, self.beat = name, time.monotonic()
        self.gone = False
        self.printed: deque[str] = deque(maxlen=8)
        self._half = ""
        self._exit = -1  # without pidfds the lifeline tells of its end
        self._open: list[int] = []
        self._folder = os.path.join(tempfile.gettempdir(), f"omni-{secrets.token_hex(8)}")
        self._context = self.zmq.Context(1)
        self._life, theirs = socket.socketpair()
        self.process: subprocess.Popen[bytes] | None = None
        self.wire = Wire()
        try:
            rings = [self._keep(fd) for fd in (Ring.new(), Ring.new()) if fd is not None]
            if rings:
                self.wire = Wire(Ring(rings[0]), Ring(rings[1]))
            boot = Boot([str(entry) for entry in sys.path], self._folder, os.getpid(), rings or None)
            self._life.sendall(
                msgspec.json.encode(boot) + b"\n"
            )  # first: a worker whose parent has died since knows what to clean
            self._life.setblocking(False)
            self._out, printing = os.pipe()
            self._keep(self._out)
            os.set_blocking(self._out, False)
            root = str(Path(__file__).resolve().parents[2])
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", BOOT, str(theirs.fileno()), root, f"omni worker {name}"],
                    stdin=subprocess.DEVNULL,
                    stdout=printing,  # standard output is for answers
                    stderr=printing,
                    pass_fds=(theirs.fileno(), *rings),
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
            finally:
                os.close(printing)
            os.mkdir(self._folder, 0o700)
            self._to = self._socket(self.zmq.PUSH, "to")
            self._back = self._socket(self.zmq.PULL, "back")
            self._poller = self.zmq.Poller()
            watched = [wake, self._life.fileno(), self._out]
            if hasattr(os, "pidfd_open"):
                self._exit = self._keep(os.pidfd_open(self.process.pid))
                watched.append(self._exit)
            for one in (self._back, *watched):
                self._poller.register(one, self.zmq.POLLIN)
        except BaseException:
            self.end()
            raise
        finally:
            theirs.close()

    def _keep(self, fd: int) -> int:
        self._open.append(fd)
        return fd

    def _socket(self, kind: int, name: str) -> Any:
        made = self._context.socket(kind)
        made.set_hwm(0)  # the engine must never wait here; what lies in a mailbox is bounded by its slots
        made.linger = 0
        try:
            made.bind(f"ipc://{self._folder}/{name}")
        except self.zmq.ZMQError as error:
            raise LoadError(f"a socket in {self._folder!r}: {error}; set TMPDIR to a folder with a short name") from None
        return made

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def connected(self) -> None:
        """It has reached one socket; when it has the other, nothing that has a name is left."""
        if not self._to.poll(int(KILL_S * 1000), self.zmq.POLLOUT):
            raise LoadError(f"{self.name!r}: its worker process reached one of two sockets within {KILL_S:g} s; try again")
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, data: bytes) -> None:
        try:
            self._to.send(data, self.zmq.NOBLOCK)
        except self.zmq.Again:  # it is gone, which will be heard
            pass

    def hear(self, timeout_s: float) -> list[bytes]:
        """What it has said, once it says anything, beats, prints or ends, or after so many seconds."""
        ready = dict(self._poller.poll(max(0, int(timeout_s * 1000))))
        if self._life.fileno() in ready:
            self._beats()
        if self._out in ready:
            self._prints()
        if self._exit in ready:
            self.gone = True
        frames = []
        if self._back in ready or self.gone:
            try:
                while True:
                    frames.append(self._back.recv(self.zmq.NOBLOCK))
            except self.zmq.Again:
                pass
        return frames

    def _beats(self) -> None:
        try:
            if self._life.recv(1 << 12):
                self.beat = time.monotonic()
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self.gone = True

    def _prints(self) -> None:
        try:
            data = os.read(self._out, 1 << 16)
        except OSError:
            data = b""
        if not data:
            self._poller.unregister(self._out)
            return
        text = data.decode(errors="replace")
        lines = (self._half + text).split("\n")
        self._half = lines.pop()
        self.printed.extend(line for line in lines if line.strip())
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # nobody reads that any more
            pass

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def why(self) -> str:
        """How it ended, in a sentence, with the last that it printed."""
        assert self.process is not None
        try:
            status = self.process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            return f"worker process {self.pid} does not answer"
        for _ in range(64):  # what it started may go on printing for ever
            if self._out not in dict(self._poller.poll(0)):
                break
            self._prints()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = [*self.printed, self._half] if self._half.strip() else list(self.printed)
        return f"worker process {self.pid} {how}" + ("; it said: " + " | ".join(last) if last and status not in (0, -9) else "")

    def end(self) -> None:
        """Kills it if it still lives, and lets go of everything."""
        if self.process is not None:
            self.process.kill()
            try:
                self.process.wait(KILL_S)
            except subprocess.TimeoutExpired:  # the kernel holds it, in a driver perhaps: nobody can do more
                pass
        self._context.destroy(linger=0)
        self.wire.close()
        self._life.close()
        for fd in self._open:
            os.close(fd)
        self._open = []
        shutil.rmtree(self._folder, ignore_errors=True)
