"""A request: inputs, outputs and parameters, checked before anything of it reaches the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, create_model, field_validator, model_validator

from omni_runtime.card import ArDecode, DiffusionDenoise, Each, LoopSpec, OneShot, Slot, Talk, Value
from omni_runtime.errors import ProgramError, RequestError, unknown
from omni_runtime.messages import Read, check_text, normal, refuse_files
from omni_runtime.program import Plan, Program, Step
from omni_runtime.work import Submit

SEEDS = 2**63  # a seed is 0 .. SEEDS - 1
PRIORITIES = {"high": 0, "normal": 1, "low": 2}


class Params(Value):
    """Parameters of a request for one loop."""

    error: ClassVar[type[ValueError]] = RequestError


TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class ArParams(Params):
    """How tokens are drawn, and when to end. Everything but the length is off by default, and greedy is the default.

    Off are: `temperature` 0 (the likeliest token, so `top_k`, `top_p` and `min_p` change nothing then), `top_k` 0, -1 or the
    vocabulary and above, `top_p` 1, `min_p` 0, `repetition_penalty` 1, the other two penalties 0, `min_tokens` 0,
    `logprobs` None. In which order they work is told in `experts/sampling.py`.

    Ids are checked against the card's `vocabulary`, or fail their request alone where the card does not tell it.
    """

    max_tokens: int | None = Field(default=None, ge=0)  # None: as many as the context and the memory hold
    temperature: float = Field(default=0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)  # a share of the likeliest token's probability
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0, allow_inf_nan=False)  # of all tokens of prompt and answer
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)  # of the answer's tokens, once
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)  # of the answer's tokens, each time
    logit_bias: Mapping[TokenId, Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)]] = Field(
        default={}, max_length=1024
    )  # added to logits: a number like any other, so +-100 make a token all but certain or impossible and promise neither
    stop: tuple[str, ...] = Field(default=(), max_length=16)  # the text ends before the first of these
    stop_tokens: tuple[TokenId, ...] = Field(default=(), max_length=64)  # end the answer, as those of the card do
    ignore_eos: bool = False  # the card's stop tokens are tokens like any other; those of the request stop all the same
    # Before this many tokens no stop token is drawn, and a stop string that is complete is ordinary text: one counts if its
    # last character comes with token number `min_tokens` or later. A full context ends the answer all the same.
    min_tokens: int = Field(default=0, ge=0)
    logprobs: int | None = Field(default=None, ge=0, le=20)  # of the drawn token and this many likeliest, before any edit

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else () if stop is None else stop

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        return stop

    @field_validator("stop_tokens", mode="before")
    @classmethod
    def _as_tuple(cls, ids: Any) -> Any:
        return tuple(ids) if isinstance(ids, list) else () if ids is None else ids

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _as_mapping(cls, bias: Any) -> Any:
        return {} if bias is None else bias

    @model_validator(mode="after")
    def _can_end(self) -> ArParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: {self.min_tokens} is more than max_tokens, {self.max_tokens}")
        return self

    def check_ids(self, vocabulary: int) -> None:
        """Whether a model with ids 0 .. vocabulary - 1 has all tokens that are named here.

        Raises:
            RequestError: it lacks one.
        """
        for name, ids in (("logit_bias", self.logit_bias), ("stop_tokens", self.stop_tokens)):
            if (highest := max(ids, default=0)) >= vocabulary:
                raise RequestError(f"{name}: token {highest} is not in the vocabulary of {vocabulary}")


class PredictParams(Params):
    """How a talker's codes after the first are drawn."""

    temperature: float = Field(default=1.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float = Field(default=0.8, gt=0.0, le=1.0, allow_inf_nan=False)
    top_k: int = Field(default=50, ge=-1, le=1 << 31)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)


class TalkParams(Params):
    """How a talker's frames are drawn, who speaks, and when to end. Fields as in `ArParams`; penalties count first codes."""

    max_frames: int | None = Field(default=None, ge=0)  # None: as many as the context and the memory hold
    temperature: float = Field(default=0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=-1, le=1 << 31)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=100.0, allow_inf_nan=False)
    predict: PredictParams = PredictParams()
    speaker: str = ""  # "": the first of the card

    @field_validator("predict", mode="before")
    @classmethod
    def _from_mapping(cls, given: Any) -> Any:
        return PredictParams(**given) if isinstance(given, Mapping) else given

    def fitted(self, spec: Talk) -> TalkParams:
        """With a speaker of the card, in whatever case the name was written.

        Raises:
            RequestError: it has none of that name, or draws nothing that `predict` is about.
        """
        if "states" in spec.reads and "predict" in self.model_fields_set:
            raise RequestError("predict: this talker's frames have one code, nothing else is drawn; leave it out")
        named = {name.lower(): name for name in spec.speakers}
        if self.speaker and self.speaker.lower() not in named:
            raise RequestError(f"speaker: {unknown('speaker', self.speaker, spec.speakers)}")
        return self.model_copy(update={"speaker": named[self.speaker.lower()] if self.speaker else spec.speakers[0]})


class FlowParams(Params):
    """How frames are made of codes: points of the ODE, and how much of the difference that codes and speaker make is added."""

    num_steps: int = Field(default=10, ge=2, le=1000)  # points: an interval fewer, of four velocities each
    guidance_scale: float = Field(default=0.5, ge=0.0, le=100.0, allow_inf_nan=False)  # 0: one branch, at half the cost
    sway_coefficient: float = Field(default=-1.0, ge=-1.0, le=1.75, allow_inf_nan=False)  # beyond these, times would go back


class AudioParams(Params):
    """Decoding of sound has no parameters."""


class DenoiseParams(Params):
    """How a picture is denoised. A guidance scale of 1 is off: the negative prompt has no effect and a step costs half."""

    steps: int = Field(default=20, ge=1)  # exactly so many are run; at most the card's `max_steps`
    guidance_scale: float = Field(default=1.0, ge=1.0, le=100.0, allow_inf_nan=False)
    width: int | None = None  # pixels; None: the card's
    height: int | None = None
    preview_every: int = Field(default=0, ge=0)  # steps from one preview to the next; 0: none

    def fitted(self, spec: DiffusionDenoise) -> DenoiseParams:
        """Held to the card's limits, with the sizes filled in.

        Raises:
            RequestError: naming the field, its value and the nearest that is allowed.
        """
        if self.steps > spec.max_steps:
            raise RequestError(f"steps: at most {spec.max_steps}, as its card says, not {self.steps}")
        if self.guidance_scale > 1.0 and spec.branches == 1:
            raise RequestError(f"guidance_scale: its card takes no guidance, 1.0 is needed, not {self.guidance_scale}")
        raster = spec.raster
        sides = {}
        for name, side in (("width", self.width), ("height", self.height)):
            side = getattr(raster, name) if side is None else side
            if (near := raster.nearest(side)) != (side,):
                allowed = f"multiples of {raster.multiple} from {raster.multiple} to {raster.largest} are allowed"
                raise RequestError(f"{name}: {allowed}, nearest {' and '.join(map(str, near))}, not {side}")
            sides[name] = side
        return self.model_copy(update=sides)


PARAMS: dict[str, type[Params]] = {
    "ar_decode": ArParams,
    "talk": TalkParams,
    "flow_decode": FlowParams,
    "audio_decode": AudioParams,
    "diffusion_denoise": DenoiseParams,
}


def params_model(spec: LoopSpec) -> type[Params]:
    """The parameters that a loop takes: its kind's, or for calls the ones that its card gives defaults for."""
    if isinstance(spec, Each | OneShot):
        defaults = tuple((name, type(value), value) for name, value in spec.defaults.items())  # the type, for 1 == True
        return _call_params(defaults, tuple(spec.ranges.items()), tuple(spec.choices.items()))
    return PARAMS[spec.kind]


@lru_cache(maxsize=256)  # a pydantic class takes a millisecond to make
def _call_params(defaults: tuple[Any, ...], ranges: tuple[Any, ...], choices: tuple[Any, ...]) -> type[Params]:
    fields: dict[str, Any] = {}
    for name, kind, value in defaults:
        if name in dict(choices):
            fields[name] = (Literal[dict(choices)[name]], value)
        elif name in dict(ranges):
            least, most = dict(ranges)[name]
            fields[name] = (kind, Field(default=value, ge=least, le=most))
        else:
            fields[name] = (kind, value)
    return create_model("CallParams", __base__=Params, **fields)


class Request(Value):
    """What `runtime.submit` makes of its arguments."""

    error: ClassVar[type[ValueError]] = RequestError

    outputs: tuple[str, ...] | None = None  # None: all that the program has
    seed: int | None = Field(default=None, ge=0, lt=SEEDS)  # None: one is drawn, used and returned
    n: int = Field(default=1, ge=1, le=64)  # samples; sample i has seed + i, so that it can be made again alone
    priority: Literal["high", "normal", "low"] = "normal"
    label: str = ""  # the caller's own name for it; shown, never used as a key
    tenant: str = Field(default="", max_length=128)  # whose share of the devices it uses
    deadline_s: float | None = Field(default=None, gt=0.0, le=1e6)  # seconds by which all of it is wanted
    first_output_s: float | None = Field(default=None, gt=0.0, le=1e6)  # the same, of the first piece of every output
    guarantee: Literal["no-underrun"] | None = None  # once sound has begun, it goes on without a gap

    @field_validator("deadline_s", "first_output_s", mode="before")
    @classmethod
    def _whole_seconds(cls, seconds: Any) -> Any:
        return float(seconds) if type(seconds) is int else seconds

    @field_validator("outputs", mode="before")
    @classmethod
    def _as_tuple(cls, outputs: Any) -> Any:
        return (outputs,) if isinstance(outputs, str) else tuple(outputs) if isinstance(outputs, list) else outputs


def split(program: Program, plan: Plan, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sorts the keyword arguments of a submit into inputs of the program and parameters by node.

    A keyword is an input of the program, the name of a node with a mapping of parameters, or a parameter that exactly one
    loop of the plan takes.

    Raises:
        RequestError: unknown keyword, missing input, a parameter that several loops take or that is out of range.
    """
    inputs: dict[str, Any] = {}
    params: dict[str, dict[str, Any]] = {step.name: {} for step in plan.steps}
    models = {step.name: params_model(step.spec) for step in plan.steps}
    known = program.inputs
    by_loop = {name: given[name] for name in params if isinstance(given.get(name), Mapping) and name not in known}
    for key, value in given.items():
        takers = [name for name, model in models.items() if key in model.model_fields]
        if key in known:
            shared = isinstance(value, list | dict) and "messages" not in known[key].split(", ")  # those are made anew
            inputs[key] = deepcopy(value) if shared else value  # the caller may go on editing it
        elif key in program.nodes:
            if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
                raise RequestError(f"{key}: parameters of a loop are a mapping from their names, not {value!r}")
            if key in params:
                params[key].update(value)
            else:  # a pruned loop's parameters are checked all the same
                spec = program.spec(key)
                loop_params(spec, value, key)
        elif len(takers) == 1:
            if key in (other := by_loop.get(takers[0], {})):
                raise RequestError(
                    f"{key}: {key}={value!r} and {takers[0]}={{{key!r}: {other[key]!r}}} are both given; leave one out"
                )
            params[takers[0]][key] = value
        elif takers:
            raise RequestError(f"{key}: loops {takers} take it; say which, as in {takers[0]}={{{key!r}: {value!r}}}")
        else:
            fields = {f for m in models.values() for f in m.model_fields}
            raise RequestError(unknown("argument", key, {*known, *program.nodes, *fields, *Request.model_fields}))
    needed = {e.port.port for step in plan.steps for _, e, _ in step.reads if not e.port.node}
    for name in sorted(needed):
        if inputs.get(name) is None:
            raise RequestError(f"{name}: program {program.name!r} needs this input ({known[name]})")
    return inputs, {step.name: loop_params(step.spec, params[step.name], step.name) for step in plan.steps}


def loop_params(spec: LoopSpec, given: Mapping[str, Any], where: str) -> Any:
    """Parameters of a request for one loop: what was given, and the card's defaults.

    Raises:
        RequestError: beginning with `where`.
    """
    try:
        made: Any = params_model(spec)(**{**spec.defaults, **given})
        if isinstance(spec, DiffusionDenoise) and isinstance(made, DenoiseParams):
            made = made.fitted(spec)
        if isinstance(spec, Talk) and isinstance(made, TalkParams):
            made = made.fitted(spec)
        if isinstance(spec, ArDecode) and spec.vocabulary:
            made.check_ids(spec.vocabulary)
    except RequestError as e:
        raise RequestError(f"{where}: {e}") from None
    return made.model_dump() if isinstance(spec, Each | OneShot) else made


def as_items(kind: str, value: Any) -> Sequence[Any]:
    """An input as the items of its channel: token ids one by one, all else as one item."""
    if kind == "prompt" and not isinstance(value, str):
        raise RequestError(f"one text is needed (for several pictures submit several requests), not {str(value)[:80]!r}")
    if kind == "text" and not isinstance(value, str):
        raise RequestError(f"a text is needed, not {str(value)[:80]!r}")
    if kind != "messages" and isinstance(value, str):  # messages were checked when they were made plain
        check_text(value)
    if kind != "token":
        return (value,)
    tokens = list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else None
    if tokens is None or not tokens or not all(type(t) is int and t >= 0 for t in tokens):
        raise RequestError(f"an input of token ids is a list of whole numbers from 0 on, not {str(value)[:80]!r}")
    return tokens


def resolve(
    run: int, program: Program, fallback: int, given: Mapping[str, Any], /, read: Read = refuse_files, **fields: Any
) -> tuple[Request, Submit]:
    """A submit's arguments as a checked message to the core.

    Args:
        run: the id, never used before.
        fallback: seed where the request names none.
        given: inputs and parameters, see `split`.
        read: opens files that messages name.
        fields: fields of `Request`.

    Raises:
        RequestError, ProgramError: naming the field, its value and the remedy.
    """
    request = Request(**fields)
    program.check()
    try:
        plan = program.plan(request.outputs)
    except ProgramError as e:  # the program is sound, so it is the choice of outputs
        raise RequestError(f"outputs: {e}") from None
    inputs, params = split(program, plan, given)
    slots: dict[str, list[Slot]] = {}
    for step in plan.steps:
        for slot, edge, _ in step.reads:
            if not edge.port.node:
                slots.setdefault(edge.port.port, []).append(step.spec.reads[slot])
    for name, readers in slots.items():
        try:
            talked: list[set[str]] = [set(reader.media) for reader in readers if reader.type == "messages"]
            if talked:
                inputs[name] = normal(inputs[name], sorted(set.intersection(*talked)), read)
            for reader in readers:
                as_items(reader.type, inputs[name])
        except RequestError as e:
            raise RequestError(f"{name}{e}" if str(e).startswith("[") else f"{name}: {e}") from None
    chosen = min(fallback, SEEDS - request.n) if request.seed is None else request.seed
    if chosen + request.n > SEEDS:
        raise RequestError(f"seed: {chosen} + n - 1 must stay below {SEEDS}, since sample i has seed + i; n is {request.n}")
    promised = request.guarantee is not None
    if promised and not any(_heard(step) for step in plan.steps):
        raise RequestError(
            f"guarantee: {request.guarantee!r} is about sound, and no output of {list(plan.outputs)} is; ask for one that is"
        )
    return request, Submit(
        run,
        plan,
        inputs,
        params,
        chosen,
        PRIORITIES[request.priority],
        request.n,
        tenant=request.tenant,
        deadline=request.deadline_s,
        first_output=request.first_output_s,
        promised=promised,
        label=request.label,
    )


def _heard(step: Step) -> bool:
    """Whether an output of the request is sound that this step makes."""
    spec = step.spec
    return bool(getattr(spec, "sample_rate", 0)) and any(spec.ports[port].type == "samples" for port in step.outputs)
