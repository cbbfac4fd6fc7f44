"""What tiny omni folders share: roles as single tokens, a chat template with media, and the small files beside the weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from omni_runtime.weights.omni_parts import Shapes
from omni_runtime.weights.toy_folder import ADDED, toy_tokenizer, write_json

ROLES = ("system", "user", "assistant")  # one token each, as in the published vocabularies

Values = dict[str, Any]

_TABLE = re.compile(r"embed(ding|_tokens)?(\.\d+)?\.weight$")


def merges() -> list[str]:
    """Merges that spell each role, letter by letter."""
    return [f"{role[:i]} {role[i]}" for role in ROLES for i in range(1, len(role))]


def ids_of(special: Sequence[str]) -> dict[str, int]:
    """Ids of the roles and of special tokens."""
    spelt = merges()
    ids = {role: 256 + spelt.index(f"{role[:-1]} {role[-1]}") for role in ROLES}
    return ids | {text: 256 + len(spelt) + i for i, text in enumerate(special)}


def vocabulary(special: Sequence[str]) -> int:
    """Rounded up, as published vocabularies are."""
    return 16 * math.ceil((256 + len(merges()) + len(special) + len(ADDED)) / 16)


def template(audio: str, image: str, video: str) -> str:
    """A chat template; a medium stands as its three tokens."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{% if part.type == 'audio' %}" + audio + "{% elif part.type == 'image' %}" + image + "{% elif part.type == 'video' %}"
        + video + "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )  # fmt: skip


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with changes, object by object. A value of None removes a key."""
    found = dict(base)
    for key, value in changes.items():
        inner = found.get(key)
        found[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return {key: value for key, value in found.items() if value is not None}


def random_weights(
    shapes: Shapes, seed: int, gain: Callable[[str, tuple[int, ...]], float], halves: tuple[str, ...] = ()
) -> dict[str, torch.Tensor]:
    """Random float32 tensors: matrices and convolutions gain/sqrt(inputs), embeddings 0.5, norms around 1, biases 0.1.

    What is named in `halves` is around one half.
    """
    generator, weights = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        last = name.rsplit(".", 1)[-1]
        if last in halves:
            weights[name] = 0.5 + 0.1 * noise
        elif last in ("alpha", "beta", "bias"):
            weights[name] = 0.1 * noise
        elif len(shape) == 1:
            weights[name] = 1 + 0.2 * noise
        elif _TABLE.search(name):
            weights[name] = 0.5 * noise
        else:
            weights[name] = gain(name, shape) * noise / math.sqrt(math.prod(shape[1:]))
    return weights


def write_small_files(folder: Path, settings: Values, special: Sequence[str], chat: str, vision: Values, mels: int) -> None:
    """All but the weights; `vision` has the sizes of patches."""
    write_json(folder / "config.json", settings)
    ids = ids_of(special)
    stop = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    told = {"eos_token_id": stop, "pad_token_id": ids["<|endoftext|>"], "do_sample": False}
    write_json(folder / "generation_config.json", told)
    write_json(folder / "tokenizer.json", toy_tokenizer(merges(), special))
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", names)
    size = {"shortest_edge": 64, "longest_edge": 16 * 1024}
    images = vision | {"size": size, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "feature_size": mels}
    write_json(folder / "preprocessor_config.json", images | {"n_fft": 400, "hop_length": 160, "sampling_rate": 16000})
    (folder / "chat_template.jinja").write_text(chat)
