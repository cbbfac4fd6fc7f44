"""Random omni models of middle size for `cascade.py`, and each side of them: this runtime, and transformers.

Qwen3-Omni: thinker 8 x 512, talker 6 x 384, predictor 3 x 384, vocoder with the published rates. Qwen2.5-Omni: thinker 8 x 512,
talker 6 x 384, flow 6 x 256 with the published blocks and 10 points (36 velocities a chunk, two branches each), BigVGAN 256.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

DECODER = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
TALKER = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64}
ENCODERS = {"audio_config": {"output_dim": 512}, "vision_config": {"out_hidden_size": 512}}

ROPE = {"rope_type": "default", "mrope_section": [16, 8, 8], "interleaved": True, "mrope_interleaved": True}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "rope_scaling": ROPE}
QWEN3: dict[str, Any] = {
    "thinker_config": ENCODERS | {"text_config": DECODER | SPARSE | {"intermediate_size": 1024, "moe_intermediate_size": 384}},
    "talker_config": {
        "thinker_hidden_size": 512,
        "accept_hidden_layer": 4,
        "num_code_groups": 8,
        "text_config": TALKER | SPARSE | {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 256},
        "code_predictor_config": TALKER
        | {"num_hidden_layers": 3, "num_code_groups": 8, "intermediate_size": 768, "num_key_value_heads": 2},
    },
    "code2wav_config": {
        "num_quantizers": 8,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "sliding_window": 72,
        "upsample_rates": [8, 5, 4, 3],
        "decoder_dim": 256,
    },
}

HALVES = {"rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [8, 12, 12]}}
CODEC = {"start": 8293, "end": 8294, "pad": 8292, "mask": 8296}
QWEN25: dict[str, Any] = {
    "thinker_config": ENCODERS | {"text_config": DECODER | HALVES | {"intermediate_size": 1536}},
    "talker_config": TALKER
    | HALVES
    | {"vocab_size": 8448, "embedding_size": 512, "intermediate_size": 1152}
    | {f"tts_codec_{name}_token_id": at for name, at in CODEC.items()},
    "token2wav_config": {
        "dit_config": {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 64, "emb_dim": 128}
        | {"look_ahead_layers": [3], "look_backward_layers": [0, 5], "block_size": 24, "num_embeds": 8448, "mel_dim": 80}
        | {"enc_channels": [64, 64, 64, 64, 192], "enc_dim": 64, "enc_emb_dim": 64},
        "bigvgan_config": {"mel_dim": 80, "upsample_initial_channel": 256},
    },
}

Said = tuple[list[int], list[tuple[int, ...]], Any]  # tokens, codes, wave


def silenced(folder: Path, never: dict[str, list[int]]) -> Path:
    """The checkpoint, in which nothing that ends an answer is ever likeliest: all are as long as they may be."""
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in never.keys() & tensors.keys():
            tensors[name][never[name]] = 0.0
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


class Ours:
    """This runtime."""

    def __init__(self, card: Any, given: dict[str, Any], threads: int) -> None:
        from omni_runtime.programs.omni import omni

        from omni_runtime import Runtime

        self.program = omni(card)
        self.runtime = Runtime([card], threads=threads, prefix_cache=False)
        self.given = given

    def answer(self, *questions: str) -> list[Any]:
        handles = [self.runtime.submit(self.program, messages=question, seed=1, **self.given) for question in questions]
        return [handle.result() for handle in handles]


class Theirs(ABC):
    """transformers; what differs by family is in subclasses."""

    def __init__(self, folder: Path, model: type[Any], vocab: int, threads: int, tokens: int, frames: int) -> None:
        import torch
        from transformers.utils import logging

        from omni_runtime.weights.folder_tokenizer import folder_tokenizer

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch, self.tokenizer = torch, folder_tokenizer(folder, vocab)
        self.model = model.from_pretrained(folder, dtype=torch.float32).eval()
        self.stop = [self.tokenizer.encode(mark, control=True)[0] for mark in ("<|im_end|>", "<|endoftext|>")]
        self.tokens, self.frames = tokens, frames

    @abstractmethod
    def answer(self, question: str) -> Said:
        """Of one request."""

    def batched(self, questions: Sequence[str]) -> str:
        """All in one call, padded on the left as its makers do; why that cannot be, or nothing."""
        prompts = [self.tokenizer.encode_chat(question) for question in questions]
        longest = max(map(len, prompts))
        ids = self.torch.tensor([[self.stop[-1]] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = self.torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        try:
            self.generate(ids, mask)
        except (NotImplementedError, RuntimeError, ValueError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def generate(self, ids: Any, mask: Any, **more: Any) -> Any:
        """Greedy."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                thinker_max_new_tokens=self.tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self.stop,
                talker_do_sample=False,
                talker_temperature=None,
                talker_top_k=None,
                talker_top_p=None,
                talker_repetition_penalty=1.0,
                **more,
            )


# -- Qwen3-Omni


def write_qwen3(folder: Path) -> Path:
    from omni_runtime.weights.qwen3_omni_config import read_omni_config
    from omni_runtime.weights.toy_qwen3_omni import token_ids, write_toy_omni

    config = read_omni_config(write_toy_omni(folder, QWEN3, seed=1))
    assert config.talker is not None
    never = {"thinker.lm_head.weight": [token_ids()["<|im_end|>"], token_ids()["<|endoftext|>"]]}
    return silenced(folder, never | {"talker.codec_head.weight": [config.talker.eos]})


def ours_qwen3(folder: Path, threads: int, tokens: int, frames: int) -> Ours:
    from omni_runtime.cards.qwen3_omni import qwen3_omni

    greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "predict": {"temperature": 0.0}, "speaker": "ethan"}
    return Ours(qwen3_omni(str(folder)), {"think": {"max_tokens": tokens}, "talk": greedy | {"max_frames": frames}}, threads)


class TheirsQwen3(Theirs):
    """Its vocoder's calls are looked at for the codes."""

    def __init__(self, folder: Path, threads: int, tokens: int, frames: int) -> None:
        from transformers import Qwen3OmniMoeForConditionalGeneration

        from omni_runtime.weights.qwen3_omni_config import read_omni_config

        vocab = read_omni_config(folder).thinker.vocab
        super().__init__(folder, Qwen3OmniMoeForConditionalGeneration, vocab, threads, tokens, frames)
        self.model.talker.config.audio_config = self.model.thinker.config.audio_config
        self.codes: list[Any] = []
        whole = self.model.code2wav.chunked_decode
        self.model.code2wav.chunked_decode = lambda codes, **more: (self.codes.append(codes), whole(codes, **more))[1]

    def answer(self, question: str) -> Said:
        ids = self.torch.tensor([self.tokenizer.encode_chat(question)])
        self.codes.clear()
        sequence, wave = self.generate(ids, self.torch.ones_like(ids))
        return sequence[0, ids.shape[1] :].tolist(), [tuple(frame) for frame in self.codes[0][0].T.tolist()], wave[0, 0].numpy()

    def generate(self, ids: Any, mask: Any, **more: Any) -> Any:
        told = {"speaker": "Ethan", "talker_max_new_tokens": self.frames + 1, "return_audio": True}
        return super().generate(ids, mask, **told, **more)


# -- Qwen2.5-Omni


def write_qwen25(folder: Path) -> Path:
    from omni_runtime.weights.toy_qwen2_5_omni import token_ids, write_toy_qwen25

    write_toy_qwen25(folder, QWEN25, seed=1)
    never = {"thinker.lm_head.weight": [token_ids()["<|im_end|>"], token_ids()["<|endoftext|>"]]}
    return silenced(folder, never | {"talker.codec_head.weight": list(range(8192, 8448))})


def ours_qwen25(folder: Path, threads: int, tokens: int, frames: int) -> Ours:
    from omni_runtime.cards.qwen2_5_omni import qwen2_5_omni

    talk = {"temperature": 0.0, "repetition_penalty": 1.0, "speaker": "ethan", "max_frames": frames}
    return Ours(qwen2_5_omni(str(folder)), {"think": {"max_tokens": tokens}, "talk": talk}, threads)


class TheirsQwen25(Theirs):
    """Its talker is given the mask that transformers 5.24 drops where it is all ones (test_qwen25_omni_oracle.py tells why), and
    its flow begins with our noise, so that the waves can be compared."""

    def __init__(self, folder: Path, threads: int, tokens: int, frames: int) -> None:
        from transformers import Qwen2_5OmniForConditionalGeneration

        from omni_runtime.weights.qwen2_5_omni_config import read_qwen25_config

        vocab = read_qwen25_config(folder).thinker.vocab
        super().__init__(folder, Qwen2_5OmniForConditionalGeneration, vocab, threads, tokens, frames)
        self.codes: list[int] = []
        self.model.token2wav.register_forward_pre_hook(self._note)
        self.model.talker.register_forward_pre_hook(self._marked, with_kwargs=True)
        ours = ours_qwen25(folder, threads, tokens, frames)
        self.node = list(ours.program.nodes).index("flow")
        ours.runtime.close()

    def _note(self, _: Any, args: Any) -> None:
        self.codes = args[0][0].tolist()

    def _marked(self, _: Any, args: Any, told: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if told.get("attention_mask") is None:
            fed = told.get("inputs_embeds")
            told = dict(told, position_ids=None)
            if fed is not None:
                told["inputs_embeds"] = fed.clone()
            cache, new = told.get("cache"), fed if fed is not None else told["input_ids"]
            before = 0 if cache is None else cache.get_seq_length()
            told["attention_mask"] = self.torch.ones(1, before + new.shape[1], dtype=self.torch.long)
        return args, told

    @contextmanager
    def _noise(self) -> Iterator[None]:
        from omni_runtime.experts.philox_noise import frame_noise

        def noise(shape: Any, *_: Any, **__: Any) -> Any:
            return self.torch.from_numpy(frame_noise(1, self.node, 0, shape[1], shape[2]).copy())[None]

        with mock.patch.object(self.torch, "randn", noise):
            yield

    def answer(self, question: str) -> Said:
        ids = self.torch.tensor([self.tokenizer.encode_chat(question)])
        with self._noise():
            sequence, wave = self.generate(ids, self.torch.ones_like(ids))
        return sequence[0, ids.shape[1] :].tolist(), [(code,) for code in self.codes], wave.flatten().numpy()

    def generate(self, ids: Any, mask: Any, **more: Any) -> Any:
        told = {"speaker": "Ethan", "talker_max_new_tokens": self.frames, "talker_eos_token_id": [8292, 8294]}
        return super().generate(ids, mask, **told, **more)


class Family(NamedTuple):
    """A family, and what an answer of it has by default."""

    write: Callable[[Path], Path]
    ours: Callable[[Path, int, int, int], Ours]
    theirs: Callable[[Path, int, int, int], Theirs]
    tokens: int
    frames: int
    exact: bool  # streamed sound is that of one call


FAMILIES = {
    "qwen3": Family(write_qwen3, ours_qwen3, TheirsQwen3, 32, 64, exact=True),
    "qwen2_5": Family(write_qwen25, ours_qwen25, TheirsQwen25, 32, 240, exact=False),
}


def decibel(found: Any, want: Any) -> float:
    """Of the difference, against what is wanted."""
    return float(10 * np.log10(((found - want) ** 2).mean() / (want**2).mean()))
