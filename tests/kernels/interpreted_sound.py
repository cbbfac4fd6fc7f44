"""SnakeBeta, causal convolutions and the ConvNeXt block in the interpreter.

Not collected by name: `test_triton_forms.py` runs it.
"""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, near, planted, poisoned, same
from omni_runtime.kernels import conv, conv_triton, convnext, convnext_triton, snake, snake_triton


def check_snake(module: ModuleType, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    draw = draws(shape[2], dtype)
    x, alpha, beta = inside_nan(2 * draw(*shape)), draw(shape[1]) / 2, draw(shape[1]) / 2
    with poisoned():
        out = module.snake_beta(x, alpha, beta)
    same(out, snake.snake_beta(x, alpha, beta))


# sequences, channels, outputs, taps, dilation or stride, lengths of chunks, snake, bias
CONVS = [
    (2, 20, 70, 3, 2, (70, 0, 9), True, True),
    (1, 40, 5, 1, 1, (3,), False, False),
    (1, 3, 4, 7, 1, (20,), False, True),
    (0, 3, 2, 2, 1, (4,), False, True),
]
TRANSPOSED = [
    (2, 20, 9, 8, 4, (5, 1, 0, 11), True, True),
    (1, 5, 30, 5, 2, (18,), False, True),
    (1, 2, 3, 3, 5, (2,), False, False),
]
Conv = tuple[int, int, int, int, int, tuple[int, ...], bool, bool]


def check_conv(module: ModuleType, dtype: torch.dtype, case: Conv) -> None:
    sequences, channels, outputs, taps, dilation, chunks, active, biased = case
    draw = draws(channels + outputs, dtype)
    weight = conv.pack(draw(outputs, channels, taps) / (channels * taps) ** 0.5)
    bias, act = draw(outputs) if biased else None, (draw(channels) / 3, draw(channels) / 3) if active else None
    state = inside_nan(draw(sequences, channels, (taps - 1) * dilation))
    for length in chunks:
        x = inside_nan(draw(sequences, channels, length))
        expected, after = conv.causal_conv(x, state, weight, bias, dilation, act)
        with poisoned():
            out, state = module.causal_conv(x, state, weight, bias, dilation, act)
        near(out, expected)
        assert torch.equal(state, after)


def check_transposed(module: ModuleType, dtype: torch.dtype, case: Conv) -> None:
    sequences, channels, outputs, taps, stride, chunks, active, biased = case
    draw = draws(channels + outputs, dtype)
    weight = conv.pack_transposed(draw(channels, outputs, taps) / channels**0.5, stride)
    bias, act = draw(outputs) if biased else None, (draw(channels) / 3, draw(channels) / 3) if active else None
    state = inside_nan(draw(sequences, channels, len(weight) - 1))
    for length in chunks:
        x = inside_nan(draw(sequences, channels, length))
        expected, after = conv.causal_transposed_conv(x, state, weight, stride, bias, act)
        with poisoned():
            out, state = module.causal_transposed_conv(x, state, weight, stride, bias, act)
        near(out, expected)
        assert torch.equal(state, after)


BLOCKS = [(2, 20, 7, (9, 0, 3)), (1, 130, 3, (2,)), (0, 4, 7, (1,))]


def check_convnext(module: ModuleType, dtype: torch.dtype, case: tuple[int, int, int, tuple[int, ...]]) -> None:
    sequences, channels, taps, chunks = case
    draw = draws(channels, dtype)
    weights = convnext.ConvNeXt(
        draw(channels, taps), draw(channels), draw(channels), draw(channels), draw(3 * channels, channels) / channels**0.5,
        draw(3 * channels), draw(channels, 3 * channels) / channels**0.5, draw(channels), draw(channels), 0.01,
    )  # fmt: skip
    state = inside_nan(draw(sequences, channels, taps - 1))
    for length in chunks:
        x = inside_nan(draw(sequences, channels, length))
        with poisoned():
            normed, _ = module.depthwise_norm(x, state, weights)
        near(normed, convnext.depthwise_norm(x, state, weights)[0])
        expected, after = convnext.convnext_block(x, state, weights)
        out, state = module.convnext_block(x, state, weights)
        assert torch.equal(state, after)
        torch.testing.assert_close(out, expected, rtol=0.05, atol=0.05)


SNAKES = [(2, 3, 37), (1, 1, 1030), (2, 0, 4), (1, 2, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_equals_its_definition(dtype: torch.dtype) -> None:
    for shape in SNAKES:
        check_snake(snake_triton, dtype, shape)
    for case in CONVS:
        check_conv(conv_triton, dtype, case)
    for case in TRANSPOSED:
        check_transposed(conv_triton, dtype, case)
    for block in BLOCKS:
        check_convnext(convnext_triton, dtype, block)


def test_the_polynomial_is_a_sine() -> None:
    """Against float64, where the argument is as large as a voice's: up to 30 radians a unit."""
    x = torch.linspace(-30, 30, 6001).view(1, 1, -1)
    error = snake_triton.snake_beta(x, torch.zeros(1), torch.zeros(1)) - (x.double() + torch.sin(x.double()).square())
    assert float(error.abs().max()) < 6e-6  # of which the result's own rounding is 1e-6, and the argument's 2e-6


def test_chunks_are_one_sound() -> None:
    draw = draws(0, torch.bfloat16)
    x, weight, bias = draw(1, 8, 40), conv.pack(draw(6, 8, 3)), draw(6)
    whole, end = conv_triton.causal_conv(x, torch.zeros(1, 8, 4).bfloat16(), weight, bias, 2)
    parts, state = [], torch.zeros(1, 8, 4).bfloat16()
    for chunk in x.split([17, 1, 22], 2):
        part, state = conv_triton.causal_conv(chunk, state, weight, bias, 2)
        parts.append(part)
    assert torch.equal(torch.cat(parts, 2), whole) and torch.equal(state, end)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight = torch.ones(1, 3, 5), torch.ones(2, 4, 3)
    for module in (conv, conv_triton):
        with pytest.raises(ValueError, match="must have 2 positions"):
            module.causal_conv(x, x, weight, dilation=2)
        with pytest.raises(ValueError, match="do not fit"):
            module.causal_conv(x, x[:, :, :1], weight.half())
        with pytest.raises(ValueError, match="has no 3 rows"):
            module.causal_transposed_conv(x, x[:, :, :1], weight, 3)
        with pytest.raises(ValueError, match="the bias 2"):
            module.causal_transposed_conv(x, x[:, :, :1], weight, 2, torch.ones(4))
    for module in (snake, snake_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.snake_beta(x, torch.ones(3), torch.ones(2))
    with pytest.raises(ValueError, match="do not fit"):
        conv_triton.causal_conv(x, x[:, :, :1], weight, snake=(torch.ones(2), torch.ones(2)))
    three = torch.ones(3)
    weights = convnext.ConvNeXt(torch.ones(3, 7), three, three, three, three, three, three, three, three)
    for module in (convnext, convnext_triton):
        with pytest.raises(ValueError, match=r"the state \[N, 3, 6\]"):
            module.depthwise_norm(x, x, weights)


BUGS = {
    "snake: sine not squared": (snake_triton, "x + s * s /", "x + s /"),
    "snake: half the period": (snake_triton, "0.3183098861837907", "0.6366197723675814"),
    "snake: a term lost": (snake_triton, "s = s * z + 0.0821458866111", "s = s * z"),
    "snake: magnitude is frequency": (snake_triton, "tl.exp(beta)", "tl.exp(alpha)"),
    "snake: channel": (snake_triton, "channel = row % channels", "channel = row // channels"),
    "conv: tap off by one": (conv_triton, "origin + tap * step", "origin + tap * step + 1"),
    "conv: dilation ignored": (conv_triton, "weight_KOC, bias_O, 1, dilation, 0", "weight_KOC, bias_O, 1, 1, 0"),
    "conv: tail of the channels": (conv_triton, "there = channel < channels", "there = channel < channels + 1"),
    "conv: bias lost": (conv_triton, "if BIAS:", "if BIAS and SNAKE and STRIDE < 1:"),
    "conv: second sequence": (conv_triton, "(sequence * channels + channel) * padded", "channel.to(tl.int64) * padded"),
    "conv: state of before": (conv, "x_NCL.shape[2] :].clone()", ": state_NCP.shape[2]].clone()"),
    "conv: snake": (conv_triton, "value = snake(", "value = snake(0.99 * "),
    "transposed: taps in time's order": (conv_triton, "stride, -1, taps - 1", "stride, 1, 0"),
    "transposed: phase": (conv_triton, "+ row % STRIDE", "+ (row + 1) % STRIDE"),
    "transposed: bias of the row": (conv_triton, "bias + row // STRIDE", "bias + row % (rows // STRIDE)"),
    "convnext: norm over the block": (convnext_triton, "mean = tl.sum(total, 0) / channels", "mean = tl.sum(total, 0) / BLOCK_C"),
    "convnext: padding in the variance": (
        convnext_triton,
        "centred = tl.where(there[:, None], total - mean[None, :], 0.0)",
        "centred = total - mean[None, :]",
    ),
    "convnext: tap": (convnext_triton, "(time + tap)", "(time + tap + 1)"),
    "convnext: bias": (convnext_triton, "total += tl.load(taps_bias", "total -= tl.load(taps_bias"),
    "convnext: time and channels": (convnext_triton, "* channels + channel[:, None]", "+ channel[:, None] * length"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = planted(*BUGS[bug], tmp_path)
    if BUGS[bug][0] is conv:  # what the kernel takes from the definition's file
        monkeypatch.setattr(conv_triton, "extend", broken.extend)
        broken = conv_triton
    kind = bug.split(":")[0]
    check, cases = {
        "snake": (check_snake, SNAKES), "conv": (check_conv, CONVS[:1]), "transposed": (check_transposed, TRANSPOSED),
        "convnext": (check_convnext, BLOCKS),
    }[kind]  # fmt: skip
    caught(lambda: [check(broken, dtype, case) for dtype in (torch.float32, torch.float16) for case in cases])
