"""Ask an omni model: text, sound, pictures and clips in, text and speech out, every loop of it on one scheduler.

`examples/qwen3_omni/end2end.py` and `examples/qwen2_5_omni/end2end.py` say of which family. Without --checkpoint a tiny random
one is written and answers nonsense. Pictures, sounds and clips are made here unless files are named. The answers go into --out:
text.txt, and answer.wav unless --outputs text.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from media import RATE, clip, picture, sound
from omni_runtime.programs.omni import omni

from omni_runtime import ModelCard, OmniError, Runtime, WavWriter
from omni_runtime.observe.loop_table import table
from omni_runtime.observe.recorder import Recorder
from omni_runtime.toy import write_toy_checkpoint

SYSTEM = "You are Qwen, a virtual human. Answer briefly, in words that can be spoken."
Part = dict[str, Any]


class Family(NamedTuple):
    """A family of models."""

    name: str
    card: Callable[[str], ModelCard]
    toy: str  # as `omni toy` calls it
    frames: float  # of its talker, a second


def image_part(args: argparse.Namespace) -> Part:
    return {"type": "image", "image": args.image or picture()}


def audio_part(args: argparse.Namespace) -> Part:
    return {"type": "audio", "audio": args.audio} if args.audio else {"type": "audio", "audio": sound(), "rate": RATE}


def video_part(args: argparse.Namespace) -> Part:
    if args.video:
        return {"type": "video", "video": args.video}
    return {"type": "video", "video": clip(), "fps": 8, "audio": sound(2.0), "rate": RATE}


QUERIES: dict[str, tuple[str, tuple[Callable[[argparse.Namespace], Part], ...]]] = {
    "text": ("Explain in two sentences how a rainbow comes to be.", ()),
    "use_audio": ("What do you hear?", (audio_part,)),
    "use_image": ("What is in the picture?", (image_part,)),
    "use_video": ("What happens in the clip?", (video_part,)),
    "use_mixed_modalities": (
        "What do you hear, what is in the picture, and what happens in the clip?",
        (audio_part, image_part, video_part),
    ),
}


MEDIA = {"image": image_part, "audio": audio_part, "video": video_part}


def messages(args: argparse.Namespace) -> list[dict[str, Any]]:
    question, parts = QUERIES[args.query_type]
    content = [*(part(args) for part in parts), {"type": "text", "text": args.question or question}]
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


def positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, not {text!r}")
    return int(text)


def options(family: Family) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=f"Ask a {family.name}: {__doc__.splitlines()[0].partition(': ')[2]}")
    parser.add_argument("--query-type", "-q", choices=QUERIES, default="use_mixed_modalities")
    parser.add_argument("--question", help="instead of the query type's own")
    parser.add_argument("--checkpoint", help=f"folder of a {family.name}; a tiny random one by default")
    parser.add_argument("--image", help="file, instead of a drawn one")
    parser.add_argument("--audio", help="file, instead of three notes")
    parser.add_argument("--video", help="file, instead of a moving disc")
    parser.add_argument("--use-audio-in-video", action="store_true", help="listen to the clip, too")
    parser.add_argument("--outputs", choices=("both", "text", "audio"), default="both")
    parser.add_argument("--speaker", help="whose voice; the checkpoint's first by default")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument(
        "--max-frames", type=int, default=2000, help=f"of codes, {family.frames} a second of sound with the published model"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--requests", type=positive, default=1, help="so many of the same at once, with seeds one after the other"
    )
    parser.add_argument("--executor", choices=("thread", "process"), default="thread")
    parser.add_argument("--stream", action="store_true", help="show text and sound as they come")
    parser.add_argument("--stats", action="store_true", help="afterwards, what every loop did")
    parser.add_argument("--out", type=Path, default=Path("output"))
    args = parser.parse_args()
    unused = [name for name, part in MEDIA.items() if getattr(args, name) and part not in QUERIES[args.query_type][1]]
    if args.use_audio_in_video and video_part not in QUERIES[args.query_type][1]:
        unused.append("use_audio_in_video")
    if unused:
        parser.error(f"--{unused[0].replace('_', '-')}: nothing of the kind goes into query type {args.query_type}; leave it out")
    return args


def follow(handle: Any, args: argparse.Namespace, began: float) -> None:
    """Shows text as it comes, and says when sound does; the sound is playable from its first chunk on."""
    rate = handle.sample_rates.get("audio")
    wav = WavWriter(args.out / "answer.wav", rate) if rate else None
    for chunk in handle:
        if chunk.text is not None and args.stream:
            print(chunk.text, end="", flush=True)
        elif chunk.samples is not None and wav is not None:
            wav.write(chunk.samples)
            if args.stream:
                print(f"[{time.perf_counter() - began:.2f} s: {len(chunk.samples) / wav.sample_rate:.2f} s of sound]", flush=True)
    if wav is not None:
        wav.close()


def stats(result: Any, recorder: Recorder, run: int) -> None:
    print()
    for name, seconds in result.timings.first.items():
        print(f"first {name} after {seconds:.3f} s")
    print(f"all done after {result.timings.total:.3f} s")
    if rate := result.sample_rates.get("audio"):
        sounding = len(result.audio) / rate
        factor = f", real-time factor {result.timings.total / sounding:.2f}" if sounding else ""
        print(f"{sounding:.2f} s of sound{factor}")
    print("\n".join(table(recorder.record(), run)))


def run(family: Family, args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as kept:
        checkpoint = args.checkpoint
        if checkpoint is None:
            checkpoint = f"{kept}/{family.toy}"
            print(write_toy_checkpoint(family.toy, Path(checkpoint), seed=1))
        card = family.card(checkpoint)
        program = omni(card)
        given: dict[str, Any] = {"messages": messages(args), "use_audio_in_video": args.use_audio_in_video}
        given["think"] = {"max_tokens": args.max_tokens}
        if "talk" in program.nodes:
            given["talk"] = {"max_frames": args.max_frames} | ({"speaker": args.speaker} if args.speaker else {})
        outputs = ("text", "audio") if args.outputs == "both" else (args.outputs,)
        recorder = Recorder()
        with Runtime([card], observers=[recorder], executor=args.executor) as runtime:
            began = time.perf_counter()
            handles = [runtime.submit(program, outputs=outputs, seed=args.seed + i, **given) for i in range(args.requests)]
            follow(handles[0], args, began)
            results = [handle.result() for handle in handles]
            took = time.perf_counter() - began
        if "text" in outputs:
            (args.out / "text.txt").write_text("".join(f"{result.text}\n" for result in results), encoding="utf-8")
            if not args.stream:
                print("\n".join(result.text for result in results))
        if args.stats:
            stats(results[0], recorder, handles[0].id)
            if args.requests > 1:
                print(f"all {args.requests} requests after {took:.3f} s")
        names = {"audio": "answer.wav", "text": "text.txt"}
        print(f"written to {args.out}: {', '.join(sorted(names[output] for output in outputs))}")


def main(family: Family) -> int:
    """Asks as the command line says; the exit status."""
    try:
        run(family, options(family))
    except (OmniError, OSError) as error:  # what a user can mend: one line, no traceback
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0
