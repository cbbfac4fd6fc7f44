"""One request that writes, paints and speaks: three kinds of loop on one scheduler, advancing together.

    python tests/experts/tiny_sd3.py tiny_sd3                      # a tiny random checkpoint; or use a real SD3 folder
    python examples/illustrate.py "a cat on a hill" --checkpoint tiny_sd3

Writes answer.wav and picture.png into the current folder and prints what came when. With the tiny checkpoint the picture is
coloured noise: its weights are random.
"""

from __future__ import annotations

import argparse

from omni_runtime.cards.sd3 import sd3
from omni_runtime.programs.illustrate import illustrate
from PIL import Image

from omni_runtime import Runtime, WavWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompt")
    parser.add_argument("--checkpoint", required=True, help="folder of a Stable Diffusion 3 model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    program = illustrate(brush=sd3(args.checkpoint))
    print(program, "\n")
    with Runtime(program.cards.values()) as runtime, WavWriter("answer.wav", 24_000) as wav:
        handle = runtime.submit(program, prompt=args.prompt, max_tokens=48, steps=args.steps, seed=args.seed)
        for chunk in handle:
            if chunk.text is not None:
                print(chunk.text, end="", flush=True)
            elif chunk.samples is not None:
                wav.write(chunk.samples)
            elif chunk.output == "progress":
                print(f"[{chunk.items[0]:.0%}]", end="", flush=True)
        result = handle.result()
    Image.fromarray(result.outputs["image"][0]).save("picture.png")
    first = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in sorted(result.timings.first.items(), key=lambda kv: kv[1]))
    print(f"\n\nfirst of each: {first}; all done after {result.timings.total:.2f} s")
    print("WorkUnits: " + ", ".join(f"{loop} {n}" for loop, n in result.units.items()))


if __name__ == "__main__":
    main()
