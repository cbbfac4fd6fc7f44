"""Steps of one token a row: what decoding is most of the time. Each is a function of arrays of a few fixed shapes, so a graph.

Rows and blocks are filled up to the sizes of a bucket with rows that do nothing: no place in the pages, no tile, and a draw that
nobody reads.

Suffixes: R rows of a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from omni_runtime.draw import Draw
from omni_runtime.experts import device_draw
from omni_runtime.experts.decoder_gpu import PagedLayers
from omni_runtime.experts.device_queue import Mark, queue_of
from omni_runtime.experts.graphs import Graphs, Outputs
from omni_runtime.experts.packed import Layout
from omni_runtime.experts.pages import PagedCache
from omni_runtime.experts.staging import Reading
from omni_runtime.kernels import Plan, plan
from omni_runtime.kernels.attention import bucket

GRAPHS = 48  # 8 numbers of rows times 6 lengths
LEAST_BLOCKS = 8


class Step(NamedTuple):
    """A row's step: token `token` at position `start`, and the draw of output token `number` after it."""

    cache: PagedCache
    start: int
    turned: float  # by the angles of this position: media move all that stands after them
    token: int
    how: Draw
    number: int


class From(NamedTuple):
    """A token that was drawn and need not have been read: row `row` of `tokens`."""

    tokens: Tokens
    row: int


@dataclass
class Tokens:
    """What a queued step of some rows draws."""

    token_R: torch.Tensor
    reading: Reading
    marks: tuple[Mark, Mark] | None  # its begin and end in the queue; None on a CPU
    host: tuple[list[int], list[float]] | None = None

    def read(self) -> tuple[list[int], list[float]]:
        """Tokens and the largest logits of their rows. Waits for this step, and for nothing behind it."""
        if self.host is None:
            token_R, peak_R = self.reading.get()
            self.host = token_R.tolist(), peak_R.tolist()
        return self.host


class Steps:
    """Queues steps on the device of some layers."""

    def __init__(self, layers: PagedLayers) -> None:
        self._layers = layers
        self._graphs = Graphs(layers.device, GRAPHS)
        self._queue = queue_of(layers.device)

    @torch.inference_mode()
    def queue(self, steps: Sequence[Step], fed: Sequence[From] = ()) -> Tokens:
        """One step of different sequences.

        Args:
            steps: their caches have room for what they write, and are not changed: who takes the result sets their lengths.
            fed: tokens that are fed in place of those of the steps, a row each.
        """
        pages, config = self._layers.pages, self._layers.config
        rows, blocks = _up(len(steps)), _up(max(len(step.cache.table) for step in steps), LEAST_BLOCKS)
        group = config.heads // config.kv_heads
        sizes = bucket(rows, 1, blocks, pages.places, group)
        tables = [step.cache.table for step in steps]
        seen = plan([1] * len(steps), [step.start + 1 for step in steps], tables, group, sizes=sizes)
        seen.fits(pages.places)
        draws = device_draw.arrays([step.how for step in steps], [step.number for step in steps], [None] * len(steps))
        slots_R = np.full(rows, -1, np.int64)
        slots_R[: len(steps)] = [step.cache.slot(step.start) for step in steps]
        positions_1R = np.zeros((1, rows), np.float32)
        positions_1R[0, : len(steps)] = [step.turned for step in steps]
        arrays: dict[str, np.ndarray[Any, Any]] = {"slots": slots_R, "positions": positions_1R}
        arrays |= {name: tensor.numpy() for name, tensor in seen.tensors().items()}
        arrays |= {name: _filled(array, rows) for name, array in draws.items()}
        layout = Layout(arrays)
        begun = None if self._queue is None else self._queue.mark(timed=True)
        host = {"packed": layout.pack(arrays)}
        sources = list({id(one.tokens): one.tokens for one in fed}.values())
        if not fed:
            host["tokens"] = _filled(np.array([step.token for step in steps], np.int64), rows)
        elif not (len(sources) == 1 and [one.row for one in fed] == list(range(len(fed))) and len(sources[0].token_R) == rows):
            first, at = 0, dict[int, int]()
            for source in sources:
                at[id(source)] = first
                first += len(source.token_R)
            host["which"] = _filled(np.array([at[id(one.tokens)] + one.row for one in fed], np.int64), rows)
        sent = self._layers.staging.send(host)
        if fed:
            tokens_R = torch.cat([source.token_R for source in sources])[sent["which"]] if "which" in sent else sources[0].token_R
        else:
            tokens_R = sent["tokens"]
        inputs = {"packed": sent["packed"], "tokens": tokens_R}
        token_R, peak_R = self._graphs.run((rows, blocks, self._layers.invariant), partial(self._step, seen, layout), inputs)
        token_R = token_R.clone()  # a graph's output is overwritten by its next run
        reading = Reading(token_R, peak_R)
        return Tokens(token_R, reading, None if begun is None or self._queue is None else (begun, self._queue.mark(timed=True)))

    def _step(self, seen: Plan, layout: Layout, inputs: Mapping[str, torch.Tensor]) -> Outputs:
        """token_R and the largest logit of each row. A token that could not be drawn is fed as 0: its row has failed."""
        sent = layout.views(inputs["packed"])
        x_RD = F.embedding(inputs["tokens"].clamp(min=0), self._layers.embedding_VD)
        h_RD, _ = self._layers.layers(x_RD, self._layers.where(sent, seen))
        return device_draw.draw_there(self._layers.logits(h_RD), sent)


def _up(count: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (count - 1).bit_length())


def _filled(array: np.ndarray[Any, Any], rows: int) -> np.ndarray[Any, Any]:
    found = np.zeros(rows, array.dtype)
    found[: len(array)] = array
    return found
