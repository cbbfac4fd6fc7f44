"""Autoregressive decoding: prefill and decode are one thing, known tokens that are not in the cache yet."""

from __future__ import annotations

from collections.abc import Sequence

from omni_runtime.channel import Reader
from omni_runtime.draw import Draw, Edits
from omni_runtime.errors import RequestTooLarge
from omni_runtime.loop import DONE, Context
from omni_runtime.loops import media
from omni_runtime.loops.chain import chain
from omni_runtime.loops.text import TextStream
from omni_runtime.work import ArStep, Done, Push, StepResult, Summary, Wait, WorkUnit

WAIT_CONDITIONING = Wait("conditioning")


class ArState:
    """Where a decoding stands: all of it is host state."""

    __slots__ = (
        "cached",
        "chain",
        "conditioning",
        "ctx",
        "draw",
        "finish",
        "hidden",
        "inner",
        "kind",
        "least",
        "limit",
        "media",
        "parts",
        "prompt",
        "reused",
        "shown",
        "spoken",
        "stop_tokens",
        "text",
        "tokens",
        "told",
        "wants_tokens",
    )

    def __init__(self, ctx: Context, tokens: list[int]) -> None:
        params = ctx.params
        self.ctx = ctx
        self.kind = ctx.kind()
        self.tokens = tokens  # prompt and answer
        self.prompt = len(tokens)
        room = ctx.spec.context - self.prompt
        self.limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self.cached = 0
        self.finish = "length" if self.limit == 0 else ""
        self.conditioning: Reader | None = ctx.readers.get("conditioning")
        self.stop_tokens = frozenset(params.stop_tokens).union(() if params.ignore_eos else ctx.spec.stop_tokens)
        self.least = params.min_tokens
        self.draw = _draw(ctx, self.stop_tokens)
        self.hidden = "hidden" in ctx.wants
        self.media = media.read(ctx.readers, self.prompt) if len(ctx.readers) > 1 else None
        inner = "inner" in ctx.wants and self.media is not None
        self.inner = "states" if "states" in ctx.wants else "inner" if inner else ""  # port that states are pushed to
        self.parts = 0  # tensors pushed to it
        self.spoken = "spoken" in ctx.wants
        # Positions that were copied give no hidden rows, and with conditioning or media the KV is not a function of the tokens.
        plain = self.conditioning is None and not self.hidden and self.media is None and not self.inner
        self.chain = chain(tokens, ctx.block) if plain else ()
        self.reused = 0  # positions that were copied from another loop's KV
        self.told = 0  # positions that were cached when the KV was lost: all that they give is known
        self.wants_tokens = "tokens" in ctx.wants
        self.text = TextStream(params.stop) if "text" in ctx.wants or params.stop else None
        self.shown = 0  # pieces of text pushed


def _draw(ctx: Context, stop_tokens: frozenset[int]) -> Draw:
    """How every token of a request is drawn. What costs something is left out where nothing is asked of it."""
    p = ctx.params
    edits = None
    if p.logit_bias or p.repetition_penalty != 1 or p.presence_penalty or p.frequency_penalty or p.min_tokens or p.stop_tokens:
        ids = tuple(sorted(p.logit_bias))
        bias = tuple(p.logit_bias[i] for i in ids)
        penalties = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
        edits = Edits(ids, bias, *penalties, tuple(sorted(stop_tokens)), min(p.min_tokens, ctx.spec.context))
    logprobs = p.logprobs if p.logprobs is not None and "logprobs" in ctx.wants else -1
    top_k = min(p.top_k, 1 << 31)  # a request may name any number, a message holds 64 bits
    return Draw(ctx.seed, ctx.node, p.temperature, p.top_p, top_k, p.min_p, logprobs, edits)


class ArDecodeLoop:
    """Steps of 1..n tokens; the last known token's step draws the next one."""

    def init(self, ctx: Context) -> ArState:
        tokens = list(ctx.readers["prompt"].peek())
        if not tokens:
            raise RequestTooLarge("the prompt has no tokens; send at least one")
        if len(tokens) >= ctx.spec.context:
            raise RequestTooLarge(
                f"{ctx.loop}: the prompt has {len(tokens)} tokens, the context of {ctx.spec.context} must hold them and an answer"
            )
        return ArState(ctx, tokens)

    def claim(self, ctx: Context) -> tuple[int, int]:
        prompt = ctx.readers["prompt"]
        if prompt.ended and prompt.cursor == 0:
            answer = ctx.params.max_tokens
            known = prompt.available
            most = ctx.spec.context if answer is None else min(ctx.spec.context, known + answer)
            least = min(most, known + ctx.params.min_tokens)
        else:  # the prompt is made by another loop of this run
            least = most = ctx.spec.context
        return -(-least // ctx.block) + ctx.spec.state_blocks, -(-most // ctx.block) + ctx.spec.state_blocks

    def next(self, s: ArState) -> WorkUnit | Wait | Done:
        if s.finish:
            return DONE
        # A unit is all old or all new where rows are kept, so that none is made twice.
        hi = (s.told if s.cached < s.told and (s.hidden or s.inner) else len(s.tokens)) - s.cached
        if s.conditioning is not None and not s.conditioning.ended:
            hi = min(hi, s.conditioning.available)  # a reader that is ahead waits, it never pads
            if hi == 0:
                return WAIT_CONDITIONING
        if s.cached:
            return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, hi, s.cached, s.cached)
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, hi, chain=s.chain)

    def bind(self, s: ArState, size: int, reused: int = 0) -> ArStep:
        start, end = s.cached + reused, s.cached + size
        if reused and not s.told:
            s.reused = reused
        draws = end == len(s.tokens)
        conditioning = None if s.conditioning is None else s.conditioning.peek(size)
        hidden = s.hidden and start >= s.told
        inner = s.inner != "" and start >= s.told
        index = end - s.prompt if draws else -1
        step = (start, tuple(s.tokens[start:end]), index, s.draw, conditioning, hidden)
        if s.media is None:
            return ArStep(*step, inner=inner)
        return ArStep(*step, s.media.overlapping(start, end), inner, s.media.at(start, end), s.media.shift)

    def advance(self, s: ArState, size: int, result: StepResult) -> Sequence[Push]:
        start = s.cached
        s.cached = start + size
        pushes = []
        if s.conditioning is not None:
            s.conditioning.take(min(size, s.conditioning.available))
        if s.hidden and start >= s.told:
            pushes.append(Push("hidden", start, result.tensors["hidden"]))
        if s.inner and start >= s.told and (parts := result.tensors.get(s.inner, ())):
            pushes.append(Push(s.inner, s.parts, parts))
            s.parts += len(parts)
        token = result.token
        if token < 0:
            return pushes
        s.tokens.append(token)
        count = len(s.tokens) - s.prompt
        if s.wants_tokens:
            pushes.append(Push("tokens", count - 1, (token,)))
        if result.logprobs is not None:
            pushes.append(Push("logprobs", count - 1, (result.logprobs,)))
        if token in s.stop_tokens:
            s.finish = "stop"
        elif count >= s.limit or len(s.tokens) > s.ctx.room:
            s.finish = "length"
        if s.text is not None:
            text = s.text.feed(result.piece, count < s.least) if s.finish != "stop" else ""
            if s.text.stopped:
                s.finish = "stop"
            elif s.finish:
                text += s.text.end()
                if s.text.stopped:
                    s.finish = "stop"
            if text and "text" in s.ctx.wants:
                pushes.append(Push("text", s.shown, (text,)))
                s.shown += 1
        if s.spoken and not s.finish:  # so it will be fed
            pushes.append(Push("spoken", count - 1, (token,)))
        return pushes

    def rebuild(self, s: ArState) -> None:
        s.told = max(s.told, s.cached)
        s.cached = 0
        if s.conditioning is not None:
            s.conditioning.rewind(0)

    def finalize(self, s: ArState) -> Summary:
        counts = {"prompt_tokens": s.prompt, "completion_tokens": len(s.tokens) - s.prompt}
        return Summary(s.finish, counts | {"cached_tokens": s.reused} if s.reused else counts)

    def forkable(self, s: ArState) -> bool:
        return s.cached >= s.prompt or bool(s.finish)

    def held(self, s: ArState) -> tuple[bytes, ...]:
        return chain(s.tokens[: s.cached], s.ctx.block) if s.chain else ()
