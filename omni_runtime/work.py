"""The vocabulary of work: plain values that loops, scheduler, flow, engine and executors hand to each other.

Everything here is data. What crosses to an executor and back (`Message`, `Report`) is encoded by msgspec as it stands, so a
process boundary is a transport and not a redesign. Records are msgspec structs: 0.3 µs to make, against 1.2 for a slotted
dataclass and 6.5 for a pydantic model (measured on a Zen 3 EPYC).
"""

from __future__ import annotations

from math import prod
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

from omni_runtime.draw import Draw as Draw  # part of the vocabulary, in a file of its own
from omni_runtime.draw import TokenLogprob

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


class TensorRef(Struct, frozen=True, array_like=True, gc=False):
    """Name of a tensor that stays on the executor that made it.

    The name is structural: the same step of the same loop makes the same name again. `home` is an executor *incarnation*
    ("cpu0#1"), so a name of a lost executor can never be mistaken for one of its successor.
    """

    home: str
    run: int
    loop: str
    port: str
    index: int
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def base(executor: str) -> str:
    """The executor of which "cpu#2" is the second incarnation: "cpu". What it kept is gone with an incarnation."""
    return executor.partition("#")[0]


class UnitKind(Struct, frozen=True):
    """What never changes between the units of one loop of one run; one object per loop, so that a unit stays small."""

    expert: str
    op: str
    key: tuple[Any, ...] = ()  # units batch together only if their keys are equal (a resolution, say)
    fixed: int = 0  # blocks of state that do not grow
    block: int = 0  # positions in a KV block; 0: state does not grow
    group: tuple[str, str, tuple[Any, ...]] = ("", "", ())

    def __post_init__(self) -> None:
        force_setattr(self, "group", (self.expert, self.op, self.key))  # read for every unit, so made once


class WorkUnit(Struct, frozen=True):
    """One step that a loop offers: the scheduler grants a size within `lo..hi`, then the loop binds it to data.

    What a loop computes may never depend on the size that was granted. Sizes are tokens, frames, rows or calls.
    """

    run: int
    loop: str
    kind: UnitKind
    lo: int
    hi: int
    cached: int = 0  # positions this loop holds in its expert's KV pool before the step
    at: int = 0  # absolute progress of the loop, to tell whether one unit is past another
    chain: tuple[bytes, ...] = ()  # digests of the text that the first unit begins with, if its KV may be another loop's
    weight: float = 1.0  # of one of its size, as a cost: characters of a clause, cells of a latent


class Wait(Struct, frozen=True):
    """The loop has no step until the channel behind this reader moves."""

    reader: str


class Done(Struct, frozen=True):
    """The loop has no step any more."""


class Push(Struct, frozen=True, gc=False):
    """Items for a port at an absolute position: the only way a loop says anything. Doing it again is harmless."""

    port: str
    start: int
    items: Any  # a tuple or list, or a numpy array along whose first axis the items lie


class Summary(Struct, frozen=True):
    """What a finished loop has to say about itself."""

    finish: str = "done"  # done | stop | length
    usage: dict[str, int] = field(default_factory=dict)


# -- Payloads: what an op needs for one row. One type per kind of loop ---------------------------------------------------


class Inset(Struct, frozen=True, array_like=True, gc=False):
    """Positions at .. at+count of a sequence are rows first .. of a tensor, not ids. A clip mixed with its sound is several."""

    at: int
    count: int
    vectors: TensorRef  # [N, D]
    first: int = 0
    features: TensorRef | None = None  # [L, N, D]: what is added after the first layers


class ArStep(Struct, frozen=True, array_like=True, tag="ar"):
    """Positions start .. start+len(tokens) of a token sequence, and perhaps a draw after the last of them."""

    start: int
    tokens: tuple[int, ...]
    index: int  # which output token to draw (0 is the first after the prompt); -1: the prompt goes on, draw nothing
    draw: Draw
    conditioning: tuple[TensorRef, ...] | None = None  # one row per position, added by the expert as its model says
    hidden: bool = False  # somebody reads port "hidden": keep one row per position
    insets: tuple[Inset, ...] = ()  # those that overlap this step
    inner: bool = False  # somebody reads port "inner" (states of the positions of each inset in this step, [n, D] each) or
    # "states" (of all positions of this step, one [n, D])
    positions: Any = None  # float32 [3, n] of this step; None: start + i + shift
    shift: float = 0.0  # what media added to all positions after them


class TalkStep(Struct, frozen=True, array_like=True, tag="talk"):
    """Positions start .. start+size of a talker, and perhaps a frame after the last of them.

    First come the turns of the user, then an opening, then the frames so far, each with the token that is spoken with it. A step
    brings what it covers of each. A talker that is fed states has no turns: `inner` are states for the prompt, for the opening's
    last position, and for each frame until the text has ended; where they stand, an id is -1.
    """

    start: int
    size: int
    before: int  # positions of all turns of the user, or of the prompt: there the opening begins
    turns: tuple[int, ...]  # ids of the thinker
    inner: tuple[Inset, ...]  # of them, those in whose place the thinker's inner states stand
    opening: tuple[int, ...]  # ids of the thinker
    frames: tuple[tuple[int, ...], ...]
    text: tuple[int, ...]  # ids of the thinker, one a frame
    index: int  # which frame to draw; -1: none
    draw: Draw  # of its first code
    predict: Draw  # of the others
    speaker: str
    positions: Any = None  # as of an ArStep
    shift: float = 0.0


class AudioStep(Struct, frozen=True, array_like=True, tag="audio"):
    """Frames start .. start+size of a code or feature stream; `frames` also holds what lies ahead of them.

    `frames` has `back + size + ahead` rows, or fewer when `last` is true: then the stream ends with the last row given.
    """

    start: int
    size: int
    frames: Any  # a sequence of rows
    last: bool
    draw: Draw = Draw(0, 0)  # key of whatever noise the decoder adds, by absolute position
    fresh: bool = False  # nothing that is kept counts: the stream begins there, or a stretch that can be decoded alone
    back: int = 0  # rows of `frames` that lie before `start`, for what keeps no state


class FlowStep(Struct, frozen=True, array_like=True, tag="flow"):
    """Call `call` of `calls` of chunk `chunk`: one velocity of the ODE that makes feature frames start .. high of noise.

    Where on the ODE it is wanted is worked out by the loop, so that calls of different plans share a batch. When the last call is
    done, frames start .. stop are given; those after are look-ahead.
    """

    chunk: int
    call: int
    calls: int
    time: float  # 0 is noise, 1 is sound
    width: float  # of the ODE's step to which the call belongs
    start: int
    stop: int
    high: int
    codes: tuple[int, ...]  # of frames start .. high
    guidance_scale: float  # 0: one branch
    draw: Draw  # key of the noise, by number of the frame
    speaker: str


class DenoiseStep(Struct, frozen=True, array_like=True, tag="denoise"):
    """Step `step` of `steps` of a diffusion trajectory, from noise level `sigma` down to `target`.

    All of its schedule that a step needs is here, so that steps of different schedules can share a batch.
    """

    step: int
    steps: int
    sigma: float  # share of noise in the latent, 1 .. 0
    target: float  # the same after the step
    timestep: float  # `sigma` as the network wants it told
    guidance_scale: float  # 1: one branch, no guidance
    size: tuple[int, ...]  # of the latent: channels, rows, columns
    draw: Draw  # key of the initial noise: seed and node, by element
    conditioning: dict[str, tuple[TensorRef, ...]]  # by slot
    keep: tuple[str, ...] = ()  # ports to fill after this step: "latent", "preview"
    latent: Any = None  # float32 [channels, rows, columns] to start from, where the executor has lost what it had
    save: bool = False  # give the latent after this step as items["latent"] as well, for that case


class CallStep(Struct, frozen=True, array_like=True, tag="call"):
    """One call of a function: what its readers hold (host items, or names of tensors), and the request's parameters."""

    index: int
    inputs: dict[str, tuple[Any, ...]]
    tensors: dict[str, tuple[TensorRef, ...]]
    params: dict[str, Any]


Payload = ArStep | TalkStep | AudioStep | FlowStep | DenoiseStep | CallStep


def refs_of(payload: Payload) -> tuple[TensorRef, ...]:
    """The tensors that a payload names."""
    if type(payload) is ArStep:
        return (payload.conditioning or ()) + _behind(payload.insets) if payload.insets else payload.conditioning or ()
    if type(payload) is TalkStep:
        return _behind(payload.inner)
    named = payload.conditioning if type(payload) is DenoiseStep else payload.tensors if type(payload) is CallStep else {}
    return tuple(ref for refs in named.values() for ref in refs)


def _behind(insets: tuple[Inset, ...]) -> tuple[TensorRef, ...]:
    return tuple(ref for inset in insets for ref in (inset.vectors, inset.features) if ref is not None)


# -- Messages to an executor, answered strictly in order ----------------------------------------------------------------


class Fork(Struct, frozen=True, array_like=True, gc=False):
    """A loop's KV begins as a copy of the first `length` positions of another loop's on the same executor."""

    run: int
    loop: str
    length: int


class Row(Struct, frozen=True, array_like=True):
    """One unit of a batch as its executor sees it."""

    run: int
    loop: str
    size: int
    first: int  # where `blocks` go in the loop's block table; a unit that is run again names the same place again
    blocks: tuple[int, ...]  # logical KV blocks that the executor may not have yet; it keeps the table
    payload: Payload
    fork: Fork | None = None  # to be copied before the unit runs


class RunBatch(Struct, frozen=True, array_like=True, tag="run"):
    """One batch for an executor: its rows have one expert and one op."""

    executor: str
    batch: int
    expert: str
    op: str
    rows: list[Row]
    brought: tuple[tuple[TensorRef, Any], ...] = ()  # copies of tensors that its rows read and the executor does not have


class Release(Struct, frozen=True, array_like=True, tag="release"):
    """Nobody reads these tensors any more."""

    executor: str
    refs: tuple[TensorRef, ...]


class Drop(Struct, frozen=True, array_like=True, tag="drop"):
    """The state that the executor keeps for these (run, loop) is no longer needed."""

    executor: str
    slots: tuple[tuple[int, str], ...]


Message = RunBatch | Release | Drop


# -- Reports of an executor ---------------------------------------------------------------------------------------------


class StepResult(Struct, array_like=True):
    """What one unit gave. Which fields are used follows from the loop kind: see `loops/`."""

    token: int = -1  # ar_decode: the token drawn, or -1
    piece: bytes = b""  # ar_decode: the text of that token, as the bytes its tokenizer stands for; empty for control tokens
    items: dict[str, Any] = {}  # host items by port: lists, or numpy arrays along whose first axis the items lie
    tensors: dict[str, tuple[TensorRef, ...]] = {}
    logprobs: TokenLogprob | None = None  # ar_decode: of the token drawn, if the request asked
    copies: dict[str, tuple[Any, ...]] = {}  # by port: `tensors` as numpy arrays, for when the executor is gone


class Answer(Struct, frozen=True, array_like=True, tag="answer"):
    """A batch ran: one result per row, in the order of its rows."""

    executor: str
    batch: int
    results: list[StepResult]
    seconds: float = 0.0


class Broken(Struct, frozen=True, array_like=True, tag="broken"):
    """A batch raised. Who of its members is to blame is not known."""

    executor: str
    batch: int
    error: str


class ExecutorUp(Struct, frozen=True, array_like=True, tag="up"):
    """An executor is ready. `pools` counts the KV blocks of every expert that keeps state there."""

    executor: str
    experts: tuple[str, ...]
    pools: dict[str, int] = {}
    slots: int = 1  # batches that may lie in its mailbox at once
    reuse: bool = False  # it keeps the KV of ended loops until told to drop it, and copies beginnings of it
    batch_invariant: bool = False  # its results are the same to the bit in any company


class ExecutorDown(Struct, frozen=True, array_like=True, tag="down"):
    """An executor is gone, with everything that it kept.

    `back`: it is being started again, and an `ExecutorUp` of its next incarnation follows; or, if that cannot be done, another
    `ExecutorDown` without it.
    """

    executor: str
    reason: str = "lost"
    back: bool = False


Report = Answer | Broken | ExecutorUp | ExecutorDown


# -- Requests into the core, news out of it ------------------------------------------------------------------------------


class Submit(Struct, frozen=True):
    """A checked request: see `request.py` for how one becomes this."""

    run: int
    plan: Any  # program.Plan: the program, pruned to the outputs that were asked for
    inputs: dict[str, Any]
    params: dict[str, Any]  # by node
    seed: int
    priority: int = 1
    n: int = 1  # samples; sample i has seed + i
    tenant: str = ""  # whose share of the devices it uses
    deadline: float | None = None  # seconds after it came by which all of it is wanted
    first_output: float | None = None  # the same, of the first piece of every output
    promised: bool = False  # its sound must not run dry
    label: str = ""  # the caller's own name for it; shown, never used as a key


class Cancel(Struct, frozen=True):
    """The user wants no more of a run."""

    run: int


class Preempt(Struct, frozen=True):
    """A run gives back the memory that it holds on executors, once its units in flight are back; then it goes on as before."""

    run: int


class Played(Struct, frozen=True):
    """So many seconds of a sound output have been heard by now. Without such news it plays since its first delivery."""

    run: int
    output: str
    seconds: float
    sample: int = 0


class Waiting(Struct, frozen=True):
    """A request waits until its promise can be kept: about so many seconds. None: it waits no more."""

    run: int
    seconds: float | None


class Chunk(Struct, frozen=True):
    """Items of an output, contiguous and once: `start` is where the last chunk ended."""

    run: int
    output: str
    start: int
    items: Any
    sample: int = 0


class OutputEnd(Struct, frozen=True):
    """An output is complete, with the summary of the loop that made it."""

    run: int
    output: str
    summary: Summary
    sample: int = 0


class End(Struct, frozen=True):
    """The last word about a run."""

    run: int
    reason: str  # done | cancelled | failed | lost | too_large | overloaded
    detail: str = ""
    units: dict[str, int] = {}  # units run, by loop
    usage: dict[str, dict[str, int]] = {}  # by loop
    seconds: float = 0.0  # of devices: its share of every batch that it was in
    silence: dict[str, float] = {}  # seconds in which a sound output had nothing to play, as far as is known here
    missed: tuple[str, ...] = ()  # deadline_s, first_output_s
    rebuilt: int = 0  # how often loops of it had to make again what an executor had kept for them
    retry_after: float = 0.0  # seconds; of a refusal that another try may escape


Input = Submit | Cancel | Preempt | Played | Report
Command = RunBatch | Release | Drop | Chunk | OutputEnd | Waiting | End
