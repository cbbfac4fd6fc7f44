"""Parts of `gpu.py` that are about text: greedy decode, and batch-invariant mode.

The model is SmolLM2-135M (30 x 576, a vocabulary of 49,152): its own weights where a file or the package is there, else random
ones of its shape, which take the same time. Tokens are held against logits of another's pass over prompt and answer: transformers
on the same device in float32 where it is installed, else our own decoder of torch's ops on the CPU. A token may be as far below
the largest logit as `MARGIN` deviations: weights are stored in bfloat16, and sums are taken in another order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

if TYPE_CHECKING:
    from _gpu_parts import Row, Scene

SHAPE: dict[str, Any] = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
SHAPE |= {"num_key_value_heads": 3, "vocab_size": 49_152, "max_position_embeddings": 2048, "tie_word_embeddings": True}
MARGIN = 0.1
WAYS = {"plain": (False, False), "graphs": (True, False), "graphs, run ahead": (True, True)}


def model(scene: Scene) -> tuple[str, Path | None]:
    """Where the weights are, and the folder if they are one. Random ones are written in bfloat16, in 2 seconds."""
    import torch

    from omni_runtime.errors import MissingExtra
    from omni_runtime.weights.smollm2 import locate
    from omni_runtime.weights.toy_folder import write_toy

    if scene.smollm2:
        return str(scene.smollm2), None
    if not scene.tiny:
        try:
            return str(locate()), None
        except MissingExtra:
            pass
    shape = {} if scene.tiny else SHAPE
    folder = write_toy(scene.folder / "text", "llama", seed=1, dtype=torch.float32 if scene.tiny else torch.bfloat16, **shape)
    return str(folder), folder


def served(weights: str, folder: Path | None, linear: str) -> tuple[Any, Any]:
    """A card without a stop token, and a program on token ids."""
    from omni_runtime.cards.causal_lm import causal_lm
    from omni_runtime.cards.smollm2 import smollm2

    from omni_runtime import ArDecode, ModelCard, Program

    base = smollm2() if folder is None else causal_lm(folder, linear=linear, max_bytes=1 << 34)
    spec = base.experts["thinker"]
    if folder is None:
        spec = spec.model_copy(update={"options": {**spec.options, "weights": weights, "linear": linear}})
    context = base.loops["think"].context
    loop = ArDecode(expert="thinker", context=context)
    card = ModelCard(name="decode", experts={"thinker": spec}, loops={"think": loop})
    program = Program("complete", card)
    thought = program.loop("think", prompt=program.input("prompt"))
    for port in ("tokens", "logprobs"):
        program.output(port, getattr(thought, port))
    return card, program


@contextmanager
def way(graphs: bool, ahead: bool) -> Iterator[None]:
    """Within it a runtime that is made replays graphs, and queues steps ahead, or not."""
    from omni_runtime.experts import ahead as ahead_module
    from omni_runtime.experts import graphs as graphs_module

    with ExitStack() as stack:
        if not graphs:
            stack.enter_context(patch.object(graphs_module, "recorder_of", lambda device: None))
        if not ahead:
            nothing = lambda self, steps, gives: [None] * len(steps)  # noqa: E731
            stack.enter_context(patch.object(ahead_module.Ahead, "foresee", nothing))
        yield


def prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(vocabulary // 2) for _ in range(length)] for _ in range(count)]


def asked(runtime: Any, program: Any, given: Sequence[list[int]], new: int, **more: Any) -> tuple[list[Any], float]:
    """Results of all at once, and the seconds that they took."""
    start = time.perf_counter()
    handles = [runtime.submit(program, prompt=one, max_tokens=new, seed=0, **more) for one in given]
    results = [handle.result(120) for handle in handles]
    return results, time.perf_counter() - start


class Reference:
    """Logits of a whole sequence by somebody else."""

    def __init__(self, scene: Scene, weights: str, folder: Path | None) -> None:
        import torch

        from omni_runtime.experts.decoder import DecoderLM
        from omni_runtime.weights.folder import FolderWeights
        from omni_runtime.weights.llama import LlamaWeights
        from omni_runtime.weights.smollm2 import open_file

        self._torch, self.vocabulary = torch, 0
        read = LlamaWeights(open_file(Path(weights))) if folder is None else FolderWeights(folder, "plain", 1 << 34)
        self.vocabulary = read.config.vocab
        try:
            from transformers import LlamaConfig, LlamaForCausalLM

            c = read.config
            config = LlamaConfig(
                vocab_size=c.vocab,
                hidden_size=c.width,
                num_hidden_layers=c.layers,
                num_attention_heads=c.heads,
                num_key_value_heads=c.kv_heads,
                intermediate_size=c.ffn,
                max_position_embeddings=c.positions,
                rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
                rms_norm_eps=c.eps,
                tie_word_embeddings=c.tied,
            )
            theirs = LlamaForCausalLM(config).eval()
            missing = theirs.load_state_dict({name: read[name].float() for name in read}, strict=False)
            assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys, missing
            self._theirs, self._ours, self.name = theirs.to(scene.device), None, "transformers"
        except ImportError:
            self._theirs, self._ours, self.name = None, DecoderLM(read.config, read, "cpu", "plain"), "torch's ops on the CPU"
        self._device = scene.device

    def logits(self, sequence: Sequence[int]) -> Any:
        """float64 [positions, vocabulary]."""
        torch = self._torch
        with torch.inference_mode():
            if self._theirs is not None:
                ids = torch.tensor([list(sequence)], device=self._device)
                return self._theirs(ids).logits[0].double().cpu().numpy()
            from omni_runtime.experts.decoder import Span

            assert self._ours is not None
            cache, rows = self._ours.cache(), []
            for at, token in enumerate(sequence):  # logits of every position: one at a time
                rows.append(self._ours.forward([Span(cache, at, [token], draw=True)])[0][0].double().numpy())
            return np.stack(rows)

    def judge(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[float, int]:
        """How far below the largest logit the worst token is, in deviations; and how many tokens are the likeliest."""
        logits = self.logits([*prompt, *answer])[len(prompt) - 1 : -1]
        chosen = logits[np.arange(len(answer)), list(answer)]
        below = (logits.max(1) - chosen) / logits.std(1)
        return float(below.max()), int((below == 0.0).sum())


def decode(scene: Scene) -> Iterator[Row]:
    """Greedy answers for 1, 4 and 16 at once, with graphs and run-ahead on and off: right, and tokens a second."""
    from omni_runtime.runtime import Runtime

    weights, folder = model(scene)
    linear = "paged" if scene.tiny else "auto"
    card, program = served(weights, folder, linear)
    reference = Reference(scene, weights, folder)
    length, new = (8, 5) if scene.tiny else (128, 128)
    name = "random weights of its shape" if folder else Path(weights).name
    yield {"name": "model", "ok": None, "weights": name, "reference": reference.name, "prompt": length, "new": new}
    for told, (graphs, ahead) in WAYS.items():
        with way(graphs, ahead), Runtime([card], device=scene.device, prefix_cache=False) as runtime:
            for count in (2,) if scene.tiny else (1, 4, 16):
                if scene.late:
                    yield {"name": f"{told}, {count} at once", "ok": None, "why": "too late"}
                    continue
                given = prompts(count, length, reference.vocabulary)
                asked(runtime, program, given, new)  # compiles, and captures
                found, seconds = zip(*(asked(runtime, program, given, new) for _ in range(1 if scene.tiny else 3)), strict=True)
                answers = [list(result.outputs["tokens"]) for result in found[0]]
                again = all([list(r.outputs["tokens"]) for r in one] == answers for one in found)
                judged = [reference.judge(prompt, answer) for prompt, answer in zip(given, answers, strict=True)]
                worst, likeliest = max(one[0] for one in judged), sum(one[1] for one in judged)
                first = median(result.timings.first["tokens"] for result in found[-1])
                yield {
                    "name": f"{told}, {count} at once",
                    "ok": worst <= MARGIN and all(len(answer) == new for answer in answers),
                    "below": worst,
                    "likeliest": f"{likeliest} of {count * new}",
                    "repeats": again,
                    "tokens_s": count * new / median(seconds),
                    "step_ms": 1e3 * (median(seconds) - first) / (new - 1),
                    "first_s": first,
                }


def invariant(scene: Scene) -> Iterator[Row]:
    """The same bits alone and in a crowd: tokens and log-probabilities of drawn answers; and the price of that."""
    from omni_runtime.errors import CardError
    from omni_runtime.runtime import Runtime

    weights, folder = model(scene)
    card, program = served(weights, folder, "auto")
    count, length, new = (3, 8, 5) if scene.tiny else (16, 100, 64)
    given = [
        prompt[: length - 3 * i] for i, prompt in enumerate(prompts(count, length, 272 if folder and scene.tiny else 49_152))
    ]
    how = {"temperature": 0.8, "logprobs": 2}
    seconds: dict[bool, float] = {}
    try:
        Runtime([card], device=scene.device, batch_invariant=True).close()
    except CardError as refused:
        yield {"name": "batch-invariant", "ok": None, "why": f"refused: {refused}"[:300]}
        return
    for mode in (True, False):
        with Runtime([card], device=scene.device, prefix_cache=False, batch_invariant=mode) as runtime:
            asked(runtime, program, given, new, **how)
            crowd, seconds[mode] = asked(runtime, program, given, new, **how)
            alone = [asked(runtime, program, [one], new, **how)[0][0] for one in (given if mode else given[:4])]
        bits = [_bits(result) for result in crowd]
        same = sum(a == b for a, b in zip(bits, map(_bits, alone), strict=False))
        fine = same == len(alone) if mode else None
        yield {
            "name": "batch-invariant" if mode else "as usual",
            "ok": fine,
            "same_bits": f"{same} of {len(alone)}",
            "tokens_s": count * new / seconds[mode],
        }
    yield {"name": "price", "ok": None, "times": seconds[True] / seconds[False]}


def _bits(result: Any) -> tuple[Any, ...]:
    """Of all that an answer tells in numbers."""
    told = [(one.token, one.logprob.hex(), tuple((i, x.hex()) for i, x in one.top)) for one in result.outputs["logprobs"]]
    return tuple(result.outputs["tokens"]), tuple(told)
