"""What runs in a worker process: the experts of one executor, a message at a time. `child.py` is the other end."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import traceback
import warnings
from queue import SimpleQueue
from threading import Thread

import msgspec

from omni_runtime import errors
from omni_runtime.card import ExpertSpec
from omni_runtime.executors.codec import Wire, told
from omni_runtime.executors.flights import Flight, Flights, Watcher
from omni_runtime.executors.ring import Ring

BEAT_S = 1.0
PR_SET_PDEATHSIG = 1


class Boot(msgspec.Struct):
    """The first line on the lifeline."""

    path: list[str]  # sys.path of the parent: builders are found where it finds them
    folder: str  # with the sockets in it
    parent: int
    rings: list[int] | None  # descriptors: what we read, what we write


class Config(msgspec.Struct):
    """What the worker hosts."""

    name: str
    experts: dict[str, ExpertSpec]
    pools: dict[str, int]
    device: str
    threads: int | None
    slots: int
    exact: dict[str, tuple[str, ...]] | None  # batch-invariant mode, and what is asked of experts in it


class Loaded(msgspec.Struct, tag=True):
    """All experts are there."""

    warnings: list[tuple[str, str]] = []


class Failed(msgspec.Struct, tag=True):
    """An expert could not be built: the error, by the name of its class."""

    kind: str
    text: list[str]


def main(life: socket.socket, line: bytes) -> None:
    """Serves until it is told to end, or until the parent is gone."""
    boot = msgspec.json.decode(line, type=Boot)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    Thread(target=_watch, args=(life, boot.folder), name="omni-lifeline", daemon=True).start()
    status = 1
    try:
        _serve(boot)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # no finalizers: the parent waits, and torch takes its time


def _watch(life: socket.socket, folder: str) -> None:
    """Tells the parent that we live; ends with it, whatever else runs."""
    while True:
        try:
            if not select.select([life], [], [], BEAT_S)[0]:
                life.send(b".", socket.MSG_DONTWAIT)
            elif not life.recv(64):
                break
        except BlockingIOError:  # it does not read now; it will
            continue
        except OSError:
            break
    shutil.rmtree(folder, ignore_errors=True)  # there only if the parent died before we were connected
    os._exit(0)


def _serve(boot: Boot) -> None:
    import zmq

    context = zmq.Context(1)
    inbox, back = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for one, name in ((inbox, "to"), (back, "back")):
        one.set_hwm(0)
        one.connect(f"ipc://{boot.folder}/{name}")
    back.send(b"")  # connected: the folder is no longer needed
    config: Config = pickle.loads(inbox.recv())
    _die_with(boot.parent)
    try:
        with warnings.catch_warnings(record=True) as noted:
            from omni_runtime.executors.workbench import Workbench, build_all

            experts = build_all(config.experts, config.pools, config.device, config.threads, config.exact)
            mode = config.exact is not None
            bench = Workbench(config.name, experts, config.device, own=True, batch_invariant=mode, threads=config.threads)
    except Exception as error:
        if not isinstance(error, errors.OmniError):
            traceback.print_exc()
        args = [arg for arg in error.args if isinstance(arg, str)] or [repr(error)]
        back.send(msgspec.msgpack.encode(Failed(type(error).__name__, args)))
        context.destroy(linger=10_000)
        return
    ours = [(w.category.__name__, str(w.message)) for w in noted if issubclass(w.category, errors.CheckpointWarning)]
    for warning in noted:
        if not issubclass(warning.category, errors.CheckpointWarning):
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    back.send(msgspec.msgpack.encode(Loaded(ours)))
    wire = Wire(Ring(boot.rings[1]), Ring(boot.rings[0]), own=True) if boot.rings else Wire()
    landed: SimpleQueue[Flight] = SimpleQueue()
    ear, wake = os.pipe()

    def land(flight: Flight) -> None:
        landed.put(flight)
        os.write(wake, b".")

    watcher = Watcher(config.name, land)
    flights = Flights(bench.launch, lambda report: back.send(told(wire, report, bench.forget)), watcher.watch, config.slots)
    poller = zmq.Poller()
    poller.register(inbox, zmq.POLLIN)
    poller.register(ear, zmq.POLLIN)
    while True:
        ready = dict(poller.poll()) if flights else {inbox: zmq.POLLIN}
        if inbox in ready:
            if not (data := inbox.recv()):
                break
            flights.carry(wire.message(data))
            del data  # or the last batch's arrays live until the next one comes
        else:  # what is there already is begun before anything is read
            os.read(ear, 1)
            flights.land(landed.get())
    flights.rest()
    context.destroy(linger=10_000)


def _die_with(parent: int) -> None:
    """Lets the kernel kill us with the parent: an op may hold the interpreter for minutes, and then `_watch` does not run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
