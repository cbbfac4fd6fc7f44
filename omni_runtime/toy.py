"""Tiny random checkpoints for whoever wants to try a model without having it."""

from __future__ import annotations

from pathlib import Path

from omni_runtime.errors import RequestError, unknown

OMNI = ("qwen3_omni", "qwen2_5_omni")
KINDS = (*OMNI, "llama", "qwen2", "qwen3", "qwen3_moe")


def write_toy_checkpoint(kind: str, folder: Path, seed: int = 0) -> str:
    """Writes one into a folder that is new or empty, and says what it is.

    Args:
        kind: one of `KINDS`; dashes count as underscores.
        folder: made if it is not there.
        seed: of the weights.

    Raises:
        RequestError: an unknown kind, or something is in that folder already.
    """
    name = kind.replace("-", "_").lower()
    if name not in KINDS:
        raise RequestError(f"kind: {unknown('kind of checkpoint', kind, KINDS)}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RequestError(f"{folder} is there already; name a folder that is new or empty")
    from omni_runtime.weights.toy_folder import write_toy  # torch: no other command needs it before a model is loaded
    from omni_runtime.weights.toy_qwen2_5_omni import write_toy_qwen25
    from omni_runtime.weights.toy_qwen3_omni import write_toy_omni

    if name in OMNI:
        (write_toy_omni if name == OMNI[0] else write_toy_qwen25)(folder, seed=seed)
    else:
        write_toy(folder, name, seed=seed)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return f"{folder}: a tiny random {name}, {size / 1e6:.1f} MB; it answers nonsense, always the same"
