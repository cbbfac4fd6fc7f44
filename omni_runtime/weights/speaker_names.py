"""Names of the speakers of a spk_dict.pt, read without torch and without running anything that the file asks for.

torch.save writes a zip whose data.pkl is a pickle; before torch 1.6 it wrote pickles one after the other, the fourth of which is
the data. Whatever object it calls for is a blank one here, and tensors are left out.
"""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

from omni_runtime.errors import CheckpointError

SPEAKERS = "spk_dict.pt"
BEFORE = 3  # pickles of a file without a zip that come before its data: a magic number, a version, sizes of C types


class _Blank:
    """What stands for an object that is not made."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Names(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return dict if (module, name) == ("collections", "OrderedDict") else _Blank

    def persistent_load(self, pid: Any) -> Any:
        return None


def read_speaker_names(folder: Path) -> tuple[str, ...]:
    """Names, sorted.

    Raises:
        CheckpointError: the file is missing, damaged, or holds something else.
    """
    path = folder / SPEAKERS
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as packed:
                    data = next((name for name in packed.namelist() if name.endswith("/data.pkl")), "")
                    found = _Names(BytesIO(packed.read(data))).load()
            else:
                file.seek(0)
                for _ in range(BEFORE):
                    _Names(file).load()
                found = _Names(file).load()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist, and without it nobody can speak; fetch the file") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} cannot be read: {said:.200}; fetch the file again") from None
    check_names(path, found)
    return tuple(sorted(found))


def check_names(path: Path, found: Any) -> None:
    """Whether that is speakers by name, each of which a request can tell from the others: case does not count there.

    Raises:
        CheckpointError: it is not.
    """
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: speakers by name are needed, not {type(found).__name__}; fetch the file again")
    if not found:
        raise CheckpointError(f"{path}: holds no speaker; fetch the file again")
    for name in found:
        if not isinstance(name, str) or not name:
            raise CheckpointError(f"{path}: {name!r:.40} is no name of a speaker; fetch the file again")
    lower = [name.lower() for name in found]
    for name in found:
        if lower.count(name.lower()) > 1:
            raise CheckpointError(f"{path}: {name!r:.40} is there twice, but for its case; rename one of the speakers")
