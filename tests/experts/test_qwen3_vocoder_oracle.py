"""code2wav in pieces of any size against the reference's one call over all frames."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from omni_runtime.kernels import cpu_build  # noqa: E402
from tiny_qwen3 import reference, vocoder  # noqa: E402

from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.experts.code2wav import Stream  # noqa: E402
from omni_runtime.experts.qwen3_vocoder import Qwen3Vocoder  # noqa: E402
from omni_runtime.experts.slots import Slots  # noqa: E402
from omni_runtime.work import AudioStep, Row  # noqa: E402

torch.set_num_threads(1)
HOP, LAG = 48, 15  # rates 2 x 2 x 4 x 3; one block of 4 and one of 3 wait for their next input


def codes(frames: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 64, (frames, 4), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def whole(codes_TG: torch.Tensor) -> torch.Tensor:
    """The reference in one call."""
    wave = reference().code2wav(codes_TG.T[None])[0, 0]
    assert wave.std() > 0.05
    assert (wave.abs() == 1).float().mean() < 0.01
    return wave


def pieces(codes_TG: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    stream, waves, at = vocoder().fresh(), [], 0
    for size in sizes:
        ((stream, wave),) = vocoder().decode([stream], [codes_TG[at : at + size]])
        at += size
        assert len(wave) == size * HOP - (LAG if at == size else 0)
        waves.append(wave)
    assert at == len(codes_TG) == stream.frames
    return torch.cat(waves)


def test_samples_of_frames() -> None:
    c = vocoder().config
    assert (c.hop, c.lag) == (HOP, LAG)
    for frames in (1, 2, 30):
        assert len(whole(codes(frames, 0))) == frames * HOP - LAG


@pytest.mark.parametrize("size", [1, 2, 5, 7, 8, 9, 25, 60])
def test_any_piece_size_equals_one_call(size: int) -> None:
    given = codes(60, 1)
    sizes = [size] * (60 // size) + ([60 % size] if 60 % size else [])
    torch.testing.assert_close(pieces(given, sizes), whole(given), rtol=0, atol=1e-5)


def test_any_piece_size_with_convolutions_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    vocoder.cache_clear()
    try:
        for size in (1, 7, 60):
            test_any_piece_size_equals_one_call(size)
    finally:
        vocoder.cache_clear()


@pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")
def test_the_convolutions_are_one_call_to_the_bit() -> None:
    """In pieces of any size, alone and beside others."""
    waves = vocoder()._waves
    x_RCT = torch.randn(3, vocoder().config.width, 40, generator=torch.Generator().manual_seed(3))

    def fresh(rows: int) -> list[torch.Tensor]:
        return [tail.expand(rows, *tail.shape) for tail in waves.fresh()]

    with torch.inference_mode():
        one, _ = waves(x_RCT.clone(), fresh(3), True)
        for size in (1, 3, 8, 25):
            for rows in (slice(0, 3), slice(1, 2)):
                kept, found = fresh(rows.stop - rows.start), []
                for at in range(0, 40, size):
                    part, kept = waves(x_RCT[rows, :, at : at + size].clone(), kept, at == 0)
                    found.append(part)
                assert torch.equal(torch.cat(found, 1), one[rows]), (size, rows)


@pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")
def test_all_of_it_is_one_call_to_the_bit() -> None:
    """Three streams that began at other times and are cut otherwise, together and alone, on one thread and on two."""
    assert vocoder().exact
    given = [codes(60, seed) for seed in (1, 2, 3)]
    want = [pieces(one, [60]) for one in given]
    cuts = [[1, 2, 7, 20, 30], [13, 1, 1, 40, 5], [25, 25, 8, 1, 1]]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        streams, found = [vocoder().fresh() for _ in given], [[] for _ in given]
        for turn in range(5):
            sizes = [cut[turn] for cut in cuts]
            parts = [one[stream.frames : stream.frames + size] for one, stream, size in zip(given, streams, sizes, strict=True)]
            for i, (stream, wave) in enumerate(vocoder().decode(streams, parts)):
                streams[i] = stream
                found[i].append(wave)
        torch.set_num_threads(1)
        for i, waves in enumerate(found):
            assert torch.equal(torch.cat(waves), want[i]), (i, threads)
            assert torch.equal(pieces(given[i], cuts[i]), want[i])


def test_the_window_ends() -> None:
    """A frame further back than the windows of all layers and the convolutions' tails reach changes nothing."""
    one, other = codes(60, 1), codes(60, 1)
    other[0] = (other[0] + 7) % 64
    difference = (pieces(one, [60]) - pieces(other, [60])).abs()
    assert difference[:HOP].max() > 1e-3
    assert difference[40 * HOP :].max() == 0


def test_a_stream_that_begins_later_gives_the_same_from_its_reach_on() -> None:
    given, reach = codes(60, 1), vocoder().config.reach
    assert reach == 2 * 7 + 13
    for late in (0, 3):  # the mutant: a stream that begins three frames too late
        ((_, wave),) = vocoder().decode([vocoder().fresh(30 - reach + late)], [given[30 - reach + late :]])
        off = (wave[-(30 * HOP - LAG) :] - whole(given)[30 * HOP :]).abs().max()
        assert off < 1e-5 if not late else off > 0, (late, off)


def test_rows_of_different_lengths_together() -> None:
    rng = random.Random(5)
    given = [codes(20 + 9 * i, 10 + i) for i in range(4)]
    streams: list[Stream] = [vocoder().fresh() for _ in given]
    waves: list[list[torch.Tensor]] = [[] for _ in given]
    while any(s.frames < len(g) for s, g in zip(streams, given, strict=True)):
        rows = [i for i, s in enumerate(streams) if s.frames < len(given[i]) and rng.random() < 0.7]
        sizes = [rng.choice([1, 1, 3, 3, 8]) for _ in rows]
        parts = [given[i][streams[i].frames : streams[i].frames + n] for i, n in zip(rows, sizes, strict=True)]
        if not rows:
            continue
        for i, (stream, wave) in zip(rows, vocoder().decode([streams[i] for i in rows], parts), strict=True):
            streams[i] = stream
            waves[i].append(wave)
    for row, wave in zip(given, waves, strict=True):
        torch.testing.assert_close(torch.cat(wave), whole(row), rtol=0, atol=1e-5)


def step(run: int, start: int, size: int, given: torch.Tensor) -> Row:
    return Row(run, "speak", size, 0, (), AudioStep(start, size, tuple(given[start : start + size].tolist()), False))


def test_the_op_keeps_streams_and_replaces_them_only_after_success() -> None:
    expert, slots = Qwen3Vocoder(vocoder()), Slots("cpu#1")
    one, two = codes(12, 1), codes(12, 2)
    first = expert.decode_audio([step(1, 0, 5, one), step(2, 0, 3, two)], slots)
    with pytest.raises(RequestError, match="start=4: the state kept here goes on at frame 3"):
        expert.decode_audio([step(1, 5, 7, one), step(2, 4, 8, two)], slots)
    wrong = two.clone()
    wrong[4, 0] = 64
    with pytest.raises(RequestError, match="is not 4 codes below 64"):
        expert.decode_audio([step(1, 5, 7, one), step(2, 3, 9, wrong)], slots)
    then = expert.decode_audio([step(1, 5, 7, one), step(2, 3, 9, two)], slots)
    for row, given in enumerate((one, two)):
        wave = torch.cat([torch.from_numpy(part[row].items["samples"]) for part in (first, then)])
        torch.testing.assert_close(wave, whole(given), rtol=0, atol=1e-5)
    later = Row(1, "speak", 4, 0, (), AudioStep(8, 4, tuple(one[8:].tolist()), True, fresh=True))
    assert len(expert.decode_audio([later], slots)[0].items["samples"]) == 4 * HOP - LAG  # nothing before it counts
    again = expert.decode_audio([step(1, 0, 12, one)], slots)  # from the beginning, as after a loss
    torch.testing.assert_close(torch.from_numpy(again[0].items["samples"]), whole(one), rtol=0, atol=1e-5)


def test_a_tail_that_is_lost_is_heard() -> None:
    """The mutant: a stream that forgets its convolutions, as decoding chunks with too little context does."""
    given = codes(20, 1)
    ((stream, first),) = vocoder().decode([vocoder().fresh()], [given[:10]])
    forgetful = Stream(stream.frames, stream.window_LKSE, vocoder().fresh().tails)
    ((_, then),) = vocoder().decode([forgetful], [given[10:]])
    assert (torch.cat([first, then]) - whole(given)).abs().max() > 1e-2
