"""Every Triton kernel on a GPU: whether it is right, then how long it takes beside its torch definition and `torch.compile`.

A time is told as a fraction too: of the bandwidth that a copy reaches on this device, and of the rate of its matrix product, both
measured here. A kernel that is wrong has no time. Where torch has an op of its own for the same, it stands beside it, and so do
public kernels of packages that are installed; none is needed, the result names those that were there and those that were not. One
that gives something else than the definition has no time either. At most eight minutes: what comes too late is left out, by name.
The result is JSON, `kernels.json` in $OUT, or one line on the screen.

    python benchmarks/kernels.py [--only NAME]

Without a GPU it says so and ends well. `tests/kernels/interpreted_benchmark.py` runs all of it at tiny sizes on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from omni_runtime.kernels import ConvNeXt, JointPlan, Plan, axes, choose, joint_plan, pack, pack_transposed, plan
from omni_runtime.kernels.sample import collect

from omni_runtime import kernels
from omni_runtime.draw import Draw, Edits

LIMIT = 480.0 - 30.0  # seconds, of which the rest is for what is under way
ERROR = 1e-2  # root of mean squares, relative: inputs are bfloat16, and matrix products round their factors to it


PACKAGES = {"flash_attn": "flash-attn", "vllm": "vllm", "flashinfer": "flashinfer-python", "liger": "liger-kernel"}


@dataclass
class Case:
    """A call at a size. `op` takes the form; `peers` are others' ops for the same, `torch_op` torch's own."""

    name: str
    op: Callable[[str], Any]
    moved: float  # bytes that must be read and written, once
    products: float = 0.0  # floating-point operations of matrix products
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    compiles: bool = True  # whether `torch.compile` can take the definition: no loop over rows in Python
    exact: bool = False  # tokens, which are equal or wrong


class Maker:
    """Inputs on a device, of full or of tiny sizes."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self._generator = torch.Generator(device).manual_seed(0)

    def size(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device).to(dtype)

    def below(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=self._generator, device=self.device)


def peers(**known: tuple[str, Callable[[Any], Any]]) -> dict[str, Callable[[], Any]]:
    """Of "module:function" and how it is called, those that are there."""
    found: dict[str, Callable[[], Any]] = {}
    for name, (path, call) in known.items():
        module, _, function = path.partition(":")
        try:
            public = reduce(getattr, function.split("."), import_module(module))
        except Exception:  # built for another torch, such a package fails in many ways
            continue
        found[name] = lambda call=call, public=public: call(public)
    return found


def size_of(*tensors: torch.Tensor) -> float:
    return float(sum(t.numel() * t.element_size() for t in tensors))


def token_ops(make: Maker) -> Iterator[Case]:
    rows, width = make.size(4096, 3), make.size(4096, 40)
    x, y, weight = make.normal(rows, width), make.normal(rows, width), make.normal(width)
    norm = Case("rms_norm", lambda form: kernels.rms_norm(x, weight, 1e-6, form), 2 * size_of(x))
    out = torch.empty_like(x)
    norm.peers = {"torch_op": lambda: F.rms_norm(x, (width,), weight, 1e-6)} | peers(
        liger=("liger_kernel.ops.rms_norm:LigerRMSNormFunction.apply", lambda f: f(x, weight, 1e-6)),
        flashinfer=("flashinfer.norm:rmsnorm", lambda f: f(x, weight, 1e-6)),
        vllm=("vllm._custom_ops:rms_norm", lambda f: (f(out, x, weight, 1e-6), out)[1]),
    )
    yield norm
    yield Case("add_rms_norm", lambda form: kernels.add_rms_norm(x, y, weight, 1e-6, form), 4 * size_of(x))
    both = make.normal(rows, 2 * width)
    swiglu = Case("silu_mul", lambda form: kernels.silu_mul(both, form), 1.5 * size_of(both))
    swiglu.peers = peers(
        liger=("liger_kernel.ops.swiglu:LigerSiLUMulFunction.apply", lambda f: f(*both.chunk(2, -1))),
        flashinfer=("flashinfer.activation:silu_and_mul", lambda f: f(both)),
    )
    yield swiglu
    heads, table = 40, 4096
    qkv = make.normal(rows, heads, 128)
    angle = torch.arange(table, device=make.device)[:, None] / 1e4 ** (torch.arange(64, device=make.device) / 64)
    cos, sin, at = angle.cos(), angle.sin(), make.below(table, 3, rows)
    axis = axes([24, 20, 20], interleaved=True).to(make.device)
    yield Case("rotary", lambda form: kernels.rotary(qkv, at[0], cos, sin, form=form), 2 * size_of(qkv))
    q_weight, k_weight = make.normal(128), make.normal(128)

    def norm_rotary(form: str) -> torch.Tensor:  # in place: of a copy where it has to be right, which costs as much again
        return kernels.norm_rotary(qkv.clone(), 32, q_weight, k_weight, 1e-6, at, cos, sin, axis, form=form)

    yield Case("norm_rotary, and a copy", norm_rotary, 4 * size_of(qkv))
    k, v, cache = make.normal(rows, 8, 128), make.normal(rows, 8, 128), make.normal(2, rows // 8 + 1, 16, 8, 128)
    slots = torch.randperm(cache.shape[1] * 16, generator=torch.Generator().manual_seed(0))[:rows].to(make.device)

    caches = {form: cache.clone() for form in kernels.FORMS}

    def store(form: str) -> torch.Tensor:
        kernels.store_kv(k, v, caches[form][0], caches[form][1], slots, form)
        return caches[form]

    yield Case("store_kv", store, 4 * size_of(k), compiles=False)


def paged(make: Maker, counts: list[int], lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, Plan]:
    blocks, free = [], 0
    for length in lengths:
        blocks.append(list(range(free, free + -(-length // 16))))
        free = blocks[-1][-1] + 1
    batch = plan(counts, lengths, blocks, 4, device=make.device)
    return make.normal(sum(counts), 32, 128), make.normal(2, free, 16, 8, 128), batch


def product_ops(make: Maker) -> Iterator[Case]:
    """What the same bits in any company cost: torch's own product is free to choose by the number of rows."""
    columns, depth = make.size(4096, 40), make.size(4096, 70)
    weight, bias = make.normal(columns, depth) / depth**0.5, make.normal(columns)
    for rows in (1, make.size(64, 2), make.size(4096, 3)):
        x = make.normal(rows, depth)

        def op(form: str, x: torch.Tensor = x) -> torch.Tensor:
            return kernels.product(x, weight, bias, form)

        def linear(x: torch.Tensor = x) -> torch.Tensor:
            return F.linear(x, weight, bias)

        moved = size_of(x, weight) + 2.0 * rows * columns
        yield Case(f"product, {rows} rows", op, moved, 2.0 * rows * columns * depth, {"torch_op": linear})


def attention_peers(q: torch.Tensor, cache: torch.Tensor, batch: Plan) -> dict[str, Callable[[], Any]]:
    """Others' attention: over keys that lie in a row, without pages, where all rows are alike; over the pages themselves."""
    rows, count, length = len(batch.counts), batch.counts[0], batch.lengths[0]
    found: dict[str, Callable[[], Any]] = {}
    starts = batch.starts_R
    if len(set(batch.counts)) == len(set(batch.lengths)) == 1 and count in (1, length):
        k, v = (x.unflatten(0, (rows, -1)).flatten(1, 2)[:, :length].contiguous() for x in cache)
        dense = [x.transpose(1, 2) for x in (q.unflatten(0, (rows, count)), k, v)]

        def torch_op() -> torch.Tensor:
            mixed = F.scaled_dot_product_attention(*dense, is_causal=count > 1, enable_gqa=True)
            return mixed.transpose(1, 2).flatten(0, 1)

        found = {"torch_op": torch_op}
        ends = torch.arange(rows + 1, device=q.device, dtype=torch.int32) * length
        flat = [x.flatten(0, 1) for x in (k, v)]
        found |= peers(
            flash_attn=("flash_attn:flash_attn_varlen_func", lambda f: f(q, *flat, starts, ends, count, length, causal=True))
        )
        if q.is_cuda and count > 1:  # there is none for a CPU; keys for every head of q would be 17 GB for 64 decodes
            wide = [x.repeat_interleave(batch.group, 1) for x in flat]
            path, causal = "torch.nn.attention.varlen:varlen_attn", (-1, 0)
            found |= peers(torch_varlen=(path, lambda f: f(q, *wide, starts, ends, count, length, window_size=causal)))
    most = {"max_seqlen_q": max(batch.counts), "max_seqlen_k": max(batch.lengths), "causal": True}
    pages = {"cu_seqlens_q": starts, "seqused_k": batch.lengths_R, "block_table": batch.blocks_RB}
    return found | peers(vllm=("vllm.vllm_flash_attn:flash_attn_varlen_func", lambda f: f(q, *cache, **most, **pages)))


def attention_ops(make: Maker) -> Iterator[Case]:
    long = make.size(8192, 40)
    mixes = {
        "64 decodes": ([1] * make.size(64, 2), [long] * make.size(64, 2)),
        "1 long decode": ([1], [make.size(131_072, 700)]),
        "a prefill": ([long], [long]),
        "32 decodes and a chunk": ([1] * make.size(32, 1) + [make.size(2048, 20)], [long] * make.size(33, 2)),
    }
    for name, (counts, lengths) in mixes.items():
        q, cache, batch = paged(make, counts, lengths)
        seen = sum(count * length - count * (count - 1) / 2 for count, length in zip(counts, lengths, strict=True))

        def op(form: str, q: torch.Tensor = q, cache: torch.Tensor = cache, batch: Plan = batch) -> torch.Tensor:
            return kernels.paged_attention(q, cache[0], cache[1], batch, 128**-0.5, form)

        read = 2 * size_of(q) + 2 * sum(lengths) * 8 * 128 * 2
        others = attention_peers(q, cache, batch)
        yield Case(f"paged_attention, {name}", op, read, 4 * seen * 32 * 128, others, compiles=False)
    samples = [(make.size(4096, 40), make.size(333, 7))] * make.size(4, 1)
    streams = [make.normal(sum(count[i] for count in samples), 3 * 24, 64).split(24, 1) for i in (0, 1)]
    batch = joint_plan(samples, make.device)
    squares = sum((a + b) ** 2 for a, b in samples)

    def joint(form: str, batch: JointPlan = batch) -> Any:
        return kernels.joint_attention(streams[0], streams[1], batch, 0.125, form)

    yield Case("joint_attention", joint, 4 / 3 * size_of(*streams[0], *streams[1]), 4 * squares * 24 * 64, compiles=False)


def expert_ops(make: Maker) -> Iterator[Case]:
    experts, width, features = make.size(128, 4), make.size(2048, 32), make.size(768, 16)
    up, down = make.normal(experts, 2 * features, width) / width**0.5, make.normal(experts, width, features) / features**0.5
    for tokens in (make.size(16, 2), make.size(4096, 9)):
        x, expert = make.normal(tokens, width), make.below(experts, tokens, make.size(8, 2))
        weight = torch.rand(expert.shape, device=make.device)
        read = len(expert.unique()) / experts * size_of(up, down)

        def op(form: str, x: torch.Tensor = x, expert: torch.Tensor = expert, weight: torch.Tensor = weight) -> torch.Tensor:
            return kernels.fused_moe(x, up, down, expert, weight, form=form)

        yield Case(
            f"fused_moe, {tokens} tokens", op, read + 2 * size_of(x), 6 * expert.numel() * width * features, compiles=False
        )


def draw_ops(make: Maker) -> Iterator[Case]:
    rows, vocabulary = make.size(64, 2), make.size(151_936, 90)
    logits = 3 * make.normal(rows, vocabulary, dtype=torch.float32)
    asks = {
        "plain": Draw(7, 0, 1.0),
        "top_k 50, top_p 0.9": Draw(7, 0, 0.8, top_k=50, top_p=0.9),
        "top_p 0.95": Draw(7, 0, 1.0, top_p=0.95),
        "penalties": Draw(7, 0, 1.0, top_p=0.9, edits=Edits(repetition=1.1, presence=0.2)),
    }
    known = [[i % vocabulary for i in range(500)]] * rows
    for name, how in asks.items():
        draws, changes = collect([how] * rows, list(range(rows)), known, make.device)

        def op(form: str, draws: Any = draws, changes: Any = changes) -> torch.Tensor:
            on = (logits, draws, changes)
            if form == "torch":  # its Philox and its sort are slow anywhere: it tells what is right
                on = (logits.cpu(), *(None if t is None else type(t)(*(x.cpu() for x in t)) for t in (draws, changes)))
            return kernels.draw_tokens(*on, form=form)[0]

        yield Case(f"draw_tokens, {name}", op, size_of(logits), compiles=False, exact=True)


def denoise_ops(make: Maker) -> Iterator[Case]:
    batch, tokens, width = make.size(8, 2), make.size(4096, 3), make.size(1536, 20)
    x, delta = make.normal(batch, tokens, width), make.normal(batch, tokens, width)
    vectors = make.normal(batch, 2 * width).chunk(2, -1)
    yield Case("modulate", lambda form: kernels.modulate(x, *vectors, form), 2 * size_of(x))
    yield Case("gate", lambda form: kernels.gate(x, delta, vectors[0], form), 3 * size_of(x))
    side = make.size(128, 4)
    latent, velocity = make.normal(batch, 16, side, side, dtype=torch.float32), make.normal(2 * batch, 16, side, side)
    branch = torch.arange(batch, device=make.device)
    scale, sigma, target = torch.rand(3, batch, device=make.device)

    def euler(form: str) -> Any:
        return kernels.guided_euler(latent, velocity, branch, branch + batch, scale, sigma, target, form)

    yield Case("guided_euler", euler, 3 * size_of(latent) + size_of(velocity))


def sound_ops(make: Maker) -> Iterator[Case]:
    batch, channels, length = make.size(8, 1), make.size(512, 24), make.size(2048, 20)
    x, alpha, beta = make.normal(batch, channels, length), make.normal(channels) / 3, make.normal(channels) / 3
    yield Case("snake_beta", lambda form: kernels.snake_beta(x, alpha, beta, form), 2 * size_of(x))
    weight, bias = pack(make.normal(channels, channels, 7) / (7 * channels) ** 0.5), make.normal(channels)
    state, each = make.normal(batch, channels, 54), float(batch * channels * channels * length)

    def conv(form: str) -> Any:
        return kernels.causal_conv(x, state, weight, bias, 9, (alpha, beta), form)[0]

    yield Case("causal_conv, 7 taps, snake", conv, 2 * size_of(x) + size_of(weight), 14 * each)
    wide = pack_transposed(make.normal(channels, channels // 2, 16) / channels**0.5, 8)

    def transposed(form: str) -> Any:
        return kernels.causal_transposed_conv(x, state[..., :1], wide, 8, bias[: channels // 2], form=form)[0]

    yield Case("causal_transposed_conv", transposed, 5 * size_of(x) + size_of(wide), 16 * each)
    vectors = make.normal(6, channels)
    up, down = make.normal(4 * channels, channels) / channels**0.5, make.normal(channels, 4 * channels) / channels**0.5
    block = ConvNeXt(make.normal(channels, 7), *vectors[:3], up, make.normal(4 * channels), down, *vectors[3:5])

    def convnext(form: str) -> Any:
        return kernels.convnext_block(x, state[..., :6], block, form=form)[0]

    yield Case("convnext_block", convnext, 3 * size_of(x) + size_of(up, down), 16 * each)


def cases(make: Maker) -> Iterator[Case]:
    for ops in (token_ops, product_ops, attention_ops, expert_ops, draw_ops, denoise_ops, sound_ops):
        yield from ops(make)


def error(case: Case) -> float:
    """Of the kernel against its definition: root of mean squares, relative; of tokens, how many differ."""
    ours, right = (out if isinstance(out, tuple) else (out,) for out in (case.op("triton"), case.op("torch")))
    if case.exact:
        return float(sum((a.cpu() != b.cpu()).sum() for a, b in zip(ours, right, strict=True)))
    return max(distance(a, b, case.name) for a, b in zip(ours, right, strict=True))


def distance(ours: torch.Tensor, right: torch.Tensor, name: str) -> float:
    """Root of mean squares, relative."""
    assert ours.shape == right.shape and ours.dtype == right.dtype, name
    return float((ours.double() - right.double()).square().mean().sqrt() / right.double().square().mean().sqrt())


def there() -> dict[str, str]:
    """Packages with public kernels, and their versions."""
    found = {}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            found[name] = "not there"
    return found


def microseconds(call: Callable[[], Any]) -> float:
    """Median, with the cache of the device emptied between two calls."""
    from triton.testing import do_bench

    return 1e3 * float(do_bench(call, warmup=20, rep=100, return_mode="median"))


def rates() -> dict[str, float]:
    """Bytes a second of a copy (read and written), operations a second of a matrix product in bfloat16."""
    big, other = torch.empty(2, 1 << 29, dtype=torch.uint8, device="cuda")
    a, b = torch.randn(2, 8192, 8192, device="cuda").bfloat16()
    copy, matmul = 1e-6 * microseconds(lambda: other.copy_(big)), 1e-6 * microseconds(lambda: a @ b)
    return {"copy": 2 * 2**29 / copy, "matmul": 2 * 8192**3 / matmul}


def measure(case: Case, rate: dict[str, float], late: Callable[[], bool]) -> dict[str, Any]:
    """The row of a case. What fails on the way is a text in its place."""
    row: dict[str, Any] = {"name": case.name, "error": error(case)}
    allowed = 0.0 if case.exact else ERROR
    row["right"] = row["error"] <= allowed
    if not row["right"]:
        return row
    ways: dict[str, Callable[[], Any]] = {
        "ours": lambda: case.op("triton"),
        "definition": lambda: case.op("torch"),
    }
    right = case.op("torch") if case.peers else None
    for name, call in case.peers.items():
        try:
            if (far := distance(call(), right, case.name)) <= ERROR:
                ways[name] = call
            else:
                row[f"{name}_us"] = f"differs from the definition by {far:.2g}"
        except Exception as problem:
            row[f"{name}_us"] = f"{type(problem).__name__}: {problem}"[:200]
    if case.compiles:
        ways["compiled"] = torch.compile(lambda: case.op("torch"), dynamic=False)
    for way, call in ways.items():
        if case.exact and way == "definition":
            continue
        try:
            row[f"{way}_us"] = "too late" if late() else round(microseconds(call), 2)
        except Exception as problem:  # of one way only: the others are still worth having
            row[f"{way}_us"] = f"{type(problem).__name__}: {problem}"[:200]
    if isinstance(row["ours_us"], float):
        seconds = 1e-6 * row["ours_us"]
        row["of_copy"] = round(case.moved / seconds / rate["copy"], 3)
        row["of_matmul"] = round(case.products / seconds / rate["matmul"], 3)
    return row


def told(result: dict[str, Any]) -> None:
    """To $OUT if there is such a folder, else to the screen."""
    if folder := os.environ.get("OUT"):
        (Path(folder) / "kernels.json").write_text(json.dumps(result, indent=1) + "\n")
    else:
        print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    start = time.monotonic()
    if not torch.cuda.is_available():
        print("not run on a GPU: this machine has none")
        told({"run": "not run on a GPU", "rows": []})
        return
    make = Maker("cuda", tiny=False)
    assert choose(make.normal(1)) == "triton", "triton is not installed"
    rate = rates()
    result: dict[str, Any] = {"run": time.strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name(), "rates": rate}
    result |= {"peers": there(), "torch": torch.__version__, "triton": version("triton"), "rows": [], "left_out": []}
    for case in cases(make):
        if args.only not in case.name:
            continue
        if time.monotonic() - start > LIMIT:
            result["left_out"].append(case.name)
            continue
        try:
            row = measure(case, rate, lambda: time.monotonic() - start > LIMIT)
        except Exception as problem:
            row = {"name": case.name, "right": False, "problem": f"{type(problem).__name__}: {problem}"[:400]}
        result["rows"].append(row)
        print(row, flush=True)
        told(result)  # whatever comes after it
    told(result)
    if wrong := [row["name"] for row in result["rows"] if not row["right"]]:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
