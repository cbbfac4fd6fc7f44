"""The layers of a decoder by the kernels for a GPU, over pages: nothing in a pass waits for the device.

All that a pass needs of the host (ids, positions, places, tables, tiles) travels in one transfer. The same code runs on a CPU by
the kernels' definitions, which is how it is held to what it should compute (`linear="paged"`).

Suffixes: T tokens of all spans, D width, V vocabulary, R spans that draw, H query heads, G heads of keys and values, E head
dimension, F = E/2 frequencies, A axes of a position (1, or 3 of M-RoPE), N blocks, P positions of a block, M tokens that features
are added to, X experts, L layers, B blocks of the longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError, unknown
from omni_runtime.experts.moe import route
from omni_runtime.experts.pages import PagedCache, Pages
from omni_runtime.experts.rotary import axis_of, frequencies
from omni_runtime.experts.spans import Ran, Span, features
from omni_runtime.experts.staging import Staging
from omni_runtime.kernels import (
    Plan,
    add_rms_norm,
    choose,
    fused_moe,
    norm_rotary,
    paged_attention,
    plan,
    product,
    rms_norm,
    rotary,
    silu_mul,
    store_kv,
)
from omni_runtime.kernels.attention import tile_rows
from omni_runtime.weights.decoder_config import DecoderConfig

Take = Callable[[str], torch.Tensor]
"""A weight by its name in `parameter_shapes`, as stored."""

Arrays = Mapping[str, np.ndarray[Any, Any]]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PLANS = 1024  # of steps in lockstep that are kept: for every number of rows and every position there is one


def paged(layout: str, device: torch.device) -> bool:
    """Whether a decoder keeps pages: always on a GPU unless another layout is named, elsewhere where it is asked for."""
    return layout == "paged" or (layout == "auto" and device.type == "cuda")


def kept_as(asked: str, stored: torch.dtype, device: torch.device) -> torch.dtype:
    """What weights, activations and pages are kept in. "auto": what the checkpoint is stored in on a GPU, float32 elsewhere.

    Raises:
        CardError: nothing that the kernels compute with.
    """
    if asked != "auto":
        if asked not in DTYPES:
            raise CardError(f"dtype={asked!r}: " + unknown("dtype", asked, ("auto", *DTYPES)))
        return DTYPES[asked]
    if device.type != "cuda":
        return torch.float32
    if stored not in DTYPES.values():
        told = str(stored).removeprefix("torch.")
        raise CardError(f"dtype='auto': the checkpoint is stored in {told}; name one of {', '.join(DTYPES)} to convert it")
    return stored


@dataclass(frozen=True)
class _Dense:
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class _Sparse:
    router_XD: torch.Tensor
    gate_up_XMD: torch.Tensor
    down_XDF: torch.Tensor
    shared: _Dense | None
    shared_gate_1D: torch.Tensor | None


@dataclass(frozen=True)
class _Layer:
    norm_D: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    ffn_norm_D: torch.Tensor
    mlp: _Dense | _Sparse
    q_norm_E: torch.Tensor | None
    k_norm_E: torch.Tensor | None


class Where(NamedTuple):
    """Where the tokens of a pass stand: in time, in the pages, and what they see. Everything on the device."""

    cos_TF: torch.Tensor
    sin_TF: torch.Tensor
    slots_T: torch.Tensor
    seen: Plan
    kv_L2NPGE: torch.Tensor


class PagedLayers:
    """Resident weights of embedding, layers and head, and the pool of pages.

    Attributes:
        exact: with `invariant` a row is the same to the bit in any company and any chunk. Only kernels promise that.
        invariant: set by whoever asks, before each pass.

    Raises:
        CardError: see `kept_as`.
    """

    def __init__(self, config: DecoderConfig, take: Take, device: torch.device, dtype: str) -> None:
        self.config, self.device = config, device
        embedding_VD = take("model.embed_tokens.weight")
        self.dtype = kept_as(dtype, embedding_VD.dtype, device)
        self.embedding_VD = self._there(embedding_VD)
        self._norm_D = self._there(take("model.norm.weight"))
        self._head_VD: torch.Tensor | None = None
        if config.head:
            self._head_VD = self.embedding_VD if config.tied else self._there(take("lm_head.weight"))
        self._layers = [self._layer(i, take) for i in range(config.layers)]
        self._frequency_F = frequencies(config).to(device)
        sections = config.rope_sections
        self._axis_F = None if sections is None else axis_of(sections, config.rope_interleaved).to(device)
        self.pages = Pages(config, device, self.dtype)
        self.staging = Staging(device)
        self.exact = choose(self.embedding_VD) == "triton"
        self.invariant = False
        self._steps: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor, Plan]] = {}

    def _there(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.detach().to(self.device, self.dtype)

    def _layer(self, i: int, take: Take) -> _Layer:
        config, at = self.config, f"model.layers.{i}"

        def fused(prefix: str, parts: tuple[str, ...], kind: str = "weight") -> torch.Tensor:
            return torch.cat([self._there(take(f"{prefix}.{part}_proj.{kind}")) for part in parts])

        def bias(prefix: str, parts: tuple[str, ...], there: bool) -> torch.Tensor | None:
            return fused(prefix, parts, "bias") if there else None

        def dense(prefix: str, biased: bool) -> _Dense:
            pair, down = ("gate", "up"), ("down",)
            return _Dense(fused(prefix, pair), bias(prefix, pair, biased), fused(prefix, down), bias(prefix, down, biased))

        def mlp() -> _Dense | _Sparse:
            prefix, sparse = f"{at}.mlp", config.sparse
            if sparse is None or i not in sparse.layers:
                return dense(prefix, config.mlp_bias)
            gate_up_XMD = self.embedding_VD.new_empty(sparse.experts, 2 * sparse.ffn, config.width)
            down_XDF = self.embedding_VD.new_empty(sparse.experts, config.width, sparse.ffn)
            for expert in range(sparse.experts):  # one at a time: all of them are most of the model
                gate_up_XMD[expert] = fused(f"{prefix}.experts.{expert}", ("gate", "up"))
                down_XDF[expert] = fused(f"{prefix}.experts.{expert}", ("down",))
            router_XD = self._there(take(f"{prefix}.gate.weight"))
            if not sparse.shared:
                return _Sparse(router_XD, gate_up_XMD, down_XDF, None, None)
            gate_1D = self._there(take(f"{prefix}.shared_expert_gate.weight"))
            return _Sparse(router_XD, gate_up_XMD, down_XDF, dense(f"{prefix}.shared_expert", False), gate_1D)

        attention, qkv = f"{at}.self_attn", ("q", "k", "v")
        return _Layer(
            norm_D=self._there(take(f"{at}.input_layernorm.weight")),
            qkv=fused(attention, qkv),
            qkv_bias=bias(attention, qkv, config.qkv_bias),
            out=fused(attention, ("o",)),
            out_bias=bias(attention, ("o",), config.out_bias),
            ffn_norm_D=self._there(take(f"{at}.post_attention_layernorm.weight")),
            mlp=mlp(),
            q_norm_E=self._there(take(f"{attention}.q_norm.weight")) if config.qk_norm else None,
            k_norm_E=self._there(take(f"{attention}.k_norm.weight")) if config.qk_norm else None,
        )

    def run(self, spans: Sequence[Span], taps: Collection[int] = (), brought: Arrays | None = None) -> Ran:
        """As `DecoderLM.run`, for spans that it has checked. Logits, hidden states and taps are float32."""
        counts = [span.count for span in spans]
        caches = [_paged(span) for span in spans]
        for span, cache, count in zip(spans, caches, counts, strict=True):
            cache.reserve(span.start + count)
        for span, cache in zip(spans, caches, strict=True):
            cache.length = span.start
        added = features(spans)
        rows = {f"features{i}": np.array(rows, np.int64) for i, (rows, _) in enumerate(added)}
        arrays, seen = self._host(spans, caches, counts)
        sent = self.staging.send(arrays | rows | dict(brought or {}))
        x_TD = self._fed(spans, counts, sent["tokens"])
        where = self.where(sent, seen)
        there = [
            (sent[f"features{i}"], torch.cat([part.to(self.device) for part in parts]).to(self.dtype))
            for i, (_, parts) in enumerate(added)
        ]
        h_TD, kept = self.layers(x_TD, where, there, taps)
        logits_RV = self.logits(h_TD[sent["ends"]])
        for span, cache, count in zip(spans, caches, counts, strict=True):
            cache.length = span.start + count
        return Ran(logits_RV, h_TD.float(), {i: tap_TD.float() for i, tap_TD in kept.items()}, sent)

    def logits(self, h_RD: torch.Tensor) -> torch.Tensor:
        """logits_RV, float32 of a product that was rounded to the model's type, as others have it."""
        if self._head_VD is None:
            return h_RD.new_empty(0, self.config.vocab, dtype=torch.float32)
        return self._product(h_RD, self._head_VD).float()

    def where(self, sent: Mapping[str, torch.Tensor], seen: Plan) -> Where:
        """Arrays of a pass as `layers` takes them; of `seen` only what stays on the host is used."""
        return Where(*self._turns(sent["positions"]), sent["slots"], seen.on(_sent(seen, sent)), self.pages.kv_L2NPGE)

    def layers(
        self,
        x_TD: torch.Tensor,
        where: Where,
        added: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        taps: Collection[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """hidden_TD after the last norm, and the inputs of the layers that `taps` names.

        Args:
            x_TD: what the first layer is fed.
            where: see there.
            added: by layer, rows_M and what is added to them, [M, D].
            taps: see above.
        """
        config, (heads, turned) = self.config, (self.config.heads, self.config.heads + self.config.kv_heads)
        at_T = torch.arange(len(x_TD), device=self.device)
        angles = (at_T, where.cos_TF, where.sin_TF)
        scale = config.head_dim**-0.5
        kept = {0: x_TD} if 0 in taps else {}
        h_TD = rms_norm(x_TD, self._layers[0].norm_D, config.eps)
        for i, layer in enumerate(self._layers):
            k_NPGE, v_NPGE = where.kv_L2NPGE[i]
            qkv_THE = self._product(h_TD, layer.qkv, layer.qkv_bias).view(-1, turned + config.kv_heads, config.head_dim)
            if layer.q_norm_E is not None and layer.k_norm_E is not None:
                norm_rotary(qkv_THE[:, :turned], heads, layer.q_norm_E, layer.k_norm_E, config.eps, *angles)
            else:
                rotary(qkv_THE[:, :turned], *angles, in_place=True)
            store_kv(qkv_THE[:, heads:turned], qkv_THE[:, turned:], k_NPGE, v_NPGE, where.slots_T)
            mixed_THE = paged_attention(qkv_THE[:, :heads], k_NPGE, v_NPGE, where.seen, scale)
            out_TD = self._product(mixed_THE.flatten(1), layer.out, layer.out_bias)
            h_TD, x_TD = add_rms_norm(out_TD, x_TD, layer.ffn_norm_D, config.eps)
            after_D = self._layers[i + 1].norm_D if i + 1 < config.layers else self._norm_D
            h_TD, x_TD = add_rms_norm(self._mlp(layer.mlp, h_TD), x_TD, after_D, config.eps)
            if i + 1 in taps:
                kept[i + 1] = x_TD
            if i < len(added):
                rows_M, features_MD = added[i]
                x_TD = x_TD.index_add(0, rows_M, features_MD)
                h_TD = h_TD.index_copy(0, rows_M, rms_norm(x_TD[rows_M], after_D, config.eps))  # the other rows stay as they are
        return h_TD, kept

    def rows(self, count: int, positions: int) -> torch.Tensor:
        """Pages of so many sequences in lockstep, a block each."""
        c = self.config
        shape = (c.layers, 2, count, positions, c.kv_heads, c.head_dim)
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def lockstep(self, x_RND: torch.Tensor, kv_L2NPGE: torch.Tensor, start: int) -> torch.Tensor:
        """As `DecoderLM.lockstep`: hidden_RD of the last position, float32."""
        rows, count = x_RND.shape[:2]
        places = kv_L2NPGE.shape[3]
        key = (rows, count, start, places)
        if (step := self._steps.get(key)) is None:
            if len(self._steps) >= PLANS:
                self._steps.clear()
            at = np.arange(start, start + count)
            batch = plan([count] * rows, [start + count] * rows, [[r] for r in range(rows)], self._group)
            slots = (np.arange(rows)[:, None] * places + at).reshape(-1)
            positions = np.tile(at.astype(np.float32), rows)[None]
            sent = self.staging.send({"slots": slots, "positions": positions} | _tables(batch))
            step = (sent["positions"], sent["slots"], batch.on(_sent(batch, sent)))
            self._steps[key] = step
        where = Where(*self._turns(step[0]), step[1], step[2], kv_L2NPGE)
        h_TD, _ = self.layers(x_RND.reshape(rows * count, -1).to(self.dtype), where)
        return h_TD[count - 1 :: count].float()

    @property
    def _group(self) -> int:
        return self.config.heads // self.config.kv_heads

    def _host(self, spans: Sequence[Span], caches: Sequence[PagedCache], counts: Sequence[int]) -> tuple[dict[str, Any], Plan]:
        """What the device is sent of a ragged batch, and its plan."""
        told = [span.given is not None and span.given.positions_3N is not None for span in spans]
        assert self._axis_F is not None or not any(told), "positions of three numbers, for a decoder whose positions have one"
        total, axes = sum(counts), 3 if any(told) else 1
        tokens_T, slots_T = np.zeros(total, np.int64), np.empty(total, np.int64)
        positions_AT = np.empty((axes, total), np.float32)
        ends, end = [], 0
        for span, cache, count in zip(spans, caches, counts, strict=True):
            here, given = slice(end, end + count), span.given
            end += count
            if given is None or given.vectors_ND is None:
                tokens_T[here] = span.tokens
            if given is not None and given.positions_3N is not None:
                positions_AT[:, here] = given.positions_3N.numpy()
            else:
                positions_AT[:, here] = np.arange(span.start, span.start + count)
            slots_T[here] = cache.slots(span.start, span.start + count)
            if span.draw:
                ends.append(end - 1)
        batch = self._plan([(span.start, count, cache) for span, count, cache in zip(spans, counts, caches, strict=True)])
        arrays = {"tokens": tokens_T, "slots": slots_T, "positions": positions_AT, "ends": np.array(ends, np.int64)}
        return arrays | _tables(batch), batch

    def _plan(self, rows: Sequence[tuple[int, int, PagedCache]]) -> Plan:
        """Of rows (start, count, cache). A query's sums depend on the height of its tile, which is that of a chunk: where they
        must not, chunks are rows of as many queries as fit into a small one."""
        if self.invariant:
            most = tile_rows(self._group)[0] // self._group
            rows = [(start + at, min(most, count - at), cache) for start, count, cache in rows for at in range(0, count, most)]
        tables = [cache.table for _, _, cache in rows]
        return plan([count for _, count, _ in rows], [start + count for start, count, _ in rows], tables, self._group)

    def _fed(self, spans: Sequence[Span], counts: Sequence[int], tokens_T: torch.Tensor) -> torch.Tensor:
        """x_TD: embeddings, and vectors where a span brings some."""
        if not self.config.embedding:
            x_TD = F.embedding(tokens_T, self.embedding_VD)
        else:
            x_TD = torch.empty(len(tokens_T), self.config.width, device=self.device, dtype=self.dtype)
        for span, count, end in zip(spans, counts, accumulate(counts), strict=True):
            if span.given is not None and span.given.vectors_ND is not None:
                x_TD[end - count : end] = span.given.vectors_ND
        return x_TD

    def _turns(self, positions_AT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos_TF and sin_TF of the angles of each token: no table, so positions may be fractions, and any."""
        at_FT = positions_AT if self._axis_F is None or len(positions_AT) == 1 else positions_AT[self._axis_F]
        angle_TF = at_FT.t() * self._frequency_F
        return angle_TF.cos(), angle_TF.sin()

    def _product(self, x_TK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> torch.Tensor:
        return product(x_TK, weight_NK, bias_N) if self.invariant else F.linear(x_TK, weight_NK, bias_N)

    def _mlp(self, mlp: _Dense | _Sparse, h_TD: torch.Tensor) -> torch.Tensor:
        if isinstance(mlp, _Dense):
            gate_up_TM = self._product(h_TD, mlp.gate_up, mlp.gate_up_bias)
            return self._product(silu_mul(gate_up_TM), mlp.down, mlp.down_bias)
        sparse = self.config.sparse
        assert sparse is not None
        expert_TC, weight_TC = route(self._product(h_TD, mlp.router_XD), sparse.chosen, sparse.normalise)
        routed_TD = fused_moe(h_TD, mlp.gate_up_XMD, mlp.down_XDF, expert_TC, weight_TC, self.invariant)
        if mlp.shared is None or mlp.shared_gate_1D is None:
            return routed_TD
        return routed_TD + self._product(h_TD, mlp.shared_gate_1D).sigmoid() * self._mlp(mlp.shared, h_TD)


def _paged(span: Span) -> PagedCache:
    assert isinstance(span.cache, PagedCache), f"a {type(span.cache).__name__} for a decoder that keeps pages"
    return span.cache


def _tables(batch: Plan) -> dict[str, np.ndarray[Any, Any]]:
    """What the device is sent of a plan."""
    return {name: tensor.numpy() for name, tensor in batch.tensors().items()}


def _sent(batch: Plan, sent: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: sent[name] for name in batch.tensors()}
