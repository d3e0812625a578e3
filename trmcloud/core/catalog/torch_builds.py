"""The CUDA builds of torch: the least driver of each, the GPU architectures it holds, and the
releases of torch that it was made for. Everything that pairs a driver with a torch reads this.

``least_driver`` is the Linux driver that runs the build by CUDA's minor-version compatibility: any
driver of the toolkit's major release, not the newer one that the toolkit itself was shipped with.
NVIDIA states it in table 2 of the CUDA Toolkit release notes (11.8 and 13.0); uv keeps the same
figures in ``crates/uv-torch/src/backend.rs``, to which the tests hold these.

``architectures`` are those of all the build's releases, as compute capability without the point:
PyTorch's RELEASE.md ("CUDA Support Matrix", as of torch 2.14), ``.ci/manywheel/build_cuda.sh`` as
of torch 2.9, and of older builds what ``torch.cuda.get_arch_list()`` prints. A build whose
releases differ has the ones that all of them hold. Releases: RELEASE.md's compatibility matrix.
All read on 2026-11-26; for x86-64 Linux. Of torch 2.15 only what its file on the package index
requires is known (CUDA 13.2; read on 2026-11-28).

A release newer than all of these is taken to have the builds of the newest one here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, ...]


class TorchBuild(NamedTuple):
    """``oldest`` and ``newest`` are releases of torch (major, minor), both included."""

    name: str
    cuda: tuple[int, int]
    least_driver: Version
    architectures: tuple[int, ...]
    oldest: tuple[int, int]
    newest: tuple[int, int]

    @property
    def cuda_text(self) -> str:
        return ".".join(map(str, self.cuda))

    @property
    def driver_text(self) -> str:
        return driver_text(self.least_driver)

    def has_kernels_for(self, architecture: int) -> bool:
        """Whether a GPU of this compute capability can run its kernels: those of the same major
        release whose minor one is no newer."""
        major, minor = divmod(architecture, 10)
        return any(have // 10 == major and have % 10 <= minor for have in self.architectures)


_CUDA_11, _CUDA_12, _CUDA_13 = (450, 80, 2), (525, 60, 13), (580,)
_TO_HOPPER = (50, 60, 70, 75, 80, 86, 90)
_TO_BLACKWELL = (75, 80, 86, 90, 100, 120)

BUILDS = (
    # name, CUDA, least driver, architectures, torch from, to
    TorchBuild("cu132", (13, 2), _CUDA_13, _TO_BLACKWELL, (2, 12), (2, 15)),
    TorchBuild("cu130", (13, 0), _CUDA_13, _TO_BLACKWELL, (2, 9), (2, 14)),
    TorchBuild("cu129", (12, 9), _CUDA_12, _TO_BLACKWELL, (2, 8), (2, 8)),
    TorchBuild("cu128", (12, 8), _CUDA_12, _TO_BLACKWELL, (2, 7), (2, 11)),
    TorchBuild("cu126", (12, 6), _CUDA_12, _TO_HOPPER, (2, 6), (2, 14)),
    TorchBuild("cu124", (12, 4), _CUDA_12, _TO_HOPPER, (2, 4), (2, 6)),
    TorchBuild("cu121", (12, 1), _CUDA_12, _TO_HOPPER, (2, 1), (2, 5)),
    TorchBuild("cu118", (11, 8), _CUDA_11, _TO_HOPPER, (2, 0), (2, 7)),
)
"""The newest first."""

#: The last patch release of the newest torch of each build, for machines that no build of a wanted
#: release runs on.
_LAST = {
    "cu126": "2.14.1", "cu128": "2.11.0", "cu129": "2.8.0", "cu124": "2.6.0", "cu121": "2.5.1",
    "cu118": "2.7.1",
}  # fmt: skip

#: The build of the file that the package index gives where none is named, by the first release
#: (major, minor) from which on that holds: what ``Requires-Dist`` of those files names.
_DEFAULTS = (((2, 15), "cu132"), ((2, 11), "cu130"), ((2, 8), "cu128"), ((2, 7), "cu126"),
             ((2, 5), "cu124"), ((2, 1), "cu121"))  # fmt: skip

POD_BUILD = next(build for build in BUILDS if build.name == "cu128")
POD_RELEASE = (2, 9)
POD_TORCH = f"2.9.1+{POD_BUILD.name}"
"""The torch of our image, and of the environment that a pod makes where an image has none."""
POD_IMAGE = "runpod/pytorch:1.0.3-cu1281-torch291-ubuntu2404"
"""A public image of Docker Hub with torch 2.9.1 for CUDA 12.8, an SSH server and runpodctl."""


def driver_text(version: Version) -> str:
    """``450.80.02`` of (450, 80, 2), as NVIDIA writes it."""
    parts = (f"{part:02d}" if index == 2 else str(part) for index, part in enumerate(version))
    return ".".join(parts)


def read_version(text: str) -> Version | None:
    """Return the numbers of ``535.129.03``; None of anything else."""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else None


def find_build(name: str) -> TorchBuild | None:
    """The build of a name such as ``cu128``."""
    return next((build for build in BUILDS if build.name == name), None)


def build_of(torch: str) -> TorchBuild | None:
    """Return the build of a torch such as ``2.9.1+cu128``; of ``2.9.1``, which names none, the one
    that the package index has by default. None where it is for no GPU, or not in the table."""
    release, _, local = torch.partition("+")
    if local:
        return find_build(local)
    numbers = _release(release)
    return next((find_build(name) for since, name in _DEFAULTS if numbers[:2] >= since), None)


def why_not(build: TorchBuild, driver: Version | None, architecture: int | None) -> str:
    """Why a build does not run with this driver on such a GPU; '' where it may. None: not known."""
    if driver is not None and driver < build.least_driver:
        least = build.driver_text
        return f"{build.name} needs driver {least} or newer, {driver_text(driver)} found"
    if architecture is not None and not build.has_kernels_for(architecture):
        return f"{build.name} has no kernels for sm_{architecture}"
    return ""


def fitting_torch(torch: str, driver: Version | None, architecture: int | None) -> tuple[str, str]:
    """Return the torch that takes the place of ``torch`` on such a machine, and why it has to:
    itself and '' where it runs; else the newest build of the same release; else the newest
    release that has a build which runs; and '' and the reason where none does.
    """
    build = build_of(torch)
    if build is None or not (why := why_not(build, driver, architecture)):
        return torch, ""
    release = torch.partition("+")[0]
    numbers = _release(release)[:2]
    for other in BUILDS:
        if other.oldest <= numbers <= other.newest and not why_not(other, driver, architecture):
            return f"{release}+{other.name}", why
    older = [other for other in BUILDS if other.newest < numbers and other.name in _LAST]
    for other in sorted(older, key=lambda each: each.newest, reverse=True):
        if not why_not(other, driver, architecture):
            return f"{_LAST[other.name]}+{other.name}", why
    return "", "; ".join([why, *(why_not(each, driver, architecture) for each in older[-1:])])


def _release(text: str) -> Version:
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
