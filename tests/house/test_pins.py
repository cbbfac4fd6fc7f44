"""pyproject.toml says what works, constraints.txt what was tried: everything that is asked for has one exact version."""

from __future__ import annotations

import tomllib

from checkout import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def test_every_requirement_has_an_exact_pin_that_fits() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if line.count("==") != 1] == []
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(r) for group in (project["dependencies"], *project["optional-dependencies"].values()) for r in group]
    ours = [r for r in wanted if r.name != project["name"]]
    assert len(ours) > 10
    for requirement in ours:
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin in constraints.txt"
        assert pin in requirement.specifier, f"constraints.txt has {requirement.name} {pin}, pyproject.toml wants {requirement}"


def test_the_gpu_image_is_admitted_and_so_is_what_is_newer() -> None:
    """Both lanes of the kernels: what the image has, and what constraints.txt has."""
    lines = [line for line in (ROOT / "constraints-gpu-image.txt").read_text().splitlines() if line and not line.startswith("#")]
    image = {name: version.removesuffix(".*") for name, version in (line.split("==") for line in lines)}
    assert image.keys() == {"torch", "triton", "numpy"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(r) for r in (*project["dependencies"], *project["optional-dependencies"]["gpu"])]
    ours = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for requirement in (r for r in asked if r.name in image):
        assert image[requirement.name] in requirement.specifier and ours[requirement.name] in requirement.specifier, requirement
