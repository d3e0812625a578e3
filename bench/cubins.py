"""A compiled graph, and what its kernels take of a GPU, read by the tools that come with Triton."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_MAGIC, _CUDA, _FLAGS_AT = b"\x7fELF", 190, 48
_USED = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


class NotForIt(Exception):
    """A cubin that is none, or for another GPU."""


@dataclass(frozen=True)
class Cubin:
    """One configuration of one kernel, compiled."""

    kernel: str
    warps: int
    registers: int
    """Of each thread."""
    stack_bytes: int
    """Of each thread, in local memory."""
    spilled_bytes: int
    """Stored and loaded again, by each thread, as the registers did not do."""
    shared_bytes: int
    """Of each block."""


@dataclass
class Graph:
    """One graph that Inductor compiled; told as JSON by the process that compiled it."""

    part: str
    way: str
    """forward, backward, or evaluation: forward, where no gradient is wanted."""
    kernels: list[str] = field(default_factory=list)
    cubins: list[Cubin] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Configurations of a kernel that were not compiled, and why."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Graph:
        return cls(**{**data, "cubins": [Cubin(**each) for each in data["cubins"]]})


def cubin_of(name: str, content: bytes, files: Mapping[str, str], capability: int) -> Cubin:
    """
    Args:
        files: that Triton made on its way, by their names.

    Raises:
        NotForIt: ``content`` is no cubin of this capability, or its metadata speak of another.
        subprocess.CalledProcessError: a tool of Triton's fails.
    """
    import triton

    _check(name, content, capability)
    by_suffix = {Path(each).suffix: Path(path) for each, path in files.items()}
    metadata = json.loads(by_suffix[".json"].read_text())
    if metadata["target"]["arch"] != capability:
        raise NotForIt(f"{name} was compiled for {metadata['target']}")
    told = _output(triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", by_suffix[".cubin"])
    used = _USED.search(told)
    if used is None:
        raise NotForIt(f"cuobjdump finds no kernel in {name}: {told.strip()!r}")
    registers, stack, _, local = map(int, used.groups())
    in_memory = stack + local  # without any there is nowhere to spill to
    spilled = _spilled_bytes(by_suffix[".ptx"], capability) if in_memory else 0
    shared = int(metadata["shared"])
    return Cubin(name, int(metadata["num_warps"]), registers, in_memory, spilled, shared)


def _check(name: str, content: bytes, capability: int) -> None:
    """The header of ELF: its machine, and in the lowest byte of its flags the capability."""
    if len(content) < _FLAGS_AT + 4 or content[:4] != _MAGIC:
        raise NotForIt(f"{name} is no ELF file")
    (machine,) = struct.unpack_from("<H", content, 18)
    (flags,) = struct.unpack_from("<I", content, _FLAGS_AT)
    if machine != _CUDA:
        raise NotForIt(f"{name} is for machine {machine}, and CUDA's is {_CUDA}")
    if flags & 0xFF != capability:
        raise NotForIt(f"{name} is for sm_{flags & 0xFF}, not for sm_{capability}")


def _spilled_bytes(ptx: Path, capability: int) -> int:
    """Compiles it once more, as Triton did, to hear what the compiler tells of it."""
    import triton
    from triton.backends.nvidia.compiler import sm_arch_from_capability

    gpu = f"--gpu-name={sm_arch_from_capability(capability)}"
    command = (triton.knobs.nvidia.ptxas.path, "-v", "-lineinfo", "--regAllocOptLevel=2", gpu)
    told = _output(*command, ptx, "-o", ptx.with_suffix(".again"))
    return sum(int(stores) + int(loads) for stores, loads in _SPILLED.findall(told))


def _output(*command: str | Path) -> str:
    """Of both kinds."""
    done = subprocess.run(
        [str(each) for each in command],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout
