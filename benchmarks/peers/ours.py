"""Our runtime, with eight running at a time in two ways, and with all of them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from peer import THREADS, Peer, Served


class Ours(Peer):
    """`Runtime` with the card of SmolLM2 as it is, its client holding back: a thread a running request."""

    how = "Runtime(threads=2, prefix_cache=False), card smollm2 as it is; the client holds back"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtimes: dict[int, tuple[Any, Any]] = {}

    def load(self, most: int) -> tuple[Any, Any]:
        """A runtime and a program for it."""
        return self.runtimes.setdefault(0, self.runtimes.get(0) or self.build("deadline"))

    def build(self, policy: Any, units: int = 0) -> tuple[Any, Any]:
        from omni_runtime.cards.smollm2 import smollm2

        from omni_runtime import ArDecode, ModelCard, Program, Runtime

        experts = dict(smollm2().experts)
        if units:
            thinker = experts["thinker"]
            ops = {"forward": thinker.ops["forward"].model_copy(update={"units": units})}
            experts["thinker"] = thinker.model_copy(update={"ops": ops})
        card = ModelCard(name="endless", experts=experts, loops={"think": ArDecode(expert="thinker", context=8192)})
        program = Program("complete", card)
        program.output("tokens", program.loop("think", prompt=program.input("prompt")).tokens)
        return Runtime([card], threads=THREADS, prefix_cache=False, policy=policy), program

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        runtime, program = self.load(most)

        def one(prompt: list[int], count: int) -> Served:
            start = time.perf_counter()
            result = runtime.submit(program, prompt=prompt, max_tokens=count, seed=0).result()
            return start + result.timings.first["tokens"], start + result.timings.total, result.outputs["tokens"]

        with ThreadPoolExecutor(most) as clients:
            return list(clients.map(one, prompts, new))


class OursAll(Ours):
    """All requests are submitted at once; the op's limit and the order of arrival keep it to `most`."""

    how = "the same, all submitted at once; OpLimits(units=8) and policy first_come let eight run"
    together = False

    def load(self, most: int) -> tuple[Any, Any]:
        return self.runtimes.setdefault(most, self.runtimes.get(most) or self.build("first_come", most))

    def serve(self, prompts: list[list[int]], new: list[int], most: int) -> list[Served]:
        runtime, program = self.load(most)
        start = time.perf_counter()
        handles = [runtime.submit(program, prompt=prompt, max_tokens=n, seed=0) for prompt, n in zip(prompts, new, strict=True)]
        results = [handle.result() for handle in handles]
        return [(start + r.timings.first["tokens"], start + r.timings.total, r.outputs["tokens"]) for r in results]


class OursFree(OursAll):
    """Nobody is held back."""

    how = "the same, all submitted at once and nobody held back: all sixteen run (not the others' rule)"

    def load(self, most: int) -> tuple[Any, Any]:
        return Ours.load(self, most)
