"""What became of one simulated request."""

from __future__ import annotations

from collections.abc import Mapping

from omni_runtime.work import Chunk, End, OutputEnd, Waiting

AUDIBLE = 0.050  # seconds; less silence than that in a whole answer is not noticed


class Outcome:
    """Hears a request. Sound is taken to play from its first delivery on, without a pause but where it runs dry.

    All times are seconds; `first_*` and `ended` are moments of the simulation's clock, None where there was none.

    Args:
        arrival: when it came.
        sounds: samples a second of each output that is sound.
        texts: the outputs that are text.
        deadline, first_output: moments by which it should be done, or every output have begun; None where it does not matter.
    """

    __slots__ = (
        "arrival",
        "deadline",
        "dry",
        "ended",
        "first",
        "first_output",
        "first_sound",
        "first_token",
        "late",
        "program",
        "reason",
        "seen",
        "silence",
        "sound",
        "sounds",
        "tenant",
        "texts",
        "underruns",
        "units",
    )

    def __init__(
        self,
        arrival: float,
        sounds: Mapping[str, int],
        texts: frozenset[str],
        program: str = "",
        tenant: str = "",
        deadline: float | None = None,
        first_output: float | None = None,
    ) -> None:
        self.arrival, self.sounds, self.texts = arrival, sounds, texts
        self.program, self.tenant = program, tenant
        self.deadline, self.first_output = deadline, first_output
        self.first: float | None = None  # output of any kind
        self.late = False  # an output began after `first_output`
        self.seen: set[tuple[str, int]] = set()  # (output, sample) that began
        self.first_token: float | None = None
        self.first_sound: float | None = None
        self.ended: float | None = None
        self.reason = ""
        self.sound = 0.0  # seconds delivered
        self.silence = 0.0  # seconds between pieces, after the first
        self.underruns: list[float] = []  # moments at which an audible silence ended
        self.dry: dict[tuple[str, int], float] = {}  # (output, sample) -> when what was delivered is played
        self.units = 0

    def take(self, now: float, command: Chunk | OutputEnd | Waiting | End) -> None:
        if type(command) is Chunk:
            if self.first is None:
                self.first = now
            output = command.output
            if self.first_output is not None and (output, command.sample) not in self.seen:
                self.seen.add((output, command.sample))
                self.late = self.late or now > self.first_output
            if output in self.texts:
                if self.first_token is None:
                    self.first_token = now
            elif output in self.sounds:
                self._hear(now, output, command.sample, len(command.items) / self.sounds[output])
        elif type(command) is End:
            self.ended, self.reason = now, command.reason
            self.units = sum(command.units.values())

    def _hear(self, now: float, output: str, sample: int, seconds: float) -> None:
        if self.first_sound is None:
            self.first_sound = now
        self.sound += seconds
        dry = self.dry.get((output, sample))
        if dry is not None and now > dry:
            silence = now - dry
            self.silence += silence
            if silence > AUDIBLE:
                self.underruns.append(now)
        self.dry[output, sample] = max(now, dry or now) + seconds

    @property
    def good(self) -> bool:
        """Done, silent for at most AUDIBLE seconds in all, and in time where a time was set."""
        if self.reason != "done" or self.ended is None or self.silence > AUDIBLE:
            return False
        return not self.late and not (self.deadline is not None and self.ended > self.deadline)
