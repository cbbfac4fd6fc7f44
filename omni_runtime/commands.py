"""The commands of `omni`, for typer."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from omni_runtime.ask import Question, ask
from omni_runtime.card import ModelCard
from omni_runtime.errors import OmniError
from omni_runtime.find import find
from omni_runtime.program import Program

QUESTION = "What is the capital of France, and what is it famous for?"

cli = typer.Typer(
    help="Run and inspect omni models whose loops are visible.", no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip
threads_option = typer.Option(help="CPU threads of the model; all cores by default", min=1)


@cli.command()
def demo(
    question: Annotated[str, typer.Argument(help="what to ask")] = QUESTION,
    out: Annotated[Path, typer.Option(help="where the spoken answer goes")] = Path("answer.wav"),
    max_tokens: Annotated[int, typer.Option(help="length of the answer at most", min=0)] = 96,
    threads: Annotated[int | None, threads_option] = None,
) -> None:
    """Answer a question in text and speech, from real weights, on this CPU."""
    ask(Question(question, speak=out, max_tokens=max_tokens, threads=threads, stats=True))


@cli.command()
def run(
    question: Annotated[str, typer.Argument(help="what to ask; - reads it from standard input")],
    speak: Annotated[Path | None, typer.Option(help="also speak the answer into this WAV file")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of streaming text")] = False,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="length of the answer at most")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the likeliest token; default of the model")] = None,
    top_p: Annotated[float | None, typer.Option(help="draw from the likeliest tokens of this mass; 1 is off")] = None,
    seed: Annotated[int | None, typer.Option(help="the same seed gives the same answer")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="end before this text; may be given several times")] = None,
    threads: Annotated[int | None, threads_option] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="a Hugging Face folder that answers, instead of SmolLM2")] = None,
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
            checkpoint=checkpoint,
        )
    )


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
    for expert, spec in found.experts.items():
        module = spec.build.partition(":")[0]
        if find_spec(module) is None:
            raise OmniError(f"card {found.name}: experts.{expert}.build: there is no module {module}")
    folder = Path(name).resolve()
    if any(spec.options.get("weights") == str(folder) for spec in found.experts.values()):
        from omni_runtime.weights.report import report  # it needs tokenizers, which no other command does before it loads a model

        typer.echo("\n".join(report(folder)))
    loops = ", ".join(f"{n} ({s.kind})" for n, s in found.loops.items())
    typer.echo(f"card {found.name}: experts {', '.join(found.experts)}; loops {loops}: fine")
