"""A picture, a sound and a clip that are made here, so that the example needs no downloads."""

from __future__ import annotations

import numpy as np

RATE = 16_000


def picture() -> np.ndarray:
    """A red disc on a blue ground: uint8 [rows, columns, 3]."""
    row, column = np.mgrid[0:96, 0:128]
    ground = np.stack([np.full(row.shape, 30), 60 + row // 2, 150 + column // 2], -1)
    disc = (row - 48) ** 2 + (column - 64) ** 2 < 30**2
    return np.where(disc[..., None], [220, 40, 40], ground).astype(np.uint8)


def sound(seconds: float = 1.5) -> np.ndarray:
    """Three rising notes: float32 [samples] at `RATE`."""
    time = np.arange(int(seconds * RATE)) / RATE
    hertz = np.array([262.0, 330.0, 392.0])[np.minimum((time / seconds * 3).astype(int), 2)]
    return (0.4 * np.sin(2 * np.pi * hertz * time) * (1 - np.exp(-time * 30))).astype(np.float32)


def clip(seconds: float = 2.0, fps: int = 8) -> np.ndarray:
    """A disc that crosses the picture: uint8 [frames, rows, columns, 3]."""
    row, column = np.mgrid[0:64, 0:64]
    frames = []
    for i in range(int(seconds * fps)):
        disc = (row - 32) ** 2 + (column - 4 - 56 * i / (seconds * fps)) ** 2 < 10**2
        frames.append(np.where(disc[..., None], [250, 220, 60], [20, 90, 40]))
    return np.stack(frames).astype(np.uint8)
