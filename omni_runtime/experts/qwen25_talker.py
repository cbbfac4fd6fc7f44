"""The talker of Qwen2.5-Omni: codes of sound for what the thinker says, one after the other, 50 for a second.

Its positions are fed vectors of the thinker's width, which a projection brings to its own. With a token's vector v = what the
thinker was fed there + its last state (`spoken`), in which a medium leaves only the state, the sequence is

    v of all prompt tokens;  bos + code(pad);  v of token 0 + code(bos);  code(k) + v of token k + 1, for code k = 0, 1, ...

with bos the embedding of the speaker's token. After the last token that the thinker was fed comes the embedding of text_eos once,
then that of text_pad for ever. So the first code needs token 0 only once the thinker was fed it, and each code one more.

Suffixes: T positions, W width of the thinker, D width of the talker, R rows that draw, V codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from omni_runtime.experts import device_draw
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.linear import linear
from omni_runtime.experts.sampling import draw
from omni_runtime.experts.staging import Reading, Staging
from omni_runtime.experts.talk_span import Talked, Talking, TalkSpan
from omni_runtime.weights.qwen2_5_omni_parts import TalkerConfig


def spoken(fed_TW: torch.Tensor, hidden_TW: torch.Tensor, media: Sequence[int] = ()) -> torch.Tensor:
    """v_TW: what the thinker was fed and its last state; at the rows of media the state alone."""
    v_TW = fed_TW + hidden_TW
    if media:
        row_M = Staging(v_TW.device).send({"row": np.array(media, np.int64)})["row"]
        v_TW[row_M] = hidden_TW[row_M]
    return v_TW


class Talker:
    """Resident weights.

    Args:
        config: the shape.
        weights: of the decoder, by the names of `parameter_shapes`.
        projection: `weight` and `bias` of thinker_to_talker_proj.
        device: where it computes.
        layout: that of `linear.linear`.
    """

    def __init__(
        self,
        config: TalkerConfig,
        weights: Mapping[str, torch.Tensor],
        projection: Mapping[str, torch.Tensor],
        device: str = "cpu",
        layout: str = "auto",
    ) -> None:
        self.config = config
        self.model = DecoderLM(config.decoder, weights, device, layout)
        weight, bias = (projection[name].detach().to(self.model.device, torch.float32) for name in ("weight", "bias"))
        self._project = linear(weight, bias, layout)

    @torch.inference_mode()
    def project(self, v_TW: torch.Tensor) -> torch.Tensor:
        """x_TD: what the decoder is fed for these vectors."""
        return self._project(v_TW)

    @torch.inference_mode()
    def talk(self, spans: Sequence[TalkSpan]) -> list[Talked] | Talking:
        """Spans of different sequences together; `frame` counts codes. No history is written: that is for who keeps it.

        Raises:
            RequestError: a span ends beyond the last position, or its edits leave no code that could be drawn.
            FloatingPointError: a row's logits are not numbers.
        """
        fed = [span.fed for span in spans]
        if self.model.pages is not None:
            ran = self.model.run(fed, (), device_draw.of_spans(spans))
            ran.logits_RV[:, self.config.bos] = -torch.inf
            code_R, peak_R = device_draw.draw_there(ran.logits_RV, ran.brought)
            none_R0 = peak_R.new_empty(len(peak_R), 0)
            return device_draw.Codes(spans, (self.config.pad, self.config.eos), Reading(code_R, peak_R, none_R0, none_R0))
        logits_RV = self.model.run(fed).logits_RV
        logits_RV[:, self.config.bos] = -torch.inf
        drawing, ends = iter(logits_RV), (self.config.pad, self.config.eos)
        codes = [draw(next(drawing), span.talk, span.frame, span.history) if span.frame >= 0 else -1 for span in spans]
        return [Talked(code, () if code in (-1, *ends) else (code,)) for code in codes]
