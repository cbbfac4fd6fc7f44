"""token2wav as a stream: what is exact in it, and how near the rest is to one call over all codes."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from flow_driver import integrate, log_spectral_distance, made, noise, pieces, streamed  # noqa: E402
from tiny_qwen25 import bigvgan, flow, voice  # noqa: E402

from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.flow_window import Window  # noqa: E402
from omni_runtime.experts.runge_kutta import Trajectory  # noqa: E402
from omni_runtime.loops.flow_chunks import STAGES, FlowChunks  # noqa: E402

torch.set_num_threads(1)
BLOCK, SEED = 8, 5
PLAN = FlowChunks(BLOCK)
HOP = 240


def codes(count: int, seed: int = 1) -> list[int]:
    found: list[int] = torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


# -- The plan ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [2, 16, 24, 26, 200, 1000])
def test_chunks_cover_all_frames_once(frames: int) -> None:
    chunks = list(PLAN.chunks(frames))
    wider = [chunk.low for chunk in FlowChunks(BLOCK, back=2).chunks(frames)]
    assert wider == [max(0, chunk.start - 2 * BLOCK) for chunk in chunks]
    assert chunks[0].start == 0 and chunks[-1].stop == frames
    assert all(one.stop == other.start for one, other in pairwise(chunks))
    for chunk in chunks:
        assert chunk.low == chunk.start and chunk.low % BLOCK == 0
        assert chunk.high == min(frames, -(-chunk.stop // BLOCK) * BLOCK + BLOCK) or chunk.high == frames


def test_a_chunk_is_the_same_however_codes_came() -> None:
    """It is there as soon as its window is, and what comes later changes nothing."""
    for number in range(8):
        first = next(frames for frames in range(0, 600, 2) if PLAN.chunk(number, frames, False))
        at_once = PLAN.chunk(number, first, False)
        assert at_once is not None and at_once.high == first
        assert all(PLAN.chunk(number, frames, ended) == at_once for frames in (first, first + 2, 599) for ended in (False, True))
        assert PLAN.chunk(number, first - 2, False) is None


def test_first_sound_comes_long_before_the_last_code() -> None:
    """In the published shape: after 36 codes, which are 0.72 s, there are 14 frames of sound, however long the answer."""
    plan, ahead = FlowChunks(24), 34
    first = next(codes for codes in range(1000) if plan.chunk(0, 2 * codes, False))
    chunk = plan.chunk(0, 2 * first, False)
    assert chunk is not None
    assert (first, chunk.stop - ahead) == (36, 14)
    computed = [sum(c.high - c.low for c in plan.chunks(24 * blocks)) / 24 for blocks in (20, 100)]
    assert computed == [24, 114]  # blocks, for 20 and 100 of sound


def test_each_chunk_is_at_most_half_again_as_long_as_the_one_before() -> None:
    assert all(other <= 1.5 * one for one, other in pairwise(PLAN.sizes))


# -- The ODE ----------------------------------------------------------------------------------------------------------------


def test_the_rule_is_of_fourth_order() -> None:
    """x' = x from 1 to e: half the step, a sixteenth of the error."""

    def off(steps: int) -> float:
        state, width = Trajectory(torch.ones(1, 1, dtype=torch.float64)), 1 / steps
        for _ in range(steps * len(STAGES)):
            state = state.after(state.point(width), width)
        return abs(float(state.x_TM) - math.e)

    assert off(4) / off(8) == pytest.approx(16, rel=0.1)


def test_noise_belongs_to_the_frame() -> None:
    whole = noise(flow(), SEED, 0, 60)
    assert torch.equal(noise(flow(), SEED, 17, 33), whole[17:33])
    assert not torch.equal(noise(flow(), SEED + 1, 0, 60), whole)
    assert abs(float(noise(flow(), SEED, 0, 4000).std()) - 1) < 0.01


def test_a_velocity_depends_on_two_blocks_before_and_one_after() -> None:
    given, x_TM, block = codes(40), noise(flow(), SEED, 0, 80), 4
    before = flow().velocity([Window(x_TM, 0.4, given, voice("Ethan"))])[0].velocity_TM.view(-1, BLOCK, 16)[block]
    changed = []
    for other in range(10):
        moved = x_TM.clone()
        moved[other * BLOCK : (other + 1) * BLOCK] += 1
        after = flow().velocity([Window(moved, 0.4, given, voice("Ethan"))])[0].velocity_TM.view(-1, BLOCK, 16)[block]
        changed.append(float((after - before).abs().max()) > 0)
    assert [other for other, moved in enumerate(changed) if moved] == [2, 3, 4, 5]


def test_what_is_kept_stands_for_the_past() -> None:
    """A velocity with the past handed in is that of one window over both: for two speakers in one batch, one without guidance."""
    whole, parts, joined = [], [], []
    for who, guidance in (("Ethan", 0.5), ("Chelsie", 0.0)):
        x_TM, given = noise(flow(), SEED, 0, 7 * BLOCK + 4), codes(30)
        whole.append(Window(x_TM, 0.4, given, voice(who), guidance))
        # Blocks 0 .. 4, of which 2 is kept; it has seen block 3 ahead.
        parts.append(Window(x_TM[: 4 * BLOCK], 0.4, given[:16], voice(who), guidance, keep=3))
        joined.append(Window(x_TM[3 * BLOCK :], 0.4, given[12:], voice(who), guidance, first=3 * BLOCK))
    left = flow().velocity(parts)
    after = flow().velocity([replace(w, past=one.kept) for w, one in zip(joined, left, strict=True)])
    for one, other in zip(flow().velocity(whole), after, strict=True):
        torch.testing.assert_close(other.velocity_TM, one.velocity_TM[3 * BLOCK :], rtol=1e-5, atol=1e-5)
    # The mutants: the past is another's, or none.
    for past in (left[1].kept, None):
        (wrong,) = flow().velocity([replace(joined[1], past=past, time=0.4 if past is None else 0.9)])
        assert (wrong.velocity_TM - after[1].velocity_TM).abs().max() > 1e-2


def test_a_code_that_is_no_sound() -> None:
    with pytest.raises(RequestError, match="codes: 80 is no code of sound, they are below 80"):
        flow().velocity([Window(noise(flow(), SEED, 0, 4), 0.5, [3, 80], voice("Ethan"))])


# -- How near ---------------------------------------------------------------------------------------------------------------


def whole_call(given: list[int], who: str = "Chelsie") -> torch.Tensor:
    """Mel frames of one call over all codes."""
    return integrate(flow(), noise(flow(), SEED, 0, 2 * len(given)), given, voice(who))[0]


def off(plan: FlowChunks, given: list[int], carry: bool = True) -> tuple[float, float, float]:
    """Of a stream from one call: mel frames relative to their deviation, dB of sound, log-spectral distance."""
    whole, found = whole_call(given), streamed(flow(), plan, given, voice("Chelsie"), SEED, carry=carry)
    one, other = bigvgan().decode(torch.stack([whole, found]))
    share = float((one - other).square().mean() / one.var())
    return float((found - whole).std() / whole.std()), -10 * math.log10(share), log_spectral_distance(one, other)


@pytest.mark.parametrize("count", [96, 101])
def test_a_stream_is_near_to_one_call(count: int) -> None:
    mel, decibel, spectral = off(PLAN, codes(count))
    assert mel < 2e-4 and decibel > 85 and spectral < 2e-3


@pytest.mark.parametrize(("back", "ahead", "carry"), [(0, 1, False), (1, 1, False), (2, 0, False), (0, 0, True)])
def test_with_less_around_it_is_further_off(back: int, ahead: int, carry: bool) -> None:
    """The mutants."""
    mel, decibel, spectral = off(FlowChunks(BLOCK, ahead, back), codes(96), carry)
    assert mel > 4e-4 and decibel < 80 and spectral > 2e-3


@pytest.mark.parametrize(("back", "carry"), [(0, True), (4, False)])
def test_with_more_ahead_it_is_nearer(back: int, carry: bool) -> None:
    mel, decibel, spectral = off(FlowChunks(BLOCK, 2, back), codes(96), carry)
    assert mel < 2e-5 and decibel > 100 and spectral < 1e-3


def test_no_seams() -> None:
    """Where chunks meet the sound is as smooth as elsewhere: its steps from sample to sample are those of one call."""
    given, borders = codes(96), [chunk.start * HOP for chunk in PLAN.chunks(192)][1:]
    whole = bigvgan().decode(whole_call(given)[None])[0]

    def worst(plan: FlowChunks, carry: bool) -> float:
        found = bigvgan().decode(streamed(flow(), plan, given, voice("Chelsie"), SEED, carry=carry)[None])[0]
        near = [slice(at - 200, at + 200) for at in borders]
        return max(float((found[n].diff() - whole[n].diff()).abs().max() / whole[n].diff().abs().max()) for n in near)

    assert worst(PLAN, True) < 1e-3
    assert worst(FlowChunks(BLOCK, 0), False) > 1e-2  # the mutant: chunks that know nothing of each other


def test_chunks_and_pieces_in_the_order_of_a_stream() -> None:
    """Sound comes piece by piece while mel frames come chunk by chunk, and is that of one call over all these frames."""
    given, past, made_so_far = codes(96), None, []
    chunks = list(PLAN.chunks(192))
    for chunk in chunks:
        part, past = made(flow(), chunk, given, voice("Ethan"), SEED, past=past)
        made_so_far.append(part)
    mel = torch.cat(made_so_far)
    found = pieces(bigvgan(), mel, [chunk.stop for chunk in chunks])
    assert len(found) > 2
    torch.testing.assert_close(torch.cat(found), bigvgan().decode(mel[None])[0], rtol=0, atol=1e-5)
    # Made again from the beginning, as after a loss, it is the same to the bit.
    assert torch.equal(streamed(flow(), PLAN, given, voice("Ethan"), SEED), mel)
