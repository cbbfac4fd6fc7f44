"""The commands of `omni`, for typer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from omni_runtime.ask import Question, ask
from omni_runtime.calibrate import Trial
from omni_runtime.calibrate import calibrate as run_trial
from omni_runtime.card import ModelCard
from omni_runtime.errors import OmniError, RequestError
from omni_runtime.executors.lineup import kind_named
from omni_runtime.find import check_card, find
from omni_runtime.picture import Order, draw
from omni_runtime.program import Program
from omni_runtime.replay.command import replay as replay_log
from omni_runtime.simulate.command import Scene
from omni_runtime.simulate.command import simulate as simulate_scene
from omni_runtime.toy import write_toy_checkpoint

QUESTION = "What is the capital of France, and what is it famous for?"

cli = typer.Typer(
    help="Run and inspect omni models whose loops are visible.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
device_option = typer.Option(help="where the model computes, as torch names it: cpu, cuda, cuda:1")
executor_option = typer.Option(help="where the model runs: thread, or process (a worker that may die and is started again)")
threads_option = typer.Option(help="CPU threads of the model; all cores by default", min=1, max=256)
invariant_option = typer.Option("--batch-invariant", help="the same bits alone and in any crowd; slower for pictures")
timeline_option = typer.Option(help="also write a timeline of every step into this HTML file")
trace_option = typer.Option(help="also write a trace for Perfetto into this JSON file")
record_option = typer.Option(help="also write all that the scheduler is fed into this file, for `omni replay`")
redact_option = typer.Option("--redact", help="with --record: stand-ins for texts, tokens and whatever else is private")
live_option = typer.Option("--live/--no-live", help="show what runs below the answer; by default on a terminal, never elsewhere")


@cli.command()
def demo(
    question: Annotated[str, typer.Argument(help="what to ask")] = QUESTION,
    out: Annotated[Path, typer.Option(help="where the spoken answer goes")] = Path("answer.wav"),
    max_tokens: Annotated[int, typer.Option(help="length of the answer at most", min=0)] = 96,
    speed: Annotated[float | None, typer.Option(help="how fast it speaks, 0.5 to 2; 1 by default")] = None,
    threads: Annotated[int | None, threads_option] = None,
    executor: Annotated[str, executor_option] = "thread",
    batch_invariant: Annotated[bool, invariant_option] = False,
    timeline: Annotated[Path | None, timeline_option] = None,
    trace: Annotated[Path | None, trace_option] = None,
    live: Annotated[bool | None, live_option] = None,
    record: Annotated[Path | None, record_option] = None,
    redact: Annotated[bool, redact_option] = False,
) -> None:
    """Answer a question in text and speech, from real weights, on this CPU."""
    ask(
        Question(
            question,
            speak=out,
            max_tokens=max_tokens,
            threads=threads,
            executor=kind_named(executor),
            batch_invariant=batch_invariant,
            speed=speed,
            stats=True,
            timeline=timeline,
            trace=trace,
            live=live,
            record=record,
            redact=redact,
        )
    )


@cli.command()
def run(
    question: Annotated[str, typer.Argument(help="what to ask; - reads it from standard input")],
    speak: Annotated[Path | None, typer.Option(help="also speak the answer into this WAV file")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of streaming text")] = False,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="length of the answer at most")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token; default of the model")] = None,
    top_p: Annotated[float | None, typer.Option(help="draw from the likeliest tokens of this mass; 1 is off")] = None,
    top_k: Annotated[int | None, typer.Option(help="draw from so many likeliest tokens; 0 is off")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="draw from tokens of this share of the likeliest's probability; 0 is off")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="divides what stands in prompt or answer; 1 is off")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="taken from what stands in the answer; 0 is off")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="the same, as often as it stands there; 0 is off")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="length of the answer at least")] = None,
    samples: Annotated[int, typer.Option(help="answers; number i has the seed + i - 1", min=1, max=64)] = 1,
    logprobs: Annotated[int | None, typer.Option(help="with --json: of each token and so many likely ones")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same answer")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="end before this text; may be given several times")] = None,
    speed: Annotated[float | None, typer.Option(help="how fast it speaks, 0.5 to 2; 1 by default")] = None,
    threads: Annotated[int | None, threads_option] = None,
    device: Annotated[str, device_option] = "cpu",
    executor: Annotated[str, executor_option] = "thread",
    batch_invariant: Annotated[bool, invariant_option] = False,
    timeline: Annotated[Path | None, timeline_option] = None,
    trace: Annotated[Path | None, trace_option] = None,
    live: Annotated[bool | None, live_option] = None,
    record: Annotated[Path | None, record_option] = None,
    redact: Annotated[bool, redact_option] = False,
    checkpoint: Annotated[Path | None, typer.Option(help="a Hugging Face folder that answers, instead of SmolLM2")] = None,
    card: Annotated[str | None, typer.Option(help="card of the checkpoint: qwen3-omni, qwen2-5-omni, or module:function")] = None,
    program: Annotated[str | None, typer.Option(help="program of the card: omni, or module:function")] = None,
    image: Annotated[list[str] | None, typer.Option(help="a picture to look at; may be given several times")] = None,
    audio: Annotated[list[str] | None, typer.Option(help="a sound to listen to; may be given several times")] = None,
    video: Annotated[list[str] | None, typer.Option(help="a clip to watch; may be given several times")] = None,
    use_audio_in_video: Annotated[bool, typer.Option("--use-audio-in-video", help="listen to clips, too")] = False,
    speaker: Annotated[str | None, typer.Option(help="whose voice answers")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="afterwards, what every loop did and how long it took")] = False,
) -> None:
    """Ask one question."""
    text = sys.stdin.read() if question == "-" else question
    ask(
        Question(
            text,
            speak=speak,
            json=json,
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop or ()),
            threads=threads,
            device=device,
            executor=kind_named(executor),
            batch_invariant=batch_invariant,
            samples=samples,
            drawing={
                "top_k": top_k,
                "min_p": min_p,
                "repetition_penalty": repetition_penalty,
                "presence_penalty": presence_penalty,
                "frequency_penalty": frequency_penalty,
                "min_tokens": min_tokens,
                "logprobs": logprobs,
            },
            speed=speed,
            timeline=timeline,
            trace=trace,
            live=live,
            record=record,
            redact=redact,
            checkpoint=checkpoint,
            card=card,
            program=program,
            images=tuple(image or ()),
            audios=tuple(audio or ()),
            videos=tuple(video or ()),
            use_audio_in_video=use_audio_in_video,
            speaker=speaker,
            stats=stats,
        )
    )


@cli.command()
def paint(
    prompt: Annotated[str, typer.Argument(help="what to paint")],
    checkpoint: Annotated[Path, typer.Option(help="folder of a Stable Diffusion 3 model, as diffusers writes it")],
    out: Annotated[Path, typer.Option("--out", "-o", help="where the picture goes, as PNG")] = Path("picture.png"),
    steps: Annotated[int | None, typer.Option(help="denoising steps; 28 by default")] = None,
    guidance: Annotated[float | None, typer.Option(help="how strongly to follow the prompt; 1 is off, 7 the default")] = None,
    negative: Annotated[str, typer.Option(help="what to keep away from, with guidance")] = "",
    width: Annotated[int | None, typer.Option(help="pixels; the model's own by default")] = None,
    height: Annotated[int | None, typer.Option(help="pixels; the model's own by default")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same picture")] = None,
    preview_every: Annotated[int, typer.Option(help="write OUT.stepN.png every so many steps; 0 is off")] = 0,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of a sentence")] = False,
    threads: Annotated[int | None, threads_option] = None,
    device: Annotated[str, device_option] = "cpu",
    executor: Annotated[str, executor_option] = "thread",
    batch_invariant: Annotated[bool, invariant_option] = False,
    timeline: Annotated[Path | None, timeline_option] = None,
    trace: Annotated[Path | None, trace_option] = None,
    live: Annotated[bool | None, live_option] = None,
    record: Annotated[Path | None, record_option] = None,
    redact: Annotated[bool, redact_option] = False,
) -> None:
    """Paint one picture."""
    draw(
        Order(
            prompt,
            checkpoint,
            out,
            steps=steps,
            guidance_scale=guidance,
            negative_prompt=negative,
            width=width,
            height=height,
            seed=seed,
            preview_every=preview_every,
            json=json,
            threads=threads,
            device=device,
            executor=kind_named(executor),
            batch_invariant=batch_invariant,
            timeline=timeline,
            trace=trace,
            live=live,
            record=record,
            redact=redact,
        )
    )


@cli.command()
def toy(
    kind: Annotated[str, typer.Argument(help="qwen3-omni, qwen2_5-omni, llama, qwen2, qwen3 or qwen3-moe")],
    folder: Annotated[Path, typer.Argument(help="a new folder")],
    seed: Annotated[int, typer.Option(help="of the random weights", min=0)] = 0,
) -> None:
    """Write a tiny random checkpoint in the published layout, to try things with."""
    typer.echo(write_toy_checkpoint(kind, folder, seed))


@cli.command()
def show(
    program: Annotated[str, typer.Argument(help="a program's name, module:function or file.py:function")],
    mermaid: Annotated[bool, typer.Option("--mermaid", help="as a Mermaid flow chart")] = False,
) -> None:
    """Draw a program."""
    found = find(program)
    if isinstance(found, ModelCard):
        raise OmniError(f"{program} is a card; `omni check {program}` tells about it")
    found.check()
    typer.echo(found.to_mermaid() if mermaid else str(found))


@cli.command()
def check(
    name: Annotated[
        str, typer.Argument(help="a card or program: name, module:function or file.py:function; or a checkpoint folder")
    ],
) -> None:
    """Check a card, a program or a Hugging Face folder without loading any weights."""
    found = find(name)
    if isinstance(found, Program):
        found.check()
        typer.echo(f"program {found.name}: {len(found.nodes)} nodes, outputs {', '.join(found.outputs)}: fine")
        return
    check_card(found)
    folder = Path(name).resolve()
    read = {spec.options.get(key) for spec in found.experts.values() for key in ("weights", "checkpoint")}
    if any(isinstance(path, str) and path and Path(path).resolve() == folder for path in read):
        from omni_runtime.weights.report import report  # it needs tokenizers, which no other command does before it loads a model

        typer.echo("\n".join(report(folder)))
    loops = ", ".join(f"{n} ({s.kind})" for n, s in found.loops.items())
    typer.echo(f"card {found.name}: experts {', '.join(found.experts)}; loops {loops}: fine")


@cli.command()
def simulate(
    costs: Annotated[Path | None, typer.Option(help="what `omni calibrate` measured; guesses of the cards by default")] = None,
    trace: Annotated[Path | None, typer.Option(help="requests to play, one JSON object a line, instead of drawing some")] = None,
    mix: Annotated[str, typer.Option(help="programs that are asked for and their shares: speak or speak=3,chat=1")] = "speak",
    rate: Annotated[float, typer.Option(help="requests a second")] = 1.0,
    burst: Annotated[float, typer.Option(help="coefficient of variation of the time between requests: 1 is Poisson")] = 1.0,
    requests: Annotated[int, typer.Option(help="how many", min=1)] = 200,
    prompt: Annotated[str, typer.Option(help="tokens of a prompt: 48, 24-80 or lognormal:40,0.6 (median, sigma)")] = "24-80",
    tokens: Annotated[str, typer.Option(help="tokens of an answer, likewise")] = "24-72",
    shared: Annotated[int, typer.Option(help="tokens of a system prompt that all begin with, of those of the prompt", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="of all dice")] = 0,
    devices: Annotated[int, typer.Option(help="each with all experts", min=1, max=1024)] = 1,
    policy: Annotated[str | None, typer.Option(help="deadline, first_come, stages or requests")] = None,
    guarantee: Annotated[str | None, typer.Option(help="no-underrun: every request is promised sound without gaps")] = None,
    tenants: Annotated[int, typer.Option(help="requests come from so many, in turn", min=1)] = 1,
    deadline: Annotated[float | None, typer.Option(help="seconds within which a request must end to count as good")] = None,
    first_output: Annotated[float | None, typer.Option(help="seconds within which every output must begin")] = None,
    noise: Annotated[bool, typer.Option(help="batches take as long as predicted, or as unevenly as was measured")] = True,
    slots: Annotated[int, typer.Option(help="batches that may wait at an executor", min=1, max=64)] = 1,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")] = False,
    report: Annotated[Path | None, typer.Option(help="also write charts into this HTML file")] = None,
    save: Annotated[Path | None, typer.Option(help="also write the requests into this file, for --trace")] = None,
) -> None:
    """Play requests to the scheduler on simulated devices, in no time."""
    scene = {"deadline_s": deadline, "first_output_s": first_output, "costs": costs, "trace": trace, "mix": mix, "rate": rate}
    scene |= {
        "burst": burst,
        "requests": requests,
        "prompt": prompt,
        "tokens": tokens,
        "seed": seed,
        "devices": devices,
        "shared": shared,
    }
    scene |= {"policy": policy, "guarantee": guarantee, "tenants": tenants, "noise": noise, "slots": slots, "json": json}
    simulate_scene(Scene(**scene, report=report, save=save))  # type: ignore[arg-type]


@cli.command()
def calibrate(
    program: Annotated[str, typer.Argument(help="a program's name, module:function or file.py:function")] = "speak",
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file, for `omni simulate --costs`")] = Path("costs.json"),
    concurrency: Annotated[str, typer.Option(help="requests at once, one trial after the other")] = "1,4,16,32",
    requests: Annotated[int, typer.Option(help="in each trial; a quarter of them one at a time", min=1)] = 16,
    tokens: Annotated[str, typer.Option(help="of an answer: 48, 24-72 or lognormal:40,0.6")] = "24-72",
    seed: Annotated[int, typer.Option(help="of lengths and answers")] = 0,
    threads: Annotated[int | None, threads_option] = None,
    device: Annotated[str, device_option] = "cpu",
    executor: Annotated[str, executor_option] = "thread",
    batch_invariant: Annotated[bool, invariant_option] = False,
    trace: Annotated[Path | None, typer.Option(help="also write the requests into this file")] = None,
    record: Annotated[Path | None, record_option] = None,
    redact: Annotated[bool, redact_option] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure what batches take and how loops advance, with real requests."""
    try:
        levels = tuple(int(level) for level in concurrency.split(","))
    except ValueError:
        raise RequestError(f"concurrency={concurrency!r}: whole numbers are needed, such as 1,4,16,32") from None
    where = kind_named(executor)
    given = (program, out, levels, requests, tokens, seed, threads, trace, record, redact, json, where, batch_invariant, device)
    run_trial(Trial(*given))


@cli.command()
def replay(
    log: Annotated[Path, typer.Argument(help="what --record wrote")],
    story: Annotated[int | None, typer.Option(help="tell what led this request to where it is")] = None,
    until: Annotated[int | None, typer.Option(help="stop after this feed")] = None,
    full: Annotated[bool, typer.Option("--full", help="show all decisions of the feed that differs")] = False,
) -> int:
    """Take the recorded decisions again, and tell the first that differs; the status is 1 then."""
    return replay_log(log, story, until, full)
