"""hibari 0.2.1, voice "heart": a small speech model whose weights come inside the package `hibari-tts` (Apache-2.0)."""

from __future__ import annotations

from omni_runtime.card import AudioDecode, Each, ExpertSpec, ModelCard, OpCost, OpLimits, Port, Slot

SAMPLE_RATE = 24_000
HOP = 300  # samples a frame: 80 frames a second
AHEAD = 29  # frames: 27 of the network's receptive field, 2 of the inverse transform
VOICE = "heart"  # the one that the package carries; another one is another card, with its file as option `model`
MARK = 131  # column of a frame that says whether a segment ends with it

# On two cores of a Sapphire Rapids Xeon: a clause of about 60 characters takes the talker 5.5 ms, and so does every further one;
# 80 frames take the vocoder 16 ms, and 160 of them 30 to 43, in two to eight units.
UTTER = OpCost(batch=2e-4, unit=1e-3, work=7.5e-5, reach=0.0)
DECODE = OpCost(batch=3e-4, unit=1.6e-3, work=1.75e-4, reach=0.0)


def hibari() -> ModelCard:
    """Loops: `utter` (a stream of text to feature frames, clause by clause) and `speak` (frames to samples)."""
    return ModelCard(
        name="hibari",
        description="hibari-tts 0.2.1, talker and vocoder",
        experts={
            "talker": ExpertSpec(
                build="omni_runtime.experts.hibari_talker:build",
                ops={"speak": OpLimits(units=4, size=4, cost=UTTER)},
                place="device",
            ),
            "vocoder": ExpertSpec(
                build="omni_runtime.experts.hibari_vocoder:build",
                ops={"decode_audio": OpLimits(units=16, size=320, chunk=80, cost=DECODE)},
            ),
        },
        loops={
            "utter": Each(
                expert="talker",
                op="speak",
                segment="clauses",
                first=60,  # 4 s of speech: who reads aloud may breathe by then, and who waits hears something
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
