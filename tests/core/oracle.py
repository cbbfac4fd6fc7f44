"""The same answers by straight-line code that knows neither loops nor core: what the toy programs mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from omni_runtime.card import FlowMatch
from omni_runtime.executors.simulated import VOCABULARY, WORDS, mix, prepared
from omni_runtime.loops.clauses import clause_end
from omni_runtime.loops.flow_match import levels, timestep

STOP, STOPS = 0, 13


def call(index: int, values: Sequence[Any], port: str) -> int:
    """The hash that stands for an output of a call."""
    return mix(mix(index, *values), port)


def tokenize(message: str) -> list[int]:
    value = call(0, [message], "tokens")
    return [mix(value, i) % VOCABULARY for i in range(value % 7 + 1)]


Answer = tuple[list[int], str, list[int]]


def decode(prompt: list[int], most: int, seed: int, node: int, given: list[int] | None = None) -> Answer:
    """Tokens, text and hidden rows of an autoregressive model; `given` is added to its inputs, row by row."""
    known, answer, text, hidden, last = list(prompt), [], "", [], 11
    for at in range(10_000):
        last = mix(last, known[at], given[at] if given is not None and at < len(given) else 7)
        hidden.append(last)
        if at + 1 < len(known):
            continue
        drawn = mix(last, seed, node, len(answer))
        if drawn % STOPS == 0:
            return [*answer, STOP], text, hidden
        answer.append(drawn % VOCABULARY + 1000)
        known.append(answer[-1])
        text += WORDS[drawn % len(WORDS)]
        if len(answer) == most:
            return answer, text, hidden
    raise AssertionError("no end")


def vocode(frames: Sequence[Any], hop: int, ahead: int, mark: int | None = None) -> list[float]:
    """Samples of a stateful vocoder that looks `ahead` frames ahead, but not past a mark."""
    fold, samples = 5, []
    for at, frame in enumerate(frames):
        seen = []
        for f in frames[at : at + ahead + 1]:
            seen.append(mix(repr(f)))
            if mark is not None and f[mark]:
                break
        fold = mix(fold, mix(repr(frame)))
        samples += [np.float32(mix(fold, *seen, i) % 2001 / 1000 - 1).item() for i in range(hop)]
        if mark is not None and frame[mark]:
            fold = 5
    return samples


def cascade(message: str, seed: int, most: int) -> dict[str, Any]:
    prompt = tokenize(message)
    _, text, hidden = decode(prompt, most, seed, node=1)
    codes, _, _ = decode(prompt, most + 2, seed, node=2, given=hidden)
    return {"text": text, "audio": vocode(codes, hop=2, ahead=1)}


def clauses(message: str, seed: int, most: int) -> dict[str, Any]:
    _, text, _ = decode(tokenize(message), most, seed, node=1)
    frames: list[tuple[int, float]] = []
    start = index = 0
    while (end := clause_end(text, start, True, 12)) is not None:
        value = call(index, [text[start:end], 1.0], "frames")
        n = value % 5
        frames += [(mix(value, i) % 1000, float(i == n - 1)) for i in range(n)]
        start, index = end, index + 1
    return {"text": text, "audio": vocode(frames, hop=3, ahead=2, mark=1)}


def paint(message: str, seed: int, steps: int) -> dict[str, Any]:
    condition, latent = call(0, [message], "hidden"), mix(seed, 1)
    level = levels(FlowMatch(), steps, 1)
    for step in range(steps):
        schedule = (step, steps, level[step], level[step + 1], timestep(FlowMatch(), level[step]))
        latent = mix(latent, *schedule, 1.0 + seed % 3, 1, 1, 1 + seed % 2, condition)
    return {"image": [call(0, [mix(latent, "latent")], "image")], "progress": [(i + 1) / steps for i in range(steps)]}


def waves(frames: Sequence[Any], hop: int, lag: int, reach: int) -> list[float]:
    """Samples that depend on `reach` frames before theirs, and late in a frame on the next one too."""
    seen, samples = [mix(repr(frame)) for frame in frames], []
    for at in range(len(seen)):
        before = seen[max(0, at - reach) : at + 1]
        for i in range(hop):
            after = seen[at + 1 : at + 2] if i >= hop - lag else []
            if i < hop - lag or after:
                samples.append(np.float32(mix(*before, *after, i) % 2001 / 1000 - 1).item())
    return samples


def _thought(asked: dict[str, list[Any]], seed: int, most: int) -> tuple[list[int], list[int], str]:
    """A thinker with media: its states, the tokens of its answer that it was fed, and the text."""
    known, stands = list(asked["tokens"]), {}
    for at, count, _, index, first in asked["insets"]:
        vectors = [mix(mix(mix(index, asked["sounds"][index]), "vectors"), i) for i in range(3)]
        stands |= {at + i: vectors[first + i] for i in range(count)}
    (where, shift), prompt = asked["positions"][0], len(known)

    def place(at: int) -> tuple[float, ...]:
        return () if where is None else (float(where[0, at]) if at < prompt else at + shift,)

    last, states, text, answer = 11, [], "", []
    for at in range(10_000):
        last = mix(last, stands.get(at, known[at]), 7, *place(at))
        states.append(last)
        if at + 1 < len(known):
            continue
        drawn = mix(last, seed, 2, len(answer))
        if drawn % STOPS == 0:
            break
        answer.append(drawn % VOCABULARY + 1000)
        text += WORDS[drawn % len(WORDS)]
        if len(answer) == most:
            answer.pop()  # it is never fed
            break
        known.append(answer[-1])
    return states, answer, text


def omni(message: str, seed: int, most: int) -> dict[str, Any]:
    asked = prepared(mix(0, message))
    states, answer, text = _thought(asked, seed, most)
    (parts, _, moved) = asked["turns"][0]
    fed: list[tuple[Any, ...]] = []
    for part in parts:
        if isinstance(part, int):
            at, count = asked["insets"][part][:2]
            fed += [(mix(states[at + i], "inner"),) for i in range(count)]
        else:
            fed += [(token,) for token in part]
    speaker, frames, last = ("Ann", "Bob")[seed % 2], [], 11
    if not answer:
        return {"text": text, "audio": []}
    fed += [(token, speaker) for token in (*asked["tokens"][-2:], 91, 92, answer[0])]
    spoken = [*answer[1:], 93]
    for at in range(48):
        last = mix(last, *fed[at], *((at + moved,) if moved else ()))
        if at + 1 < len(fed):
            continue
        drawn = mix(last, seed, 3, len(frames), 1.0)
        if drawn % STOPS == 0:
            break
        frames.append((drawn % 1000, drawn // 1000 % 4 // 3))
        fed.append((*frames[-1], spoken[len(frames) - 1] if len(frames) <= len(spoken) else 94))
        if len(frames) == most + 2:
            break
    return {"text": text, "audio": waves(frames, hop=4, lag=3, reach=2)}


def tale(message: str, seed: int, most: int, steps: int = 1) -> dict[str, Any]:
    """A talker on states, a flow chunk by chunk, and a vocoder that keeps nothing."""
    asked = prepared(mix(0, message))
    states, answer, text = _thought(asked, seed, most)
    (where, shift), before = asked["positions"][0], len(asked["tokens"])
    if not answer:
        return {"text": text, "audio": [], "codes": []}
    speaker, frames, last = ("Ann", "Bob")[seed % 2], [], 11
    said = [mix(state, "state") for state in states]
    assert len(said) == before + len(answer)
    fed: list[tuple[Any, ...]] = [(v,) for v in said[:before]] + [(-1, speaker), (said[before], speaker)]
    spoken = [*said[before + 1 :], 93]
    for at in range(48):
        stood: tuple[float, ...] = ()
        if where is not None or shift:
            stood = (float(where[0, at]) if where is not None and at < before else at + shift,)
        last = mix(last, *fed[at], *stood)
        if at + 1 < len(fed):
            continue
        drawn = mix(last, seed, 3, len(frames), 1.0)
        if drawn % STOPS == 0:
            break
        frames.append((drawn % 1000, drawn // 1000 % 4 // 3))
        fed.append((*frames[-1], spoken[len(frames) - 1] if len(frames) <= len(spoken) else 94))
        if len(frames) == most + 2:
            break
    mel = flowed([code for code, _ in frames], seed, 4, 2 + steps % 2, float(seed % 2), speaker)
    near = [tuple(mel[max(0, at - 2) : at + 2]) for at in range(len(mel))]
    samples = [np.float32(mix(*window, i) % 2001 / 1000 - 1).item() for window in near for i in range(2)]
    return {"text": text, "audio": samples, "codes": frames}


def flowed(codes: list[int], seed: int, node: int, points: int, guidance: float, speaker: str) -> list[int]:
    """Frames of codes, two each: chunks of one block of 4, then of two, with one block of look-ahead."""
    even = [i / (points - 1) for i in range(points)]
    times = [t - (math.cos(math.pi / 2 * t) - 1 + t) for t in even]  # sway -1
    mel: list[int] = []
    past: list[int] = []
    start, size, frames = 0, 4, 2 * len(codes)
    while start < frames:
        stop, high = min(start + size, frames), min(start + size + 4, frames)
        x, kept = mix(seed, node, start, high), []
        for i in range(points - 1):
            width = times[i + 1] - times[i]
            for stage in (0, 1 / 3, 2 / 3, 1):
                time = times[i] + stage * width
                x = mix(x, time, width, *codes[start // 2 : high // 2], guidance, speaker, past[len(kept)] if start else 3)
                kept.append(mix(x, "kept"))
        mel += [mix(x, at) for at in range(start, stop)]
        past, start, size = kept, stop, 8
    return mel
