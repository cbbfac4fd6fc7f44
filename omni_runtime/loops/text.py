"""Bytes of tokens to text that may be shown: whole characters only, and never the beginning of a stop string."""

from __future__ import annotations

from codecs import utf_8_decode


class TextStream:
    """Incremental text of one sample.

    Joined, what `feed` and `end` return is the UTF-8 decoding of all bytes (malformed ones as U+FFFD), cut before the stop
    string that is complete first (of two that end together, the longer one). Text that may still become a stop string is held
    back until it cannot. A stop string that is complete in a piece fed as `quiet` is ordinary text.
    """

    __slots__ = ("_bytes", "_held", "_quiet", "_stops", "stopped")

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._stops = stops
        self._bytes = b""  # the beginning of a character
        self._held = ""  # the beginning of a stop string
        self._quiet = False
        self.stopped = False

    def feed(self, piece: bytes, quiet: bool = False) -> str:
        """The text that became certain with this piece; sets `stopped` when a stop string is complete."""
        if self._bytes:
            piece = self._bytes + piece
        text, used = utf_8_decode(piece, "replace", False)
        self._bytes = piece[used:]
        self._quiet = quiet
        return self._release(text) if self._stops else text

    def end(self) -> str:
        """What was held back, at the end of the stream. A character that was cut in the middle shows as U+FFFD."""
        if self.stopped:
            return ""
        text = self._release(utf_8_decode(self._bytes, "replace", True)[0]) if self._bytes or self._held else ""
        held, self._bytes, self._held = self._held, b"", ""
        return text + held if not self.stopped else text

    def _release(self, text: str) -> str:
        old = len(self._held)  # a stop string that ends in there was complete while nothing stopped
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop, max(0, old - len(stop) + 1))) >= 0]
        if found and not self._quiet:
            self.stopped, self._held, self._bytes = True, "", b""
            return text[: min(found)[1]]  # the first to be complete, however the text arrived
        keep = 0
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), keep, -1):
                if text.endswith(stop[:n]):
                    keep = n
                    break
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]
