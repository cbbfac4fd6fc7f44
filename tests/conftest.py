"""Tests run on this checkout, and with its root off sys.path, where `python -m pytest` puts it.

There transformers would import kernels/ as the library of that name, which it looks for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
import_module("omni_runtime")  # what is inside it is found through it from now on
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
