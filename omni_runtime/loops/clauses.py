"""Where a stream of text may be cut so that each part can be spoken on its own."""

from __future__ import annotations

import re

SHORT = 24  # characters: a clause that a comma would make shorter is joined to the next, or speech becomes a row of fragments
CLOSERS = re.escape("\"')]}»”’」』）】")
CUT = re.compile(
    rf"(?P<hard>\n|[.!?…][.!?…{CLOSERS}]*(?=\s)|[。！？][。！？{CLOSERS}]*(?=[^。！？{CLOSERS}]))"
    rf"|[,;:—][{CLOSERS}]*(?=\s)|[、，；：](?=.)",
    re.DOTALL,
)
SPEAKABLE = re.compile(r"\w")


def clause_end(text: str, start: int, closed: bool, longest: int) -> int | None:
    """End of the first clause of `text[start:]`, or None while more text may still change it.

    A sentence mark cuts if white space follows it (so "3.14" stays whole), a comma only after SHORT characters, and only
    where there is something to speak. Closing quotes and brackets go with the mark before them. A clause of more than
    `longest` characters is cut at its last white space with something to speak before it, or anywhere if there is none. The
    answer depends on the text alone and not on how it arrived: every rule asks for the character that follows the cut, or for
    the end of the text.
    """
    limit = start + longest
    for found in CUT.finditer(text, start):
        end = found.end()
        if end > limit:
            break
        if (found["hard"] or end - start >= SHORT) and SPEAKABLE.search(text, start, end):
            return end
    if len(text) > limit:
        blank = max(text.rfind(" ", start, limit), text.rfind("\n", start, limit))
        return blank + 1 if blank >= start and SPEAKABLE.search(text, start, blank) else limit
    return len(text) if closed and len(text) > start else None
