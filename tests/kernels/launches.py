"""One call a kernel and shape that matter, on meta tensors of the sizes of real models. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from omni_runtime.kernels import (
    adaln_triton,
    attention_triton,
    conv_triton,
    convnext_triton,
    euler_triton,
    joint_triton,
    kv_triton,
    matrix_triton,
    moe_triton,
    norm_triton,
    rope_triton,
    sample_triton,
    snake_triton,
    swiglu_triton,
)
from omni_runtime.kernels.attention import plan
from omni_runtime.kernels.convnext import ConvNeXt
from omni_runtime.kernels.joint import joint_plan
from omni_runtime.kernels.sample import Changes, Draws, collect

from omni_runtime.draw import Draw, Edits

BF16, FP32 = torch.bfloat16, torch.float32


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def real(*shape: int) -> torch.Tensor:
    return meta(*shape, dtype=FP32)


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return meta(*shape, dtype=dtype)


def rope(pairs: bool, normed: bool) -> None:
    qkv, tables = meta(16, 40, 128), (real(4096, 64), real(4096, 64))
    if normed:
        rope_triton.norm_rotary(qkv, 32, meta(128), meta(128), 1e-6, ints(3, 16), *tables, ints(64))
    else:
        rope_triton.rotary(qkv[:, :36], ints(16), *tables, pairs=pairs, in_place=not pairs)


def paged(features: int, groups: int, group: int, dtype: torch.dtype = BF16) -> None:
    counts, lengths = [1, 1, 100], [5000, 300, 700]
    batch = plan(counts, lengths, [[0] * -(-length // 16) for length in lengths], group, device="meta")
    cache = meta(400, 16, groups, features, dtype=dtype)
    attention_triton.paged_attention(meta(102, groups * group, features, dtype=dtype), cache, cache, batch, 0.1)


def joint(features: int) -> None:
    first, second = meta(4096, 3 * 24, features).split(24, 1), meta(333, 3 * 24, features).split(24, 1)
    joint_triton.joint_attention(first, second, joint_plan([(4000, 300), (96, 33)], "meta"), 0.1)


def product(tokens: int, columns: int = 4096, dtype: torch.dtype = BF16) -> None:
    matrix_triton.product(meta(tokens, 4096, dtype=dtype), meta(columns, 4096, dtype=dtype), meta(columns, dtype=dtype))


def moe(tokens: int, dtype: torch.dtype = BF16) -> None:
    up, down = meta(128, 2 * 768, 2048, dtype=dtype), meta(128, 2048, 768, dtype=dtype)
    moe_triton.fused_moe(meta(tokens, 2048, dtype=dtype), up, down, ints(tokens, 8), real(tokens, 8))


def sample(changed: bool) -> None:
    draws, changes = collect([Draw(1, 0, edits=Edits(presence=1.0))] * 16, [1] * 16, [[1, 2]] * 16)
    assert changes is not None
    draws, changes = Draws(*(x.to("meta") for x in draws)), Changes(*(x.to("meta") for x in changes))
    sample_triton.draw_tokens(meta(16, 151_936), draws, changes if changed else None, logprobs=changed)


def conv(length: int, snake: bool, dtype: torch.dtype = BF16) -> None:
    act = (real(512), real(512)) if snake else None
    x, state = meta(2, 512, length, dtype=dtype), meta(2, 512, 54, dtype=dtype)
    conv_triton.causal_conv(x, state, meta(7, 512, 512, dtype=dtype), meta(512, dtype=dtype), 9, act)


def transposed() -> None:
    conv_triton.causal_transposed_conv(
        meta(2, 512, 128), meta(2, 512, 1), meta(2, 256 * 8, 512), 8, meta(256), (real(512), real(512))
    )


def convnext() -> None:
    vector, wide = meta(1024), meta(4096)
    weights = ConvNeXt(meta(1024, 7), vector, vector, vector, meta(4096, 1024), wide, meta(1024, 4096), vector, vector)
    convnext_triton.convnext_block(meta(2, 1024, 50), meta(2, 1024, 6), weights)


def euler() -> None:
    rows = [ints(4, dtype=torch.int64), ints(4, dtype=torch.int64), *(real(4) for _ in range(3))]
    euler_triton.guided_euler(real(4, 16, 64, 64), meta(8, 16, 64, 64), *rows)


def ones() -> None:
    """Everything with sizes of 1, which triton takes for constants of the kernel."""
    x, wide, table, row = meta(1, 1, 1), meta(1, 1, 2), real(1, 1), real(1)
    ids = ints(1, dtype=torch.int64)
    norm_triton.add_rms_norm(x, x, meta(1), 1e-6)
    swiglu_triton.silu_mul(wide)
    rope_triton.rotary(wide, ints(1), table, table, ints(1))
    rope_triton.norm_rotary(meta(1, 1, 3), 1, meta(3), meta(3), 1e-6, ints(1), table, table)
    kv_triton.store_kv(x, x, meta(1, 1, 1, 1), meta(1, 1, 1, 1), ids)
    attention_triton.paged_attention(x, meta(1, 1, 1, 1), meta(1, 1, 1, 1), plan([1], [1], [[0]], 1, device="meta"), 1.0)
    joint_triton.joint_attention((x, x, x), (x, x, x), joint_plan([(1, 1)], "meta"), 1.0)
    matrix_triton.product(meta(1, 1), meta(1, 1), meta(1))
    moe_triton.fused_moe(meta(1, 1), wide.view(1, 2, 1), x, ints(1, 1), table)
    draws, changes = collect([Draw(1, 0, edits=Edits(presence=1.0))], [1], [[0]])
    assert changes is not None
    sample_triton.draw_tokens(table, Draws(*(t.to("meta") for t in draws)), Changes(*(t.to("meta") for t in changes)), True)
    adaln_triton.modulate(x, meta(1, 1), meta(1, 1))
    adaln_triton.gate(x, x, meta(1, 1))
    euler_triton.guided_euler(real(1, 1), real(1, 1), ids, ids, row, row, row)
    snake_triton.snake_beta(x, row, row)
    conv_triton.causal_conv(x, meta(1, 1, 0), x, meta(1), 1, (row, row))
    conv_triton.causal_transposed_conv(x, meta(1, 1, 0), x, 1)
    convnext_triton.depthwise_norm(x, meta(1, 1, 0), ConvNeXt(*[meta(1, 1), *[meta(1)] * 8]))


CALLS: dict[str, Callable[[], object]] = {
    "rms_norm 2048": lambda: norm_triton.rms_norm(meta(8, 2048), meta(2048), 1e-6),
    "add_rms_norm 4096": lambda: norm_triton.add_rms_norm(meta(8, 4096), meta(8, 4096), meta(4096), 1e-6),
    "add_rms_norm 16384 fp32": lambda: norm_triton.add_rms_norm(real(8, 16384), real(8, 16384), real(16384), 1e-6),
    "product 16 rows": lambda: product(16),
    "product 16 rows, many columns": lambda: product(16, 151_936),
    "product 2048 rows": lambda: product(2048),
    "product 2048 rows fp32": lambda: product(2048, dtype=FP32),
    "silu_mul 2x3072": lambda: swiglu_triton.silu_mul(meta(8, 6144)),
    "rotary halves": lambda: rope(pairs=False, normed=False),
    "rotary pairs": lambda: rope(pairs=True, normed=False),
    "norm_rotary 3 axes": lambda: rope(pairs=False, normed=True),
    "store_kv 8x128": lambda: kv_triton.store_kv(
        meta(9, 8, 128), meta(9, 8, 128), meta(9, 16, 8, 128), meta(9, 16, 8, 128), ints(9)
    ),
    "paged_attention 64, 3 a head": lambda: paged(64, 3, 3),
    "paged_attention 128, 4 a head": lambda: paged(128, 8, 4),
    "paged_attention 256, 8 a head": lambda: paged(256, 2, 8),
    "paged_attention 64, 3 a head, fp32": lambda: paged(64, 3, 3, FP32),
    "joint_attention 64": lambda: joint(64),
    "joint_attention 128": lambda: joint(128),
    "fused_moe 16 tokens": lambda: moe(16),
    "fused_moe 2048 tokens": lambda: moe(2048),
    "fused_moe 2048 tokens fp32": lambda: moe(2048, FP32),
    "draw_tokens": lambda: sample(changed=False),
    "draw_tokens changed": lambda: sample(changed=True),
    "modulate 1536": lambda: adaln_triton.modulate(meta(2, 9, 1536), *meta(2, 3072).chunk(2, -1)),
    "gate 1536": lambda: adaln_triton.gate(meta(2, 9, 1536), meta(2, 9, 1536), meta(2, 3072).chunk(2, -1)[0]),
    "guided_euler": euler,
    "snake_beta": lambda: snake_triton.snake_beta(meta(2, 512, 300), real(512), real(512)),
    "causal_conv 300": lambda: conv(300, snake=True),
    "causal_conv 4": lambda: conv(4, snake=False),
    "causal_conv 300 fp32": lambda: conv(300, snake=True, dtype=FP32),
    "causal_transposed_conv": transposed,
    "depthwise_norm 1024": convnext,
}
