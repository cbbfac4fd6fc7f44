"""Cards and programs by name."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from omni_runtime.card import ModelCard
from omni_runtime.errors import OmniError, unknown
from omni_runtime.program import Program


def find(name: str) -> ModelCard | Program:
    """A card or a program by name.

    Args:
        name: of a file in `cards` or `programs`, "module:function", or "path/to/file.py:function". What is found may be the
            card or program itself, or a function that returns it when called without arguments. Or a Hugging Face folder.

    Raises:
        OmniError: nothing has that name, or what has it is neither.
    """
    where, _, attribute = name.partition(":")
    shipped = {path.stem: kind for kind in ("cards", "programs") for path in _folder(kind).glob("[!_]*.py")}
    found: Any
    if name in shipped:
        found = getattr(import_module(f"omni_runtime.{shipped[name]}.{name}"), name)
    elif Path(name).is_dir():
        found = import_module("omni_runtime.cards.causal_lm").causal_lm(name)
    elif not attribute:
        raise OmniError(unknown("card or program", name, shipped) + "; or give module:function, or a checkpoint folder")
    else:
        found = _attribute(where, attribute)
    if callable(found) and not isinstance(found, ModelCard | Program):
        try:
            found = found()
        except OmniError:
            raise
        except Exception as e:
            raise OmniError(f"{name}: {e!r}; the function must work without arguments") from None
    if not isinstance(found, ModelCard | Program):
        raise OmniError(f"{name} is a {type(found).__name__}, not a ModelCard or Program")
    return found


def _folder(kind: str) -> Path:
    file = import_module(f"omni_runtime.{kind}").__file__
    assert file is not None
    return Path(file).parent


def _attribute(where: str, attribute: str) -> Any:
    if where.endswith(".py"):
        from runpy import run_path

        if not Path(where).is_file():
            raise OmniError(f"{where}: there is no such file")
        try:
            names = run_path(where)
        except OmniError:
            raise
        except Exception as e:
            raise OmniError(f"{where}: {e!r}") from None
    else:
        sys.path.insert(0, os.getcwd())
        try:
            names = vars(import_module(where))
        except ImportError as e:
            raise OmniError(f"{where}: {e}") from None
        finally:
            sys.path.remove(os.getcwd())
    if attribute not in names:
        raise OmniError(f"{where}: " + unknown("name", attribute, (n for n in names if not n.startswith("_"))))
    return names[attribute]
