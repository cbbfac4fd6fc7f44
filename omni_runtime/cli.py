"""The `omni` command: demo, run, show, check. An error is one sentence and a non-zero exit, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from omni_runtime.card import ModelCard
from omni_runtime.errors import MissingExtra, OmniError, unknown
from omni_runtime.program import Program

QUESTION = "What is the capital of France, and what is it famous for?"


def find(name: str) -> ModelCard | Program:
    """A card or a program by name.

    Args:
        name: of a file in `cards` or `programs`, "module:function", or "path/to/file.py:function". What is found may be the
            card or program itself, or a function that returns it when called without arguments.

    Raises:
        OmniError: nothing has that name, or what has it is neither.
    """
    where, _, attribute = name.partition(":")
    found: Any
    if not attribute:
        shipped = {path.stem: kind for kind in ("cards", "programs") for path in _folder(kind).glob("[!_]*.py")}
        if name not in shipped:
            raise OmniError(unknown("card or program", name, shipped) + "; or give module:function")
        found = getattr(import_module(f"omni_runtime.{shipped[name]}.{name}"), name)
    else:
        found = _attribute(where, attribute)
    if callable(found) and not isinstance(found, ModelCard | Program):
        try:
            found = found()
        except TypeError as e:
            raise OmniError(f"{name}: {e}; the function must work without arguments") from None
    if not isinstance(found, ModelCard | Program):
        raise OmniError(f"{name} is a {type(found).__name__}, not a ModelCard or Program")
    return found


def _folder(kind: str) -> Path:
    file = import_module(f"omni_runtime.{kind}").__file__
    assert file is not None
    return Path(file).parent


def _attribute(where: str, attribute: str) -> Any:
    if where.endswith(".py"):
        from runpy import run_path

        if not Path(where).is_file():
            raise OmniError(f"{where}: there is no such file")
        try:
            names = run_path(where)
        except OmniError:
            raise
        except Exception as e:
            raise OmniError(f"{where}: {e!r}") from None
    else:
        sys.path.insert(0, os.getcwd())
        try:
            names = vars(import_module(where))
        except ImportError as e:
            raise OmniError(f"{where}: {e}") from None
        finally:
            sys.path.remove(os.getcwd())
    if attribute not in names:
        raise OmniError(f"{where}: " + unknown("name", attribute, (n for n in names if not n.startswith("_"))))
    return names[attribute]


def app() -> Any:
    """The commands, as a typer application.

    Raises:
        MissingExtra: typer or rich is not installed.
    """
    try:
        import typer
    except ImportError:
        raise MissingExtra("the `omni` command needs typer and rich: pip install 'omni_runtime[cli]'") from None
    from omni_runtime import ask

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
        ask.ask(ask.Question(question, speak=out, max_tokens=max_tokens, threads=threads, stats=True))

    @cli.command()
    def run(
        question: Annotated[str, typer.Argument(help="what to ask; - reads it from standard input")],
        speak: Annotated[Path | None, typer.Option(help="also speak the answer into this WAV file")] = None,
        json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of streaming text")] = False,
        system: Annotated[str | None, typer.Option(help="system message")] = None,
        max_tokens: Annotated[int | None, typer.Option(help="length of the answer at most")] = None,
        temperature: Annotated[float, typer.Option(help="0 takes the likeliest token")] = 0.0,
        top_p: Annotated[float, typer.Option(help="draw from the likeliest tokens of this mass; 1 is off")] = 1.0,
        seed: Annotated[int | None, typer.Option(help="the same seed gives the same answer")] = None,
        stop: Annotated[list[str] | None, typer.Option(help="end before this text; may be given several times")] = None,
        threads: Annotated[int | None, threads_option] = None,
    ) -> None:
        """Ask one question."""
        text = sys.stdin.read() if question == "-" else question
        ask.ask(
            ask.Question(
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
    def check(name: Annotated[str, typer.Argument(help="a card or program: name, module:function or file.py:function")]) -> None:
        """Check a card or a program without loading any weights."""
        found = find(name)
        if isinstance(found, Program):
            found.check()
            typer.echo(f"program {found.name}: {len(found.nodes)} nodes, outputs {', '.join(found.outputs)}: fine")
            return
        for expert, spec in found.experts.items():
            module = spec.build.partition(":")[0]
            from importlib.util import find_spec

            if find_spec(module) is None:
                raise OmniError(f"card {found.name}: experts.{expert}.build: there is no module {module}")
        loops = ", ".join(f"{n} ({s.kind})" for n, s in found.loops.items())
        typer.echo(f"card {found.name}: experts {', '.join(found.experts)}; loops {loops}: fine")

    return cli


def main() -> None:
    """Entry point of the `omni` command."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads; a busy neighbour then costs half as much
    sys.exit(guarded(lambda: app()(standalone_mode=False)))


def guarded(work: Callable[[], Any]) -> int:
    """Runs a command; returns its exit status and says in one sentence what went wrong."""
    try:
        found = work()
        return found if isinstance(found, int) else 0
    except KeyboardInterrupt:
        print("omni: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: nothing more to say to it
        return 0
    except (OmniError, OSError) as e:
        print(f"omni: {e}", file=sys.stderr)
        return 1
    except Exception as e:
        shown = getattr(e, "show", None)  # a usage error of the command line library
        if shown is not None:
            shown()
            return int(getattr(e, "exit_code", 2))
        if type(e).__name__ == "Abort":
            return 130
        print(f"omni: a bug of omni_runtime: {e!r}", file=sys.stderr)
        return 70
