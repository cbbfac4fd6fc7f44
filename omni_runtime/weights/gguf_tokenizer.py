"""A byte-level BPE tokenizer and its chat template, out of the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omni_runtime.errors import CheckpointError, unknown
from omni_runtime.weights.byte_level import spell
from omni_runtime.weights.chat_template import ChatTemplate
from omni_runtime.weights.gguf import GGUF
from omni_runtime.weights.tokenizer import ChatTokenizer

_CONTROL = 3  # tokenizer.ggml.token_type: 1 normal, 3 control, 4 user-defined
_USER_DEFINED = 4

# tokenizer.ggml.pre -> how text is cut before BPE. Digits one by one, as the SmolLM tokenizers do.
_SPLITTERS = {"smollm": lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)])}


def gguf_tokenizer(file: GGUF) -> ChatTokenizer:
    """The tokenizer of a file.

    Raises:
        CheckpointError: the metadata is incomplete, contradicts itself, or describes another kind of tokenizer.
    """

    def wrong(key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{file.path}: metadata {key!r}: {problem}; use a file that carries its tokenizer")

    def need(key: str, kind: type) -> Any:
        value = file.metadata.get(key)
        if not isinstance(value, kind):
            raise wrong(key, f"{kind.__name__} needed, {'nothing' if value is None else type(value).__name__} found")
        return value

    if (kind := need("tokenizer.ggml.model", str)) != "gpt2":
        raise wrong("tokenizer.ggml.model", f"{kind!r} is not supported, only byte-level BPE ('gpt2') is")
    splitter = _SPLITTERS.get(pre := need("tokenizer.ggml.pre", str))
    if splitter is None:
        raise wrong("tokenizer.ggml.pre", unknown("rule", pre, _SPLITTERS))
    tokens, types = need("tokenizer.ggml.tokens", list), need("tokenizer.ggml.token_type", list)
    if len(types) != len(tokens):
        raise wrong("tokenizer.ggml.token_type", f"{len(types)} types for {len(tokens)} tokens")
    table = {token: i for i, token in enumerate(tokens)}
    if len(table) != len(tokens):
        raise wrong("tokenizer.ggml.tokens", "a token appears twice")
    pairs = [tuple(pair.split(" ", 1)) for pair in need("tokenizer.ggml.merges", list)]
    try:
        bpe = models.BPE(table, pairs)
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise wrong("tokenizer.ggml.merges", str(error)) from error
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    literal = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    whole, plain = Tokenizer(bpe), Tokenizer(bpe)
    for tokenizer in (whole, plain):
        tokenizer.pre_tokenizer = splitter()
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in literal])
    whole.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    pieces = [
        b"" if kind == _CONTROL else token.encode() if kind == _USER_DEFINED else spell(token)
        for token, kind in zip(tokens, types, strict=True)
    ]
    ends = [need("tokenizer.ggml.eos_token_id", int), file.metadata.get("tokenizer.ggml.eot_token_id")]
    stop = tuple(sorted({end for end in ends if end is not None}))
    if stop[-1] >= len(tokens):
        raise wrong("tokenizer.ggml.eos_token_id", f"{stop[-1]} is no token, there are {len(tokens)}")
    try:
        template = ChatTemplate(need("tokenizer.chat_template", str), file.path.name)
    except ValueError as error:
        raise wrong("tokenizer.chat_template", str(error)) from error
    return ChatTokenizer(whole, plain, control, pieces, stop, template)
