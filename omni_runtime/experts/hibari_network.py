"""The back network of hibari, frame features to spectra, as a stream: what a convolution needs of earlier frames is kept.

A frame is 300 samples (12.5 ms). One dense convolution over 7 frames, then eight ConvNeXt blocks (Liu et al. 2022, "A ConvNet
for the 2020s": depthwise convolution over 7 frames, layer norm, 256 -> 768 -> 256 with GELU, a scale, residual), layer norm and
a linear head of 5 x 601. Every convolution looks 3 frames ahead, so the spectra of frame k need frame k + 27 or the end.

T frames, K taps, D channels inside, E inner width, W features, B = 601 bins, P = 5 parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

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
    h_TD = F.linear(near_TKW, net.first_DKW, net.first_shift_D)
    for i, block in enumerate(net.blocks):
        news = list(torch.split(h_TD, sizes))
        seen = windows(i + 1)
        sizes = [max(len(rows) - (TAPS - 1), 0) for rows in seen]
        y_TD = torch.cat([_depthwise(rows, size, block) for rows, size in zip(seen, sizes, strict=True)])
        y_TD = F.layer_norm(y_TD, (CHANNELS,), block.norm_D, block.norm_shift_D, EPS)
        y_TE = F.gelu(F.linear(y_TD, block.widen_ED, block.widen_shift_E))
        centre_TD = torch.cat([rows[SIDE : SIDE + size] for rows, size in zip(seen, sizes, strict=True)])
        h_TD = centre_TD + F.linear(y_TE, block.narrow_DE, block.narrow_shift_D)
    h_TD = F.layer_norm(h_TD, (CHANNELS,), net.norm_D, net.norm_shift_D, EPS)
    spectra_TPB = F.linear(h_TD, net.head_OD, net.head_shift_O).reshape(-1, PARTS, BINS)
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
