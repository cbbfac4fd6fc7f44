"""Sound in C: sums and activations against their definitions, stretches and pieces to the bit, bugs that must be noticed."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from omni_runtime.kernels import cpu_build, cpu_sound, sound  # noqa: E402

pytestmark = [pytestmark, pytest.mark.skipif(cpu_build.compiler() is None, reason="no C compiler here")]
torch.set_num_threads(1)
CONVS = [  # channels in and out, taps, dilation, positions
    *((1, 1, 1, 1, 1), (3, 5, 3, 1, 1), (5, 9, 7, 3, 17), (8, 8, 11, 5, 60), (17, 12, 3, 5, 131), (2, 1, 7, 1, 300)),
    *((70, 20, 11, 5, 97), (16, 4, 7, 9, 3500), (64, 3, 3, 1, 9001), (3, 35, 3, 1, 50)),
]
GROWS = [(1, 1, 2, 2, 1), (4, 3, 11, 5, 7), (9, 10, 7, 3, 40), (16, 8, 4, 2, 700), (6, 17, 16, 8, 13), (5, 5, 3, 3, 1)]
CAUSAL = [(3, 5, 7, 9), (16, 16, 7, 1), (20, 1, 1, 1), (9, 10, 3, 3)]  # taps and dilation at the end


def drawn(*shape: int, seed: int = 1, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def bend(channels: int) -> sound.Bend:
    return drawn(channels, seed=3, scale=0.5), drawn(channels, seed=4, scale=0.5)


@contextmanager
def threads(count: int) -> Iterator[None]:
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def spans(count: int, seed: int) -> list[tuple[int, int]]:
    rng = Random(seed)
    made = [sorted(rng.choices(range(count + 1), k=2)) for _ in range(6)]
    return [(0, count), (0, 0), (count - 1, count), *((low, high) for low, high in made)]


# -- As defined, whatever stretch is asked for ------------------------------------------------------------------------------


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("case", CONVS)
def test_a_convolution(case: tuple[int, ...], smooth: bool) -> None:
    inputs, outputs, taps, dilation, count = case
    weight, bias, x = drawn(outputs, inputs, taps, scale=(inputs * taps) ** -0.5), drawn(outputs), drawn(inputs, count, seed=2)
    given = weight, bias, dilation, bend(inputs) if smooth else None
    ours, around = cpu_sound.conv(*given), (taps - 1) // 2 * dilation + 5 * smooth
    whole = ours(x, 0, count)
    torch.testing.assert_close(whole, sound.conv(*given)(x, 0, count), rtol=2e-5, atol=2e-5)
    for low, high in spans(count, count):
        a, b = max(0, low - around), min(count, high + around)
        assert torch.equal(ours(x[:, a:b], low - a, high - a), whole[:, low:high]), (low, high)
    with threads(2):
        assert torch.equal(ours(x, 0, count), whole)
        total = drawn(outputs, count + 7)
        before, within = total.clone(), total[:, 3 : 3 + count]
        assert ours(x, 0, count, within).data_ptr() == within.data_ptr()
    torch.testing.assert_close(within, before[:, 3 : 3 + count] + whole, rtol=0, atol=1e-6)
    assert torch.equal(total[:, :3], before[:, :3]) and torch.equal(total[:, 3 + count :], before[:, 3 + count :])
    assert torch.equal(ours(x.T.contiguous().T, 0, count), whole)


@pytest.mark.parametrize("case", GROWS)
def test_an_upsampling(case: tuple[int, ...]) -> None:
    inputs, outputs, taps, rate, count = case
    weight, bias, x = drawn(inputs, outputs, taps, scale=inputs**-0.5), drawn(outputs), drawn(inputs, count, seed=2)
    ours, wanted = cpu_sound.grow(weight, bias, rate), sound.grow(weight, bias, rate)
    whole = ours(x, 0, count * rate)
    torch.testing.assert_close(whole, wanted(x, 0, count * rate), rtol=2e-5, atol=2e-5)
    for low, high in spans(count * rate, count):
        a, b = max(0, (low - taps) // rate), min(count, (high + taps) // rate + 1)
        assert torch.equal(ours(x[:, a:b], low - a * rate, high - a * rate), whole[:, low:high]), (low, high)
    with threads(2):
        assert torch.equal(ours(x, 0, count * rate), whole)


@pytest.mark.parametrize("case", CAUSAL)
def test_causal_sums_in_pieces_and_in_company(case: tuple[int, ...]) -> None:
    count, inputs, outputs, taps, dilation = 120, *case
    weight, bias, x = drawn(outputs, inputs, taps), drawn(outputs), drawn(3, inputs, count, seed=2)
    sums, past, snake = cpu_sound.causal(weight, bias, dilation, bend(inputs)), (taps - 1) * dilation, bend(inputs)
    up, back = cpu_sound.causal_grow(drawn(inputs, outputs, 8), bias, 4, snake), past + 1
    alone, thin = cpu_sound.depthwise(weight[:1, :, :].transpose(0, 1), drawn(inputs)), taps - 1
    bent = x + torch.sin(x * snake[0].exp()[:, None]).square() / snake[1].exp()[:, None]
    whole, grown = sums(x, 0, count), up(x, 0, 4 * count)
    torch_whole = torch.nn.functional.conv1d(torch.nn.functional.pad(bent, (past, 0)), weight, bias, dilation=dilation)
    torch.testing.assert_close(whole, torch_whole, rtol=1e-4, atol=1e-4)
    torch_grown = torch.nn.functional.conv_transpose1d(bent, drawn(inputs, outputs, 8), bias, stride=4)[..., : 4 * count]
    torch.testing.assert_close(grown, torch_grown, rtol=1e-4, atol=1e-4)
    narrow = alone(x)
    torch_narrow = torch.nn.functional.conv1d(x, weight[:1].transpose(0, 1), drawn(inputs), groups=inputs)
    torch.testing.assert_close(narrow, torch_narrow, rtol=1e-5, atol=1e-5)
    for rows, size in ((slice(0, 3), 50), (slice(1, 3), 7), (slice(2, 3), 1)):
        for at in range(0, count, size):
            end, kept = min(at + size, count), x[rows, :, max(0, at - back) : at]
            last = kept[..., -past:] if past else None
            assert torch.equal(sums(x[rows, :, at:end], 0, end - at, kept=last), whole[rows, :, at:end])
            assert torch.equal(up(x[rows, :, at:end], 0, 4 * (end - at), kept=kept), grown[rows, :, 4 * at : 4 * end])
            if end + thin <= count:
                assert torch.equal(alone(x[rows, :, at : end + thin]), narrow[rows, :, at:end])
    with threads(2):
        assert torch.equal(sums(x, 0, count), whole) and torch.equal(up(x, 0, 4 * count), grown)
        assert torch.equal(alone(x), narrow)


# -- What is odd ------------------------------------------------------------------------------------------------------------


def test_sines_of_large_arguments() -> None:
    """x stays small, so that the sine is seen: its argument is up to 1e4, 30,000 and 1e9."""
    one = torch.ones(1, 1, 1)
    for most in (1.0, 1e4, 3.1e4, 1e9):
        alpha = torch.tensor([most]).log()
        x = torch.linspace(-1, 1, 20_001)[None, None]
        found = cpu_sound.causal(one, torch.zeros(1), snake=(alpha, torch.zeros(1)))(x, 0, 20_001)
        right = x.double() + torch.sin((x * alpha.exp()).double()).square()
        torch.testing.assert_close(found.double(), right, rtol=0, atol=2.5e-7)


def test_what_is_no_number_goes_as_far_as_the_sums_reach() -> None:
    count, at = 200, 90
    smooth = (torch.zeros(2), torch.zeros(2))
    for value in (float("nan"), float("inf"), float("-inf")):
        x = drawn(2, count)
        x[1, at] = value
        for bent, more in ((None, 0), (smooth, 5)):
            found = cpu_sound.conv(torch.ones(3, 2, 7), torch.zeros(3), 3, bent)(x, 0, count)
            low, high = at - 9 - more, at + 9 + more
            reached = {t for t in range(count) if not found[:, t].isfinite().all()}
            assert reached == {t for t in range(low, high + 1) if bent is not None or (t - at) % 3 == 0}
        grown = cpu_sound.grow(torch.ones(2, 3, 11), torch.zeros(3), 5)(x, 0, 5 * count)
        assert [int(t) for t in (~grown[0].isfinite()).nonzero()[:, 0]] == list(range(5 * at - 3, 5 * at + 8))


def test_more_than_a_stack_holds_and_nothing() -> None:
    x = drawn(1, 3_000_000)
    one = cpu_sound.conv(torch.ones(1, 1, 3), None, 1, (torch.zeros(1), torch.zeros(1)))
    assert torch.equal(one(x, 2_999_000, 3_000_000), one(x[:, 2_990_000:], 9_000, 10_000))
    wide = cpu_sound.conv(torch.ones(1, 2000, 1))
    assert wide(torch.ones(2000, 1), 0, 1) == 2000
    assert wide(torch.ones(2000, 0), 0, 0).shape == (1, 0)
    assert cpu_sound.causal(torch.ones(2, 1, 3), torch.zeros(2))(torch.ones(0, 1, 4), 0, 4).shape == (0, 2, 4)


def test_what_is_refused() -> None:
    conv = cpu_sound.conv(torch.ones(2, 3, 1))
    with pytest.raises(ValueError, match=r"x \(1, 2, 4\) of torch.float32 for 3 channels"):
        conv(torch.ones(2, 4), 0, 4)
    with pytest.raises(ValueError, match=r"of torch.float64 for 3 channels"):
        conv(torch.ones(3, 4, dtype=torch.float64), 0, 4)
    for low, high in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(AssertionError, match="of 4"):
            conv(torch.ones(3, 4), low, high)
    with pytest.raises(AssertionError, match="into"):
        conv(torch.ones(3, 4), 0, 4, torch.ones(2, 3))


def test_another_form_is_taken_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cpu_sound.usable(torch.device("meta"))
    monkeypatch.delenv("OMNI_KERNELS", raising=False)
    assert cpu_sound.usable(torch.device("cpu"))
    monkeypatch.setenv("OMNI_KERNELS", "torch")
    assert not cpu_sound.usable(torch.device("cpu"))


# -- Bugs -------------------------------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[str, str]] = {
    "a channel is forgotten": ("c < in; c++, x += ld", "c < in - (in > 1); c++, x += ld"),
    "a tap is forgotten": ("k < taps; k++, at", "k < taps - (taps > 1); k++, at"),
    "the first bias for all": ("w + part, c->bias + o,", "w + part, c->bias,"),
    "remainders have equally many taps": ("skipped += taps_of(c, i)", "skipped += most"),
    "a short remainder begins early": ("(most - taps) * c->dilation", "(most - taps) * 0"),
    "another row's past": ("g->kept + row * g->kept_row", "g->kept"),
    "the past is a position off": ("+ first + past, old", "+ (first + past ? first + past - 1 : 0), old"),
    "the end goes on with the value before": ("even[i] = odd[i] = odd[to]", "even[i] = odd[i] = even[to]"),
    "the beginning goes on as it was made": ("even[i] = odd[i] = even[from]", "even[i] = odd[i] += 0"),
    "filters of even and odd exchanged": ("(2.0f * filter[11 - 2 * j])", "(2.0f * filter[10 - 2 * j])"),
    "pi in two parts": ("n * 1.509957990978376432e-7f", "n * 0.0f"),
    "no argument is too large": ("#define LIMIT 30000.0f", "#define LIMIT 3e15f"),
    "a second thread begins late": (
        "item = items * me / all; item < items * (me + 1) / all; item++) {\n            const long number",
        "item = items * me / all + (me > 0); item < items * (me + 1) / all; item++) {\n            const long number",
    ),
    "whole tiles are not added": ("if (add) sum += *(const v16 *)(add + v);", ""),
    "blocks see the first one's inputs": ("there != number", "there < 0"),
    "a depthwise tap stays": ("take(from + t + k,", "take(from + t,"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["", *BUGS])
def test_a_planted_bug_is_noticed(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = BUGS.get(bug, ("typedef", "typedef"))
    for part in cpu_build.PARTS:
        text = part.read_text()
        if part.name == "cpu_sound.c":
            assert not bug or text.count(old) == 1, "the text that the bug replaces is gone"
            text = text.replace(old, new)
        (tmp_path / part.name).write_text(text)
    made = tmp_path / "bug.so"
    # Optimised as far as products and sums are one rounding; with threads, whose functions torch brings.
    flags = [*cpu_build.FLAGS, "-O2", "-fopenmp"]
    objects = [str(tmp_path / "cpu_sound.c"), "-c", "-o", str(tmp_path / "bug.o")]
    subprocess.run([str(cpu_build.compiler()), *flags, *objects], check=True)
    subprocess.run([str(cpu_build.compiler()), "-shared", str(tmp_path / "bug.o"), "-o", str(made), "-lm"], check=True)
    wrong: Any = ctypes.CDLL(str(made))
    wrong.omni_conv.argtypes = cpu_sound.functions().omni_conv.argtypes
    wrong.omni_depthwise.argtypes = cpu_sound.functions().omni_depthwise.argtypes
    monkeypatch.setattr(cpu_sound, "functions", lambda: wrong)
    with pytest.raises(AssertionError) if bug else nullcontext():
        check_all()


def check_all() -> None:
    test_sines_of_large_arguments()
    for case in CAUSAL:
        test_causal_sums_in_pieces_and_in_company(case)
    for case in CONVS:
        for smooth in (False, True):
            test_a_convolution(case, smooth)
    for case in GROWS:
        test_an_upsampling(case)
