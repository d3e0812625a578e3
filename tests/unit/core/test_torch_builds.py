"""Which torch build runs with which driver on which GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.present import present
from trmcloud.core.catalog.torch_builds import (
    BUILDS,
    POD_BUILD,
    POD_TORCH,
    build_of,
    find_build,
    fitting_torch,
    read_version,
    why_not,
)
from trmcloud.pod.machine import packages

#: The least Linux drivers in uv, ``crates/uv-torch/src/backend.rs`` (``LINUX_CUDA_DRIVERS``), as of
#: the version with 27 rows, read on 2026-11-26.
UV = {
    "cu132": "580", "cu130": "580", "cu129": "525.60.13", "cu128": "525.60.13",
    "cu126": "525.60.13", "cu124": "525.60.13", "cu121": "525.60.13", "cu118": "450.80.2",
}  # fmt: skip

#: CUDA of each release of torch, stable and experimental: PyTorch's RELEASE.md of 2026.
RELEASES = {
    (2, 13): "12.6 13.0 13.2", (2, 12): "12.6 13.0 13.2", (2, 11): "12.6 12.8 13.0",
    (2, 10): "12.6 12.8 13.0", (2, 9): "12.6 12.8 13.0", (2, 8): "12.6 12.8 12.9",
    (2, 7): "11.8 12.6 12.8", (2, 6): "11.8 12.4 12.6", (2, 5): "11.8 12.1 12.4",
    (2, 4): "11.8 12.1 12.4", (2, 3): "11.8 12.1", (2, 2): "11.8 12.1", (2, 1): "11.8 12.1",
}  # fmt: skip

#: CUDA runtime that the default file of each torch requires: its metadata in the package index.
DEFAULTS = {
    "2.4.1": "12.1", "2.5.1": "12.4", "2.6.0": "12.4", "2.7.1": "12.6", "2.8.0": "12.8",
    "2.9.1": "12.8", "2.10.0": "12.8", "2.11.0": "13.0", "2.12.0": "13.0", "2.13.0": "13.0",
    "2.15.0": "13.2",
}  # fmt: skip


def test_the_least_drivers_are_those_that_uv_goes_by() -> None:
    assert {build.name: build.least_driver for build in BUILDS} == {
        name: read_version(driver) for name, driver in UV.items()
    }


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_the_builds_that_pytorch_made(release: tuple[int, int]) -> None:
    made = {build.cuda_text for build in BUILDS if build.oldest <= release <= build.newest}
    assert made == set(RELEASES[release].split())


@pytest.mark.parametrize("torch", DEFAULTS)
def test_the_build_of_a_torch_that_names_none(torch: str) -> None:
    build = present(build_of(torch))
    assert build.cuda_text == DEFAULTS[torch]


def test_builds_are_ordered_and_named_by_their_cuda() -> None:
    assert [b.cuda for b in BUILDS] == sorted((b.cuda for b in BUILDS), reverse=True)
    assert all(b.name == f"cu{b.cuda[0]}{b.cuda[1]}" for b in BUILDS)


def test_the_pods_torch_is_the_pinned_one_and_its_images() -> None:
    pin = packages.pinned_torch(packages.LIST, {})
    assert f"{pin}+{POD_BUILD.name}" == POD_TORCH
    assert build_of(pin) == POD_BUILD, "the index's default file is the one that images have"
    for secrets in Path("trmcloud/providers").glob("*/secrets.py"):
        if image := re.search(r'IMAGE = ".*-cu(\d+)-torch(\d+)-', secrets.read_text()):
            assert image[1].startswith(POD_BUILD.name.removeprefix("cu"))
            assert image[2] == pin.replace(".", "")


@pytest.mark.parametrize(
    ("torch", "driver", "architecture", "fits"),
    [
        # CUDA 12 builds run on any driver of CUDA 12: Azure's 535 among them.
        ("2.9.1+cu128", "535.129.03", 90, "2.9.1+cu128"),
        ("2.9.1+cu128", "525.60.13", 80, "2.9.1+cu128"),
        ("2.9.1", "570.133.20", 100, "2.9.1"),
        # A newer torch is for CUDA 13 by default; an older build of the same release runs there.
        ("2.13.0", "570.133.20", 90, "2.13.0+cu126"),
        # Where no build of the release runs, the newest release that has one which does.
        ("2.15.0", "570.133.20", 90, "2.14.1+cu126"),
        ("2.15.0", "570.133.20", 100, "2.11.0+cu128"),
        ("2.15.0", "580.65.06", 100, "2.15.0"),
        ("2.13.0", "570.133.20", 100, "2.11.0+cu128"),
        ("2.10.0+cu130", "550.54.14", 120, "2.10.0+cu128"),
        # Before CUDA 12 an older release has to do.
        ("2.9.1+cu128", "470.82.01", 80, "2.7.1+cu118"),
        ("2.9.1+cu128", "470.82.01", None, "2.7.1+cu118"),
        # No build for both.
        ("2.9.1+cu128", "470.82.01", 100, ""),
        ("2.9.1+cu128", "440.33.01", 80, ""),
        # Nothing is known of these.
        ("2.9.1+cpu", "440.33.01", 80, "2.9.1+cpu"),
        ("2.6.0a0+ecf3bae40a.nv25.01", "440.33.01", 80, "2.6.0a0+ecf3bae40a.nv25.01"),
        ("2.9.1+cu128", "", None, "2.9.1+cu128"),
    ],
)
def test_the_torch_that_runs_there(
    torch: str, driver: str, architecture: int | None, fits: str
) -> None:
    found, why = fitting_torch(torch, read_version(driver), architecture)
    assert found == fits
    assert bool(why) is (found != torch)


@pytest.mark.parametrize("architecture", [75, 80, 90, 100, 120])
@pytest.mark.parametrize("driver", ["525.60.13", "550.54.14", "570.133.20", "580.65.06"])
def test_a_release_newer_than_the_table_falls_back_as_its_newest_release_does(
    driver: str, architecture: int
) -> None:
    major, minor = max(build.newest for build in BUILDS)
    known, newer = f"{major}.{minor}.0", f"{major}.{minor + 1}.0"
    seen = read_version(driver), architecture
    expected = fitting_torch(known, *seen)[0]
    assert fitting_torch(newer, *seen)[0] == (newer if expected == known else expected)
    for other in (f"{major}.{minor + 40}.0", f"{major + 1}.0.0"):
        assert fitting_torch(other, *seen)[0] == (other if expected == known else expected)


def test_a_reason_names_driver_or_gpu() -> None:
    cu130, cu126 = find_build("cu130"), find_build("cu126")
    assert cu130 is not None
    assert cu126 is not None
    assert why_not(cu130, (570, 133, 20), 90) == "cu130 needs driver 580 or newer, 570.133.20 found"
    assert why_not(cu126, (580, 65, 6), 100) == "cu126 has no kernels for sm_100"
    assert why_not(cu126, None, 89) == "", "Ada runs Ampere's"
    assert fitting_torch("2.9.1+cu128", (440, 33, 1), 80)[1] == (
        "cu128 needs driver 525.60.13 or newer, 440.33.01 found;"
        " cu118 needs driver 450.80.02 or newer, 440.33.01 found"
    )


def test_versions() -> None:
    assert read_version("535.129.03") == (535, 129, 3)
    for bad in ("", "[N/A]", "535.", "v535", "535.x"):
        assert read_version(bad) is None
