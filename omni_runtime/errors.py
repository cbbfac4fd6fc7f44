"""Every error that a user can meet.

    OmniError
    ├── CardError          (ValueError)  a card that contradicts itself
    ├── ProgramError       (ValueError)  a program that cannot be walked
    ├── RequestError       (ValueError)  a request with a wrong field; raised by `submit` itself
    ├── CheckpointError    (ValueError)  a weight file that is missing, damaged or of another shape
    ├── OutputNotAsked     (AttributeError) an output of a result that its request did not ask for
    ├── ResultError        (ValueError)  what an op gave back cannot be read
    ├── ReplayError        (ValueError)  a log that cannot be replayed
    ├── LoadError                        a worker process died, or took too long, before it could serve
    ├── MissingExtra       (ImportError) a package of an extra is not installed
    ├── RequestRefused                   nothing of the request ran
    │   ├── RequestTooLarge              it can never fit: says need and capacity
    │   ├── TooSlow                      its guarantee could not be kept even alone
    │   └── Overloaded                   too many requests wait: try again
    ├── RequestFailed                    a unit of the request failed alone; what it gave before stays valid
    │   └── ExecutorLost                 the executor that held its state is gone
    ├── RequestCancelled                 ended by `handle.cancel()`
    └── EngineStopped                    the runtime was closed, or its core broke (a bug of ours: the story is in the text)

A message names the field, the value and the remedy. Errors hold text only: an exception kept for a report must not keep
tensors alive through its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class OmniError(Exception):
    """Root of all errors of this package."""


class CardError(OmniError, ValueError):
    """A model card contradicts itself."""


class ProgramError(OmniError, ValueError):
    """A program cannot be walked: a cycle, a dangling or mistyped slot, an output nobody makes."""


class RequestError(OmniError, ValueError):
    """A field of a request is unknown or out of range."""


class OutputNotAsked(OmniError, AttributeError):
    """An output of a result that its request did not ask for; an AttributeError, so that `hasattr` and `getattr` work."""


class CheckpointError(OmniError, ValueError):
    """A weight file is missing, damaged, or not the model that was asked for."""


class CheckpointWarning(UserWarning):
    """A checkpoint holds more than is used, or contradicts itself where one side has to be followed."""


class ResultError(OmniError, ValueError):
    """What an op gave back is not what its port promises."""


class ReplayError(OmniError, ValueError):
    """A file is no log that can be replayed here, or is damaged."""


class LoadError(OmniError):
    """An executor could not be started: its process died while it loaded, or took too long."""


class MissingExtra(OmniError, ImportError):
    """A package that belongs to an extra is not installed."""


class RequestRefused(OmniError):
    """The request was not admitted; nothing of it ran on a device."""


class RequestTooLarge(RequestRefused):
    """The request can never fit into the memory of an executor."""


class TooSlow(RequestRefused):
    """What the request wants to be promised cannot be kept on these devices, even alone."""


class Overloaded(RequestRefused):
    """Too many requests are alive or wait; this one may be sent again later.

    Attributes:
        retry_after: seconds after which another try has a chance, as far as can be told; 0 if nothing is known.
    """

    retry_after = 0.0


class RequestFailed(OmniError):
    """A unit of the request failed when it ran alone. `partial` holds what was finished before."""

    partial: Any = None


class ExecutorLost(RequestFailed):
    """The executor that held the state of the request is gone."""


class RequestCancelled(OmniError):
    """The request was cancelled. `partial` holds what had been made until then."""

    partial: Any = None


class EngineStopped(OmniError):
    """The engine no longer takes or serves requests. `partial` holds what a request that was alive had been given."""

    partial: Any = None


def unknown(what: str, name: object, known: Iterable[str]) -> str:
    """The clause of a message about a name nobody knows: what there is, and what was probably meant."""
    names = sorted(known)
    near = get_close_matches(str(name)[:200], names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r:.100}, known: {', '.join(names) or 'none'}{hint}"
