"""Values of the vocabulary as JSON and back, exactly, as far as decisions depend on them.

JSON's own values stand for themselves, and an array for a tuple. Anything else is an object with one key that begins with "~":

    {"~l": [...]}               list
    {"~d": [[key, value], ...]} a mapping whose keys are not all texts, or begin with "~"
    {"~u": "..."} {"~b": "..."} bytes that are UTF-8, others in base 64
    {"~f": "nan"}               a float that is not finite
    {"~n": ["<i8", 7]}          a numpy number
    {"~a": ["<f4", [24000]]}    a numpy array: its dtype and shape, and zeros when it is read
    {"~a": ["<f4", [5, 3], {"1": [4]}]}  the same, with ones in row 4 of column 1
    {"~a": ["<i8", [3], [7, 8, 9]]}      an array with all of its content
    {"~o": "module.Type"}       something that only experts know
    {"~Answer": [...]}          a struct: its fields in order, or by name, without those at their default
    {"~loop": ["card", "loop"]} a loop of a card in the head of the log
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from omni_runtime import card, draw, orders, program, request, work
from omni_runtime.card import LoopSpec, Value
from omni_runtime.errors import OmniError, ReplayError, unknown

Pack = Callable[[Any], Any]


class Foreign(Struct, frozen=True):
    """Stands for something that only experts know."""

    name: str


def _named(*modules: Any) -> dict[str, type]:
    """The structs and card values that these modules define."""
    found = {}
    for module in modules:
        for name, kind in vars(module).items():
            if isinstance(kind, type) and issubclass(kind, Struct | Value) and kind.__module__ == module.__name__:
                found[name] = kind
    return found


class Part(Struct, frozen=True):
    """An array, and what of its content is looked at: some columns (whether a value is zero), or all of it (None)."""

    array: np.ndarray[Any, Any]
    columns: tuple[int, ...] | None


TYPES = _named(draw, work, orders, program, card, request) | {"Foreign": Foreign}
EXACT = frozenset((str, int, bool, type(None)))


class Encoder:
    """`pack` makes what `msgspec.json.encode` takes.

    Args:
        cards: their loops are written by name.
    """

    def __init__(self, cards: Mapping[str, card.ModelCard] | None = None) -> None:
        self._loops = {id(loop): (name, key, loop) for name, c in (cards or {}).items() for key, loop in c.loops.items()}
        self._of: dict[type, Pack] = {
            float: self._float,
            tuple: self._tuple,
            list: lambda value: {"~l": self._tuple(value)},
            dict: self._mapping,
            bytes: _bytes,
            np.ndarray: array,
            Part: _part,
        }

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in EXACT:
            return value
        return (self._of.get(kind) or self._learn(kind))(value)

    def _learn(self, kind: type) -> Pack:
        found: Pack
        if issubclass(kind, Struct) and TYPES.get(kind.__name__) is kind:
            found = self._struct(kind)
        elif issubclass(kind, LoopSpec):
            found = self._loop
        elif issubclass(kind, Value):
            found = self._value
        elif issubclass(kind, np.generic):
            found = _number
        elif issubclass(kind, np.ndarray):
            found = array
        elif issubclass(kind, Mapping):
            found = self._mapping
        elif issubclass(kind, list):
            found = self._of[list]
        elif issubclass(kind, tuple):
            found = self._tuple
        else:
            found = self._other
        self._of[kind] = found
        return found

    def _float(self, value: float) -> Any:
        return value if math.isfinite(value) else {"~f": repr(value)}

    def _tuple(self, value: Any) -> list[Any]:
        pack = self.pack
        return [item if type(item) in EXACT else pack(item) for item in value]

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        pack = self.pack
        if all(type(key) is str and key[:1] != "~" for key in value):
            return {key: pack(item) for key, item in value.items()}
        return {"~d": [[pack(key), pack(item)] for key, item in value.items()]}

    def _struct(self, kind: type[Struct]) -> Pack:
        """By position where the struct itself travels as an array, by name otherwise."""
        known = [(f.name, _default(f)) for f in fields(kind)]
        tag, pack = f"~{kind.__name__}", self.pack
        if not kind.__struct_config__.array_like:
            return lambda value: {tag: {n: pack(v) for n, d in known if not _same(v := getattr(value, n), d)}}

        def by_position(value: Any) -> Any:
            length = len(known)
            while length and _same(getattr(value, known[length - 1][0]), known[length - 1][1]):
                length -= 1
            items = [getattr(value, name) for name, _ in known[:length]]
            return {tag: [item if type(item) in EXACT else pack(item) for item in items]}

        return by_position

    def _loop(self, value: LoopSpec) -> Any:
        known = self._loops.get(id(value))
        if known is None:
            known = next((k for k in self._loops.values() if type(k[2]) is type(value) and k[2] == value), None)
        return self._value(value) if known is None else {"~loop": known[:2]}

    def _value(self, value: Value) -> Any:
        kind = type(value)
        if TYPES.get(kind.__name__) is not kind:
            return self._other(value)
        found = {}
        for name, field in kind.model_fields.items():
            item = getattr(value, name)
            default = field.get_default(call_default_factory=True) if not field.is_required() else NODEFAULT
            if not _same(item, default):
                found[name] = self.pack(item)
        return {f"~{kind.__name__}": found}

    def _other(self, value: Any) -> Any:
        """What JSON can say of it is kept, so that it is encoded as it would be itself; of all else, its type."""
        if isinstance(shape := getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
            return {"~a": ["|u1", list(shape)]}
        try:
            return self.pack(msgspec.to_builtins(value))
        except (TypeError, ValueError, RecursionError):
            return {"~o": called(value)}


def called(value: Any) -> str:
    """The name of a foreign object's type."""
    return value.name if type(value) is Foreign else f"{type(value).__module__}.{type(value).__qualname__}"


def _default(field: Any) -> Any:
    if field.default_factory is not NODEFAULT:
        return field.default_factory()
    return field.default


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _bytes(value: bytes) -> Any:
    try:
        return {"~u": value.decode()}
    except UnicodeDecodeError:
        return {"~b": b64encode(value).decode()}


def _number(value: np.generic) -> Any:
    item = value.item()
    exact = isinstance(item, int) or (isinstance(item, float) and math.isfinite(item))
    return {"~n": [value.dtype.str, item]} if exact else array(np.asarray(value))


def array(value: np.ndarray[Any, Any]) -> Any:
    """An array without its content."""
    return {"~a": [value.dtype.str, list(value.shape)]}


def _part(part: Part) -> Any:
    value, found = part.array, array(part.array)
    if part.columns is None:
        found["~a"].append(value.tolist())
    elif value.ndim in (1, 2):  # a row, or rows
        rows = value.reshape(-1, value.shape[-1])
        found["~a"].append({str(c): np.flatnonzero(rows[:, c]).tolist() for c in part.columns if c < rows.shape[1]})
    return found


class Decoder:
    """`unpack` gives back what was packed.

    Args:
        loops: (card, loop) -> its spec.
    """

    def __init__(self, loops: Mapping[tuple[str, str], LoopSpec] | None = None) -> None:
        self.loops = loops or {}
        self._tags: dict[str, Callable[[Any], Any]] = {
            "~l": lambda x: [self.unpack(item) for item in x],
            "~d": lambda x: {self.unpack(key): self.unpack(item) for key, item in x},
            "~u": lambda x: x.encode(),
            "~b": b64decode,
            "~f": float,
            "~n": lambda x: np.dtype(x[0]).type(x[1]),
            "~a": lambda x: _array(*x),
            "~o": Foreign,
            "~loop": self._loop,
        }

    def unpack(self, packed: Any) -> Any:
        """
        Raises:
            ReplayError: it is not what `pack` makes.
        """
        kind = type(packed)
        if kind is list:
            return tuple([self.unpack(item) for item in packed])
        if kind is not dict:
            return packed
        tag = next(iter(packed), "")
        if tag[:1] != "~":
            return {key: self.unpack(item) for key, item in packed.items()}
        made = self._tags.get(tag)
        try:
            return made(packed[tag]) if made is not None else self._typed(tag[1:], packed[tag])
        except ReplayError:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, OmniError) as error:
            raise ReplayError(f"{tag[1:]}: {str(packed[tag])[:80]!r} cannot be read: {error}") from None

    def _typed(self, name: str, packed: Any) -> Any:
        kind = TYPES.get(name)
        if kind is None:
            raise ReplayError(unknown("type", name, TYPES) + "; was the log written by a newer version?")
        if isinstance(packed, list):
            return kind(*[self.unpack(item) for item in packed])
        return kind(**{key: self.unpack(item) for key, item in packed.items()})

    def _loop(self, packed: Any) -> LoopSpec:
        card_name, loop = packed
        if (card_name, loop) not in self.loops:
            raise ReplayError(unknown("loop", f"{card_name}/{loop}", (f"{c}/{n}" for c, n in self.loops)))
        return self.loops[card_name, loop]


def _array(dtype: str, shape: list[int], content: Any = None) -> np.ndarray[Any, Any]:
    if isinstance(content, list):
        return np.array(content, np.dtype(dtype)).reshape(shape)
    found = np.zeros(shape, np.dtype(dtype))
    for column, rows in (content or {}).items():
        found.reshape(-1, shape[-1])[rows, int(column)] = 1
    return found
