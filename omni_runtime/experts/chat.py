"""A chat tokenizer as an expert: op `encode_chat` turns a conversation into the token ids of a prompt. Runs on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omni_runtime.errors import RequestError
from omni_runtime.experts.base import Op
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.text_lm import read_options
from omni_runtime.weights import tokenizer
from omni_runtime.work import CallStep, Row, StepResult


class ChatTokenizer:
    """The op around a `tokenizer.ChatTokenizer`. Keeps no state."""

    def __init__(self, inner: tokenizer.ChatTokenizer) -> None:
        self.tokenizer = inner
        self.ops: Mapping[str, Op] = {"encode_chat": self.encode_chat}

    def encode_chat(self, rows: Sequence[Row], slots: Slots) -> list[StepResult]:
        """Per row, from inputs {"messages": (messages,)}: items {"tokens": ids}.

        Messages are a text, or a list of {"role", "content"} dicts.

        Raises:
            RequestError: inputs or messages of another shape.
        """
        return [StepResult(items={"tokens": self.tokenizer.encode_chat(self._messages(row))}) for row in rows]

    @staticmethod
    def _messages(row: Row) -> Any:
        step = row.payload
        if not isinstance(step, CallStep):
            raise RequestError(f"loop {row.loop!r}: op 'encode_chat' needs a CallStep, got {type(step).__name__}")
        if set(step.inputs) != {"messages"} or len(step.inputs["messages"]) != 1:
            shape = {name: len(items) for name, items in step.inputs.items()}
            raise RequestError(f"loop {row.loop!r}: op 'encode_chat' needs inputs {{'messages': 1 item}}, got {shape}")
        if step.params:
            raise RequestError(f"loop {row.loop!r}: op 'encode_chat' takes no parameters, got {', '.join(sorted(step.params))}")
        return step.inputs["messages"][0]


@dataclass(frozen=True)
class _Options:
    weights: str = "smollm2"  # as for text_lm


def build(options: Mapping[str, Any], device: str) -> ChatTokenizer:
    """The expert that a card names `omni_runtime.experts.chat:build`. Reads the header of the weights only, once a process.

    Raises:
        CardError: a wrong option.
        MissingExtra, CheckpointError: the file is missing, or carries no tokenizer we can read.
    """
    from omni_runtime.weights import smollm2
    from omni_runtime.weights.folder_tokenizer import folder_tokenizer

    asked: _Options = read_options(_Options, options, "chat")
    path = smollm2.locate() if asked.weights == "smollm2" else Path(asked.weights)
    return ChatTokenizer(folder_tokenizer(path) if path.is_dir() else smollm2.open_tokenizer(path))
