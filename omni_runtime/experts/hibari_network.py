"""The back network of hibari, frame features to spectra, as a stream: what a convolution needs of earlier frames is kept.

A frame is 300 samples (12.5 ms). One dense convolution over 7 frames, then eight ConvNeXt blocks (Liu et al. 2022, "A ConvNet
for the 2020s": depthwise convolution over 7 frames, layer norm, 256 -> 768 -> 256 with GELU, a scale, residual), layer norm and
a linear head of 5 x 601. Every convolution looks 3 frames ahead, so the spectra of frame k need frame k + 27 or the end.

T frames, K taps, D channels inside, E inner width, W features, B = 601 bins, P = 5 parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from omni_runtime.experts.linear import Linear, linear, native
from omni_runtime.experts.steady import gelu
from omni_runtime.weights.hibari import WIDTH, voice_file
from omni_runtime.weights.onnx_graph import Constants, load_graph

TAPS = 7
SIDE = TAPS // 2
BLOCKS = 8
CHANNELS = 256
INNER = 768
BINS = 601
PARTS = 5
REACH = SIDE * (BLOCKS + 1)  # frames of input on either side that one frame of output can feel
EPS = 1e-5


class Block(NamedTuple):
    """Weights of one ConvNeXt block."""

    taps_KD: Tensor
    shift_D: Tensor
    norm_D: Tensor
    norm_shift_D: Tensor
    widen_ED: Tensor
    widen_shift_E: Tensor
    narrow_DE: Tensor  # the scale of the block is multiplied in
    narrow_shift_D: Tensor


@dataclass(frozen=True)
class Network:
    """Weights. `advance_network` is their only use."""

    first_DKW: Tensor  # [D, K * W]
    first_shift_D: Tensor
    blocks: tuple[Block, ...]
    norm_D: Tensor
    norm_shift_D: Tensor
    head_OD: Tensor  # O = P * B
    head_shift_O: Tensor

    @property
    def exact(self) -> bool:
        """Whether a frame tells neither what else was computed with it nor in which piece, to the bit."""
        return native("auto", self.head_OD) is not None

    @cached_property
    def products(self) -> tuple[Linear, tuple[tuple[Linear, Linear], ...], Linear]:
        """First convolution, both layers of every block, head: in our own kernels, if there are any. 16 MB beside the weights."""
        how = "native" if self.exact else "plain"

        def pair(block: Block) -> tuple[Linear, Linear]:
            wide, narrow = (block.widen_ED, block.widen_shift_E), (block.narrow_DE, block.narrow_shift_D)
            return linear(*wide, how), linear(*narrow, how)

        first, head = linear(self.first_DKW, self.first_shift_D, how), linear(self.head_OD, self.head_shift_O, how)
        return first, tuple(pair(block) for block in self.blocks), head


Tails = tuple[Tensor, ...]
"""Last rows of every convolution's input, at most 6 each: [., W], then 8 times [., D]. 50 kB a stream."""


@dataclass(frozen=True)
class Strand:
    """What one segment has for the network: the tails that its earlier frames left, and new frames."""

    tails: Tails
    frames_TW: Tensor
    ends: bool  # the last of these frames is the last of its segment


def load_network(path: str | None, device: str) -> Network:
    """Reads the weights out of a voice, 8-bit ones turned into float32.

    Raises:
        CheckpointError: not a file, or not such a network.
        MissingExtra: a package of the extra `speech` is missing.
    """
    where: Path = voice_file(path)
    constants = Constants(load_graph(where), str(where))

    def plain(name: str, *shape: int) -> Tensor:
        return torch.from_numpy(constants.get(f"m.{name}", shape).copy()).to(device)

    def matrix(name: str, inputs: int, outputs: int) -> Tensor:
        return torch.from_numpy(constants.dequantised(f"/{name}/Transpose_output_0", (inputs, outputs))).to(device).T.contiguous()

    def block(i: int) -> Block:
        gain_D = plain(f"dec.{i}.gamma", CHANNELS)
        return Block(
            plain(f"dec.{i}.dw.weight", CHANNELS, 1, TAPS)[:, 0].T.contiguous(),
            plain(f"dec.{i}.dw.bias", CHANNELS),
            plain(f"dec.{i}.norm.weight", CHANNELS),
            plain(f"dec.{i}.norm.bias", CHANNELS),
            matrix(f"dec.{i}/pw1", CHANNELS, INNER),
            plain(f"dec.{i}.pw1.bias", INNER),
            matrix(f"dec.{i}/pw2", INNER, CHANNELS) * gain_D[:, None],
            plain(f"dec.{i}.pw2.bias", CHANNELS) * gain_D,
        )

    return Network(
        plain("dec_in.weight", CHANNELS, WIDTH, TAPS).transpose(1, 2).reshape(CHANNELS, TAPS * WIDTH).contiguous(),
        plain("dec_in.bias", CHANNELS),
        tuple(block(i) for i in range(BLOCKS)),
        plain("dec_norm.weight", CHANNELS),
        plain("dec_norm.bias", CHANNELS),
        matrix("head", CHANNELS, PARTS * BINS),
        plain("head.bias", PARTS * BINS),
    )


def fresh_tails(device: str) -> Tails:
    """Before the first frame of a segment every convolution sees 3 rows of zeros, as in a whole utterance."""
    return tuple(torch.zeros(SIDE, width, device=device) for width in (WIDTH, *[CHANNELS] * BLOCKS))


def advance_network(net: Network, strands: Sequence[Strand]) -> list[tuple[Tails, Tensor]]:
    """New tails and the spectra that became certain, [T, P, B], for each strand.

    T is what the strand's frames so far allow: all up to REACH before the last one, or all when the segment ends. Strands share
    the matrix products and nothing else.
    """
    ends = [strand.ends for strand in strands]
    tails: list[list[Tensor]] = [[] for _ in strands]
    news = [strand.frames_TW for strand in strands]

    def windows(layer: int) -> list[Tensor]:
        """Per strand [T + 6, .]: the rows that T positions look at. Keeps what the next call will need of them."""
        found = []
        for strand, new, end, kept in zip(strands, news, ends, tails, strict=True):
            rows = torch.cat([strand.tails[layer], new, new.new_zeros(SIDE if end else 0, new.shape[1])])
            kept.append(rows[max(len(rows) - (TAPS - 1), 0) :].clone())  # a view would keep all rows alive
            found.append(rows)
        return found

    seen = windows(0)
    sizes = [max(len(rows) - (TAPS - 1), 0) for rows in seen]
    near_TKW = torch.cat([_unrolled(rows, size) for rows, size in zip(seen, sizes, strict=True)])
    first, blocks, head = net.products
    h_TD = first(near_TKW)
    for i, (block, (wide, narrow)) in enumerate(zip(net.blocks, blocks, strict=True)):
        news = list(torch.split(h_TD, sizes))
        seen = windows(i + 1)
        sizes = [max(len(rows) - (TAPS - 1), 0) for rows in seen]
        y_TD = torch.cat([_depthwise(rows, size, block) for rows, size in zip(seen, sizes, strict=True)])
        y_TD = F.layer_norm(y_TD, (CHANNELS,), block.norm_D, block.norm_shift_D, EPS)
        y_TE = gelu(wide(y_TD))
        centre_TD = torch.cat([rows[SIDE : SIDE + size] for rows, size in zip(seen, sizes, strict=True)])
        h_TD = centre_TD + narrow(y_TE)
    h_TD = F.layer_norm(h_TD, (CHANNELS,), net.norm_D, net.norm_shift_D, EPS)
    spectra_TPB = head(h_TD).reshape(-1, PARTS, BINS)
    return [(tuple(kept), part) for kept, part in zip(tails, torch.split(spectra_TPB, sizes), strict=True)]


def _unrolled(rows_TW: Tensor, size: int) -> Tensor:
    """[T, K * W]: for each position the rows that it looks at, one after the other."""
    if not size:
        return rows_TW.new_empty(0, TAPS * rows_TW.shape[1])
    return rows_TW.unfold(0, TAPS, 1).transpose(1, 2).reshape(size, -1)


def _depthwise(rows_TD: Tensor, size: int, block: Block) -> Tensor:
    y_TD = torch.addcmul(block.shift_D, rows_TD[:size], block.taps_KD[0])
    for k in range(1, TAPS):
        y_TD.addcmul_(rows_TD[k : k + size], block.taps_KD[k])
    return y_TD
