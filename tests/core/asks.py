"""What callers of the random worlds ask for, and what can be said of a payload."""

from __future__ import annotations

from typing import Any, NamedTuple

from drawn import chosen

from omni_runtime.request import resolve
from omni_runtime.work import ArStep, AudioStep, DenoiseStep, FlowStep, Payload, Row, Submit, TalkStep


class Ask(NamedTuple):
    """What a caller wants."""

    choice: int
    seed: int
    prompt: int  # tokens, where the caller gives them
    most: int | None
    steps: int
    stop: tuple[str, ...] = ()


class Wish(NamedTuple):
    """How a caller wants it. What it gives must never depend on this."""

    tenant: str = ""
    deadline: float | None = None
    first_output: float | None = None
    promised: bool = False  # only where the outputs have sound


AS_IT_COMES = Wish()
DECLARED = {"a": 1.0, "b": 3.0}


def request(run: int, ask: Ask, priority: str = "normal", wish: Wish = AS_IT_COMES) -> Submit:
    program, outputs = chosen(ask.choice)
    given: dict[str, Any] = {}
    for field, kind in program.inputs.items():
        tokens = [(7 * (ask.seed % 2) + i) % 90 + 1 for i in range(ask.prompt)]  # few, so that many begin alike
        given[field] = tokens if kind == "token" else f"{ask.seed} {ask.prompt}"
    for node in program.nodes:
        kind = program.spec(node).kind
        if kind == "ar_decode":
            most = None if ask.most is None else ask.most + 2 * (node == "talk")
            given[node] = {"max_tokens": 2 if node == "script" else most, "stop": ask.stop}
        elif kind == "talk":
            given[node] = {"max_frames": None if ask.most is None else ask.most + 2, "speaker": ("ann", "Bob")[ask.seed % 2]}
        elif kind == "flow_decode":
            given[node] = {"num_steps": 2 + ask.steps % 2, "guidance_scale": float(ask.seed % 2)}
        elif kind == "diffusion_denoise":
            given[node] = {
                "steps": ask.steps,
                "width": 1 + ask.seed % 2,
                "guidance_scale": 1.0 + ask.seed % 3,
                "preview_every": ask.seed % 4,
            }
    wants = {"tenant": wish.tenant, "deadline_s": wish.deadline, "first_output_s": wish.first_output}
    guarantee = "no-underrun" if wish.promised else None
    return resolve(run, program, ask.seed, given, outputs=outputs, priority=priority, guarantee=guarantee, **wants)[1]


def again(payload: Payload) -> bool:
    """Whether a loop can begin with a step, knowing nothing but what the step says."""
    if isinstance(payload, AudioStep):
        return payload.fresh
    if isinstance(payload, FlowStep):
        return payload.chunk == payload.call == 0
    if isinstance(payload, DenoiseStep):
        return payload.step == 0 or payload.latent is not None
    return isinstance(payload, ArStep | TalkStep) and payload.start == 0


def key(row: Row) -> Any:
    return row.payload.size if isinstance(row.payload, DenoiseStep) else ()
