"""A byte-level BPE tokenizer and its chat template, out of the metadata of a GGUF file.

Text that a user typed never becomes a control token. A message that contains the spelling of one ("<|im_end|>") could
otherwise end its own turn and speak as the system. Such spellings are taken out of the contents before the template is
rendered and put back as ordinary text afterwards; messages without them, nearly all, take the same path as everywhere else.
So tokens equal those of transformers unless a spelling is there, and then only the spelling itself is encoded differently:
control tokens are boundaries of the encoding in both cases.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omni_runtime.errors import CheckpointError, RequestError, unknown
from omni_runtime.weights.gguf import GGUF

ROLES = ("system", "user", "assistant", "tool")  # a free role could smuggle text into the part that belongs to the template
_CONTROL = 3  # tokenizer.ggml.token_type: 1 normal, 3 control, 4 user-defined
_USER_DEFINED = 4

# tokenizer.ggml.pre -> how text is cut before BPE. Digits one by one, as the SmolLM tokenizers do.
_SPLITTERS = {"smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])}


def _byte_letters() -> dict[str, int]:
    """The GPT-2 alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 onwards."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF = _byte_letters()


def _spell(token: str) -> bytes:
    """The bytes a byte-level token stands for. A token with letters outside the alphabet stands for its own text."""
    try:
        return bytes([_BYTE_OF[letter] for letter in token])
    except KeyError:
        return token.encode()


class ChatTokenizer:
    """Text to token ids and back.

    Attributes:
        pieces: by token id, the bytes that the token adds to a text; empty for control tokens. Joined and decoded as UTF-8
            with errors replaced they give what `Tokenizer.decode(ids, skip_special_tokens=True)` gives.
        stop: ids that end a turn.

    Raises:
        CheckpointError: the metadata is incomplete, contradicts itself, or describes another kind of tokenizer.
    """

    def __init__(self, file: GGUF) -> None:
        self._file = file
        if (kind := self._need("tokenizer.ggml.model", str)) != "gpt2":
            raise self._wrong("tokenizer.ggml.model", f"{kind!r} is not supported, only byte-level BPE ('gpt2') is")
        splitter = _SPLITTERS.get(pre := self._need("tokenizer.ggml.pre", str))
        if splitter is None:
            raise self._wrong("tokenizer.ggml.pre", unknown("rule", pre, _SPLITTERS))
        tokens, types = self._need("tokenizer.ggml.tokens", list), self._need("tokenizer.ggml.token_type", list)
        if len(types) != len(tokens):
            raise self._wrong("tokenizer.ggml.token_type", f"{len(types)} types for {len(tokens)} tokens")
        table = {token: i for i, token in enumerate(tokens)}
        if len(table) != len(tokens):
            raise self._wrong("tokenizer.ggml.tokens", "a token appears twice")
        pairs = [tuple(pair.split(" ", 1)) for pair in self._need("tokenizer.ggml.merges", list)]
        try:
            bpe = models.BPE(table, pairs)
        except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
            raise self._wrong("tokenizer.ggml.merges", str(error)) from error
        self.control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
        longest_first = sorted(self.control, key=len, reverse=True)
        self._spellings = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # (?!) never matches
        literal = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
        self._whole, self._plain = Tokenizer(bpe), Tokenizer(bpe)
        for tokenizer in (self._whole, self._plain):
            tokenizer.pre_tokenizer = splitter()
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.add_tokens([AddedToken(token, normalized=False) for token in literal])
        self._whole.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in self.control])
        self.pieces = [
            b"" if kind == _CONTROL else token.encode() if kind == _USER_DEFINED else _spell(token)
            for token, kind in zip(tokens, types, strict=True)
        ]
        ends = [self._need("tokenizer.ggml.eos_token_id", int), file.metadata.get("tokenizer.ggml.eot_token_id")]
        self.stop = tuple(sorted({end for end in ends if end is not None}))
        if self.stop[-1] >= len(tokens):
            raise self._wrong("tokenizer.ggml.eos_token_id", f"{self.stop[-1]} is no token, there are {len(tokens)}")
        self._template = self._compile(self._need("tokenizer.chat_template", str))

    def encode(self, text: str, control: bool = False) -> list[int]:
        """Token ids of a text; spellings of control tokens become control tokens only if `control` says so."""
        return (self._whole if control else self._plain).encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, control tokens left out."""
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def encode_chat(self, messages: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant speaks. A plain text is one turn of the user.

        Raises:
            RequestError: messages of another shape, or the template refuses them.
        """
        turns = check_messages(messages)
        mark = self._hide(turns)
        text = self._render(turns)
        if mark is None:
            return self.encode(text, control=True)
        ids: list[int] = []
        for i, part in enumerate(re.split(f"{mark}(\\d+){mark}", text)):  # odd parts are the numbers that `_hide` wrote
            ids += self.encode(self.control[int(part)]) if i % 2 else self.encode(part, control=True)
        return ids

    def _hide(self, turns: list[dict[str, str]]) -> str | None:
        """Puts `<mark>number<mark>` in place of every control spelling in the contents, and says the mark.

        The mark is a private-use letter that no content holds. None if there is nothing to hide.
        """
        contents = "".join(turn["content"] for turn in turns)
        if not self._spellings.search(contents):
            return None
        mark = next(letter for letter in map(chr, range(0xF0000, 0xFFFFE)) if letter not in contents)
        for turn in turns:
            turn["content"] = self._spellings.sub(lambda hit: f"{mark}{self.control.index(hit[0])}{mark}", turn["content"])
        return mark

    def _render(self, turns: list[dict[str, str]]) -> str:
        import jinja2

        try:
            return self._template.render(messages=turns, add_generation_prompt=True)  # type: ignore[no-any-return]
        except jinja2.TemplateError as error:
            raise RequestError(f"messages: the chat template of {self._file.path.name} refuses them: {error}") from error

    def _compile(self, source: str) -> Any:
        import jinja2  # torch depends on it; 20 ms, so not at import
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise jinja2.TemplateError(message)

        # Block trimming and loop controls are what published templates are written for.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(source)
        except jinja2.TemplateError as error:
            raise self._wrong("tokenizer.chat_template", f"it is no template: {error}") from error

    def _need(self, key: str, kind: type) -> Any:
        value = self._file.metadata.get(key)
        if not isinstance(value, kind):
            raise self._wrong(key, f"{kind.__name__} needed, {'nothing' if value is None else type(value).__name__} found")
        return value

    def _wrong(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: metadata {key!r}: {problem}; use a file that carries its tokenizer")


def check_messages(messages: object) -> list[dict[str, str]]:
    """A conversation as fresh dicts with exactly `role` and `content`; a plain text is one turn of the user.

    Raises:
        RequestError: naming the message and the field that is wrong.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise RequestError(f"messages: a text or a non-empty list of {{'role', 'content'}} dicts needed, got {messages!r:.80}")
    turns = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RequestError(f"messages[{i}]: a dict with exactly 'role' and 'content' needed, got {message!r:.80}")
        if message["role"] not in ROLES:
            raise RequestError(f"messages[{i}].role: {unknown('role', message['role'], ROLES)}")
        if not isinstance(message["content"], str):
            raise RequestError(f"messages[{i}].content: a text needed, got {message['content']!r:.80}")
        turns.append({"role": message["role"], "content": message["content"]})
    return turns
