"""`prepare` against transformers' processor, template and positions, on random mixed conversations."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from media_talk import Reference, Talk  # noqa: E402
from tiny_qwen3 import folder, reference  # noqa: E402
from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as theirs  # noqa: E402

from omni_runtime.experts.qwen3_talker import user_turns  # noqa: E402

torch.set_num_threads(1)
SPELLING = {"image": "<|image_pad|>", "audio": "<|audio_pad|>", "video": "<|video_pad|>"}
SPELLING |= {"audio_bos": "<|audio_start|>", "audio_eos": "<|audio_end|>"}
QWEN3 = Reference(
    folder().folder,
    lambda: reference().thinker,
    theirs.Qwen3OmniMoeProcessor,
    theirs._get_feat_extract_output_lengths,
    SPELLING,
    timing={"position_id_per_seconds": 13.0},
    extractor={},
    heard={"padding": True, "truncation": False},
    more={"n_window": 50},
)
prepared = QWEN3.prepared


@pytest.mark.parametrize("together", [False, True])
def test_random_conversations(together: bool) -> None:
    kinds = 0
    for seed in range(30):
        talk = Talk(QWEN3, seed, together)
        found, ours = talk.expected(), prepared(talk.messages, use_audio_in_video=together)
        talk.check(ours, found)
        ids = found["ids"]
        own = [ids[i] for i in user_turns(ids, folder().config.tokens)]
        ((parts, *talker),) = ours["turns"]
        talk.check_positions(ours["positions"][0], ids, found)
        talk.check_positions(talker, own, found, told=False)
        spelt: list[int] = []
        for piece in parts:
            at, count = ours["insets"][piece][:2] if isinstance(piece, int) else (0, 0)
            spelt += ids[at : at + count] if isinstance(piece, int) else piece
        assert spelt == own
        kinds += bool(talk.images) and bool(talk.clips) and bool(talk.sounds)
    assert kinds >= 3


def test_text_has_the_prompt_it_had() -> None:
    for messages in ("hi", [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]):
        found = prepared(messages)
        expected = QWEN3.parts.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
        assert found["tokens"] == expected["input_ids"]
        assert found["positions"] == [[None, 0.0]] and not found["insets"] and not found["sounds"] and not found["pictures"]
        assert found["turns"] == [[[expected["input_ids"][:-3]], None, 0.0]]


def test_positions_of_sound_only_count() -> None:
    """So a prompt with nothing but sounds takes the decoder's path of text."""
    found = prepared([{"role": "user", "content": [{"type": "audio", "audio": np.ones(9000, np.float32), "rate": 16000}]}])
    ids = torch.tensor([found["tokens"]])
    frames = torch.tensor([found["sounds"][0].shape[1]])
    positions, delta = reference().thinker.get_rope_index(ids, None, None, torch.ones_like(ids), False, frames, None)
    assert torch.equal(positions[:, 0].float(), torch.arange(ids.shape[1]).expand(3, -1).float()) and not float(delta)
    assert found["positions"] == [[None, 0.0]] and found["turns"][0][1:] == [None, 0.0] and len(found["insets"]) == 1
