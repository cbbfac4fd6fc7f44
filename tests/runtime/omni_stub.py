"""A stand-in for the loops of an omni model: the real `prepare`, and experts that tell what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from omni_runtime.card import AudioDecode, Each, ExpertSpec, ModelCard, OneShot, OpLimits, Port, Slot
from omni_runtime.program import Program
from omni_runtime.work import StepResult

HERE = "omni_stub"
PORTS = {
    "tokens": "token",
    "sounds": "sound",
    "pictures": "picture",
    "insets": "inset",
    "positions": "positions",
    "turns": "turns",
}


class Teller:
    """Counts what it is given."""

    ops: Mapping[str, Any]

    def __init__(self) -> None:
        self.ops = {"hear": self.hear, "see": self.see, "tell": self.tell, "utter": self.utter, "decode_audio": self.decode}

    @staticmethod
    def hear(rows: Any, slots: Any) -> list[StepResult]:
        return [StepResult(items={"told": [f"sound {np.asarray(row.payload.inputs['sounds'][0]).shape}"]}) for row in rows]

    @staticmethod
    def see(rows: Any, slots: Any) -> list[StepResult]:
        return [StepResult(items={"told": [f"picture {np.asarray(row.payload.inputs['pictures'][0]).shape}"]}) for row in rows]

    @staticmethod
    def tell(rows: Any, slots: Any) -> list[StepResult]:
        results = []
        for row in rows:
            given = row.payload.inputs
            media = [*given["heard"], *given["seen"]]
            kinds = ",".join(f"{kind}{index}" for _, _, kind, index, _ in given["insets"])
            text = f"{len(given['tokens'])} tokens; {'; '.join(media)}; {kinds}"
            results.append(StepResult(items={"text": [text]}))
        return results

    @staticmethod
    def utter(rows: Any, slots: Any) -> list[StepResult]:
        return [StepResult(items={"frames": [[len(row.payload.params["speaker"])]] * 5}) for row in rows]

    @staticmethod
    def decode(rows: Any, slots: Any) -> list[StepResult]:
        samples = [np.repeat([frame[0] / 100 for frame in r.payload.frames[: r.size]], 240).astype(np.float32) for r in rows]
        return [StepResult(items={"samples": each}) for each in samples]


def build(options: Mapping[str, Any], device: str) -> Teller:
    return Teller()


def card(checkpoint: str) -> ModelCard:
    read = {name: Slot(type=kind) for name, kind in PORTS.items()}
    media = Slot(type="messages", media=("image", "audio", "video"))
    limits = OpLimits(units=4, size=4)
    ops = dict.fromkeys(("hear", "see", "tell", "utter"), limits) | {"decode_audio": OpLimits(units=4, size=40)}
    told = {"told": Port(type="told")}
    stream = {"mode": "stream"}
    return ModelCard(
        name="stub",
        experts={
            "prepare": ExpertSpec(
                build="omni_runtime.experts.omni_prepare:build",
                ops={"prepare": limits},
                options={"checkpoint": checkpoint},
                place="host",
            ),
            "teller": ExpertSpec(build=f"{HERE}:build", ops=ops),
        },
        loops={
            "prepare": OneShot(
                expert="prepare",
                op="prepare",
                reads={"messages": media},
                ports={name: Port(type=kind) for name, kind in PORTS.items()},
                defaults={"use_audio_in_video": False},
            ),
            "hear": Each(expert="teller", op="hear", reads={"sounds": Slot(type="sound", **stream)}, ports=told),
            "see": Each(expert="teller", op="see", reads={"pictures": Slot(type="picture", **stream)}, ports=told),
            "think": OneShot(
                expert="teller",
                op="tell",
                reads={"tokens": read["tokens"], "insets": read["insets"], "heard": Slot(type="told"), "seen": Slot(type="told")},
                ports={"text": Port(type="text")},
            ),
            "talk": OneShot(
                expert="teller",
                op="utter",
                reads={"turns": read["turns"]},
                ports={"frames": Port(type="frame")},
                defaults={"speaker": "ethan"},
                choices={"speaker": ("ethan", "chelsie")},
            ),
            "speak": AudioDecode(expert="teller", sample_rate=24_000, hop=240),
        },
    )


def omni(mind: ModelCard) -> Program:
    p = Program("omni", mind)
    ready = p.loop("prepare", messages=p.input("messages"))
    heard = p.loop("hear", sounds=p.handoff(ready.sounds, mode="stream")).told
    seen = p.loop("see", pictures=p.handoff(ready.pictures, mode="stream")).told
    p.output("text", p.loop("think", tokens=ready.tokens, insets=ready.insets, heard=heard, seen=seen).text)
    p.output("audio", p.loop("speak", frames=p.handoff(p.loop("talk", turns=ready.turns).frames, mode="stream")).samples)
    return p
