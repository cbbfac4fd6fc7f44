"""What the package offers by name, and that everything public says what it is."""

from __future__ import annotations

import ast
from types import ModuleType

import pytest
from checkout import modules

import omni_runtime


def test_every_export_is_there() -> None:
    assert len(set(omni_runtime.__all__)) == len(omni_runtime.__all__)
    for name in omni_runtime.__all__:
        assert getattr(omni_runtime, name) is not None


def test_nothing_else_is_public() -> None:
    public = {name for name in dir(omni_runtime) if not name.startswith("_")}
    modules_and_features = {n for n in public if isinstance(getattr(omni_runtime, n), ModuleType) or n == "annotations"}
    assert public - modules_and_features - set(omni_runtime.__all__) == set()


def test_a_type_checker_sees_the_same_names() -> None:
    """Names that `__getattr__` imports when asked must also stand in an import statement under `if typing.TYPE_CHECKING:`."""
    tree = ast.parse(modules()["omni_runtime"].read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    seen = {alias.asname or alias.name for node in statements for alias in node.names}
    assert seen == set(omni_runtime.__all__)


def test_an_unknown_name_says_so() -> None:
    with pytest.raises(AttributeError, match="Runtine"):
        getattr(omni_runtime, "Runtine")  # noqa: B009


def silent(name: str, source: str) -> list[str]:
    """Public modules, classes and functions without a docstring. Methods may rest on their class."""
    if any(part.startswith("_") for part in name.split(".")):
        return []
    tree = ast.parse(source)
    if not tree.body:  # the empty __init__ of a folder
        return []
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    public = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    wrong = [] if ast.get_docstring(tree) else [name]
    return wrong + [f"{name}.{node.name}" for node in public if not ast.get_docstring(node)]


def test_everything_public_has_a_docstring() -> None:
    assert [wrong for name, path in modules().items() for wrong in silent(name, path.read_text())] == []


def test_silence_is_heard() -> None:
    assert silent("m", "class A: ...\ndef f(): ...\ndef _g(): ...") == ["m", "m.A", "m.f"]
