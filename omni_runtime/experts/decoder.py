"""A decoder-only language model: grouped-query attention, rotary positions, RMSNorm, SwiGLU: Llama, Qwen2, Qwen3, Qwen3-MoE,
and the decoders inside Qwen3-Omni.

A call takes a ragged batch: spans of tokens of several sequences, prompts and single tokens mixed, one after the other along one
axis, without padding. Linear layers see all tokens at once; attention runs span by span on the sequence's own contiguous cache,
because gathering pages costs 3 to 4 times as much on a CPU.

A span may bring what an omni model has in place of ids (`Given`): vectors, positions of three numbers, features for the first
layers. Its neighbours are computed as if it were not there.

On a CPU with a C compiler the layers are one call (`decoder_cpu.py`), on a GPU kernels over pages (`decoder_gpu.py`). What is
here runs everywhere, and both are held to it.

Suffixes: T tokens of all spans, S positions of one sequence, D width, H query heads, K key-value heads, G = H/K, E head
dimension, V vocabulary, R spans that draw, L layers, N tokens of one span, M of them that features are added to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from omni_runtime.errors import CardError, CheckpointError, RequestError
from omni_runtime.experts.decoder_cpu import CpuLayers
from omni_runtime.experts.decoder_gpu import Arrays, PagedLayers, paged
from omni_runtime.experts.kv_cache import Cache, Kept, KVCache
from omni_runtime.experts.linear import Linear, linear, native, varies
from omni_runtime.experts.moe import Mlp, gated, mixture, with_shared
from omni_runtime.experts.one_thread import one_thread
from omni_runtime.experts.pages import PagedCache, Pages
from omni_runtime.experts.rotary import Rotary
from omni_runtime.experts.spans import Given as Given
from omni_runtime.experts.spans import Ran as Ran
from omni_runtime.experts.spans import Span as Span
from omni_runtime.experts.spans import features
from omni_runtime.kernels import add_rms_norm, rms_norm
from omni_runtime.weights.decoder_config import DecoderConfig, parameter_shapes


@dataclass(frozen=True)
class _Layer:
    norm_D: torch.Tensor
    qkv: Linear
    out: Linear
    ffn_norm_D: torch.Tensor
    mlp: Mlp
    q_norm_E: torch.Tensor | None
    k_norm_E: torch.Tensor | None


BRIEF = 1024  # positions: up to here one thread does a decode row's attention as fast as two

Features = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""By layer: rows_M, and what is added to them, [M, D]"""

Taps = Collection[int]

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""q_NHE, k_1KSE, v_1KSE → [N, H·E]"""


class DecoderLM:
    """Resident weights: float32, or on a GPU what they are stored in.

    Args:
        config: the shape.
        weights: exactly the names of `parameter_shapes`; each is read once, layer by layer, so a lazy mapping never holds all.
        device: where it computes.
        layout: that of `linear.linear`. "paged", and "auto" on a GPU: `decoder_gpu`, whose pool `allot` makes.
        dtype: of a decoder with pages, see `decoder_gpu.kept_as`.

    Raises:
        CardError: a layout or dtype that cannot be had here.
        CheckpointError: a tensor is missing, surplus or of another shape.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, torch.Tensor],
        device: str = "cpu",
        layout: str = "auto",
        dtype: str = "auto",
    ) -> None:
        self.config, self.device = config, torch.device(device)
        shapes = parameter_shapes(config)
        if odd := sorted(set(weights) ^ set(shapes)):
            what = "missing" if odd[0] in shapes else "not part of this decoder"
            raise CheckpointError(f"tensor {odd[0]!r} is {what}; {len(odd)} names differ in all")

        def stored(name: str) -> torch.Tensor:
            weight = weights[name]
            if tuple(weight.shape) != shapes[name]:
                raise CheckpointError(f"tensor {name!r} has shape {tuple(weight.shape)}, the configuration asks {shapes[name]}")
            return weight

        def take(name: str) -> torch.Tensor:
            return stored(name).detach().to(self.device, torch.float32)

        self._paged = None
        if paged(layout, self.device):
            self.exact, self.varies = False, varies(self.device, layout)
            with torch.inference_mode():
                self._paged = PagedLayers(config, stored, self.device, dtype)
            self.exact = self._paged.exact
            told = f"over pages on {self.device} the definitions in torch compute, whose sums depend on how many rows a call has"
            self.varies = "" if self.exact else f"{told}; that is exact by Triton's kernels on a GPU: leave batch_invariant out"
            return
        if dtype not in ("auto", "float32"):
            raise CardError(f"dtype={dtype!r}: layout {layout!r} computes in float32; take 'auto', or linear='paged' on a GPU")

        def fused(prefix: str, parts: tuple[str, ...], bias: bool = False, how: str = layout) -> Linear:
            biases_N = torch.cat([take(f"{prefix}.{part}_proj.bias") for part in parts]) if bias else None
            return linear(torch.cat([take(f"{prefix}.{part}_proj.weight") for part in parts]), biases_N, how)

        def mlp(i: int) -> Mlp:
            at, sparse = f"model.layers.{i}.mlp", config.sparse
            if sparse is None or i not in sparse.layers:
                return gated(fused(at, ("gate", "up"), config.mlp_bias), fused(at, ("down",), config.mlp_bias))
            # An expert sees few rows of a batch, and all experts together are most of the model: one copy, as stored.
            names = [f"{at}.experts.{expert}" for expert in range(sparse.experts)]
            experts = [gated(fused(name, ("gate", "up"), how="plain"), fused(name, ("down",), how="plain")) for name in names]
            routed = mixture(linear(take(f"{at}.gate.weight"), None, "plain"), experts, sparse.chosen, sparse.normalise)
            if not sparse.shared:
                return routed
            shared = gated(
                fused(f"{at}.shared_expert", ("gate", "up"), how="plain"), fused(f"{at}.shared_expert", ("down",), how="plain")
            )
            return with_shared(routed, shared, linear(take(f"{at}.shared_expert_gate.weight"), None, "plain"))

        with torch.inference_mode():
            self._embedding_VD = take("model.embed_tokens.weight")
            self._norm_D = take("model.norm.weight")
            self._head = None
            if config.head:
                self._head = linear(self._embedding_VD if config.tied else take("lm_head.weight"), None, layout)
            self._turn = Rotary(config, self.device)
            kind = native(layout, self._embedding_VD)
            self._native = None if kind is None else CpuLayers(config, take, kind)
            self.exact = kind is not None  # a row tells neither its company nor its chunk, to the bit
            self.varies = "" if self.exact else varies(self.device, layout)
            self._layers = []
            for i in range(config.layers if kind is None else 0):
                at = f"model.layers.{i}.self_attn"
                layer = _Layer(
                    norm_D=take(f"model.layers.{i}.input_layernorm.weight"),
                    qkv=fused(at, ("q", "k", "v"), config.qkv_bias),
                    out=fused(at, ("o",), config.out_bias),
                    ffn_norm_D=take(f"model.layers.{i}.post_attention_layernorm.weight"),
                    mlp=mlp(i),
                    q_norm_E=take(f"{at}.q_norm.weight") if config.qk_norm else None,
                    k_norm_E=take(f"{at}.k_norm.weight") if config.qk_norm else None,
                )
                self._layers.append(layer)

    def cache(self) -> Cache:
        """An empty cache for one sequence."""
        return KVCache(self.config, str(self.device)) if self._paged is None else PagedCache(self._paged.pages)

    @property
    def over_pages(self) -> PagedLayers | None:
        """The layers that compute over pages, where there are any."""
        return self._paged

    @property
    def pages(self) -> Pages | None:
        """The pool that its caches lie in; None where each has memory of its own."""
        return None if self._paged is None else self._paged.pages

    def check(self, span: Span) -> None:
        """Whether a span can run.

        Raises:
            RequestError: it is empty, a token is not in the vocabulary, or it ends beyond the last position.
            AssertionError: it starts beyond what its cache holds: a bug of the caller.
        """
        assert 0 <= span.start <= span.cache.length, f"span starts at {span.start}, its cache holds {span.cache.length} positions"
        if not span.count:
            raise RequestError("tokens: at least one token needed")
        if span.tokens and not 0 <= min(span.tokens) <= max(span.tokens) < self.config.vocab:
            wrong = next(token for token in span.tokens if not 0 <= token < self.config.vocab)
            raise RequestError(f"tokens: {wrong} is not in the vocabulary of {self.config.vocab}")
        if (stop := span.start + span.count) > self.config.positions:
            raise RequestError(f"tokens: {stop} positions, the model takes {self.config.positions}; shorten the prompt")

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """x_TD, float32: what the first layer is fed for these ids. They must be of the vocabulary."""
        if self._paged is not None:
            ids_T = self._paged.staging.send({"ids": np.array(tokens, np.int64)})["ids"]
            return F.embedding(ids_T, self._paged.embedding_VD).float()
        return F.embedding(torch.tensor(tokens, dtype=torch.int64, device=self.device), self._embedding_VD)

    def embed_there(self, ids_T: torch.Tensor) -> torch.Tensor:
        """The same of ids that are on the device of a decoder with pages."""
        assert self._paged is not None
        return F.embedding(ids_T, self._paged.embedding_VD).float()

    def forward(self, spans: Sequence[Span]) -> tuple[torch.Tensor, torch.Tensor]:
        """As `run`: (logits_RV, hidden_TD)."""
        ran = self.run(spans)
        return ran.logits_RV, ran.hidden_TD

    @torch.inference_mode()
    def run(self, spans: Sequence[Span], taps: Collection[int] = (), brought: Arrays | None = None) -> Ran:
        """Spans of different sequences together. `taps` names layers whose input is asked for; 0 is the embedding. `brought` are
        arrays that a decoder with pages sends along to its device, in the same copy.

        Caches are written at the positions of their span and then end with it: running a span again is harmless, and a lower
        `start` forgets what came after. After an exception they hold the positions before `start`. For errors see `check`.
        """
        assert spans, "no spans"
        assert len({id(span.cache) for span in spans}) == len(spans), "two spans of one sequence in a batch"
        for span in spans:
            self.check(span)
        config = self.config
        assert not config.embedding or all(span.given is not None for span in spans), "this decoder is fed vectors only"
        assert config.head or not any(span.draw for span in spans), "this decoder has no head to draw with"
        if self._paged is not None:
            return self._paged.run(spans, taps, brought)
        assert brought is None, "nothing is sent along where there is no device"
        lengths = [span.count for span in spans]
        positions = [range(span.start, span.start + n) for span, n in zip(spans, lengths, strict=True)]
        plain = all(span.given is None for span in spans)
        if plain:
            x_TD = self.embed([token for span in spans for token in span.tokens])
            cos_T1E, sin_T1E = self._turn.tables([position for run in positions for position in run])
        else:
            x_TD = torch.cat([self._vectors(span) for span in spans])
            cos_T1E, sin_T1E = map(torch.cat, zip(*map(self._turned, spans), strict=True))
        added = [] if plain else self._added(spans)
        for span, run in zip(spans, positions, strict=True):
            span.cache.length = span.start
            span.cache.reserve(run.stop)
        if self._native is not None:
            h_TD, kept = self._natively(spans, x_TD, (cos_T1E, sin_T1E), added, taps)
        else:
            h_TD, kept = self._in_torch(spans, x_TD, (cos_T1E, sin_T1E), added, taps)
        ends = [end - 1 for end, span in zip(_running(lengths), spans, strict=True) if span.draw]
        logits_RV = self._head(h_TD[ends]) if ends and self._head is not None else h_TD.new_empty(0, config.vocab)
        for span, run in zip(spans, positions, strict=True):
            span.cache.length = run.stop
        return Ran(logits_RV, h_TD, kept)

    def _natively(
        self, spans: Sequence[Span], x_TD: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], added: Features, taps: Taps
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """hidden_TD and taps by the kernels for a CPU, which change x_TD."""
        assert self._native is not None
        sequence_T = [i for i, span in enumerate(spans) for _ in range(span.count)]
        position_T = [position for span in spans for position in range(span.start, span.start + span.count)]
        layers = self._native.rows([_own(span).kept() for span in spans], sequence_T, position_T, *turns)
        kept, at = {0: x_TD.clone()} if 0 in taps else {}, 0
        for stop in sorted({*taps, *range(1, len(added) + 1), self.config.layers} - {0}):
            layers(x_TD, at, stop)
            if stop in taps:
                kept[stop] = x_TD.clone()
            if stop <= len(added):
                x_TD.index_add_(0, *added[stop - 1])
            at = stop
        return self._native.norm(x_TD), kept

    def _in_torch(
        self, spans: Sequence[Span], x_TD: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], added: Features, taps: Taps
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """The same by torch, on any device: what the kernels are held to."""
        config, (cos_T1E, sin_T1E) = self.config, turns
        lengths = [span.count for span in spans]
        positions = [range(span.start, span.start + n) for span, n in zip(spans, lengths, strict=True)]
        # By layer, then by span. One slice and one unbind a span instead of four slices a span and layer.
        reach = [(_own(span), run) for span, run in zip(spans, positions, strict=True)]
        written = list(zip(*(cache.views(run.start, run.stop) for cache, run in reach), strict=True))
        seen = list(zip(*(cache.views(0, run.stop) for cache, run in reach), strict=True))
        attends = [self._attend(span.start, n) for span, n in zip(spans, lengths, strict=True)]
        # A decode row's attention is 10 µs of work, and waking a thread for it costs 50 where threads sleep between ops: eight
        # rows of 160 positions take 149 µs a layer on one thread, 613 on two (143 where idle threads spin instead).
        brief = self.device.type == "cpu" and all(n == 1 for n in lengths) and max(run.stop for run in positions) <= BRIEF

        kept = {0: x_TD} if 0 in taps else {}
        h_TD = rms_norm(x_TD, self._layers[0].norm_D, config.eps)
        for i, layer in enumerate(self._layers):
            qk_THE, v_TKE = self._heads(layer, h_TD, cos_T1E, sin_T1E)
            k_KTE, v_KTE = qk_THE[:, config.heads :].transpose(0, 1), v_TKE.transpose(0, 1)
            for place_1KNE, new_KNE in zip(written[2 * i], k_KTE.split_with_sizes(lengths, 1), strict=True):
                place_1KNE.copy_(new_KNE)
            for place_1KNE, new_KNE in zip(written[2 * i + 1], v_KTE.split_with_sizes(lengths, 1), strict=True):
                place_1KNE.copy_(new_KNE)
            parts = qk_THE[:, : config.heads].split_with_sizes(lengths)
            with one_thread(brief):
                mixed = [attend(q, k, v) for attend, q, k, v in zip(attends, parts, seen[2 * i], seen[2 * i + 1], strict=True)]
            attended_TX = torch.cat(mixed) if len(mixed) > 1 else mixed[0]
            h_TD, x_TD = add_rms_norm(layer.out(attended_TX), x_TD, layer.ffn_norm_D, config.eps)
            delta_TD = layer.mlp(h_TD)
            after_D = self._layers[i + 1].norm_D if i + 1 < config.layers else self._norm_D
            h_TD, x_TD = add_rms_norm(delta_TD, x_TD, after_D, config.eps)
            if i + 1 in taps:
                kept[i + 1] = x_TD
            if i < len(added):
                rows_M, features_MD = added[i]
                x_TD = x_TD.index_add(0, rows_M, features_MD)
                h_TD = h_TD.index_copy(0, rows_M, rms_norm(x_TD[rows_M], after_D, config.eps))  # the other rows stay as they are
        return h_TD, kept

    def _heads(
        self, layer: _Layer, h_TD: torch.Tensor, cos_T1E: torch.Tensor, sin_T1E: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys, normed and turned, and values."""
        config = self.config
        turned = config.heads + config.kv_heads
        qkv_THE = layer.qkv(h_TD).view(len(h_TD), turned + config.kv_heads, config.head_dim)
        qk_THE = qkv_THE[:, :turned]
        if layer.q_norm_E is not None and layer.k_norm_E is not None:
            q_THE, k_TKE = qk_THE[:, : config.heads], qk_THE[:, config.heads :]
            qk_THE = torch.cat([rms_norm(q_THE, layer.q_norm_E, config.eps), rms_norm(k_TKE, layer.k_norm_E, config.eps)], 1)
        # (a, b) of a head turn to (a cos - b sin, b cos + a sin); the sign of the sine is in its table.
        return (qk_THE * cos_T1E).addcmul_(qk_THE.roll(config.head_dim // 2, -1), sin_T1E), qkv_THE[:, turned:]

    def rows(self, count: int, positions: int) -> torch.Tensor:
        """kv_LRKSE for so many sequences in lockstep: keys of layer l at 2l, values at 2l + 1. With pages, a block each."""
        if self._paged is not None:
            return self._paged.rows(count, positions)
        c = self.config
        return torch.empty(2 * c.layers, count, c.kv_heads, positions, c.head_dim, device=self.device)

    @torch.inference_mode()
    def lockstep(self, x_RND: torch.Tensor, kv_LRKSE: torch.Tensor, start: int) -> torch.Tensor:
        """The next N positions of R sequences that all stand at `start`, without a mask: N is 1, or `start` is 0.

        Returns hidden_RD, after the last norm, of the last position. Eight rows of a small decoder take half of what `run` takes,
        whose attention goes row by row.
        """
        config = self.config
        rows, count = x_RND.shape[:2]
        stop = start + count
        assert count == 1 or start == 0, f"{count} positions at {start}"
        if self._paged is not None:
            return self._paged.lockstep(x_RND, kv_LRKSE, start)
        cos_N1E, sin_N1E = self._turn.tables(range(start, stop))
        cos_T1E, sin_T1E = cos_N1E.repeat(rows, 1, 1), sin_N1E.repeat(rows, 1, 1)
        if self._native is not None:
            x_TD = x_RND.reshape(rows * count, -1).clone()
            apart, _, head = kv_LRKSE.stride()[:3]
            kept = [Kept(kv_LRKSE[:, r], apart, head) for r in range(rows)]
            at_T = [position for _ in range(rows) for position in range(start, stop)]
            sequence_T = [r for r in range(rows) for _ in range(count)]
            self._native.rows(kept, sequence_T, at_T, cos_T1E, sin_T1E)(x_TD, 0, config.layers)
            return self._native.norm(x_TD[count - 1 :: count].contiguous())
        x_TD = x_RND.reshape(rows * count, -1)
        h_TD = rms_norm(x_TD, self._layers[0].norm_D, config.eps)
        for i, layer in enumerate(self._layers):
            qk_THE, v_TKE = self._heads(layer, h_TD, cos_T1E, sin_T1E)
            qk_RHNE = qk_THE.unflatten(0, (rows, count)).transpose(1, 2)
            k_RKSE, v_RKSE = kv_LRKSE[2 * i, :, :, :stop], kv_LRKSE[2 * i + 1, :, :, :stop]
            k_RKSE[:, :, start:] = qk_RHNE[:, config.heads :]
            v_RKSE[:, :, start:] = v_TKE.unflatten(0, (rows, count)).transpose(1, 2)
            q_RHNE, grouped = qk_RHNE[:, : config.heads], config.heads > config.kv_heads
            out_RHNE = F.scaled_dot_product_attention(q_RHNE, k_RKSE, v_RKSE, is_causal=count > 1, enable_gqa=grouped)
            attended_TX = out_RHNE.transpose(1, 2).reshape(rows * count, -1)
            h_TD, x_TD = add_rms_norm(layer.out(attended_TX), x_TD, layer.ffn_norm_D, config.eps)
            after_D = self._layers[i + 1].norm_D if i + 1 < config.layers else self._norm_D
            h_TD, x_TD = add_rms_norm(layer.mlp(h_TD), x_TD, after_D, config.eps)
        return h_TD[count - 1 :: count]

    def _vectors(self, span: Span) -> torch.Tensor:
        given_ND = None if span.given is None else span.given.vectors_ND
        return self.embed(span.tokens) if given_ND is None else given_ND.to(self.device, torch.float32)

    def _turned(self, span: Span) -> tuple[torch.Tensor, torch.Tensor]:
        given_3N = None if span.given is None else span.given.positions_3N
        return self._turn.tables(range(span.start, span.start + span.count)) if given_3N is None else self._turn.turned(given_3N)

    def _added(self, spans: Sequence[Span]) -> Features:
        return [
            (torch.tensor(rows, device=self.device), torch.cat([part_MD.to(self.device, torch.float32) for part_MD in parts]))
            for rows, parts in features(spans)
        ]

    def _attend(self, start: int, count: int) -> Attend:
        """Attention of one span. Query heads that share a key head are rows of one product where there is one position."""
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        attention = F.scaled_dot_product_attention
        if count == 1:

            def one(q_1HE: torch.Tensor, k_1KSE: torch.Tensor, v_1KSE: torch.Tensor) -> torch.Tensor:
                return attention(q_1HE.view(1, kv_heads, heads // kv_heads, head_dim), k_1KSE, v_1KSE).view(1, heads * head_dim)

            return one
        mask_NS = None
        if start:
            mask_NS = torch.full((count, start + count), float("-inf"), device=self.device).triu_(start + 1)

        def many(q_NHE: torch.Tensor, k_1KSE: torch.Tensor, v_1KSE: torch.Tensor) -> torch.Tensor:
            q_1HNE = q_NHE.transpose(0, 1)[None]
            causal, grouped = mask_NS is None, heads > kv_heads
            out_1HNE = attention(q_1HNE, k_1KSE, v_1KSE, attn_mask=mask_NS, is_causal=causal, enable_gqa=grouped)
            return out_1HNE[0].transpose(0, 1).reshape(count, heads * head_dim)

        return many


def _own(span: Span) -> KVCache:
    assert isinstance(span.cache, KVCache), f"a {type(span.cache).__name__} for a decoder that keeps no pages"
    return span.cache


def _running(lengths: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for length in lengths:
        total += length
        sums.append(total)
    return sums
