"""Planted bugs: each is a change of the package's text, and names the check that must catch it.

`python mutants.py` plants them all, one by one, and prints what caught which. A mutant whose text is no longer there must be
written again for the new text, not deleted.
"""

# ruff: noqa: E501  texts of the package, as they stand there

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lost import LOST
from planted import PLANTED, Mutant
from uttered import UTTERED

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "omni_runtime"


MUTANTS = [
    *PLANTED,
    *LOST,
    *UTTERED,
    # the flow
    Mutant("a starved reader throttles", "flow/run.py", " and (r.node.unit is not None or r.node.busy)", ""),
    Mutant(
        "nobody throttles",
        "flow/run.py",
        "return any(r.attached",
        "return False and any(r.attached",
        "stories.a_slow_reader_holds_its_source_back(1)",
    ),
    Mutant("a reader is not woken by new items", "flow/walk.py", "self.touch(reading)", "pass"),
    Mutant("a reader is not woken by the end", "flow/walk.py", "self.touch(reader.node)", "pass"),
    Mutant(
        "a throttled source is not offered again", "flow/walk.py", "                self.offer(source)", "                pass"
    ),
    Mutant("results of an ended run count", "flow/flow.py", "if node.run.ended:", "if False:", "search.search(40, 80, 40)"),
    Mutant("tensors of an ended run stay", "flow/walk.py", "self.release(ref for ref in refs if ref not in held)", "pass"),
    Mutant(
        "tensors of a channel stay",
        "flow/flow.py",
        "self.release(ref for ref in route.channel.held() if ref in node.run.there)",
        "pass",
    ),
    Mutant("a chunk is sent twice", "flow/walk.py", "route.sent = start + len(fresh)", "pass"),
    Mutant("batches of a lost executor are waited for", "flow/flow.py", "                del self.flying[batch]\n", ""),
    Mutant(
        "a failing bind leaves its run in the batch",
        "flow/flow.py",
        "for other in [m for m in members if m[0].run is run]:",
        "for other in []:",
        "found.bind_fails_beside_another_loop_of_its_run('high')",
    ),
    Mutant(
        "memory is claimed before prompts are known",
        "flow/walk.py",
        "node.step.pooled and type(step) is WorkUnit",
        "node.step.pooled",
        "found.a_request_claims_what_it_needs_and_not_whole_contexts(3)",
    ),
    Mutant(
        "tensors stay until the reader ends",
        "flow/walk.py",
        "                self.release(reader.channel.collect())\n        if node.sources",
        "                pass\n        if node.sources",
        "stories.tensors_of_an_ended_source_go_one_by_one()",
    ),
    Mutant("a grown offer is not told", "flow/walk.py", "elif old is None or old.hi != unit.hi or", "elif old is None or"),
    Mutant("units are counted twice", "flow/walk.py", "node.units += 1", "node.units += 2"),
    Mutant("tensors that nobody wants stay", "flow/walk.py", "in result.tensors.items() if port not in", "in () if port not in"),
    # the scheduler
    Mutant(
        "a withdrawn offer runs",
        "scheduler/scheduler.py",
        "(offer := run.offers.get(event.loop)) is not None:\n            offer.live = False",
        "(offer := run.offers.get(event.loop)) is not None:\n            pass",
    ),
    Mutant(
        "a loop that is done keeps its memory",
        "scheduler/scheduler.py",
        "            self._release(run, event.loop, event.chain, out)",
        "            pass",
    ),
    Mutant(
        "freed memory is not given on",
        "scheduler/holdings.py",
        "        self.admission.changed = True\n        if (ex.name, expert) in self.memory.parked:\n            self.memory.moved.add((ex.name, expert))",
        "        pass",
    ),
    Mutant(
        "an offer that grows goes to the end of the queue",
        "scheduler/scheduler.py",
        "        if offer.live:  # it grew while it waited: it keeps its place\n            return\n",
        "",
        "fairness.an_offer_that_grows_keeps_its_place_and_is_granted_whole()",
    ),
    Mutant(
        "a unit that did not run is taken for a prefix",
        "scheduler/scheduler.py",
        " and offer.held and not run.closing:",
        " and offer.held:",
        "found.a_unit_that_was_left_out_of_its_batch_holds_no_prefix()",
    ),
    Mutant("books close with a unit in flight", "scheduler/holdings.py", "if run.flying or run.id", "if run.id"),
    Mutant(
        "books close twice",
        "scheduler/holdings.py",
        " or run.id not in self.runs:",
        ":",
        "found.cancel_with_two_loops_in_one_batch()",
    ),
    Mutant(
        "memory stays after a cancel",
        "scheduler/holdings.py",
        "            self._release(run, loop, (), out)",
        "            pass",
    ),
    Mutant(
        "work goes on after a cancel",
        "scheduler/scheduler.py",
        "        for offer in run.offers.values():\n            offer.live = False\n        self.admission.forget(run)",
        "        self.admission.forget(run)",
    ),
    Mutant(
        "a cancelled run still waits for memory",
        "scheduler/scheduler.py",
        "offer.live = False\n        self.admission.forget(run)",
        "offer.live = False",
    ),
    Mutant(
        "who was told to fail begins more",
        "scheduler/scheduler.py",
        " or run.doomed or run.stale or run.leaving:",
        " or run.stale or run.leaving:",
        "found_lost.who_was_told_to_fail_begins_nothing()",
    ),
    Mutant(
        "all members of a broken batch fail",
        "scheduler/scheduler.py",
        "if len(members) == 1 and not run.closing:",
        "if not run.closing:",
    ),
    Mutant(
        "suspects stay together",
        "scheduler/scheduler.py",
        "run.solo[unit.loop] = max(unit.at, run.solo.get(unit.loop, 0))",
        "pass",
    ),
    Mutant(
        "a suspect has company",
        "scheduler/fill.py",
        "if unit.lo > size or (solo and (picked or self.busy)):",
        "if unit.lo > size:",
    ),
    Mutant(
        "a suspect stays one",
        "scheduler/scheduler.py",
        "del run.solo[unit.loop]",
        "pass",
        "stories.a_guilty_unit_does_not_hold_up_its_neighbours()",
    ),
    Mutant(
        "blocks of a broken batch do not come again",
        "scheduler/fill.py",
        "        if offer.sent < offer.held:",
        "        if offer.sent < offer.held and not offer.run.solo:",
    ),
    Mutant(
        "one batch more than slots",
        "scheduler/scheduler.py",
        "while len(ex.flying) < ex.slots",
        "while len(ex.flying) <= ex.slots",
    ),
    Mutant(
        "one unit more than fits",
        "scheduler/fill.py",
        "self.places, self.size = limits.units,",
        "self.places, self.size = limits.units + 1,",
    ),
    Mutant("more granted than fits", "scheduler/fill.py", "        room -= unit.lo\n", "        pass\n"),
    Mutant("a group is taken twice", "scheduler/fill.py", "taken = group in busy.values()", "taken = False"),
    Mutant(
        "a prefill takes the whole budget",
        "scheduler/fill.py",
        "size -= unit.lo\n            picked.append",
        "size -= unit.hi\n            picked.append",
        "fairness.a_long_prefill_never_stops_the_decodes_beside_it(1, 1)",
    ),
    Mutant("an over-sized request is let in", "scheduler/admit.py", "if least > total:", "if False:"),
    Mutant(
        "juniors pass in admission",
        "scheduler/admit.py",
        "                blocked.update(needs)\n",
        "",
        "fairness.small_requests_do_not_pass_a_waiting_big_one()",
    ),
    Mutant(
        "room depends on load",
        "scheduler/admit.py",
        ".ledgers[expert].total\n        least",
        ".ledgers[expert].unreserved\n        least",
    ),
    Mutant(
        "placement depends on load",
        "scheduler/admit.py",
        "short.append(max(0, sum(c.most for c in claims if c.expert == expert) - total))",
        "pass",
        "found.the_room_of_an_answer_does_not_depend_on_who_else_is_there()",
    ),
    Mutant(
        "priority without age",
        "scheduler/rank.py",
        "return ready + PATIENCE[priority]",
        "return PATIENCE[priority]",
        "fairness.low_priority_waits_its_patience_and_no_longer()",
    ),
    Mutant(
        "age counts from the request",
        "flow/walk.py",
        "by = due(ready, node.run.priority)",
        "by = due(node.run.arrival, node.run.priority)",
        "fairness.age_counts_from_the_unit_and_not_from_the_request()",
    ),
    Mutant(
        "seniority changes with priority only",
        "scheduler/rank.py",
        "return arrival - CREDIT[priority], run",
        "return float(priority), run",
        "fairness.priority_is_worth_seconds_of_seniority_at_admission()",
    ),
    Mutant(
        "overload is not refused",
        "scheduler/scheduler.py",
        "if len(self.runs) >= self.max_runs:",
        "if False:",
        "stories.overload_is_refused_at_once_and_not_remembered()",
    ),
    # the loops
    Mutant("look-ahead is forgotten", "loops/audio_decode.py", "            ready -= s.ctx.spec.ahead\n", "            pass\n"),
    Mutant(
        "a mark needs look-ahead",
        "loops/audio_decode.py",
        "ready = max(ready - s.ctx.spec.ahead, s.cut - frames.cursor)",
        "ready -= s.ctx.spec.ahead",
        "answers.a_marked_segment_is_spoken_without_look_ahead()",
    ),
    Mutant(
        "the last frames wait for more",
        "loops/audio_decode.py",
        "        if frames.ended:",
        "        if frames.ended and ready > s.ctx.spec.ahead:",
    ),
    Mutant(
        "stop strings end an answer too early",
        "loops/ar_decode.py",
        "count < s.least",
        "False",
        "endings.what_ends_an_answer({'stop': ['b'], 'min_tokens': 3, 'ignore_eos': True}, 'abcd..', 7, 'length')",
    ),
    Mutant(
        "what was complete too early ends an answer late",
        "loops/text.py",
        "max(0, old - len(stop) + 1)",
        "0",
        "text.no_stop_string_before_the_least_piece()",
    ),
    Mutant(
        "the card's stop tokens may be drawn before the least number",
        "loops/ar_decode.py",
        "_draw(ctx, self.stop_tokens)",
        "_draw(ctx, frozenset(params.stop_tokens))",
        "endings.the_op_is_told_what_was_asked_and_nothing_more()",
    ),
    Mutant(
        "logprobs are told of the next token",
        "loops/ar_decode.py",
        'Push("logprobs", count - 1,',
        'Push("logprobs", count,',
        "endings.logprobs_lie_beside_their_tokens(1)",
    ),
    Mutant("a reader ahead pads", "loops/ar_decode.py", "s.conditioning is not None and not s.conditioning.ended:", "False:"),
    Mutant(
        "a stop string leaks",
        "loops/text.py",
        "for n in range(min(len(stop) - 1, len(text)), keep, -1):",
        "for n in ():",
        "answers.stop_strings(['DEF', 'GHIJ'], ['DEFGHIJ'], [], 'stop')",
    ),
    Mutant(
        "the end flush is lost",
        "loops/ar_decode.py",
        "text += s.text.end()",
        "pass",
        "answers.what_is_held_back_comes_out_at_the_token_limit()",
    ),
    Mutant(
        "which stop string wins depends on the split",
        "loops/text.py",
        "(at + len(stop), at)",
        "(at, at)",
        "text.any_split_gives_the_same_text()",
    ),
    Mutant(
        "a clause depends on arrival",
        "loops/clauses.py",
        "(?=[^。！？{CLOSERS}])",
        "(?=.)",
        "clauses.any_arrival_gives_the_same_clauses()",
    ),
    Mutant(
        "order through a set", "loops/each.py", "sorted(ctx.wants)", "ctx.wants", "determinism.one_schedule_in_every_process()"
    ),
    Mutant(
        "tensors go before all have passed",
        "channel.py",
        "min((0 if r.full else r.cursor for",
        "max((0 if r.full else r.cursor for",
        "channel.tensors_go_when_the_slowest_reader_has_passed()",
    ),
    Mutant(
        "steps beyond the card's limit",
        "request.py",
        "self.steps > spec.max_steps",
        "False",
        "request.the_remedy_is_said('paint', {'steps': 1001}, 'at most 1000')",
    ),
]


def plant(mutant: Mutant, tree: Path) -> None:
    """A copy of the package with the bug in it."""
    shutil.copytree(PACKAGE, tree / "omni_runtime", ignore=shutil.ignore_patterns("__pycache__"))
    file = tree / "omni_runtime" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, (
        f"mutant {mutant.name!r}: its text is {text.count(mutant.old)} times in {mutant.file}; write it again"
    )
    text = text.replace(mutant.old, mutant.new)
    compile(text, mutant.file, "exec")  # a mutant that cannot even be imported proves nothing
    file.write_text(text)


def run(*checks: str, tree: Path, seconds: float = 30.0) -> str:
    """How the first of these checks that fails does so, on the package in `tree`; empty if all pass."""
    env = {**os.environ, "OMNI_SHRINK": "0", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(HERE / "mutants.py"), "--check", *checks]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"hangs for {seconds} s"
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert done.returncode == 3, f"the check itself is broken: {done.stderr[-2000:]}"
    return lines[-1][:160] if lines else "fails"


def caught(mutant: Mutant) -> str:
    with TemporaryDirectory() as folder:
        plant(mutant, Path(folder))
        return run(mutant.check, tree=Path(folder))


def _check(call: str) -> None:
    """In the other process: exit status 3 if the check fails."""
    import omni_runtime

    assert str(Path(omni_runtime.__file__).parents[1]) == os.environ["PYTHONPATH"], omni_runtime.__file__
    module, _, rest = call.partition(".")
    name, _, arguments = rest.partition("(")
    test = "" if module == "search" else "test_"
    function: Any = getattr(import_module(test + module), test + name)
    try:
        eval(f"function({arguments}", {"function": function})
    except BaseException as error:  # a failure of pytest is not an Exception
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        for check in sys.argv[2:]:
            _check(check)
    else:
        for mutant in MUTANTS:
            if len(sys.argv) == 1 or any(word in mutant.name for word in sys.argv[1:]):
                start = time.monotonic()
                told = caught(mutant)
                print(
                    f"{mutant.name:50} {mutant.check.partition('(')[0]:75} {time.monotonic() - start:5.1f} s  {told or 'MISSED'}",
                    flush=True,
                )
