"""`prepare` of a Qwen2.5-Omni folder against transformers' processor, template and positions, on random mixed conversations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.oracle]
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from media_talk import Reference, Talk  # noqa: E402
from tiny_qwen25 import folder, reference  # noqa: E402
from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as theirs  # noqa: E402

from omni_runtime.errors import RequestError  # noqa: E402
from omni_runtime.weights.toy_qwen2_5_omni import token_ids, write_toy_qwen25  # noqa: E402

torch.set_num_threads(1)
IDS = token_ids()
SPELLING = {"image": "<|IMAGE|>", "audio": "<|AUDIO|>", "video": "<|VIDEO|>"}
SPELLING |= {"audio_bos": "<|audio_bos|>", "audio_eos": "<|audio_eos|>"}
QWEN25 = Reference(
    folder().folder,
    lambda: reference().thinker,
    theirs.Qwen2_5OmniProcessor,
    theirs._get_feat_extract_output_lengths,
    SPELLING,
    timing={"position_id_per_seconds": 25, "seconds_per_chunk": 2.0},
    extractor={"chunk_length": 4},  # seconds that a sound is filled up to; 300 in the published folder, for the same frames
    heard={"padding": "max_length"},
    shortest=0.04,
)
prepared = QWEN25.prepared


@pytest.mark.parametrize("together", [False, True])
def test_random_conversations(together: bool) -> None:
    kinds = 0
    for seed in range(30):
        talk = Talk(QWEN25, seed, together)
        found, ours = talk.expected(), prepared(talk.messages, use_audio_in_video=together)
        talk.check(ours, found)
        talk.check_positions(ours["positions"][0], found["ids"], found)
        assert "turns" not in ours  # its talker is fed the whole prompt
        kinds += bool(talk.images) and bool(talk.clips) and bool(talk.sounds)
    assert kinds >= 3


def sound(samples: int) -> dict[str, object]:
    wave = np.random.default_rng(samples).standard_normal(samples).astype(np.float32) * 0.3
    return {"type": "audio", "audio": wave, "rate": 16000}


@pytest.mark.parametrize("samples", [321, 479, 480, 481, 640, 16000, 16001, 16159])
def test_a_frame_that_has_begun_is_heard_and_silence_after_it(samples: int) -> None:
    """Their processor fills a sound up with zeros; that of Qwen3-Omni mirrors its end."""
    part = sound(samples)
    given = {"sampling_rate": 16000, "padding": "max_length", "return_attention_mask": True, "return_tensors": "np"}
    made = QWEN25.parts.feature_extractor(part["audio"], **given)
    (mel,) = prepared([{"role": "user", "content": [part]}])["sounds"]
    assert mel.shape == (128, int(made["attention_mask"].sum())) == (128, -(-samples // 160))
    np.testing.assert_allclose(mel, made["input_features"][0][:, : mel.shape[1]], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("part", "together"),
    [(sound(320), False), ({"type": "video", "video": np.zeros((4, 20, 20, 3), np.uint8), "fps": 2, **sound(320)}, True)],
)
def test_a_sound_without_a_vector_is_refused(part: dict[str, object], together: bool) -> None:
    part = part | {"type": "video" if together else "audio"}
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "text", "text": "hear"}, part]}]
    why = r"^messages\[1\]\.content\[1\]: audio: 2 frames of 10 ms, .* less than 3 is not heard.*; send a longer sound, or none"
    with pytest.raises(RequestError, match=why):
        prepared(messages, use_audio_in_video=together)


def test_text_and_sounds_take_the_path_of_text() -> None:
    found = prepared("hi")
    expected = QWEN25.parts.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert found == {"tokens": expected["input_ids"], "sounds": [], "pictures": [], "insets": [], "positions": [[None, 0.0]]}
    found = prepared([{"role": "user", "content": [sound(9000), sound(8000)]}])
    assert found["positions"] == [[None, 0.0]] and [inset[1:] for inset in found["insets"]] == [
        [14, "sound", 0, 0],
        [12, "sound", 1, 0],
    ]


# In the manner of the published one, which writes a system turn of its own where there is none, and counts media.
TEMPLATE = """{% set n = namespace(seen=0) %}
{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ m['role'] }}
{% if m['content'] is string %}{{ m['content'] }}<|im_end|>
{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' or 'image' in c or 'image_url' in c -%}
{% set n.seen = n.seen + 1 %}{% if add_vision_id %}Picture {{ n.seen }}: {% endif %}<|vision_bos|><|IMAGE|><|vision_eos|>
{%- elif c['type'] == 'audio' or 'audio' in c or 'audio_url' in c %}<|audio_bos|><|AUDIO|><|audio_eos|>
{%- elif c['type'] == 'video' or 'video' in c %}<|vision_bos|><|VIDEO|><|vision_eos|>
{%- elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_system_turn_is_the_template_s_or_the_user_s(tmp_path: Path) -> None:
    """None is written here: the one that the makers want for speech is for who asks to give."""
    (write_toy_qwen25(tmp_path) / "chat_template.jinja").write_text(TEMPLATE)
    other = Reference(tmp_path, *(getattr(QWEN25, name) for name in list(QWEN25.__dataclass_fields__)[1:]))
    picture = {"type": "image", "image": np.zeros((20, 20, 3), np.uint8)}
    asked = [{"role": "user", "content": [picture, sound(4000), {"type": "text", "text": "What?"}]}]
    told = [{"role": "system", "content": "You are Qwen, a virtual human."}]
    for messages, system in ((asked, "You are a helpful assistant."), (told + asked, told[0]["content"])):
        found = other.prepared(messages)
        text = other.parts.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert [len(kind) for kind in (found["insets"], found["pictures"], found["sounds"])] == [2, 1, 1]
        assert text.count("system\n") == 1 and f"system\n{system}" in text
        for token, inset in zip(("<|IMAGE|>", "<|AUDIO|>"), found["insets"], strict=True):
            text = text.replace(token, token * inset[1])
        assert found["tokens"] == other.parts.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_the_vocabulary_spells_media_as_the_published_one() -> None:
    tokens = folder().config.tokens
    assert (tokens.image, tokens.audio, tokens.video) == tuple(IDS[SPELLING[kind]] for kind in ("image", "audio", "video"))
    assert (tokens.audio_start, tokens.vision_start) == (IDS["<|audio_bos|>"], IDS["<|vision_bos|>"])
