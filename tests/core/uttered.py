"""Planted bugs in talkers that are fed states, in flows, and in decoders that keep nothing; `mutants.py` plants them."""

from __future__ import annotations

from planted import Mutant

TALE = "oracle.speech(16)"  # program `tale`, against straight-line code
AGAIN = "rebuild_core.preempted_after_every_unit_that_made_progress(16)"
TALKER = "utter.each_position_of_a_talker_has_one_state()"
FLOW = "utter.a_flow_does_not_depend_on_when_its_codes_come()"
DECODER = "utter.a_decoder_that_keeps_nothing_is_given_what_was_before()"

UTTERED = [
    Mutant(
        "states of the answer stand where the thinker's do", "loops/talk.py", "Inset(at + (at >= self.before)", "Inset(at", TALE
    ),
    Mutant("a state is heard twice", "loops/talk.py", "(ends[-1] - (ends[-1] > self.before)) if ends else 0", "0", TALKER),
    Mutant(
        "the first token's state is said again",
        "loops/talk.py",
        "_rows_of(self.inner) - self.before)",
        "_rows_of(self.inner))",
        TALE,
    ),
    Mutant("the end is not said", "loops/talk.py", "spec.text_pad if after else spec.text_end", "spec.text_pad", TALE),
    Mutant(
        "a talker of states is not told where it stands",
        "loops/talk.py",
        "*(placed(told[0]) if told else (None, 0.0))",
        "None, 0.0",
        TALE,
    ),
    Mutant("nobody says who speaks", "loops/talk.py", 'if count == 1 and "speaker" in s.ctx.wants:', "if False:", TALE),
    Mutant(
        "states are let go before they are fed",
        "loops/talk.py",
        "            break\n        count += 1",
        "            pass\n        count += 1",
        TALKER,
    ),
    Mutant("states are never let go", "loops/talk.py", "s.inner.take(_passed(s, s.inner))", "pass", TALKER),
    Mutant(
        "states of answers are made twice",
        "loops/ar_decode.py",
        'inner = s.inner != "" and start >= s.told',
        'inner = s.inner != ""',
        AGAIN,
    ),
    Mutant(
        "a chunk does not wait for what it looks ahead at", "loops/flow_chunks.py", "or (high > frames and not ended)", "", TALE
    ),
    Mutant("the last chunk is never made", "loops/flow_decode.py", "self.codes.ended)", "False)", TALE),
    Mutant("a chunk is fed the codes of the one before", "loops/flow_decode.py", "items[chunk.start //", "items[0 //", TALE),
    Mutant("all chunks are one size", "loops/flow_decode.py", "sizes=spec.chunks", "sizes=spec.chunks[:1]", TALE),
    Mutant(
        "a flow goes on in the middle",
        "loops/flow_decode.py",
        "        s.number = s.call = 0\n\n    def fin",
        "        pass\n\n    def fin",
        AGAIN,
    ),
    Mutant(
        "a flow begins its chunk again",
        "loops/flow_decode.py",
        "        s.number = s.call = 0\n\n    def fin",
        "        s.call = 0\n\n    def fin",
        AGAIN,
    ),
    Mutant("frames are kept twice", "loops/flow_decode.py", 'Push("mel", chunk.start, mel)', 'Push("mel", 0, mel)', TALE),
    Mutant("codes are never let go", "loops/flow_decode.py", "s.codes.take(over)", "pass", FLOW),
    Mutant(
        "a decoder is not given what was before",
        "loops/audio_decode.py",
        "back = min(at, s.ctx.spec.behind or 0)",
        "back = 0",
        TALE,
    ),
    Mutant(
        "a decoder goes back without need",
        "loops/audio_decode.py",
        "        if s.ctx.spec.behind is not None:\n            return\n",
        "",
        DECODER,
    ),
]
