"""Which families of omni models there are, and which of them a folder is of. One more is one more name in `FAMILIES`."""

from __future__ import annotations

from pathlib import Path

from omni_runtime.errors import unknown
from omni_runtime.experts.omni_family import OmniFamily
from omni_runtime.experts.qwen3_family import QWEN3
from omni_runtime.experts.qwen25_family import QWEN25
from omni_runtime.weights.json_file import Fields
from omni_runtime.weights.omni_fields import read_values

FAMILIES = (QWEN3, QWEN25)


def family_of(folder: Path) -> OmniFamily:
    """The family that config.json names: by its architecture, or by model_type where it says none.

    Raises:
        CheckpointError: there is no such folder or file, or it is of no family here.
    """
    values, path = read_values(folder)
    f = Fields(path, values)
    named, kind = f.items("architectures", []), f.text("model_type", "")
    for family in FAMILIES:
        if (len(named) == 1 and named[0] in family.architectures) or (not named and kind == family.kind):
            return family
    if named:
        known = [name for family in FAMILIES for name in family.architectures]
        raise f.wrong("architectures", unknown("architecture", named[0] if len(named) == 1 else named, known))
    raise f.wrong("model_type", unknown("model_type", kind, [family.kind for family in FAMILIES]))
