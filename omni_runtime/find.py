"""Cards and programs by name."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from omni_runtime.card import ModelCard
from omni_runtime.errors import OmniError, RequestError, unknown
from omni_runtime.program import Program
from omni_runtime.request import loop_params
from omni_runtime.weights.json_file import read_json

Made = TypeVar("Made", ModelCard, Program)
# model_type of a folder -> its card; all others are read as text models
FOLDERS = {"qwen3_omni_moe": "qwen3_omni", "qwen2_5_omni": "qwen2_5_omni"}
# Likewise: a wrong model_type is then told by its card.
ARCHITECTURES = {"Qwen3OmniMoeForConditionalGeneration": "qwen3_omni", "Qwen2_5OmniForConditionalGeneration": "qwen2_5_omni"}
ARCHITECTURES |= {"Qwen2_5OmniModel": "qwen2_5_omni"}
FOLDER = "give the folder that holds it"


def find(name: str) -> ModelCard | Program:
    """A card or a program by name.

    Args:
        name: of a file in `cards` or `programs`, "module:function", or "path/to/file.py:function". What is found may be the
            card or program itself, or a function that returns it when called without arguments. Or a Hugging Face folder.

    Raises:
        OmniError: nothing has that name, or what has it is neither.
    """
    found = card_of(Path(name)) if ":" not in name and Path(name).is_dir() and name not in _shipped() else _named(name)
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


def card_of(folder: Path) -> ModelCard:
    """The card of a Hugging Face folder, by the kind of model that its config.json names.

    Raises:
        OmniError: it is no folder of a model that is known here.
    """
    told = read_json(folder / "config.json", FOLDER) if folder.is_dir() else {}
    named = told.get("architectures")
    classes = [ARCHITECTURES[name] for name in named if name in ARCHITECTURES] if isinstance(named, list) else []
    return made(FOLDERS.get(str(told.get("model_type")), (classes or ["causal_lm"])[0]), ModelCard, str(folder))


def made(name: str, kind: type[Made], *args: Any) -> Made:
    """A card of a checkpoint, or a program of a card: what a name stands for, called with these arguments.

    Args:
        name: as for `find`; dashes count as underscores.
        kind: ModelCard or Program.
        args: for the function.

    Raises:
        OmniError: there is nothing of that name, or what it gives is of another kind.
    """
    found = _named(name if ":" in name else name.replace("-", "_"))
    if callable(found) and not isinstance(found, ModelCard | Program):
        try:
            found = found(*args)
        except TypeError as e:
            raise OmniError(f"{name}: {e}") from None
    if not isinstance(found, kind):
        raise OmniError(f"{name} is a {type(found).__name__}, a {kind.__name__} is needed")
    return found


def _shipped() -> dict[str, str]:
    return {path.stem: kind for kind in ("cards", "programs") for path in _folder(kind).glob("[!_]*.py")}


def _named(name: str) -> Any:
    where, _, attribute = name.partition(":")
    shipped = _shipped()
    if name in shipped:
        return getattr(import_module(f"omni_runtime.{shipped[name]}.{name}"), name)
    if not attribute:
        raise OmniError(unknown("card or program", name, shipped) + "; or give module:function, or a checkpoint folder")
    return _attribute(where, attribute)


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
        except OmniError:
            raise
        except Exception as e:  # also what the module itself raises, or a syntax error in it
            raise OmniError(f"{where}: {e!r}") from None
        finally:
            sys.path.remove(os.getcwd())
    if attribute not in names:
        raise OmniError(f"{where}: " + unknown("name", attribute, (n for n in names if not n.startswith("_"))))
    return names[attribute]


def check_card(card: ModelCard) -> None:
    """What a card says about code and parameters, without loading any weights.

    Raises:
        OmniError: a builder does not exist, or a default is not what its parameter takes.
    """
    for name, spec in card.experts.items():
        module, _, function = spec.build.partition(":")
        where = f"card {card.name}: experts.{name}.build={spec.build!r}"
        try:
            found = find_spec(module)
        except (ImportError, ValueError) as e:
            raise OmniError(f"{where}: {e}") from None
        if found is None:
            raise OmniError(f"{where}: there is no module {module}")
        if found.origin and found.origin.endswith(".py"):
            names = set(_names(Path(found.origin)))
            if function not in names:
                raise OmniError(f"{where}: " + unknown(f"name in {module}", function, names))
    for name, loop in card.loops.items():
        try:
            loop_params(loop, {}, f"card {card.name}: loops.{name}.defaults")
        except RequestError as e:
            raise OmniError(str(e)) from None


def _names(file: Path) -> Iterator[str]:
    """What a module defines or imports at its top level, read and not run: importing an expert may take seconds."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
