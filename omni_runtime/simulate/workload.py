"""A workload: requests and when they come, one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from omni_runtime.card import Value
from omni_runtime.errors import RequestError
from omni_runtime.messages import MAX_TEXT


class Arrival(Value):
    """A request of a workload: what it asks for, and how large it is. What it says does not matter to a scheduler."""

    error: ClassVar[type[ValueError]] = RequestError

    at: float = Field(ge=0.0, allow_inf_nan=False)  # seconds from the start
    program: str = Field(min_length=1)  # as `omni show` takes it
    outputs: tuple[str, ...] | None = None  # None: all
    characters: int | None = Field(default=None, ge=1, le=MAX_TEXT)  # of each text that goes in
    prompt_tokens: int | None = Field(default=None, ge=1)  # that the tokenizer makes of it, or that go in
    shared_tokens: int = Field(default=0, ge=0)  # of the prompt: it begins with these, as all others with any do
    tokens: int | None = Field(default=None, ge=0)  # of the answer, exactly
    params: Mapping[str, Any] = {}  # further keywords of `submit`: parameters of loops
    priority: Literal["high", "normal", "low"] = "normal"
    n: int = Field(default=1, ge=1, le=64)  # samples
    tenant: str = ""
    guarantee: Literal["no-underrun"] | None = None
    deadline_s: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)  # seconds from its coming to its end
    first_output_s: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)  # the same to the first piece of every output

    @field_validator("outputs", mode="before")
    @classmethod
    def _as_tuple(cls, outputs: Any) -> Any:
        return tuple(outputs) if isinstance(outputs, list) else outputs


def read(path: str | Path) -> list[Arrival]:
    """The requests of a file, in order.

    Raises:
        RequestError: a line is no JSON object, has an unknown or wrong field, or comes before the line above it.
        OSError: the file cannot be read.
    """
    found: list[Arrival] = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                value = json.loads(line)
            except ValueError as e:
                raise RequestError(f"{where}: no JSON ({e}); write one object a line, such as {EXAMPLE}") from None
            if not isinstance(value, dict):
                raise RequestError(f"{where}: an object is needed, not {str(value)[:60]!r}; such as {EXAMPLE}")
            try:
                arrival = Arrival(**value)
            except RequestError as e:
                raise RequestError(f"{where}: {e}") from None
            if found and arrival.at < found[-1].at:
                raise RequestError(f"{where}: at={arrival.at} is before the line above, {found[-1].at}; sort the lines by `at`")
            found.append(arrival)
    if not found:
        raise RequestError(f"{path}: no request in it; write one object a line, such as {EXAMPLE}")
    return found


EXAMPLE = '{"at": 0.5, "program": "speak", "prompt_tokens": 40, "tokens": 32}'


def write(path: str | Path, arrivals: Iterable[Arrival]) -> None:
    """Writes what `read` reads; fields that say nothing are left out.

    Raises:
        OSError: the file cannot be written.
    """
    with open(path, "w", encoding="utf-8") as file:
        for arrival in arrivals:
            file.write(json.dumps(arrival.model_dump(exclude_defaults=True)) + "\n")
