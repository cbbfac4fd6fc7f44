"""A device "cuda" on a machine that has none: tensors that say they are there, with their numbers on the host.

What is computed is computed, so an expert's answers can be held against those of the same expert on the CPU. What a GPU forbids
raises as there: an op of tensors of both sides, `.numpy()` of a tensor that is over there, waiting while a graph is recorded.
What makes the host wait is counted, by where it was asked for:

    reads    values come to the host: item, tolist, cpu, a mask as an index, nonzero, an event or stream that is waited for
    sends    values go from pageable memory, which CUDA answers only when everything queued before is done
    queued   copies from or to pinned memory that nobody waits for

A queued copy to the host arrives when an event after it is waited for; until then its memory holds POISON. Memory that a queued
copy reads from must stay as it is until then, or `Hazard` is raised.

Triton kernels: `fake_kernels.py`. Not seen here: races between streams, numbers of CUDA's own kernels, time, memory.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock, get_ident
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from fake_tensor import CUDA, Fake, inner, is_fake
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

CPU = torch.device("cpu")
POISON = 0x5A  # byte that memory holds until a queued copy has arrived
HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Ops whose result has a size that only the device knows.
WAITING = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "is_nonzero", "istft"}
WAITING |= {"allclose", "argwhere", "_local_scalar_dense", "item", "combinations"}
MOVES = {"to", "_to_copy", "cuda", "cpu"}
# Ops that take a number which lies on the host beside tensors of the device.
WITH_NUMBER = {"fill_", "fill", "masked_fill", "masked_fill_", "where", "clamp", "clamp_", "index_put_", "index_put"}


class Hazard(RuntimeError):
    """The host changed what the device still reads."""


class _Queued:
    """A copy that nobody waited for yet. `read` tells whether it goes to the host."""

    def __init__(self, into: torch.Tensor, source: torch.Tensor, read: bool) -> None:
        self.into, self.source, self.read, self.values = into, source, read, source.clone()
        if read:
            into.copy_(torch.full((into.nbytes,), POISON, dtype=torch.uint8).view(into.dtype).view(into.shape))

    def arrive(self) -> None:
        if self.read:
            self.into.copy_(self.values)
        elif not torch.equal(_bytes(self.source), _bytes(self.values)):
            raise Hazard(f"pinned memory {tuple(self.source.shape)} changed while it was still being sent")


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8) if x.dim() else x.reshape(1).view(torch.uint8)


class _Mode(TorchDispatchMode):
    """Sends the ops of a thread to the device."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._gpu.run(func, args, kwargs or {})


class _Numbered(TorchFunctionMode):
    """ "cuda" is "cuda:0": outside of inference mode torch asks a guard for the number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to:
            args = (args[0], *(CUDA if isinstance(x, str | torch.device) and str(x) == "cuda" else x for x in args[1:]))
        if str(kwargs.get("device")) == "cuda":
            kwargs = {**kwargs, "device": CUDA}
        return func(*args, **kwargs)


class FakeGpu:
    """Within `with FakeGpu() as gpu`, "cuda" is there, in this thread; other threads enter `gpu.here()`."""

    now: FakeGpu | None = None

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.sends: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        self.launched: Counter[str] = Counter()
        self.recording: list[Callable[[], None]] | None = None
        self._line: list[_Queued] = []
        self._threads: Counter[int] = Counter()
        self._lock = RLock()
        self._pinned: dict[int, Any] = {}  # storages by address; kept, so that no address is given twice
        self._stack = ExitStack()

    # -- what a test asks ---------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets what was counted."""
        for counter in (self.reads, self.sends, self.queued, self.launched):
            counter.clear()

    @property
    def waits(self) -> tuple[int, int]:
        """(reads, sends) since the last `clear`."""
        return self.reads.total(), self.sends.total()

    def told(self) -> str:
        """Where the host waited, for an assertion's message."""
        return "\n".join(f"{kind} {n} x {at}" for kind in ("reads", "sends") for at, n in getattr(self, kind).most_common())

    # -- entering -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> FakeGpu:
        assert FakeGpu.now is None, "one fake GPU at a time"
        from fake_cuda import faked

        for name, value in faked(self).items():
            self._stack.enter_context(patch.object(torch.cuda, name, value))
        future = torch.__future__  # or `Module.to` would write a tensor's address into a parameter that has no numbers
        self._stack.callback(future.set_overwrite_module_params_on_conversion, future.get_overwrite_module_params_on_conversion())
        future.set_overwrite_module_params_on_conversion(True)
        FakeGpu.now = self
        self._stack.callback(setattr, FakeGpu, "now", None)
        self._stack.enter_context(self.here())
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @contextmanager
    def here(self) -> Iterator[None]:
        """Within it the device is there, in the thread that enters it."""
        before = torch._C._only_lift_cpu_tensors()  # type: ignore[attr-defined]
        torch._C._set_only_lift_cpu_tensors(True)  # type: ignore[attr-defined]
        self._threads[get_ident()] += 1
        try:
            with _Numbered(), _Mode(self):
                yield
        finally:
            self._threads[get_ident()] -= 1
            torch._C._set_only_lift_cpu_tensors(before)  # type: ignore[attr-defined]

    # -- ops ----------------------------------------------------------------------------------------------------------------

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """One op of torch."""
        name = func._schema.name.removeprefix("aten::")
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        ours = [x for x in given if is_fake(x)]
        if name in ("pin_memory", "_pin_memory"):
            return self._pin(args[0].clone())
        if name == "is_pinned":
            return args[0].untyped_storage().data_ptr() in self._pinned if not ours else False
        if name in MOVES or name == "copy_":
            return self._move(func, name, args, dict(kwargs))
        asked = kwargs.get("device")
        there = bool(ours) if asked is None else torch.device(asked).type == "cuda"
        if not ours and not there:
            return self._host(func, args, kwargs)
        self._check(name, func, given)
        if _waits(name, func, args, kwargs):
            self.wait("reads", name)
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        if asked is not None:
            kwargs["device"] = CPU
        plain = inner(args), inner(kwargs)
        made = func(*plain[0], **plain[1])
        self.record(func, *plain, made)
        if name in ("_local_scalar_dense", "item"):
            return made
        if not _views(func):
            return self._back(made, ours)
        with torch.inference_mode(ours[0].is_inference()):  # a view is of its tensor's kind, whatever the mode
            return self._back(made, ours)

    def _host(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """An op that is none of the device's. Memory of it may be asked to be pinned."""
        pinned = kwargs.get("pin_memory", False)
        if not pinned:
            return func(*args, **kwargs)
        return self._pin(func(*args, **{key: value for key, value in kwargs.items() if key != "pin_memory"}))

    def _pin(self, made: torch.Tensor) -> torch.Tensor:
        self._pinned[made.untyped_storage().data_ptr()] = made.untyped_storage()
        return made

    @staticmethod
    def _back(made: Any, ours: list[Any]) -> Any:
        """Results as tensors of the device; one that is an argument is that argument."""
        known = {id(x.numbers): x for x in ours}
        leaves, spec = tree_flatten(made)
        found = [known.get(id(x), Fake(x)) if isinstance(x, torch.Tensor) else x for x in leaves]
        for x in ours:
            assert x.shape == x.numbers.shape, f"an op changed the shape of its argument: {tuple(x.shape)}"
        return tree_unflatten(found, spec)

    @staticmethod
    def _check(name: str, func: Any, given: list[torch.Tensor]) -> None:
        for x in given:
            number = x.dim() == 0 and (torch.Tag.pointwise in func.tags or name in WITH_NUMBER)
            if not is_fake(x) and not number:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found cuda:0 and cpu: aten::{name} was given a tensor "
                    f"{tuple(x.shape)} {x.dtype} of the CPU"
                )

    def _index(self, index: Any) -> Any:
        """An index as the host's tensors have it. What is not there yet is sent, and a mask must be counted first."""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if is_fake(part):
                if part.dtype in (torch.bool, torch.uint8):
                    self.wait("reads", "mask")
                elif part.dim() == 0:
                    self.wait("reads", "index")
            elif isinstance(part, list | range | np.ndarray) or (isinstance(part, torch.Tensor) and part.dim()):
                self.wait("sends", "index")
        return inner(index)

    def taken(self, x: Fake, index: Any) -> Any:
        """x[index]"""
        plain = self._index(index)
        with _disable_current_modes():
            made = x.numbers[plain]
        if made.untyped_storage().data_ptr() == x.numbers.untyped_storage().data_ptr():
            with torch.inference_mode(x.is_inference()):
                return Fake(made)
        self._remember(lambda: made.copy_(x.numbers[plain]))
        return Fake(made)

    def put(self, x: Fake, index: Any, value: Any) -> None:
        """x[index] = value"""
        whole = isinstance(value, torch.Tensor) and not is_fake(value) and value.dim() > 0
        parts = index if isinstance(index, tuple) else (index,)
        if whole and all(part is None or part is ... or isinstance(part, int | slice) for part in parts):
            self.wait("sends", "assignment")
        elif whole:
            raise RuntimeError(f"expected self and value to be on the same device: x[...] = a CPU tensor {tuple(value.shape)}")
        elif is_fake(index) and index.dtype == torch.bool and not is_fake(value):
            value = torch.tensor(value) if not isinstance(value, torch.Tensor) else value  # masked_fill: nothing is counted
            self.run(torch.ops.aten.masked_fill_.Tensor, (x, _expanded(index, x), value), {})
            return
        plain, given = self._index(index), inner(value)

        def again() -> None:
            x.numbers[plain] = given

        with _disable_current_modes():
            again()
        self._remember(again)

    def _move(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """`to`, `copy_` and the like: perhaps over to the other side."""
        if name == "copy_":
            into, source, later = args[0], args[1], kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            if is_fake(into) == is_fake(source):
                plain = inner(args), kwargs
                func(*plain[0], **plain[1])
                if is_fake(into):
                    self.record(func, *plain, None)
                return into
            self._across(into, source, later)
            return into
        source, later = args[0], _named(func, args, kwargs, "non_blocking") or False
        asked = _named(func, args, kwargs, "device")
        if (other := _named(func, args, kwargs, "other")) is not None:
            asked = other.device
        there = is_fake(source) if asked is None else torch.device(asked).type == "cuda"
        here = is_fake(source)
        onto = torch.device(source.device if asked is None else asked)
        assert onto.type in ("cpu", "cuda"), f"a device {onto}"
        dtype = _named(func, args, kwargs, "dtype") or (source.dtype if other is None else other.dtype)
        copy = name == "_to_copy" or bool(_named(func, args, kwargs, "copy"))
        whole = inner(source)
        if there == here:
            made = whole.to(dtype, copy=copy)
            if not here:
                return made
            if made is not whole:
                self.record(torch.ops.aten._to_copy.default, (whole,), {"dtype": dtype}, made)
            return source if made is whole else Fake(made)
        # The type is changed where the tensor was; a queued copy to the host lands in pinned memory, as torch does it.
        changed = whole.to(dtype)
        made = torch.empty_like(changed)
        result = Fake(made) if there else (self._pin(made) if later else made)
        self._across(result, changed if there else Fake(changed), later, self.is_pinned(whole) if there else None)
        return result

    def is_pinned(self, x: torch.Tensor) -> bool:
        return x.untyped_storage().data_ptr() in self._pinned

    def _across(self, into: torch.Tensor, source: torch.Tensor, later: bool, pinned: bool | None = None) -> None:
        """Copies to the other side."""
        reads = is_fake(source)
        host = into if reads else source
        pinned = self.is_pinned(host) if pinned is None else pinned
        plain_into, plain = inner(into), inner(source)
        if not (later and pinned):
            self.wait("reads" if reads else "sends", "copy")
            plain_into.copy_(plain)
            return
        self.queued[_place()] += 1
        if not reads:
            plain_into.copy_(plain)
            self._remember(lambda: plain_into.copy_(plain))
            if self.recording is not None:
                return  # its source is read when the graph is
        else:
            self._remember(lambda: self._line.append(_Queued(plain_into, plain, True)))
        if self.recording is None or reads:
            self._line.append(_Queued(plain_into, plain, reads))

    # -- order --------------------------------------------------------------------------------------------------------------

    def wait(self, kind: str, what: str) -> None:
        """The host waits for all that was queued."""
        if self.recording is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} makes the host wait")
        self.note(kind, what)
        self.arrive(len(self._line))

    def note(self, kind: str, what: str) -> None:
        """Counts a wait, by the line of the runtime that asked for it. Threads that are not `here` wait for nobody's sake."""
        if not self._threads[get_ident()]:
            return
        getattr(self, kind)[f"{_place()} ({what})"] += 1

    @property
    def length(self) -> int:
        """How many copies are under way."""
        return len(self._line)

    @property
    def last(self) -> Any:
        """The copy that was queued last, if it is under way."""
        return self._line[-1] if self._line else None

    def waits_for(self, one: Any) -> bool:
        """Whether a copy is under way."""
        return one in self._line

    def arrive(self, count: int) -> None:
        """The first `count` of the copies under way are done."""
        with self._lock, _disable_current_modes(), torch.inference_mode():
            done, self._line[:count] = self._line[:count], []
            for copy in done:
                copy.arrive()

    def until(self, last: Any) -> None:
        """All that was queued up to `last`, and it, is done."""
        with self._lock:
            if last in self._line:
                self.arrive(self._line.index(last) + 1)

    def record(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Remembers an op while a graph is recorded: it is done again into the same memory."""
        if self.recording is None or func._schema.name.startswith(("aten::empty", "aten::new_empty")):
            return
        kept = [x for x in tree_flatten(made)[0] if isinstance(x, torch.Tensor)]
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        mine, places = {id(x) for x in given}, {x.untyped_storage().data_ptr() for x in given}
        if _views(func) and all(x.untyped_storage().data_ptr() in places for x in kept):
            return  # it shows what it showed; a `reshape` that had to copy does not

        def again() -> None:
            new = [x for x in tree_flatten(func(*args, **kwargs))[0] if isinstance(x, torch.Tensor)]
            for old, x in zip(kept, new, strict=False):
                if id(old) not in mine:
                    old.copy_(x)

        self.recording.append(again)

    def _remember(self, again: Callable[[], Any]) -> None:
        if self.recording is not None:
            self.recording.append(again)

    def replay(self, recorded: list[Callable[[], None]]) -> None:
        """A graph."""
        with _disable_current_modes():
            for again in recorded:
                again()


def _views(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _named(func: Any, args: Any, kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument of an op by its name, or None."""
    for at, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[at] if at < len(args) else kwargs.get(name)
    return None


def _expanded(mask: Fake, x: Fake) -> Fake:
    return Fake(mask.numbers.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())))


def _waits(name: str, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an op makes the host wait for the size of its result, or for its value."""
    if name == "repeat_interleave":
        by_number = func._overloadname == "self_int"
        return not by_number and _named(func, args, kwargs, "output_size") is None
    return name in WAITING or _masked(name, args)


def _masked(name: str, args: Any) -> bool:
    """Whether an op has a mask as an index: it must count first."""
    if name not in ("index", "index_put_", "index_put", "_index_put_impl_"):
        return False
    masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
    if name == "index" or not masks:
        return bool(masks)
    return len(masks) > 1 or args[2].numel() > 1  # one number through one mask is `masked_fill`


def _place() -> str:
    """file:line of the runtime's that asked, else of whoever did."""
    frame, first = sys._getframe(1), None
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not path.name.startswith("fake_"):
            told = f"{path.relative_to(ROOT)}:{frame.f_lineno}"
            if path.relative_to(ROOT).parts[0] in ("omni_runtime", "kernels"):
                return told
            first = first or told
        frame = frame.f_back  # type: ignore[assignment]
    return first or "?"
