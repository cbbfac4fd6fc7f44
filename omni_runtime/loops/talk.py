"""Talking: one frame of codes a step, each fed back with the token of the text that is spoken with it.

    positions 0 .. T            the turns of the user: ids, or the thinker's inner states where media stood
    positions T .. T+O          the opening: the end of the prompt, ids of the card, and token 0 of the text
    position  T+O+k             frame k with token k + 1 of the text; where the text has ended, `text_end` once, then `text_pad`

The step whose last position is T+O+k-1 draws frame k. A position is known as soon as its token is, so a talker that is ahead of
the text waits. All of this is host state: where an executor lost what it had, known positions are fed again.

A talker with slot "states" is fed the thinker's states in place of ids, one for each position that the thinker was fed: of the
prompt (T positions), and of the answer's tokens. Its opening is a mark, and the state of token 0: so a position of the thinker
stands one later here from then on. What it knows of the answer is what the thinker was fed of it.

Suffixes: T positions of the turns, or of the prompt, O of the opening.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from omni_runtime.channel import Reader
from omni_runtime.draw import Draw, Edits
from omni_runtime.errors import RequestTooLarge
from omni_runtime.loop import DONE, Context
from omni_runtime.loops.media import Media, placed
from omni_runtime.work import Done, Inset, Push, StepResult, Summary, TalkStep, TensorRef, Wait, WorkUnit

WAIT_TEXT, WAIT_STATES = Wait("text"), Wait("states")

Frame = tuple[int, ...]
Stretch = tuple[int, int, int]  # position here, position of the thinker, count


class TalkState:
    """Where a talker stands: all of it is host state."""

    __slots__ = (
        "before",
        "begins",
        "cached",
        "ctx",
        "draw",
        "finish",
        "frames",
        "inner",
        "kind",
        "limit",
        "media",
        "opening",
        "predict",
        "states",
        "text",
        "turns",
        "wanted",
    )

    def __init__(self, ctx: Context) -> None:
        params, spec = ctx.params, ctx.spec
        self.ctx = ctx
        self.kind = ctx.kind()
        prompt = ctx.readers["prompt"].peek()
        self.states = "states" in ctx.readers
        self.inner: Reader | None = ctx.readers.get("states" if self.states else "inner")
        self.wanted: list[Stretch] = []
        if self.states:
            told = ctx.readers["positions"].peek() if "positions" in ctx.readers else ()
            self.turns: tuple[int, ...] = ()
            self.media = Media((), *(placed(told[0]) if told else (None, 0.0)))
            self.before = len(prompt)
            self.opening: tuple[int, ...] = (-1,)  # the mark
        else:
            self.turns, self.media, self.wanted = _turns(ctx)
            self.before = len(self.turns)
            self.opening = (*prompt[max(0, len(prompt) - spec.head) :], *spec.opening)  # and token 0 of the text
        self.begins = self.before + len(self.opening) + 1  # position of frame 0
        room = spec.context - self.begins
        if room < 0:
            raise RequestTooLarge(f"{ctx.loop}: {self.begins} positions before the first frame, the context holds {spec.context}")
        self.limit = room + 1 if params.max_frames is None else min(params.max_frames, room + 1)  # the last one is never fed
        self.text: Reader | None = None if self.states else ctx.readers["text"]
        self.frames: list[Frame] = []
        self.cached = 0
        self.finish = "length" if self.limit == 0 else ""
        edits = None if params.repetition_penalty == 1 else Edits(repetition=params.repetition_penalty)
        self.draw = Draw(ctx.seed, ctx.node, params.temperature, params.top_p, params.top_k, params.min_p, -1, edits)
        p = params.predict
        self.predict = Draw(ctx.seed, ctx.node, p.temperature, p.top_p, p.top_k, p.min_p)

    @property
    def said(self) -> int:
        """Tokens of the answer that can be spoken."""
        if self.text is not None:
            return self.text.channel.tail
        return max(0, _rows_of(self.inner) - self.before)

    @property
    def over(self) -> bool:
        """No more of them will come."""
        heard = self.inner if self.text is None else self.text
        return heard is None or heard.ended

    @property
    def known(self) -> int:
        """Positions whose data is there."""
        frames = len(self.frames)
        return self.begins + (frames if self.over else min(frames, self.said - 1))

    def listen(self) -> None:
        """The states that have come since the last time, at the positions where they are fed."""
        assert self.inner is not None
        ends, items = self.media.ends, self.inner.channel.items
        at = (ends[-1] - (ends[-1] > self.before)) if ends else 0
        while at < _rows_of(self.inner):
            begins = bisect_right(items, at, key=lambda ref: ref.index) - 1
            ref, first = items[begins], at - items[begins].index
            stop = min(ref.index + ref.shape[0], self.before) if at < self.before else ref.index + ref.shape[0]
            self.media.add(Inset(at + (at >= self.before), stop - at, ref, first))
            at = stop

    def hear(self) -> None:
        """The thinker's states where media stood. All of them are there when its first token is."""
        inner = self.inner
        parts = {ref.index: ref for ref in inner.channel.items} if inner is not None else {}
        for at, source, count in self.wanted:
            for inset in _rows(at, source, count, parts):
                self.media.add(inset)
        self.wanted = []


def _turns(ctx: Context) -> tuple[tuple[int, ...], Media, list[Stretch]]:
    """Ids of the user's turns, where they stand, and which of them the thinker's inner states replace.

    The one item of slot "turns" is (parts, positions, shift). A part is a list of ids, or the number of an inset of "insets".
    """
    told = ctx.readers["turns"].peek()
    if not told:
        return (), Media(()), []
    parts, positions, shift = told[0]
    where, moved = placed((positions, shift))
    plan = ctx.readers["insets"].peek() if "insets" in ctx.readers else ()
    ids: list[int] = []
    wanted: list[Stretch] = []
    for part in parts:
        if isinstance(part, int):
            source, count = plan[part][:2]
            wanted.append((len(ids), source, count))
            ids += [0] * count
        else:
            ids += part
    if where is not None and where.shape[1] != len(ids):
        raise ValueError(f"{where.shape[1]} positions for {len(ids)} tokens of the user's turns")
    if wanted and "inner" not in ctx.readers:
        raise ValueError("the user's turns hold media, and nobody gives the thinker's states at them")
    return tuple(ids), Media((), where, moved), wanted


def _rows(at: int, source: int, count: int, parts: dict[int, TensorRef]) -> list[Inset]:
    """The states at source .. source+count of the thinker, which stand at `at`."""
    found, end = [], source + count
    while source < end:
        begins = max((index for index in parts if index <= source), default=0)
        rows = parts[begins].shape[0] if begins in parts else 0
        taken = min(end, begins + rows) - source
        if taken <= 0:
            raise ValueError(f"no inner state of position {source} came from the thinker")
        found.append(Inset(at, taken, parts[begins], source - begins))
        at, source = at + taken, source + taken
    return found


def _rows_of(states: Reader | None) -> int:
    """Positions of the thinker whose states have come: parts lie in order and without a gap."""
    items = states.channel.items if states is not None else ()
    return items[-1].index + items[-1].shape[0] if items else 0


class TalkLoop:
    """Steps of 1..n positions; the last known one's step draws the next frame."""

    def init(self, ctx: Context) -> TalkState:
        return TalkState(ctx)

    def claim(self, ctx: Context) -> tuple[int, int]:
        spec = ctx.spec
        turns = ctx.readers["prompt" if "states" in ctx.readers else "turns"]
        least = most = spec.context
        if turns.ended:
            if "states" in ctx.readers:
                least = min(most, turns.channel.tail + 2)
            else:
                told = turns.peek()
                parts = told[0][0] if told else ()
                ids = sum(ctx.readers["insets"].peek()[part][1] if isinstance(part, int) else len(part) for part in parts)
                least = min(most, ids + spec.head + len(spec.opening) + 1)
            if ctx.params.max_frames is not None:
                most = min(most, least + max(0, ctx.params.max_frames - 1))
        return -(-least // ctx.block) + spec.state_blocks, -(-most // ctx.block) + spec.state_blocks

    def next(self, s: TalkState) -> WorkUnit | Wait | Done:
        if s.finish:
            return DONE
        waits = WAIT_STATES if s.states else WAIT_TEXT
        if not s.said:  # nothing may be said at all, so nothing is done for it yet
            return DONE if s.over else waits
        if s.wanted:
            s.hear()
        known = s.known
        if s.cached == known:
            return waits
        return WorkUnit(s.ctx.run, s.ctx.loop, s.kind, 1, known - s.cached, s.cached, s.cached)

    def bind(self, s: TalkState, size: int, reused: int = 0) -> TalkStep:
        start, end = s.cached, s.cached + size
        if s.states:
            s.listen()
        opening = (*s.opening, _spoken(s, -1)) if end > s.before else ()
        low, high = max(0, start - s.begins), max(0, end - s.begins)
        return TalkStep(
            start,
            size,
            s.before,
            s.turns[start:end],
            s.media.overlapping(start, end),
            opening[max(0, start - s.before) : max(0, end - s.before)],
            tuple(s.frames[low:high]),
            tuple(_spoken(s, k) for k in range(low, high)),
            len(s.frames) if end == s.begins + len(s.frames) else -1,
            s.draw,
            s.predict,
            s.ctx.params.speaker,
            s.media.at(start, end),
            s.media.shift,
        )

    def advance(self, s: TalkState, size: int, result: StepResult) -> Sequence[Push]:
        s.cached += size
        if s.text is not None:
            heard = min(s.cached - s.begins + 1, s.text.channel.tail)  # tokens that were fed
            if heard > s.text.cursor:
                s.text.take(heard - s.text.cursor)
        if s.inner is not None:  # copies are there for when they are fed again
            s.inner.take(_passed(s, s.inner))
        if s.cached < s.begins + len(s.frames):
            return ()
        codes = result.items["codes"]
        if not len(codes):
            s.finish = "stop"
            return ()
        frame = tuple(int(code) for code in codes[0])
        s.frames.append(frame)
        count = len(s.frames)
        if count >= s.limit or s.begins + count > s.ctx.room:
            s.finish = "length"
        pushes = (Push("codes", count - 1, (frame,)),)
        if count == 1 and "speaker" in s.ctx.wants:
            return (Push("speaker", 0, (s.ctx.params.speaker,)), *pushes)
        return pushes

    def rebuild(self, s: TalkState) -> None:
        s.cached = 0

    def finalize(self, s: TalkState) -> Summary:
        return Summary(s.finish or "done", {"prompt_positions": s.before, "frames": len(s.frames)})

    def forkable(self, s: TalkState) -> bool:
        return True

    def held(self, s: TalkState) -> tuple[bytes, ...]:
        return ()


def _passed(s: TalkState, inner: Reader) -> int:
    """Tensors of states that are not needed any more, of those that were not yet taken."""
    if not s.states:
        return inner.available if s.cached >= s.before else 0
    done = s.cached - (s.cached > s.before)
    count = 0
    while count < inner.available:
        ref = inner.channel.items[inner.cursor + count]
        if ref.index + ref.shape[0] > done:
            break
        count += 1
    return count


def _spoken(s: TalkState, frame: int) -> int:
    """The token that is fed with a frame, -1 for one whose state is. That it has come, or never will, is what makes the position
    known."""
    after = frame + 1 - s.said
    spec = s.ctx.spec
    if after < 0:
        return -1 if s.text is None else int(s.text.channel.items[frame + 1])
    return int(spec.text_pad if after else spec.text_end)
