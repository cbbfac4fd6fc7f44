"""Modulation, gate and guided Euler step in the interpreter. Not collected by name: `test_triton_forms.py` runs it."""

from pathlib import Path
from types import ModuleType

import pytest
import torch
from against import DTYPES, caught, draws, inside_nan, planted, poisoned, same
from omni_runtime.kernels import adaln, adaln_triton, euler, euler_triton

SHAPES = [(2, 3, 37), (1, 2, 1030), (2, 0, 8), (3, 1, 1)]


def check_adaln(module: ModuleType, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """The definition in float32 of the same numbers: the kernel rounds once, the definition in bfloat16 would three times."""
    draw = draws(sum(shape), dtype)
    x, delta = inside_nan(3 + draw(*shape)), inside_nan(draw(*shape))
    shift, scale = inside_nan(draw(shape[0], 2 * shape[2])).chunk(2, -1)
    with poisoned():
        modulated, gated = module.modulate(x, shift, scale), module.gate(x, delta, scale)
    wide = [t.float() for t in (x, shift, scale, delta)]
    expected = adaln.modulate(*wide[:3])
    torch.testing.assert_close(
        modulated.float(), expected.to(dtype).float(), rtol=2**-7 if dtype != torch.float32 else 2e-5, atol=2e-5
    )
    same(gated, adaln.gate(wide[0], wide[3], wide[2]).to(dtype))


def check_euler(module: ModuleType, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows, *rest = shape
    latent, velocity = draws(rows, torch.float32)(*shape), inside_nan(draws(1, dtype)(2 * rows + 1, *rest))
    with_, without = torch.randint(0, 2 * rows + 1, (2, rows), generator=torch.Generator().manual_seed(3))
    scale, sigma, target = torch.rand(3, rows, generator=torch.Generator().manual_seed(4)) * torch.tensor([[7.0], [1], [1]])
    with poisoned():
        done = module.guided_euler(latent, velocity, with_, without, scale, sigma, target)
    for one, expected in zip(done, euler.guided_euler(latent, velocity, with_, without, scale, sigma, target), strict=True):
        assert torch.equal(one, expected)


LATENTS = [(3, 4, 5, 7), (1, 1500), (0, 4), (2, 0), (2,)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_equals_its_definition(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        check_adaln(adaln_triton, dtype, shape)
    for latent in LATENTS:
        check_euler(euler_triton, dtype, latent)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, vector, row = torch.ones(2, 3, 4), torch.ones(2, 4), torch.ones(2)
    for module in (adaln, adaln_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.modulate(x, vector, vector[:1])
        with pytest.raises(ValueError, match="do not fit"):
            module.gate(x, x[:1], vector)
    with pytest.raises(ValueError, match="at most 16384"):
        adaln_triton.modulate(torch.ones(1, 1, 20000), torch.ones(1, 20000), torch.ones(1, 20000))
    for module in (euler, euler_triton):
        with pytest.raises(ValueError, match="do not fit"):
            module.guided_euler(x, x[:, 1:], row.long(), row.long(), row, row, row)
        with pytest.raises(ValueError, match="do not fit"):
            module.guided_euler(x, x, row.long(), row.long(), row, row, row[:1])


BUGS = {
    "modulate: mean over the block": (
        adaln_triton,
        "mean = tl.sum(value, axis=0) / features",
        "mean = tl.sum(value, axis=0) / BLOCK",
    ),
    "modulate: padding in the variance": (
        adaln_triton,
        "centred = tl.where(inside, value - mean, 0.0)",
        "centred = value - mean",
    ),
    "modulate: no 1": (adaln_triton, "a = 1.0 + tl", "a = tl"),
    "modulate: vectors of the first sample": (adaln_triton, "shift + batch * shift_batch", "shift + batch * features"),
    "modulate: tokens strided": (adaln_triton, "token * x_token", "token * features"),
    "gate: without": (adaln_triton, "value + much * change", "value + change"),
    "gate: tail": (adaln_triton, ".to(out.dtype.element_ty), mask=inside)\n\n\ndef", ".to(out.dtype.element_ty))\n\n\ndef"),
    "euler: guidance from the wrong side": (euler_triton, "v0 + tl.load(scale + row)", "v1 + tl.load(scale + row)"),
    "euler: step backwards": (euler_triton, "(tl.load(target + row) - noise)", "(noise - tl.load(target + row))"),
    "euler: clean with the target's noise": (euler_triton, "x - noise * v", "x - tl.load(target + row) * v"),
    "euler: branch is row": (euler_triton, "velocity + prompted * elements", "velocity + row * elements"),
    "euler: tail": (euler_triton, "* v, mask=inside)\n\n\ndef", "* v)\n\n\ndef"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, tmp_path: Path) -> None:
    broken = planted(*BUGS[bug], tmp_path)

    def everything() -> None:
        for shape in SHAPES if bug[0] != "e" else []:
            check_adaln(broken, torch.float16, shape)
        for latent in LATENTS if bug[0] == "e" else []:
            check_euler(broken, torch.float16, latent)

    caught(everything)
