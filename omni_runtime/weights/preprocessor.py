"""preprocessor_config.json of an omni folder: how pictures are cut and how sound is heard. Loads without torch.

Only what is read is checked: the file is written by a processor's class, with whatever attributes that has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from omni_runtime.weights.json_file import Fields, read_json
from omni_runtime.weights.omni_parts import OmniShape

FILE = "preprocessor_config.json"
SOUND = {"n_fft": 400, "hop_length": 160, "sampling_rate": 16_000}  # what `log_mel` computes
RESCALE, BICUBIC = 1 / 255, 3


@dataclass(frozen=True)
class PatchRules:
    """What preprocessor_config.json says of pictures."""

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    least: int = 56 * 56  # pixels of a picture
    most: int = 28 * 28 * 1280
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @property
    def factor(self) -> int:
        """Sides are multiples of this many pixels: one vector of the thinker."""
        return self.patch * self.merge


def read_patch_rules(folder: Path, config: OmniShape) -> PatchRules:
    """The rules of a folder, which must be those of its encoders.

    Raises:
        CheckpointError: the file is missing or damaged, contradicts config.json, or asks for what is not computed.
    """
    path = folder / FILE
    f = Fields(path, read_json(path, "give the folder that holds it, or fetch it again"))
    fixed = SOUND | {"feature_size": config.audio.mels, "patch_size": config.vision.patch, "merge_size": config.vision.merge}
    fixed |= {"temporal_patch_size": config.vision.temporal}
    for key, value in fixed.items():
        if (found := f.count(key, value)) != value:
            raise f.wrong(key, f"{found}, where {value} is what the encoder of this folder takes")
    for key, value in (("do_resize", True), ("do_rescale", True), ("do_normalize", True)):
        if f.flag(key, value) is not value:
            raise f.wrong(key, "false is not computed here")
    if f.count("resample", BICUBIC, least=0) != BICUBIC or abs(f.number("rescale_factor", RESCALE) - RESCALE) > 1e-9:
        raise f.wrong("resample", f"only bicubic ({BICUBIC}) and a rescale_factor of 1/255 are computed here")
    size = f.inner("size")
    least = f.count("min_pixels", size.count("shortest_edge", PatchRules.least) if size else PatchRules.least)
    most = f.count("max_pixels", size.count("longest_edge", PatchRules.most) if size else PatchRules.most)
    if least > most:
        raise f.wrong("min_pixels", f"{least} is more than max_pixels {most}")
    mean, std = (_colours(f, key) for key in ("image_mean", "image_std"))
    vision = config.vision
    if min(std) <= 0 or len(mean) != vision.channels or len(std) != vision.channels:
        raise f.wrong("image_std", f"{vision.channels} numbers of each, and positive ones, are needed")
    return PatchRules(vision.patch, vision.merge, vision.temporal, least, most, mean, std)


def clip_rules(rules: PatchRules) -> PatchRules:
    """Those of clips: a step is 128 to 768 vectors, as in transformers' processor, but never more than a picture."""
    most = min(768 * rules.factor**2, rules.most)
    return replace(rules, least=min(128 * rules.factor**2, most), most=most)


def _colours(f: Fields, key: str) -> tuple[float, ...]:
    found = f.items(key, [0.5, 0.5, 0.5])
    if not all(type(value) in (int, float) for value in found):
        raise f.wrong(key, f"numbers are needed, not {found!r:.80}")
    return tuple(float(value) for value in found)
