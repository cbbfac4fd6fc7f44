"""A mixture of experts against its definition, token by token."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from omni_runtime.experts.linear import linear  # noqa: E402
from omni_runtime.experts.moe import Mlp, gated, mixture, route  # noqa: E402

EXPERTS, WIDTH, INNER = 7, 16, 10


def parts(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((EXPERTS, WIDTH), (EXPERTS, 2 * INNER, WIDTH), (EXPERTS, WIDTH, INNER))
    router, gate_up, down = (torch.randn(shape, generator=generator) / 3 for shape in shapes)
    return router, gate_up, down


def build(chosen: int, normalise: bool, calls: list[tuple[int, int]] | None = None) -> Mlp:
    router, gate_up, down = parts()

    def expert(i: int) -> Mlp:
        inner = gated(linear(gate_up[i]), linear(down[i]))

        def run(h_TD: torch.Tensor) -> torch.Tensor:
            if calls is not None:
                calls.append((i, len(h_TD)))
            return inner(h_TD)

        return run

    return mixture(linear(router), [expert(i) for i in range(EXPERTS)], chosen, normalise)


def by_definition(h_D: torch.Tensor, chosen: int, normalise: bool) -> torch.Tensor:
    router, gate_up, down = (part.double() for part in parts())
    share = (router @ h_D.double()).softmax(0)
    best = sorted(range(EXPERTS), key=lambda i: -share[i])[:chosen]
    total = sum(share[i] for i in best) if normalise else 1.0
    out = torch.zeros(WIDTH, dtype=torch.float64)
    for i in best:
        gate, up = (gate_up[i] @ h_D.double()).chunk(2)
        out += share[i] / total * (down[i] @ (F.silu(gate) * up))
    return out.float()


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("chosen", [1, 2, EXPERTS])
@pytest.mark.parametrize("tokens", [1, 2, 40])
def test_definition(tokens: int, chosen: int, normalise: bool) -> None:
    h_TD = torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(tokens))
    expected = torch.stack([by_definition(h_D, chosen, normalise) for h_D in h_TD])
    torch.testing.assert_close(build(chosen, normalise)(h_TD), expected, rtol=1e-5, atol=1e-6)


def test_each_expert_runs_once_on_all_its_tokens() -> None:
    calls: list[tuple[int, int]] = []
    build(2, True, calls)(torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1)))
    assert [i for i, _ in calls] == sorted({i for i, _ in calls})
    assert sum(rows for _, rows in calls) == 80


def test_neighbours_change_last_bits_only() -> None:
    mlp, generator = build(2, True), torch.Generator().manual_seed(2)
    h_TD = torch.randn(30, WIDTH, generator=generator)
    alone = torch.cat([mlp(h_TD[i : i + 1]) for i in range(30)])
    torch.testing.assert_close(mlp(h_TD), alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(mlp(h_TD[torch.arange(29, -1, -1)]).flip(0), alone, rtol=0, atol=1e-6)


def test_routing_is_float32_and_sums_to_one() -> None:
    logits = torch.randn(5, EXPERTS, generator=torch.Generator().manual_seed(3)).bfloat16()
    expert_TC, weight_TC = route(logits, 3, True)
    assert weight_TC.dtype == torch.float32
    assert expert_TC.shape == (5, 3)
    torch.testing.assert_close(weight_TC.sum(-1), torch.ones(5))
