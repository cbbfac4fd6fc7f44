"""An output that a request did not ask for: an error that tells, and that `hasattr` and `getattr` understand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from omni_runtime.errors import OmniError, OutputNotAsked
from omni_runtime.handle import Result, Sample, Timings


def result(**outputs: object) -> Result:
    return Result((Sample(outputs, {}, 1),), {}, {}, Timings())


def test_what_was_not_asked_for_is_told_by_name() -> None:
    text, sound = result(text="a", tokens=[1]), result(audio=np.zeros(3, np.float32))
    assert text.text == "a" and len(sound.audio) == 3
    told = r"audio: .* only for text, tokens; submit with outputs=\['text', 'tokens', 'audio'\]"
    for read in (text, text.samples[0]):
        with pytest.raises(OutputNotAsked, match=told) as error:
            read.audio  # noqa: B018
        assert isinstance(error.value, OmniError) and isinstance(error.value, AttributeError)
        assert error.value.obj is None, "an error keeps no outputs alive"
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    with pytest.raises(OutputNotAsked, match=r"text: .* only for audio"):
        sound.text  # noqa: B018


def test_getattr_has_its_default() -> None:
    text = result(text="a")
    assert not hasattr(text, "audio") and getattr(text, "audio", None) is None and hasattr(text, "text")
    assert type(text.outputs) is dict
    with pytest.raises(KeyError):
        text.outputs["audio"]
