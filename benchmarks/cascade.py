"""A random Qwen3-Omni of middle size through the whole runtime, beside transformers' `generate` on the same files.

Thinker 8 x 512, talker 6 x 384, predictor 3 x 384, vocoder with the published rates. Greedy: both give the same tokens and
codes, and the same wave to 1e-3, which is checked, alone and among eight. They take turns.
Memory is the peak of a process that loads one side and answers once.

    python benchmarks/cascade.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

DECODER = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
ROPE = {"rope_type": "default", "mrope_section": [16, 8, 8], "interleaved": True, "mrope_interleaved": True}
SPARSE = {"num_experts": 8, "num_experts_per_tok": 2, "rope_scaling": ROPE}
TALKER = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64}
SIZES: dict[str, Any] = {
    "thinker_config": {
        "text_config": DECODER | SPARSE | {"intermediate_size": 1024, "moe_intermediate_size": 384},
        "audio_config": {"output_dim": 512},
        "vision_config": {"out_hidden_size": 512},
    },
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
QUESTIONS = [f"Tell me about number {i}, " + "slowly. " * i for i in range(8)]


def write(folder: Path) -> Path:
    """The checkpoint, in which nothing that ends an answer is ever likeliest: all are as long as they may be."""
    from safetensors.torch import load_file, save_file

    from omni_runtime.weights.qwen3_omni_config import read_omni_config
    from omni_runtime.weights.toy_qwen3_omni import token_ids, write_toy_omni

    config = read_omni_config(write_toy_omni(folder, SIZES, seed=1))
    assert config.talker is not None
    never = {"thinker.lm_head.weight": [token_ids()["<|im_end|>"], token_ids()["<|endoftext|>"]]}
    never["talker.codec_head.weight"] = [config.talker.eos]
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        for name in never.keys() & tensors.keys():
            tensors[name][never[name]] = 0.0
        save_file(tensors, path, metadata={"format": "pt"})
    return folder


class Ours:
    """This runtime."""

    def __init__(self, folder: Path, threads: int, tokens: int, frames: int) -> None:
        from omni_runtime.cards.qwen3_omni import qwen3_omni
        from omni_runtime.programs.omni import omni

        from omni_runtime import Runtime

        card = qwen3_omni(str(folder))
        self.program = omni(card)
        self.runtime = Runtime([card], threads=threads, prefix_cache=False)
        greedy = {"temperature": 0.0, "repetition_penalty": 1.0, "predict": {"temperature": 0.0}, "speaker": "ethan"}
        self.given = {"think": {"max_tokens": tokens}, "talk": greedy | {"max_frames": frames}}

    def answer(self, *questions: str) -> list[Any]:
        handles = [self.runtime.submit(self.program, messages=question, seed=1, **self.given) for question in questions]
        return [handle.result() for handle in handles]


class Theirs:
    """transformers."""

    def __init__(self, folder: Path, threads: int, tokens: int, frames: int) -> None:
        import torch
        from transformers import Qwen3OmniMoeForConditionalGeneration
        from transformers.utils import logging

        from omni_runtime.weights.folder_tokenizer import folder_tokenizer
        from omni_runtime.weights.qwen3_omni_config import read_omni_config

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        config = read_omni_config(folder)
        self.torch, self.tokenizer = torch, folder_tokenizer(folder, config.thinker.vocab)
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.model.talker.config.audio_config = self.model.thinker.config.audio_config
        self.stop = [config.tokens.im_end, self.tokenizer.encode("<|endoftext|>", control=True)[0]]
        self.tokens, self.frames = tokens, frames
        self.codes: list[Any] = []  # what its vocoder was fed, call by call
        whole = self.model.code2wav.chunked_decode
        self.model.code2wav.chunked_decode = lambda codes, **more: (self.codes.append(codes), whole(codes, **more))[1]

    def answer(self, question: str) -> tuple[list[int], list[tuple[int, ...]], Any]:
        ids = self.torch.tensor([self.tokenizer.encode_chat(question)])
        self.codes.clear()
        sequence, wave = self._generate(ids, self.torch.ones_like(ids))
        return sequence[0, ids.shape[1] :].tolist(), [tuple(frame) for frame in self.codes[0][0].T.tolist()], wave[0, 0].numpy()

    def batched(self, questions: Sequence[str]) -> str:
        """All in one call, padded on the left as its makers do; why that cannot be, or nothing."""
        prompts = [self.tokenizer.encode_chat(question) for question in questions]
        longest = max(map(len, prompts))
        ids = self.torch.tensor([[self.stop[-1]] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = self.torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        try:
            self._generate(ids, mask)
        except (NotImplementedError, RuntimeError, ValueError, IndexError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _generate(self, ids: Any, mask: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                speaker="Ethan",
                thinker_max_new_tokens=self.tokens,
                thinker_do_sample=False,
                thinker_eos_token_id=self.stop,
                talker_max_new_tokens=self.frames + 1,
                talker_do_sample=False,
                talker_temperature=None,
                talker_top_k=None,
                talker_top_p=None,
                talker_repetition_penalty=1.0,
                return_audio=True,
            )


def same(ours: Any, tokens: list[int], codes: list[tuple[int, ...]], wave: Any) -> None:
    """Whether both gave the same answer."""
    assert list(ours.outputs["tokens"]) == tokens, "both must think the same"
    assert [tuple(frame) for frame in ours.outputs["codes"]] == codes, "both must say the same"
    assert len(ours.audio) == len(wave) and np.abs(ours.audio - wave).max() < 1e-3, "both must sound the same"


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    ours, theirs = (side(folder, args.threads, args.tokens, args.frames) for side in (Ours, Theirs))
    rows: dict[str, list[float]] = {}

    def timed(name: str, run: Any) -> Any:
        start = time.perf_counter()
        found = run()
        rows.setdefault(name, []).append(time.perf_counter() - start)
        return found

    for at in range(args.repeats + 1):
        if at == 1:
            rows.clear()  # the first round warms up
        (one,) = timed("single", lambda: ours.answer(QUESTIONS[0]))
        same(one, *timed("single_theirs", lambda: theirs.answer(QUESTIONS[0])))
        rows.setdefault("first_sound", []).append(one.timings.first["audio"])
        eight = timed("total8", lambda: ours.answer(*QUESTIONS))
        rows.setdefault("mean8", []).append(statistics.mean(each.timings.total for each in eight))
        rows.setdefault("first8", []).append(max(each.timings.first["audio"] for each in eight))
        said = timed("total8_theirs", lambda: [theirs.answer(question) for question in QUESTIONS])
        for mine, their in zip(eight, said, strict=True):
            same(mine, *their)
        why = timed("batched8_theirs", lambda: theirs.batched(QUESTIONS))
    ours.runtime.close()
    middle = {name: statistics.median(row) for name, row in rows.items()}
    found: dict[str, Any] = {
        "first_sound_ratio": middle["first_sound"] / middle["single_theirs"],
        "single_ratio": middle["single"] / middle["single_theirs"],
        "total8_ratio": middle["total8"] / middle["total8_theirs"],
    }
    if not why:
        found["total8_vs_batched_ratio"] = middle["total8"] / middle["batched8_theirs"]
        found["mean8_vs_batched_ratio"] = middle["mean8"] / middle["batched8_theirs"]
    found |= {f"{name}_s": value for name, value in middle.items()}
    found |= {"sound_s": len(one.audio) / 24_000}
    print(f"eight in one call of the reference: {why or 'it can'}")
    return found


def memory(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """Peak resident memory of one side alone, MiB."""
    found = {}
    for side in ("Ours", "Theirs"):
        given = ["--tokens", str(args.tokens), "--frames", str(args.frames), "--threads", str(args.threads)]
        command = [sys.executable, __file__, "--alone", side, "--folder", str(folder), *given]
        found[side] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    return {"rss_ratio": found["Ours"] / found["Theirs"], "rss_mib": found["Ours"], "rss_theirs_mib": found["Theirs"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--alone", choices=("Ours", "Theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        side = {"Ours": Ours, "Theirs": Theirs}[args.alone](args.folder, args.threads, args.tokens, args.frames)
        side.answer(QUESTIONS[0])
        status = Path("/proc/self/status").read_text()  # getrusage also tells of the parent, before exec
        print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        os._exit(0)
    with tempfile.TemporaryDirectory() as kept:
        folder = write(Path(kept) / "omni")
        found = measure(folder, args) | memory(folder, args)
    for name, value in found.items():
        print(f"{name:<22} {value:>9.3f}")
    if args.json:
        asked = {"tokens": args.tokens, "frames": args.frames, "threads": args.threads, "repeats": args.repeats}
        print(json.dumps({name: round(value, 4) for name, value in found.items()} | asked))


if __name__ == "__main__":
    main()
