"""A chat tokenizer: text to token ids and back, whatever file it came from.

Text that a user typed never becomes a control token. A message that contains the spelling of one ("<|im_end|>") could
otherwise end its own turn and speak as the system. Such spellings are taken out of the contents before the template is
rendered and put back as ordinary text afterwards; messages without them, nearly all, take the same path as everywhere else.
So tokens equal those of transformers unless a spelling is there, and then only the spelling itself is encoded differently:
control tokens are boundaries of the encoding in both cases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from omni_runtime.errors import RequestError, unknown
from omni_runtime.messages import ROLES
from omni_runtime.weights.chat_template import ChatTemplate


class ChatTokenizer:
    """Text to token ids and back.

    Args:
        whole: encodes spellings of control tokens as these tokens.
        plain: encodes them as ordinary text.
        control: the spellings.
        pieces: see below.
        stop: see below.
        template: writes the prompt of a conversation.

    Attributes:
        pieces: by token id, the bytes that the token adds to a text; empty for control tokens. Joined and decoded as UTF-8
            with errors replaced they give what `Tokenizer.decode(ids, skip_special_tokens=True)` gives.
        stop: ids that end a turn.
    """

    def __init__(
        self,
        whole: Tokenizer,
        plain: Tokenizer,
        control: Iterable[str],
        pieces: list[bytes],
        stop: tuple[int, ...],
        template: ChatTemplate,
    ) -> None:
        self._whole, self._plain, self._template = whole, plain, template
        self.control, self.pieces, self.stop = list(control), pieces, stop
        longest_first = sorted(self.control, key=len, reverse=True)
        self._spellings = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # (?!) never matches

    def encode(self, text: str, control: bool = False) -> list[int]:
        """Token ids of a text; spellings of control tokens become control tokens only if `control` says so."""
        return (self._whole if control else self._plain).encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some tokens, control tokens left out."""
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def encode_chat(self, messages: str | Sequence[Mapping[str, Any]], media: Sequence[str] = ()) -> list[int]:
        """Token ids of a conversation, up to where the assistant speaks. A plain text is one turn of the user.

        Args:
            messages: a text, or turns with a text each.
            media: kinds of parts beside text. The template writes a placeholder for each of them, and no text does.

        Raises:
            RequestError: messages of another shape, or the template refuses them.
        """
        turns = check_messages(messages, media)
        mark = self._hide(turns)
        text = self._template.render(turns)
        if mark is None:
            return self.encode(text, control=True)
        ids: list[int] = []
        for i, part in enumerate(re.split(f"{mark}(\\d+){mark}", text)):  # odd parts are the numbers that `_hide` wrote
            ids += self.encode(self.control[int(part)]) if i % 2 else self.encode(part, control=True)
        return ids

    def _hide(self, turns: list[dict[str, Any]]) -> str | None:
        """Puts `<mark>number<mark>` in place of every control spelling in the contents, and says the mark.

        The mark is a private-use letter that no content holds. None if there is nothing to hide.
        """
        texts = [(turn, "content") for turn in turns if isinstance(turn["content"], str)]
        parts = [part for turn in turns if not isinstance(turn["content"], str) for part in turn["content"]]
        texts += [(part, "text") for part in parts if part["type"] == "text"]
        contents = "".join(holder[key] for holder, key in texts)
        if not self._spellings.search(contents):
            return None
        mark = next(letter for letter in map(chr, range(0xF0000, 0xFFFFE)) if letter not in contents)
        for holder, key in texts:
            holder[key] = self._spellings.sub(lambda hit: f"{mark}{self.control.index(hit[0])}{mark}", holder[key])
        return mark


def check_messages(messages: object, media: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A conversation as fresh dicts with exactly `role` and `content`; a plain text is one turn of the user.

    Of parts that are no text only the type is kept.

    Raises:
        RequestError: naming the message and the field that is wrong.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise RequestError(f"messages: a text or a non-empty list of {{'role', 'content'}} dicts needed, got {messages!r:.80}")
    turns: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            raise RequestError(f"messages[{i}]: a dict with exactly 'role' and 'content' needed, got {message!r:.80}")
        if message["role"] not in ROLES:
            raise RequestError(f"messages[{i}].role: {unknown('role', message['role'], ROLES)}")
        content = message["content"]
        if media and isinstance(content, list | tuple):
            content = [_part(f"messages[{i}].content[{at}]", part, media) for at, part in enumerate(content)]
        elif not isinstance(content, str):
            raise RequestError(f"messages[{i}].content: a text needed, got {message['content']!r:.80}")
        turns.append({"role": message["role"], "content": content})
    return turns


def _part(where: str, part: object, media: Sequence[str]) -> dict[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind not in media:
        raise RequestError(f"{where}: {unknown('type of part', kind, ('text', *media))}")
    return {"type": str(kind)}
