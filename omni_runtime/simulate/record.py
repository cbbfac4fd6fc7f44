"""Looks on at a live runtime, and writes down the workload that it was given and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from omni_runtime.orders import BatchDone
from omni_runtime.request import PRIORITIES, Params
from omni_runtime.simulate.outcome import Outcome
from omni_runtime.simulate.replay import heard
from omni_runtime.simulate.workload import Arrival
from omni_runtime.work import Chunk, Command, End, OutputEnd, RunBatch, Submit

URGENCY = {number: name for name, number in PRIORITIES.items()}


class _Seen:
    """A request that came."""

    def __init__(self, arrival: Arrival, submit: Submit, outcome: Outcome) -> None:
        self.arrival, self.outcome = arrival, outcome
        self.answers = [step.name for step in submit.plan.steps if step.spec.kind == "ar_decode"]


class WorkloadRecorder:
    """Give it to `Runtime(..., observers=[recorder])`, and write its `workload()` with `simulate.workload.write`.

    Args:
        programs: name of a program -> what `omni show` knows it as, where these differ.

    Prompt and answer lengths are those of the first loop that draws tokens, as it counted them at its end; what was said is not
    kept. Of a request that was cancelled or failed, the answer is as long as it got.
    """

    def __init__(self, programs: Mapping[str, str] | None = None) -> None:
        self._programs = dict(programs or {})
        self._seen: list[_Seen] = []
        self._runs: dict[int, _Seen] = {}
        self._batches: dict[int, str] = {}  # in flight -> expert
        self.busy: dict[str, float] = {}  # expert -> device-seconds
        self._start: float | None = None
        self._lock = Lock()

    def workload(self) -> list[Arrival]:
        """The requests so far, from the first one's coming on. One that found nothing to copy begins like the others of its
        program: somebody must be the first, and whoever copies later copies from it."""
        with self._lock:
            found = [seen.arrival for seen in self._seen]
        shared: dict[str, int] = {}
        for arrival in found:
            shared[arrival.program] = max(shared.get(arrival.program, 0), arrival.shared_tokens)
        return [a if a.shared_tokens else a.model_copy(update={"shared_tokens": shared[a.program]}) for a in found]

    def outcomes(self) -> list[Outcome]:
        """What became of them, in the same order; those alive have not ended."""
        with self._lock:
            return [seen.outcome for seen in self._seen]

    def see(self, now: float, inputs: Sequence[Any], said: Sequence[Any], commands: Sequence[Command]) -> None:
        """See `core.Observer`."""
        with self._lock:
            for item in inputs:
                if type(item) is Submit:
                    self._submit(now, item)
            for command in commands:
                if isinstance(command, RunBatch):
                    self._batches[command.batch] = command.expert
                elif isinstance(command, Chunk | OutputEnd | End):
                    seen = self._runs.get(command.run)
                    if seen is not None:
                        seen.outcome.take(now, command)
                        if isinstance(command, End):
                            self._end(seen, command)
            for word in said:
                if type(word) is BatchDone and (expert := self._batches.pop(word.batch, None)) is not None:
                    self.busy[expert] = self.busy.get(expert, 0.0) + word.seconds

    def _submit(self, now: float, item: Submit) -> None:
        if self._start is None:
            self._start = now
        characters = [_characters(value) for value in item.inputs.values() if not _tokens(value)]
        tokens = [len(value) for value in item.inputs.values() if _tokens(value)]
        arrival = Arrival(
            at=max(0.0, round(now - self._start, 6)),
            program=self._programs.get(item.plan.program, item.plan.program),
            outputs=item.plan.outputs,
            characters=max(1, max(characters)) if characters else None,
            prompt_tokens=max(tokens) if tokens else None,
            params={name: _plain(params) for name, params in item.params.items() if _plain(params)},
            priority=URGENCY[item.priority],  # type: ignore[arg-type]
            n=item.n,
            tenant=item.tenant,
            guarantee="no-underrun" if item.promised else None,
            deadline_s=item.deadline,
            first_output_s=item.first_output,
        )
        seen = self._runs[item.run] = _Seen(arrival, item, heard(arrival, item.plan, now))
        self._seen.append(seen)

    def _end(self, seen: _Seen, end: End) -> None:
        del self._runs[end.run]
        usage = next((end.usage[name] for name in seen.answers if end.usage.get(name)), None)
        if usage is not None:
            told = {"prompt_tokens": usage["prompt_tokens"], "tokens": usage["completion_tokens"]}
            told["shared_tokens"] = usage.get("cached_tokens", 0)
            seen.arrival = seen.arrival.model_copy(update={k: v for k, v in told.items() if v})


def _tokens(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], int)


def _characters(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    turns = value if isinstance(value, list | tuple) else ()
    return sum(len(turn["content"]) for turn in turns if isinstance(turn, Mapping) and "content" in turn)


def _plain(params: Any) -> dict[str, Any]:
    """Of a loop's parameters, those that decide how much work there is: an answer's length is known better at its end."""
    if not isinstance(params, Params):
        return {}
    given = params.model_dump(exclude_defaults=True)
    return {name: given[name] for name in ("steps", "guidance_scale", "width", "height", "preview_every") if name in given}
