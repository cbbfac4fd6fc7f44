"""A runtime in which an omni model's loops are visible."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
if (_ROOT / "pyproject.toml").exists():  # a bare checkout: cards/, programs/ and kernels/ lie beside us
    __path__.append(str(_ROOT))
