"""First sound of a spoken answer: loops that advance together, against the same experts run stage after stage.

Both run the same cards in the same runtime and give the same text and sound (checked). The staged program is the same one with
every hand-off set to wait for the whole: text, then all frames, then sound, whose first chunk is counted as soon as it comes.

    python benchmarks/first_sound.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from omni_runtime.programs.speak import speak

from omni_runtime import Runtime

QUESTION = "What is the capital of France, and what is it famous for?"
TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    programs = {"together": speak(), "staged": speak(mode="full")}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in programs}
    cards = programs["together"].cards.values()
    with Runtime(cards, threads=args.threads, prefix_cache=False) as runtime:  # repeats must not find their prompt cached
        texts = set()
        sounds = []
        for at in range(args.repeats + 1):  # the first one warms up
            for name, program in programs.items():
                result = runtime.submit(program, messages=QUESTION, max_tokens=TOKENS, seed=7).result()
                texts.add(result.text)
                sounds.append(result.audio)
                if at:
                    times = result.timings
                    found[name].append((times.first["text"], times.first["audio"], times.total))
        tokens = result.usage["think"]["completion_tokens"]
        seconds = len(result.audio) / result.sample_rates["audio"]
    assert len(texts) == 1, "both must give the same text"
    worst = max(float(np.abs(sound - sounds[0]).max()) for sound in sounds)
    assert worst < 1e-4, f"both must give the same sound, they differ by {worst}"
    middle = {name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()}
    print(f"{'':<12} {'first token s':>14} {'first sound s':>14} {'all done s':>11}")
    for name, (token, sound, total) in middle.items():
        print(f"{name:<12} {token:>14.3f} {sound:>14.3f} {total:>11.3f}")
    fraction = middle["together"][1] / middle["staged"][1]
    print(f"first sound, together over staged: {fraction:.3f}   ({tokens} tokens, {seconds:.1f} s of sound)")
    if args.json:
        numbers = {
            "fraction_of_staged": round(fraction, 4),
            "total_ratio": round(middle["together"][2] / middle["staged"][2], 4),
            "first_sound_s": round(middle["together"][1], 4),
            "staged_first_sound_s": round(middle["staged"][1], 4),
            "real_time_factor": round(middle["together"][2] / seconds, 4),
            "tokens": tokens,
            "sound_s": round(seconds, 2),
            "threads": args.threads,
            "repeats": args.repeats,
            "question": QUESTION,
            "dtype": "float32",
            "largest_difference": worst,
        }
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
