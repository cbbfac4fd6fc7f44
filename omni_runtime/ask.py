"""One question on the command line: text streams to the terminal, sound to a file that is valid at every moment."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from omni_runtime.card import ModelCard
from omni_runtime.errors import RequestError
from omni_runtime.executors.lineup import Kind
from omni_runtime.find import card_of, made
from omni_runtime.handle import Handle, Result, Sample
from omni_runtime.media_files import check_decoders, read_source
from omni_runtime.observe.loop_table import rows, table
from omni_runtime.observe.watch import Watch
from omni_runtime.program import Program
from omni_runtime.programs.chat import chat
from omni_runtime.programs.speak import speak
from omni_runtime.request import params_model, resolve
from omni_runtime.runtime import Runtime
from omni_runtime.wav import WavWriter

OMNI = ("qwen3_omni", "qwen2_5_omni")
KNOWN_BY = {"speaker": OMNI, "speed": ("hibari",), "use_audio_in_video": OMNI}  # option: cards that have it


class Question(Struct, frozen=True):
    """What `omni demo` and `omni run` ask for; see their options."""

    text: str
    speak: Path | None = None
    json: bool = False
    stats: bool = False
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    threads: int | None = None
    device: str = "cpu"
    executor: Kind = "thread"
    batch_invariant: bool = False
    samples: int = 1
    drawing: dict[str, Any] = {}  # further parameters of the answer's tokens, as in `request.ArParams`
    speed: float | None = None
    timeline: Path | None = None
    trace: Path | None = None
    live: bool | None = None
    record: Path | None = None
    redact: bool = False
    checkpoint: Path | None = None
    card: str | None = None  # that is made of the checkpoint; None: what its folder says
    program: str | None = None  # that is made of the card; None: by what the card can do
    images: tuple[str, ...] = ()  # not paths: those would make http:/x of http://x
    audios: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    use_audio_in_video: bool = False
    speaker: str | None = None

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """Of the user's turn: what is looked at and listened to goes first, as in the makers' examples."""
        kinds = (("image", self.images), ("audio", self.audios), ("video", self.videos))
        parts: list[dict[str, Any]] = [{"type": kind, kind: path} for kind, paths in kinds for path in paths]
        return [*parts, {"type": "text", "text": self.text}] if parts else self.text


def ask(question: Question) -> None:
    """Loads the models, asks, and shows the answer as it comes.

    Raises:
        OmniError: an option is wrong, the models cannot be loaded, or the request failed.
    """
    if not question.text.strip():
        raise RequestError("the question is empty; ask something")
    if question.speak is not None and not question.speak.resolve().parent.is_dir():
        raise RequestError(f"{question.speak}: its folder does not exist; make it first")
    program = _program(question)
    told = question.drawing.get("logprobs") is not None
    if told and (question.speak or not question.json):
        raise RequestError("logprobs: they are part of the JSON of a text; add --json, and leave --speak out")
    if question.samples > 1 and question.speak:
        raise RequestError(f"samples: one answer goes into a WAV file, not {question.samples}; leave --speak out")
    live = False if question.json else question.live
    watch = Watch(
        question.timeline, question.trace, live, question.text[:60], question.record, question.redact, stats=question.stats
    )
    turns: list[dict[str, Any]] = [{"role": "system", "content": question.system}] if question.system is not None else []
    turns.append({"role": "user", "content": question.content})
    params: dict[str, Any] = {
        "max_tokens": question.max_tokens,
        "temperature": question.temperature,
        "top_p": question.top_p,
        "stop": question.stop or None,
        **question.drawing,
    }
    params = {name: value for name, value in params.items() if value is not None}  # the card's defaults stand
    if "talk" in program.nodes:  # it draws as well
        params = {"think": params} if params else {}
    params |= _further(question, program)
    outputs = ("text", "audio") if question.speak else ("text", "tokens", "logprobs") if told else ("text",)
    asked: dict[str, Any] = {"outputs": outputs, "seed": question.seed, "n": question.samples}
    checked = resolve(0, program, 0, {"messages": turns, **params}, read=read_source, **asked)[1]  # before loading
    check_decoders(checked.inputs.values())
    began = time.perf_counter()
    note = sys.stderr.isatty() and not question.json
    if note:
        print("loading the models ...", end="", file=sys.stderr, flush=True)
    cards = list(program.cards.values())
    chosen: Any = {"threads": question.threads, "executor": question.executor, "record": watch.recording}
    chosen |= {"device": question.device, "batch_invariant": question.batch_invariant}
    with watch, Runtime(cards, observers=watch.observers, **chosen) as runtime:
        loaded = time.perf_counter() - began
        if note:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        handle = runtime.submit(program, messages=turns, **asked, **params)
        if question.stats and not question.json:
            print(f"> {question.text}\n", flush=True)
        _follow(handle, question, watch)
        result = handle.result()
    if question.json:
        told_of = {"loops": to_builtins(rows(watch.recorder.record(), handle.id))} if question.stats else {}
        print(json.dumps(_as_json(result, question, loaded) | told_of))
    elif question.stats:
        print(_stats(result, question, loaded))
        print("\n".join(["", *table(watch.recorder.record(), handle.id)]))


def _further(question: Question, program: Program) -> dict[str, Any]:
    """Parameters that only some cards know, each under its own name."""
    if question.speaker is not None and not question.speak:
        raise RequestError(f"speaker={question.speaker!r}: only a spoken answer has a voice; --speaker needs --speak FILE")
    if question.speed is not None and not question.speak:
        raise RequestError(f"speed={question.speed}: only a spoken answer has a speed; add --speak FILE")
    if question.use_audio_in_video and not question.videos:
        raise RequestError("use_audio_in_video: there is no clip to listen to; --use-audio-in-video needs --video FILE")
    asked = {"speaker": question.speaker, "speed": question.speed, "use_audio_in_video": question.use_audio_in_video or None}
    found = {name: value for name, value in asked.items() if value is not None}
    known = {name for node in program.nodes for name in params_model(program.spec(node)).model_fields}
    for name, value in found.items():
        if name not in known and not set(KNOWN_BY[name]) & set(program.cards):  # a card without its voice says that itself
            ours, others, option = ", ".join(program.cards), " and ".join(KNOWN_BY[name]), "--" + name.replace("_", "-")
            raise RequestError(f"{name}={value!r}: not known by {ours}, only by {others}; leave {option} out")
    return found


def _program(question: Question) -> Program:
    if question.card is None and question.program is None and question.checkpoint is None:
        return speak() if question.speak else chat()
    folder = () if question.checkpoint is None else (str(question.checkpoint),)
    if question.card is not None:
        mind = made(question.card, ModelCard, *folder)
    elif question.checkpoint is not None:
        mind = card_of(question.checkpoint)
    else:
        raise RequestError(f"program={question.program!r}: it needs a card; add --card NAME or --checkpoint FOLDER")
    if question.program is not None:
        return made(question.program, Program, mind)
    if "prepare" in mind.loops:
        return made("omni", Program, mind)
    return speak(mind) if question.speak else chat(mind)


def _follow(handle: Handle, question: Question, watch: Watch) -> None:
    rate = handle.sample_rates.get("audio")
    wav = WavWriter(question.speak, rate) if question.speak and rate else None
    try:
        with watch.stream() as show:
            for chunk in handle:
                if chunk.text is not None and not question.json and question.samples == 1:
                    show(chunk.text)
                elif chunk.samples is not None and wav is not None:
                    wav.write(chunk.samples)
            if question.samples > 1 and not question.json:  # they are made together, and read one after the other
                found = handle.result().samples
                show("\n\n".join(f"-- sample {i}, seed {sample.seed}\n{sample.text}" for i, sample in enumerate(found, 1)))
    finally:
        if wav is not None:
            wav.close()
        if not question.json:
            print(flush=True)


def _as_json(result: Result, question: Question, loaded: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "text": result.text,
        "finish": result.finish,
        "usage": result.usage,
        "units": result.units,
        "seed": result.seed,
        "batch_invariant": question.batch_invariant,
        "load_s": loaded,
        "first_s": result.timings.first,
        "total_s": result.timings.total,
    }
    if "logprobs" in result.outputs:
        found |= _tokens(result.samples[0])
    if question.samples > 1:
        found["samples"] = [{"text": s.text, "finish": s.finish, "seed": s.seed} | _tokens(s) for s in result.samples]
    if question.speak:
        found["audio"] = {"path": str(question.speak), "seconds": seconds_of(result), "sample_rate": result.sample_rates["audio"]}
    return found


def _tokens(sample: Sample) -> dict[str, Any]:
    if "logprobs" not in sample.outputs:
        return {}
    told = [{"token": t.token, "logprob": t.logprob, "top": t.top} for t in sample.outputs["logprobs"]]
    return {"tokens": sample.outputs["tokens"], "logprobs": told}


def seconds_of(result: Result) -> float:
    """Length of the spoken answer."""
    return len(result.audio) / result.sample_rates["audio"]


def _stats(result: Result, question: Question, loaded: float) -> str:
    times = result.timings
    tokens = result.usage.get("think", {}).get("completion_tokens", 0)
    lines = ["", f"models loaded in      {loaded:6.2f} s"]
    if question.batch_invariant:
        lines.append("batch-invariant       these bits in any company, on this machine with as many threads")
    if "text" in times.first:
        lines.append(f"time to first token   {times.first['text']:6.2f} s")
    if question.speak:
        sound = seconds_of(result)
        if "audio" in times.first:
            lines.append(f"time to first sound   {times.first['audio']:6.2f} s")
        lines.append(f"all done after        {times.total:6.2f} s, with {tokens} tokens and {sound:.1f} s of sound")
        if sound:
            lines.append(f"real-time factor      {times.total / sound:6.2f}   (compute over sound; below 1 keeps up)")
    lines.append("WorkUnits run         " + ", ".join(f"{loop} {n}" for loop, n in result.units.items()))
    if question.speak:
        lines.append(f"the answer is in      {question.speak}")
    if question.timeline:
        lines.append(f"its timeline is in    {question.timeline}")
    return "\n".join(lines)
