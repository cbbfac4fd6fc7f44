"""The small JSON files of a checkpoint folder, read so strictly that no key can hide. Loads without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omni_runtime.errors import CheckpointError, unknown

_REQUIRED = object()


def read_json(path: Path, remedy: str = "fetch the file again") -> dict[str, Any]:
    """The object in a file.

    Raises:
        CheckpointError: there is no such file, it is empty or no JSON, a key stands twice in one object, a number is NaN or
            infinite, or the outermost value is no object. The message names the file and ends with the remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; {remedy}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; {remedy}") from None
    if not text.strip():
        raise CheckpointError(f"{path} is empty; {remedy}")
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not sound JSON: {error}; {remedy}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: a JSON object is needed at the top, this is a {type(found).__name__}; {remedy}")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice!r} stands twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number that a setting can have")


class Fields:
    """The values of an object by key, each checked when taken. Keys of nested objects are shown as "outer.inner".

    Every `take` of a missing key without a default, or of a value of another kind, raises a `CheckpointError`. A JSON null
    counts as missing: published configurations write it for "the usual".
    """

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path, self.values, self._prefix = path, values, prefix

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def wrong(self, key: str, problem: str) -> CheckpointError:
        """An error about a key, for the caller to raise."""
        return CheckpointError(f"{self.path}: {self._prefix}{key}: {problem}")

    def _take(self, key: str, kinds: tuple[type, ...], what: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                near = "" if key in self.values else unknown("key", key, self.values).partition("; ")[2]
                raise self.wrong(key, f"is missing, {what} is needed" + (f"; {near}" if near else ""))
            return default
        if type(value) not in kinds:  # exactly: True is no number
            raise self.wrong(key, f"{what} is needed, not {value!r:.80}")
        return value

    def count(self, key: str, default: Any = _REQUIRED, least: int = 1, most: int = 1 << 40) -> Any:
        """A whole number from `least` to `most`."""
        value = self._take(key, (int,), "a whole number", default)
        if value is not default and not least <= value <= most:
            raise self.wrong(key, f"{value} is out of range, {least} to {most} is possible")
        return value

    def number(self, key: str, default: Any = _REQUIRED, above: float = 0.0, least: float | None = None) -> Any:
        """A finite number greater than `above`; or, where `least` is given, of at least that."""
        value = self._take(key, (int, float), "a number", default)
        if value is default:
            return value
        if not math.isfinite(value) or not (value > above if least is None else value >= least):
            needed = f"more than {above:g} is needed" if least is None else f"{least:g} or more is needed"
            raise self.wrong(key, f"{value} is out of range, {needed}")
        return float(value)

    def flag(self, key: str, default: Any = _REQUIRED) -> Any:
        """true or false."""
        return self._take(key, (bool,), "true or false", default)

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A text."""
        return self._take(key, (str,), "a text", default)

    def items(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list."""
        return self._take(key, (list,), "a list", default)

    def inner(self, key: str) -> Fields | None:
        """A nested object, or None where there is none."""
        value = self._take(key, (dict,), "an object", None)
        return None if value is None else Fields(self.path, value, f"{self._prefix}{key}.")

    def ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty where the key is missing."""
        value = self.values.get(key)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(i) is int and i >= 0 for i in found):
            raise self.wrong(key, f"a token id or a list of them is needed, not {value!r:.80}")
        return tuple(found)

    def only(self, known: Iterable[str], why: Mapping[str, str] | None = None) -> None:
        """Whether no other keys are there than these.

        Args:
            known: keys that may be there.
            why: sentences about some of the others.

        Raises:
            CheckpointError: another key is there; it is named, and the nearest known one too.
        """
        allowed = set(known)
        for key in self.values:
            if key not in allowed:
                if why and key in why:
                    raise self.wrong(key, why[key])
                near = unknown("key", key, allowed).partition("; ")[2]
                hint = f"; {near}" if near else "; take it out of the file if it is only a note"
                raise self.wrong(key, f"unknown key, whatever it says would not be done{hint}")
