"""What a model is: its experts, the loops they run, and what the loops read and give. Frozen values, checked when made.

A card names experts by string ("package.module:builder"), so it loads in milliseconds and without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from omni_runtime.errors import CardError, unknown

NAME = r"^[A-Za-z][A-Za-z0-9_.-]*$"


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """A pydantic error as sentences that name field, value and remedy."""
    parts = []
    for found in error.errors(include_url=False, include_context=False):
        where = ".".join(str(p) for p in found["loc"])
        if found["type"] == "extra_forbidden":
            parts.append(f"{where}: " + unknown("field", found["loc"][-1], model.model_fields))
        elif found["type"] == "missing":
            parts.append(f"{where}: is required")
        else:
            shown = "" if found["type"] == "value_error" else f", not {found['input']!r}"
            parts.append(f"{where}: " * bool(where) + found["msg"].removeprefix("Value error, ") + shown)
    return "; ".join(parts)


class Value(BaseModel):
    """A frozen record that takes no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    error: ClassVar[type[ValueError]] = CardError

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as e:
            raise self.error(f"{type(self).__name__}: {explain(e, type(self))}") from None


class OpCost(Value):
    """Seconds of a batch before anything was measured: batch + unit * units + work * work + reach * reach.

    Only the proportions matter: the first batch tells how fast the machine is. `work` is size times the units' weight (tokens,
    frames, characters of a clause, cells of a latent); `reach` is size times the positions of KV that each looks back on.
    """

    batch: float = Field(default=5e-3, ge=0.0, allow_inf_nan=False)
    unit: float = Field(default=1e-3, ge=0.0, allow_inf_nan=False)
    work: float = Field(default=1e-4, ge=0.0, allow_inf_nan=False)
    reach: float = Field(default=1e-8, ge=0.0, allow_inf_nan=False)


class OpLimits(Value):
    """How much of an op fits into one batch."""

    units: int = Field(default=64, ge=1)
    size: int = Field(default=512, ge=1)  # summed over the units: tokens, frames, rows or calls
    chunk: int | None = Field(default=None, ge=1)  # most for one unit while anything else waits; None: as `size`
    cost: OpCost = OpCost()  # a guess, until it is measured


class ExpertSpec(Value):
    """Weights and the ops over them. `build` is called on the executor as build(options, device)."""

    build: str = Field(pattern=r"^[\w.]+:\w+$")
    ops: Mapping[str, OpLimits] = Field(min_length=1)
    options: Mapping[str, Any] = {}
    place: Literal["device", "host"] = "device"
    block: int = Field(default=16, ge=1)  # positions in a KV block
    bytes_per_position: int = Field(default=0, ge=0)  # of KV; 0: the expert keeps state by loop, not by position


class Slot(Value):
    """What a loop reads. `full`: it starts when everything is there; `stream`: with the first item."""

    type: str
    mode: Literal["full", "stream"] = "full"
    optional: bool = False
    media: tuple[Literal["image", "audio", "video"], ...] = ()  # of "messages": parts that it takes beside text


class Port(Value):
    """What a loop gives. Items of a `device` port stay on the executor and travel by name."""

    type: str
    device: bool = False


class LoopSpec(Value):
    """A loop of a card: an op of an expert, and the state machine that drives it. Use a subclass: it fixes the kind."""

    kind: str
    expert: str
    op: str
    reads: Mapping[str, Slot] = {}
    ports: Mapping[str, Port] = {}
    state_blocks: int = Field(default=0, ge=0)  # blocks of state that do not grow
    rebuilds: bool = True  # what its executor keeps for it follows from what it was sent; False: gone is gone
    defaults: Mapping[str, Any] = {}  # of the request's parameters for this loop
    ranges: Mapping[str, tuple[float, float]] = {}  # least and most of those that are numbers; of calls only
    choices: Mapping[str, tuple[str, ...]] = {}  # what those may be that are text; of calls only

    @property
    def grows(self) -> bool:
        """Whether state grows by one position per unit of size."""
        return False

    @property
    def draws(self) -> bool:
        """Whether it draws at random: the samples of a request part at the first such loop."""
        return False

    @property
    def sized(self) -> bool:
        """Whether a step is as large as it is granted, so that its op is called for other parts of the work every time."""
        return self.kind in ("ar_decode", "talk", "audio_decode")


class ArDecode(LoopSpec):
    """Autoregressive decoding of tokens.

    A model that takes media declares more slots, all `full`: "positions" (one item: an array [3, n] and a shift), "insets" (which
    positions are which rows: `loops/media.py`) and one for each kind of tensors that insets name; and perhaps more ports: "inner"
    (states at insets, a tensor for each part of one) or "states" (of all positions that were fed, a tensor a step), and "spoken"
    (tokens of the answer that are fed to the model, or will be: the one that ends it never is).
    """

    kind: Literal["ar_decode"] = "ar_decode"
    op: str = "forward"
    reads: Mapping[str, Slot] = {"prompt": Slot(type="token")}
    ports: Mapping[str, Port] = {
        "text": Port(type="text"),
        "tokens": Port(type="token"),
        "logprobs": Port(type="logprob"),  # one per token, where the request asks for them
        "hidden": Port(type="hidden", device=True),
    }
    context: int = Field(ge=1)  # prompt and answer together, in tokens
    stop_tokens: tuple[int, ...] = ()
    vocabulary: int = Field(default=0, ge=0)  # ids that the model has, to check requests early; 0: only the model knows

    @property
    def grows(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        return True


class Talk(LoopSpec):
    """A talker: frames of codes for what a thinker says, one frame a step, each with a token of the text.

    It begins with the turns of the user and an opening that ends with the first token; a talker that is ahead of the text waits.
    What it is fed of them is ids, and states where media stood (slots "turns", "insets", "inner", "text"); or, with slot
    "states" in place of these, a state for every position of the thinker: then it begins with the prompt, and the opening is
    one mark and the state of the first token.
    """

    kind: Literal["talk"] = "talk"
    op: str = "talk"
    reads: Mapping[str, Slot] = {
        "prompt": Slot(type="token"),
        "turns": Slot(type="turns"),
        "insets": Slot(type="inset", optional=True),
        "inner": Slot(type="inner", mode="stream", optional=True),
        "text": Slot(type="token", mode="stream"),
    }
    ports: Mapping[str, Port] = {"codes": Port(type="frame"), "speaker": Port(type="speaker")}  # who was asked for: one item
    context: int = Field(ge=1)  # turns, opening and frames together
    head: int = Field(default=3, ge=0)  # tokens of the prompt's end that the opening begins with: where the answer begins
    opening: tuple[int, ...] = ()  # ids that follow them; the first token of the text comes after these
    text_end: int = Field(ge=0)  # id that is spoken once where the text has ended
    text_pad: int = Field(ge=0)  # and that from then on
    speakers: tuple[str, ...] = Field(default=("",), min_length=1)  # the first is who speaks where a request does not say

    @model_validator(mode="after")
    def _fed(self) -> Talk:
        mine = {"states", "positions"} if "states" in self.reads else {"turns", "insets", "inner", "text"}
        needed = {"prompt", "states"} if "states" in self.reads else {"prompt", "turns", "text"}
        if odd := sorted(set(self.reads) - mine - {"prompt"} | needed - set(self.reads)):
            both = "either 'turns' and 'text' (with 'insets' and 'inner'), or 'states' (with 'positions')"
            raise ValueError(f"reads: {odd}: a talker reads 'prompt' and {both}, not {list(self.reads)}")
        return self

    @property
    def grows(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        return True


class FlowDecode(LoopSpec):
    """Codes to feature frames (a mel spectrogram) by flow matching: an ODE from noise, chunk by chunk; a unit is one velocity.

    Frames lie in blocks that see each other; a chunk is computed with `ahead` blocks after it, of which nothing is kept
    (`loops/flow_chunks.py`).
    """

    kind: Literal["flow_decode"] = "flow_decode"
    op: str = "velocity"
    reads: Mapping[str, Slot] = {"codes": Slot(type="frame", mode="stream"), "speaker": Slot(type="speaker", mode="stream")}
    ports: Mapping[str, Port] = {"mel": Port(type="mel")}
    repeats: int = Field(default=1, ge=1)  # frames a code
    block: int = Field(ge=1)  # frames; a multiple of `repeats`
    ahead: int = Field(default=1, ge=0)  # blocks
    chunks: tuple[int, ...] = Field(default=(2, 3, 4, 6, 8), min_length=1)  # blocks; the last one goes on for ever

    @model_validator(mode="after")
    def _whole_codes(self) -> FlowDecode:
        if self.block % self.repeats:
            raise ValueError(f"block: {self.block} frames are no whole number of codes of {self.repeats} frames each")
        if min(self.chunks) < 1:
            raise ValueError(f"chunks: each has at least one block, not {list(self.chunks)}")
        return self

    @property
    def draws(self) -> bool:
        return True


class AudioDecode(LoopSpec):
    """Frames of codes or features to samples, chunk by chunk, with carried state.

    n frames make n · hop - lag samples, and sample s belongs to frame s // hop.
    """

    kind: Literal["audio_decode"] = "audio_decode"
    op: str = "decode_audio"
    reads: Mapping[str, Slot] = {"frames": Slot(type="frame", mode="stream")}
    ports: Mapping[str, Port] = {"samples": Port(type="samples")}
    sample_rate: int = Field(ge=1)  # Hz
    hop: int = Field(ge=1)  # samples a frame
    ahead: int = Field(default=0, ge=0)  # frames of look-ahead
    behind: int | None = Field(default=None, ge=0)  # frames before it that a step is given again; None: the expert keeps state
    mark: int | None = None  # column of a frame that is not 0 where a segment ends: no look-ahead is needed past it
    lag: int = Field(default=0, ge=0)  # samples that are whole only when the next frame is there
    reach: int | None = Field(default=None, ge=0)  # frames before a frame that its samples depend on; None: all of its segment

    @model_validator(mode="after")
    def _one_frame_late(self) -> AudioDecode:
        if self.lag > self.hop:
            raise ValueError(f"lag: {self.lag} samples are more than the {self.hop} of a frame")
        if self.behind is not None and (self.lag or self.reach is not None or self.state_blocks or self.mark is not None):
            raise ValueError("behind: who is given frames again keeps no state; leave lag, reach, mark and state_blocks out")
        return self


class FlowMatch(Value):
    """Noise levels of flow-match Euler sampling (Esser et al. 2024, section 5.3.2); fields as in a `scheduler_config.json`.

    `loops/flow_match.py` says what they do.
    """

    num_train_timesteps: int = Field(default=1000, ge=2)
    shift: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    use_dynamic_shifting: bool = False  # shift by the number of image tokens; `shift` is off then
    base_shift: float = Field(default=0.5, allow_inf_nan=False)
    max_shift: float = Field(default=1.15, allow_inf_nan=False)
    base_image_seq_len: int = Field(default=256, ge=1)  # image tokens with shift `base_shift`
    max_image_seq_len: int = Field(default=4096, ge=1)  # image tokens with shift `max_shift`
    shift_terminal: float | None = Field(default=None, ge=0.0, lt=1.0)  # noise level of the last step; None or 0: as it comes
    time_shift_type: Literal["exponential", "linear"] = "exponential"

    @model_validator(mode="after")
    def _a_line(self) -> FlowMatch:
        if self.base_image_seq_len == self.max_image_seq_len:
            raise ValueError(f"base_image_seq_len and max_image_seq_len are both {self.base_image_seq_len}; they must differ")
        return self


class Raster(Value):
    """The pictures that a model makes, in pixels, and the latents behind them."""

    channels: int = Field(default=1, ge=1)  # of a latent
    factor: int = Field(default=1, ge=1)  # pixels on a side of a latent cell
    patch: int = Field(default=1, ge=1)  # latent cells on a side of an image token
    largest: int = Field(default=1 << 16, ge=1)  # pixels that a side may have
    width: int = Field(default=1, ge=1)  # where a request says nothing
    height: int = Field(default=1, ge=1)

    @property
    def multiple(self) -> int:
        """Every side is a multiple of this."""
        return self.factor * self.patch

    def nearest(self, side: int) -> tuple[int, ...]:
        """The allowed sides next to one that may not be allowed; only itself if it is."""
        highest = self.largest // self.multiple * self.multiple
        low = min(max(side // self.multiple * self.multiple, self.multiple), highest)
        return (low,) if low >= side or low == highest else (low, low + self.multiple)

    def latent(self, width: int, height: int) -> tuple[int, int, int]:
        """Channels, rows and columns of the latent of a picture."""
        return self.channels, height // self.factor, width // self.factor

    @model_validator(mode="after")
    def _default_fits(self) -> Raster:
        if self.largest < self.multiple:
            raise ValueError(f"largest: {self.largest} pixels are less than one token of {self.multiple}")
        for name, side in (("width", self.width), ("height", self.height)):
            if side not in self.nearest(side):
                raise ValueError(f"{name}: {side} is no multiple of {self.multiple} up to {self.largest}")
        return self


class DiffusionDenoise(LoopSpec):
    """Denoising of latents, step by step; one unit is all guidance branches of a step.

    Ports: `latent` (the last one), `progress` (share of the steps done, after each), `preview` (every k steps, the clean latent
    as it is estimated then).
    """

    kind: Literal["diffusion_denoise"] = "diffusion_denoise"
    op: str = "denoise"
    reads: Mapping[str, Slot] = {"conditioning": Slot(type="hidden")}
    ports: Mapping[str, Port] = {
        "latent": Port(type="latent", device=True),
        "progress": Port(type="progress"),
        "preview": Port(type="latent", device=True),
    }
    branches: int = Field(default=2, ge=1)  # rows of a guided step; 1: the model takes no guidance
    max_steps: int = Field(default=1000, ge=1)
    save_every: int = Field(default=8, ge=0)  # steps from one copy of the latent that survives its executor to the next; 0: none
    schedule: FlowMatch = FlowMatch()
    raster: Raster = Raster()

    @property
    def draws(self) -> bool:
        return True


class Each(LoopSpec):
    """One call per item of a stream, or per clause of a text stream: speech front ends, streaming encoders."""

    kind: Literal["each"] = "each"
    segment: Literal["items", "clauses"] = "items"
    longest: int = Field(default=300, ge=8)  # characters in a clause before it is cut anyway
    first: int | None = Field(default=None, ge=8)  # the same of the first clause, for which somebody waits; None: as `longest`

    @model_validator(mode="after")
    def _one_stream(self) -> Each:
        if sum(s.mode == "stream" for s in self.reads.values()) != 1:
            raise ValueError(f"an `each` loop reads exactly one slot of mode 'stream', not {dict(self.reads)}")
        return self


class OneShot(LoopSpec):
    """A single call once all inputs are there: tokenizers, encoders, VAEs."""

    kind: Literal["one_shot"] = "one_shot"

    @model_validator(mode="after")
    def _no_stream(self) -> OneShot:
        if streams := [n for n, s in self.reads.items() if s.mode == "stream"]:
            raise ValueError(f"a `one_shot` loop reads slots of mode 'full' only; use `each` for {streams}")
        return self


SLOTS = {  # what the loops of a kind can read
    "ar_decode": {"prompt", "conditioning", "positions", "insets", "sound", "picture", "features"},
    "audio_decode": {"frames"},
    "flow_decode": {"codes", "speaker"},
}
NEEDED = {"ar_decode": ("prompt",), "audio_decode": ("frames",), "flow_decode": ("codes", "speaker")}
PORTS = {
    "ar_decode": {"text", "tokens", "logprobs", "hidden", "inner", "states", "spoken"},
    "talk": {"codes", "speaker"},
    "audio_decode": {"samples"},
    "flow_decode": {"mel"},
    "diffusion_denoise": {"latent", "progress", "preview"},
}

AnyLoop = Annotated[ArDecode | Talk | FlowDecode | AudioDecode | DiffusionDenoise | Each | OneShot, Field(discriminator="kind")]


class ModelCard(Value):
    """A deployable model.

    Raises:
        CardError: a loop names an expert, an op or a parameter that the card does not have.
    """

    name: str = Field(pattern=NAME)
    experts: Mapping[str, ExpertSpec] = Field(min_length=1)
    loops: Mapping[str, AnyLoop] = Field(min_length=1)
    description: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> ModelCard:
        for name, loop in self.loops.items():
            expert = self.experts.get(loop.expert)
            if expert is None:
                raise ValueError(f"loops.{name}.expert: " + unknown("expert", loop.expert, self.experts))
            if loop.op not in expert.ops:
                raise ValueError(f"loops.{name}.op: " + unknown(f"op of expert {loop.expert!r}", loop.op, expert.ops))
            for key in (*loop.ranges, *loop.choices):
                if key not in loop.defaults or not isinstance(loop, Each | OneShot):
                    raise ValueError(f"loops.{name}.ranges and .choices: " + unknown("parameter", key, loop.defaults))
            if isinstance(loop, Each | OneShot):
                for key, value in loop.defaults.items():
                    if not isinstance(value, str | int | float | bool):
                        raise ValueError(f"loops.{name}.defaults.{key}: a text, number or truth value, not {value!r}")
            for slot in loop.reads:
                if slot not in SLOTS.get(loop.kind, loop.reads):
                    raise ValueError(f"loops.{name}.reads: " + unknown(f"slot of kind {loop.kind!r}", slot, SLOTS[loop.kind]))
            for slot in NEEDED.get(loop.kind, ()):
                if slot not in loop.reads:
                    raise ValueError(f"loops.{name}.reads: kind {loop.kind!r} needs slot {slot!r}, found {list(loop.reads)}")
            for port in loop.ports:
                if port not in PORTS.get(loop.kind, loop.ports):
                    raise ValueError(f"loops.{name}.ports: " + unknown(f"port of kind {loop.kind!r}", port, PORTS[loop.kind]))
            if not loop.ports:
                raise ValueError(f"loops.{name}.ports: a loop that gives nothing can never be read")
            if isinstance(loop, DiffusionDenoise) and loop.branches > expert.ops[loop.op].size:
                raise ValueError(
                    f"loops.{name}.branches: a unit has {loop.branches} rows, op {loop.op!r} takes {expert.ops[loop.op].size}"
                )
        return self


def seeds(*cards: ModelCard) -> dict[tuple[str, str], OpCost]:
    """("card/expert", op) -> what the card guesses that a batch costs."""
    return {key: limits.cost for key, limits in batch_limits(*cards).items()}


def batch_limits(*cards: ModelCard) -> dict[tuple[str, str], OpLimits]:
    """("card/expert", op) -> what fits into one batch."""
    return {(f"{c.name}/{e}", op): limit for c in cards for e, spec in c.experts.items() for op, limit in spec.ops.items()}
