"""The text encoders of Stable Diffusion 3 as an expert: op `encode` turns a prompt and a negative prompt into conditioning.

Wraps transformers, which is imported when the expert is built: two CLIP models and perhaps a T5 encoder. A prompt becomes

    embeds   [S, J]  the last but one hidden states of both CLIPs side by side, zeros up to J; below them T5's states (or zeros)
    pooled   [P]     both CLIPs' projections side by side

as Esser et al. 2024 (section 4) and the pipeline of diffusers have it. Each text is encoded alone: a batch would change its last
bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omni_runtime.errors import CheckpointError, MissingExtra, RequestError
from omni_runtime.experts.base import Launched, Op
from omni_runtime.experts.later import Later, launches, settled
from omni_runtime.experts.sd3_options import read_options
from omni_runtime.experts.slots import Slots
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.work import CallStep, Row, StepResult, TensorRef

Pair = tuple[torch.Tensor, torch.Tensor]
PORTS = (("embeds", "pooled"), ("negative_embeds", "negative_pooled"))
CLASSES = {"text_encoder": "CLIPTextModelWithProjection", "text_encoder_2": "CLIPTextModelWithProjection"}
THIRD = "T5EncoderModel"


class SD3Text:
    """Text encoders with their tokenizers. Keeps no state of requests.

    Args:
        clips: (tokenizer, model) of both.
        third: the same of T5, or None: zeros take its place.
        length: tokens of the third.
        features: J, which the denoiser expects.
    """

    def __init__(self, clips: Sequence[tuple[Any, Any]], third: tuple[Any, Any] | None, length: int, features: int) -> None:
        self._clips, self._third, self._length, self._features = clips, third, length, features
        self._clip_length = min(int(clips[0][0].model_max_length), int(clips[0][1].config.max_position_embeddings))
        self._empty: Pair | None = None  # what most requests are held against: encoded once
        self.late = launches(clips[0][1].device)
        self.ops: Mapping[str, Op] = {"encode": self.encode}

    def encode(self, rows: Sequence[Row], slots: Slots) -> list[StepResult] | Launched:
        """Per row, from inputs {"prompt": (text,)} and params {"negative_prompt": text}: a tensor for each of `PORTS`.

        Raises:
            RequestError: inputs or parameters of another shape.
        """
        texts = [self._texts(row) for row in rows]
        results = []
        for row, pair in zip(rows, texts, strict=True):
            tensors: dict[str, tuple[TensorRef, ...]] = {}
            for ports, text in zip(PORTS, pair, strict=True):
                for port, tensor in zip(ports, self._encode(text), strict=True):
                    tensors[port] = (slots.keep(row, port, 0, tensor),)
            results.append(StepResult(tensors=tensors))
        return settled(Later(Reading(), lambda: results), self.late)

    @staticmethod
    def _texts(row: Row) -> tuple[str, str]:
        step = row.payload
        if not isinstance(step, CallStep):
            raise RequestError(f"loop {row.loop!r}: op 'encode' needs a CallStep, got {type(step).__name__}")
        given = step.inputs.get("prompt", ())
        if set(step.inputs) != {"prompt"} or len(given) != 1 or not isinstance(given[0], str):
            raise RequestError(f"loop {row.loop!r}: op 'encode' needs one text as 'prompt', got {str(step.inputs)[:80]}")
        negative = step.params.get("negative_prompt", "")
        if not isinstance(negative, str):
            raise RequestError(f"loop {row.loop!r}: negative_prompt is a text, not {negative!r}")
        return given[0], negative

    def _encode(self, text: str) -> Pair:
        if text == "" and self._empty is not None:
            return self._empty
        made = self._run(text)
        if text == "":
            self._empty = made
        return made

    @torch.inference_mode()
    def _run(self, text: str) -> Pair:
        asked = [(tokenizer, self._clip_length) for tokenizer, _ in self._clips]
        asked += [] if self._third is None else [(self._third[0], self._length)]
        ids = {str(i): self._ids(tokenizer, text, length) for i, (tokenizer, length) in enumerate(asked)}
        sent = iter(Staging(self._clips[0][1].device).send(ids).values())
        states, pooled = [], []
        for _, model in self._clips:
            told = model(next(sent), output_hidden_states=True)
            states.append(told.hidden_states[-2])
            pooled.append(told[0])
        both_1SJ = torch.cat(states, -1)
        both_1SJ = F.pad(both_1SJ, (0, self._features - both_1SJ.shape[-1]))
        below_1SJ = both_1SJ.new_zeros(1, self._length, self._features) if self._third is None else self._third[1](next(sent))[0]
        return torch.cat([both_1SJ, below_1SJ], 1)[0], torch.cat(pooled, -1)[0]

    @staticmethod
    def _ids(tokenizer: Any, text: str, length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Token ids, padded or cut to a length, [1, length]."""
        found = tokenizer([text], padding="max_length", max_length=length, truncation=True)
        return np.array(found.input_ids, np.int64)


def build(options: Mapping[str, Any], device: str) -> SD3Text:
    """The expert that a card names `omni_runtime.experts.sd3_text:build`.

    Raises:
        CardError: a wrong option.
        MissingExtra: transformers is not installed.
        CheckpointError: the checkpoint has no such encoders, or their weights are not complete.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra(f"text encoders need transformers: pip install 'omni_runtime[diffusers]' ({error})") from None
    from omni_runtime.weights.json_file import read_json

    asked = read_options(options, "sd3_text")
    folder = Path(asked.checkpoint)
    index = read_json(folder / "model_index.json")
    features = read_json(folder / "transformer" / "config.json").get("joint_attention_dim")

    def load(part: str, expected: str) -> tuple[Any, Any]:
        found = (index.get(part) or [None, None])[1]
        if found != expected:
            raise CheckpointError(f"{folder / 'model_index.json'}: {part} is {found!r}, {expected!r} is needed")
        tokens = part.replace("text_encoder", "tokenizer")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / tokens), local_files_only=True)
            kind = getattr(transformers, expected)
            how = {"dtype": torch.float32, "output_loading_info": True, "use_safetensors": True, "local_files_only": True}
            model, told = kind.from_pretrained(str(folder / part), **how)
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{folder / part}: {error}") from None
        for what in ("missing_keys", "mismatched_keys", "unexpected_keys"):
            if names := sorted(map(str, told[what])):
                raise CheckpointError(f"{folder / part}: {what.replace('_', ' ')}: {names[0]} and {len(names) - 1} others")
        return tokenizer, model.eval().to(device)

    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        clips = [load(part, name) for part, name in CLASSES.items()]
        has_third = (index.get("text_encoder_3") or [None, None])[1] is not None
        third = load("text_encoder_3", THIRD) if has_third else None
    finally:
        if shown:
            bars.enable_progress_bar()
    width = sum(model.config.hidden_size for _, model in clips)
    if type(features) is not int or width > features or (third is not None and third[1].config.d_model != features):
        given = f"{width} and {third[1].config.d_model if third else 'no third'}"
        raise CheckpointError(
            f"{folder}: text encoders give {given} features, the transformer's joint_attention_dim is {features}"
        )
    return SD3Text(clips, third, asked.max_sequence_length, features)
