"""A chat template: Jinja that turns a conversation into the text of a prompt, in a sandbox.

Templates get what transformers gives them (messages, add_generation_prompt, the special tokens, `raise_exception`, and `tools`
and `documents` as None), except `strftime_now`: a prompt that depends on the day can neither be repeated nor reused. Templates
that ask whether it is there print their fixed date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2  # torch depends on it
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omni_runtime.errors import RequestError


class _Generation(Extension):
    """`{% generation %}` marks what the assistant says, for training. Here it is only its contents."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares a plain set)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # jinja's own escapes < and > for HTML


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja.
        name: of the model, for messages.
        special: texts of special tokens by the names that templates use: "bos_token", "eos_token", ...

    Raises:
        ValueError: the source is no template.
    """

    def __init__(self, source: str, name: str, special: Mapping[str, str] | None = None) -> None:
        # Block trimming and loop controls are what published templates are written for.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _tojson
        self._name, self._special = name, dict(special or {})
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"it is no template: {error}") from error

    def render(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """The text of a prompt, up to where the assistant speaks.

        Raises:
            RequestError: the template refuses the conversation.
        """
        given = {"tools": None, "documents": None, **self._special}
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **given)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError, RecursionError) as error:
            raise RequestError(f"messages: the chat template of {self._name} refuses them: {error}") from error
