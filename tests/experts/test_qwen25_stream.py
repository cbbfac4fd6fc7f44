"""token2wav as a stream: what is exact in it, and how near the rest is to one call over all codes."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from flow_driver import integrate, log_spectral_distance, made, noise, pieces, streamed  # noqa: E402
from tiny_qwen25 import bigvgan, flow, voice  # noqa: E402

from omni_runtime.experts.qwen25_flow import Window  # noqa: E402
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
    assert chunks[0].start == 0 and chunks[-1].stop == frames
    assert all(one.stop == other.start for one, other in pairwise(chunks))
    for chunk in chunks:
        assert chunk.low == max(0, chunk.start - 2 * BLOCK) and chunk.low % BLOCK == 0
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
    assert computed == [32, 142]  # blocks, for 20 and 100 of sound


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
    before = flow().velocity([Window(x_TM, 0.4, given, voice("Ethan"))])[0].view(-1, BLOCK, 16)[block]
    changed = []
    for other in range(10):
        moved = x_TM.clone()
        moved[other * BLOCK : (other + 1) * BLOCK] += 1
        after = flow().velocity([Window(moved, 0.4, given, voice("Ethan"))])[0].view(-1, BLOCK, 16)[block]
        changed.append(float((after - before).abs().max()) > 0)
    assert [other for other, moved in enumerate(changed) if moved] == [2, 3, 4, 5]


# -- How near ---------------------------------------------------------------------------------------------------------------


def off(plan: FlowChunks, given: list[int]) -> tuple[float, float, float]:
    """Of a stream from one call: mel frames relative to their deviation, dB of sound, log-spectral distance."""
    whole = integrate(flow(), noise(flow(), SEED, 0, 2 * len(given)), given, voice("Chelsie"))
    found = streamed(flow(), plan, given, voice("Chelsie"), SEED)
    one, other = bigvgan().decode(torch.stack([whole, found]))
    share = float((one - other).square().mean() / one.var())
    return float((found - whole).std() / whole.std()), -10 * math.log10(share), log_spectral_distance(one, other)


@pytest.mark.parametrize("count", [96, 101])
def test_a_stream_is_near_to_one_call(count: int) -> None:
    mel, decibel, spectral = off(PLAN, codes(count))
    assert mel < 2e-4 and decibel > 85 and spectral < 2e-3


@pytest.mark.parametrize(("back", "ahead"), [(0, 1), (1, 1), (2, 0)])
def test_with_less_around_it_is_further_off(back: int, ahead: int) -> None:
    """The mutants."""
    mel, decibel, spectral = off(FlowChunks(BLOCK, back, ahead), codes(96))
    assert mel > 4e-4 and decibel < 80 and spectral > 2e-3


def test_with_more_around_it_is_nearer() -> None:
    mel, decibel, spectral = off(FlowChunks(BLOCK, 4, 2), codes(96))
    assert mel < 2e-6 and decibel > 110 and spectral < 1e-3


def test_no_seams() -> None:
    """Where chunks meet the sound is as smooth as elsewhere: its steps from sample to sample are those of one call."""
    given = codes(96)
    whole = bigvgan().decode(integrate(flow(), noise(flow(), SEED, 0, 192), given, voice("Chelsie"))[None])[0]
    found = bigvgan().decode(streamed(flow(), PLAN, given, voice("Chelsie"), SEED)[None])[0]
    for chunk in list(PLAN.chunks(192))[1:]:
        near = slice(chunk.start * HOP - 200, chunk.start * HOP + 200)
        assert (found[near].diff() - whole[near].diff()).abs().max() < 1e-2 * whole[near].diff().abs().max()
    # The mutant: a chunk that was made by itself.
    alone = bigvgan().decode(streamed(flow(), FlowChunks(BLOCK, 0, 0), given, voice("Chelsie"), SEED)[None])[0]
    worst = max(
        float((alone[near].diff() - whole[near].diff()).abs().max() / whole[near].diff().abs().max())
        for chunk in list(PLAN.chunks(192))[1:]
        for near in [slice(chunk.start * HOP - 200, chunk.start * HOP + 200)]
    )
    assert worst > 1e-2


def test_chunks_and_pieces_in_the_order_of_a_stream() -> None:
    """Sound comes piece by piece while mel frames come chunk by chunk, and is that of one call over all these frames."""
    given = codes(96)
    chunks = list(PLAN.chunks(192))
    mel = torch.cat([made(flow(), chunk, given, voice("Ethan"), SEED) for chunk in chunks])
    found = pieces(bigvgan(), mel, [chunk.stop for chunk in chunks])
    assert len(found) > 2
    torch.testing.assert_close(torch.cat(found), bigvgan().decode(mel[None])[0], rtol=0, atol=1e-5)
    # A chunk that is lost is made again alone, to the bit.
    again = made(flow(), chunks[2], given, voice("Ethan"), SEED)
    assert torch.equal(again, mel[chunks[2].start : chunks[2].stop])
