"""Takes the root off sys.path, where `python -m pytest` puts it: transformers would import kernels/ as the library of that name."""

from __future__ import annotations

import sys
from pathlib import Path

import omni_runtime  # noqa: F401  (in a bare checkout it is found only now; what is inside it is found through it)

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
