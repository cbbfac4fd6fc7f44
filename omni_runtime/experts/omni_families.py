"""Which families of omni models there are, and which of them a folder is of. One more is one more name in `FAMILIES`, or, of
a model that is not ours, the option `family` of its card."""

from __future__ import annotations

from importlib import import_module

from omni_runtime.errors import CardError, unknown
from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.omni_options import Options
from omni_runtime.experts.qwen3_family import QWEN3
from omni_runtime.experts.qwen25_family import QWEN25
from omni_runtime.weights.json_file import Fields
from omni_runtime.weights.omni_fields import read_values

FAMILIES = (QWEN3, QWEN25)


def family_of(asked: Options) -> OmniFamily:
    """The family that a card names, or that config.json does: by its architecture, or by model_type where it says none.

    Raises:
        CardError: what the card names is none.
        CheckpointError: there is no such folder or file, or it is of no family here.
    """
    if asked.family:
        return _named(asked.family)
    values, path = read_values(asked.folder)
    f = Fields(path, values)
    named, kind = f.items("architectures", []), f.text("model_type", "")
    for family in FAMILIES:
        if (len(named) == 1 and named[0] in family.architectures) or (not named and kind == family.kind):
            return family
    if named:
        known = [name for family in FAMILIES for name in family.architectures]
        raise f.wrong("architectures", unknown("architecture", named[0] if len(named) == 1 else named, known))
    raise f.wrong("model_type", unknown("model_type", kind, [family.kind for family in FAMILIES]))


def _named(name: str) -> OmniFamily:
    module, _, value = name.partition(":")
    try:
        found = getattr(import_module(module), value)
    except (ImportError, AttributeError, ValueError) as error:
        raise CardError(f"option family={name!r} cannot be found: {error}; 'module:NAME' of an OmniFamily is needed") from None
    if not isinstance(found, OmniFamily):
        raise CardError(f"option family={name!r} is a {type(found).__name__}, an OmniFamily is needed")
    return found
