"""The talker of Qwen3-Omni: frames of codes for what the thinker says.

Its positions are fed vectors, never ids alone. The beginning is what the user said, through one of two projections, then a block
of nine that names the speaker and ends with token 0 of the answer. After it, frame k stands as

    Σ_g embedding_g(code g of frame k)  +  text(token k + 1 of the answer)

where after the last token that the thinker was fed comes tts_eos once, then tts_pad for ever. One pass draws code 0 of the next
frame, and the predictor the rest of it.

Suffixes: T tokens or frames, D width of the talker, W width of the thinker, G codes of a frame, R rows that draw, V codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from omni_runtime.errors import RequestError, unknown
from omni_runtime.experts import device_draw
from omni_runtime.experts.decoder import DecoderLM
from omni_runtime.experts.linear import linear
from omni_runtime.experts.qwen3_predictor import CodePredictor, inner
from omni_runtime.experts.sampling import draw
from omni_runtime.experts.staging import Reading
from omni_runtime.experts.steady import silu
from omni_runtime.experts.talk_span import Talked, Talking, TalkSpan
from omni_runtime.weights.qwen3_omni_parts import TalkerConfig, Tokens

RESERVED = 1024  # ids at the end of the vocabulary that are marks and speakers: never drawn, except the one that ends
HEAD = 3  # tokens of <|im_start|>assistant\n


def user_turns(ids: Sequence[int], tokens: Tokens) -> list[int]:
    """Places of a prompt that the talker hears of: the turns of the user. The system's, and older answers, are not for it."""
    found, role = [], ids[1] if len(ids) > 1 else -1
    for i, token in enumerate(ids):
        if token == tokens.im_start and i + 1 < len(ids):
            role = ids[i + 1]
        if role == tokens.user:
            found.append(i)
    return found


class Talker:
    """Resident weights.

    Args:
        config: the shape.
        weights: of the decoder, by the names of `parameter_shapes`.
        predictor: of the other codes.
        projections: `text_projection.linear_fc1.weight` and so on, by the names of the checkpoint.
        device: where it computes.
        layout: that of `linear.linear`.
    """

    def __init__(
        self,
        config: TalkerConfig,
        weights: Mapping[str, torch.Tensor],
        predictor: CodePredictor,
        projections: Mapping[str, torch.Tensor],
        device: str = "cpu",
        layout: str = "auto",
    ) -> None:
        self.config = config
        self.model = DecoderLM(config.decoder, weights, device, layout)
        self.predictor = predictor
        self._text = self._projection("text_projection", projections, layout)
        self._media = self._projection("hidden_projection", projections, layout)
        reserved = range(max(config.decoder.vocab - RESERVED, 0), config.decoder.vocab)
        self._never = torch.tensor([i for i in reserved if i != config.eos], device=self.model.device)

    def _projection(self, name: str, weights: Mapping[str, torch.Tensor], layout: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def layer(part: str) -> Callable[[torch.Tensor], torch.Tensor]:
            weight, bias = (weights[f"{name}.{part}.{kind}"].detach() for kind in ("weight", "bias"))
            return linear(weight.to(self.model.device, torch.float32), bias.to(self.model.device, torch.float32), layout)

        first, second = layer("linear_fc1"), layer("linear_fc2")
        return lambda x_TW: second(silu(first(x_TW)))

    @torch.inference_mode()
    def text(self, embedding_TW: torch.Tensor) -> torch.Tensor:
        """x_TD for the thinker's embeddings of text tokens."""
        return self._text(embedding_TW)

    @torch.inference_mode()
    def media(self, hidden_TW: torch.Tensor) -> torch.Tensor:
        """x_TD for the thinker's inner states (layer `accept`) where the user sent sound or pictures."""
        return self._media(hidden_TW)

    def speaker(self, name: str) -> int:
        """The id of a speaker.

        Raises:
            RequestError: there is none of that name.
        """
        found = self.config.speakers.get(name.lower())
        if found is None:
            raise RequestError(f"speaker: {unknown('speaker', name, self.config.speakers)}")
        return found

    @torch.inference_mode()
    def opening(
        self, head_TD: torch.Tensor, pad_D: torch.Tensor, bos_D: torch.Tensor, first_D: torch.Tensor, speaker: str
    ) -> torch.Tensor:
        """The nine vectors before the first frame; nobody but the speaker and `first_D` differs between requests.

        Args:
            head_TD: `text` of <|im_start|>assistant\\n: three.
            pad_D: `text` of tts_pad.
            bos_D: `text` of tts_bos.
            first_D: `text` of the first token of the answer.
            speaker: whose voice.

        Raises:
            RequestError: there is no such speaker.
        """
        said_TD = torch.cat([head_TD[:HEAD], pad_D.expand(4, -1), bos_D[None], first_D[None]])
        return said_TD + self.marks(speaker)

    @torch.inference_mode()
    def marks(self, speaker: str) -> torch.Tensor:
        """What of the opening is not text: [9, D], nothing at first.

        Raises:
            RequestError: there is no such speaker.
        """
        c = self.config
        marks_TD = self.model.embed([c.nothink, c.think_bos, c.think_eos, self.speaker(speaker), c.pad, c.bos])
        return F.pad(marks_TD, (0, 0, HEAD, 0))

    @torch.inference_mode()
    def frames(self, codes_TG: Sequence[Sequence[int]], text_TD: torch.Tensor) -> torch.Tensor:
        """x_TD: what stands at the positions of these frames, with the text of each."""
        total_TD = self.model.embed([frame[0] for frame in codes_TG])
        for group in range(1, self.config.groups):
            total_TD = total_TD + self.predictor.embed(group, [frame[group] for frame in codes_TG])
        return total_TD + text_TD

    @torch.inference_mode()
    def talk(self, spans: Sequence[TalkSpan]) -> list[Talked] | Talking:
        """Spans of different sequences together. No history is written: that is for who keeps it.

        Raises:
            RequestError: a span ends beyond the last position, or its edits leave no code that could be drawn.
            FloatingPointError: a row's logits are not numbers.
        """
        if self.model.pages is not None:
            return self._queued(spans)
        ran = self.model.run([span.fed for span in spans])
        logits_RV = ran.logits_RV
        logits_RV[:, self._never] = -torch.inf
        drawing, codes, ends, end = iter(logits_RV), [], [], 0
        for span in spans:
            end += len(span.vectors_TD)
            codes.append(draw(next(drawing), span.talk, span.frame, span.history) if span.frame >= 0 else -1)
            ends.append(end - 1)
        going = [i for i, code in enumerate(codes) if code not in (-1, self.config.eos)]
        rest: dict[int, list[int]] = {}
        if going:
            predicted = self.predictor.predict(
                ran.hidden_TD[[ends[i] for i in going]],
                self.model.embed([codes[i] for i in going]),
                [inner(spans[i].predict or spans[i].talk) for i in going],
                [spans[i].frame for i in going],
            )
            rest = dict(zip(going, predicted, strict=True))
        return [Talked(code, (code, *rest[i]) if i in rest else ()) for i, code in enumerate(codes)]

    def _queued(self, spans: Sequence[TalkSpan]) -> list[Talked] | Talking:
        """With pages: whole frames are drawn on the device. A row that ends is predicted like the others, and not heard."""
        drawing = [span for span in spans if span.frame >= 0]
        if not drawing:
            self.model.run([span.fed for span in spans])
            return [Talked(-1, ()) for _ in spans]
        hows = [inner(span.predict or span.talk) for span in drawing]
        frames = [span.frame for span in drawing]
        brought = device_draw.of_spans(spans) | self.predictor.brought(hows, frames)
        ran = self.model.run([span.fed for span in spans], (), brought)
        ran.logits_RV[:, self._never] = -torch.inf
        code_R, peak_R = device_draw.draw_there(ran.logits_RV, ran.brought)
        hidden_RD = ran.hidden_TD[ran.brought["ends"]]
        first_RD = self.model.embed_there(code_R.clamp(min=0))  # -1 where nothing could be drawn
        rest = self.predictor.predict_there(hidden_RD, first_RD, ran.brought)
        return device_draw.Codes(spans, (self.config.eos,), Reading(code_R, peak_R, *rest))
