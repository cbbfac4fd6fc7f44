"""hibari 0.2.1, voice "heart": a small speech model whose weights come inside the package `hibari-tts` (Apache-2.0)."""

from __future__ import annotations

from omni_runtime.card import AudioDecode, Each, ExpertSpec, ModelCard, OpLimits, Port, Slot

SAMPLE_RATE = 24_000
HOP = 300  # samples a frame: 80 frames a second
AHEAD = 29  # frames: 27 of the network's receptive field, 2 of the inverse transform
VOICE = "heart"  # the one that the package carries; another one is another card, with its file as option `model`
MARK = 131  # column of a frame that says whether a segment ends with it


def hibari() -> ModelCard:
    """Loops: `utter` (a stream of text to feature frames, clause by clause) and `speak` (frames to samples)."""
    return ModelCard(
        name="hibari",
        description="hibari-tts 0.2.1, talker and vocoder",
        experts={
            "talker": ExpertSpec(
                build="omni_runtime.experts.hibari_talker:build", ops={"speak": OpLimits(units=4, size=4)}, place="device"
            ),
            "vocoder": ExpertSpec(
                build="omni_runtime.experts.hibari_vocoder:build", ops={"decode_audio": OpLimits(units=16, size=320, chunk=80)}
            ),
        },
        loops={
            "utter": Each(
                expert="talker",
                op="speak",
                segment="clauses",
                reads={"text": Slot(type="text", mode="stream")},
                ports={"frames": Port(type="frame")},
                defaults={"speed": 1.0, "voice": VOICE},
                ranges={"speed": (0.5, 2.0)},
                choices={"voice": (VOICE,)},
            ),
            "speak": AudioDecode(
                expert="vocoder",
                sample_rate=SAMPLE_RATE,
                hop=HOP,
                ahead=AHEAD,
                mark=MARK,
                state_blocks=1,
                reads={"frames": Slot(type="frame", mode="stream")},
            ),
        },
    )
