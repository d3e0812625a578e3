"""Stands for a driver that is not there, so that torch and Triton compile for a GPU without one.

It answers what they ask about the device and no more: one of compute capability 9.0, by NVIDIA's
published figures of the H100 SXM. Two parts:

- a library loaded ahead of CUDA's own (``LD_PRELOAD``), for what torch asks in C: how many devices,
  which, of what properties. Whatever would reach a device still goes to CUDA's own, and fails.
- ``stand_in``, for what is asked in Python: Triton's loader of a cubin, which reads registers and
  stack from the file instead of asking the driver, and Inductor's folding of constants, which
  computes one number at a time and does so on the processor.

Nothing can be launched by it.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CAPABILITY = 90
_LIBRARY = "libcuda.so.1"
"""torch opens the driver by this name, and finds what is loaded already."""
_SOURCE = r"""
#include <string.h>
#include <cuda_runtime_api.h>

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidDevice : cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0; *greatest = -5; return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    strcpy(p->name, "H100 SXM, by its datasheet");
    p->major = 9;
    p->multiProcessorCount = 132;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 227 << 10;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->l2CacheSize = 50 << 20;
    p->totalGlobalMem = 80ull << 30;
    return cudaSuccess;
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    *flags = 0; *active = 0; return 0;
}
"""

Load = Callable[[str, bytes, Mapping[str, str]], tuple[int, int]]
"""(registers, bytes of stack) of a kernel, by its name, its cubin and the files it was made by."""


def library(folder: Path) -> Path:
    """Builds the library, by the headers that came with this torch.

    Raises:
        SystemExit: no C compiler, or no headers.
    """
    source, made = folder / "driver.c", folder / _LIBRARY
    source.write_text(_SOURCE)
    includes = [f"-I{each}" for each in _headers()]
    command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{_LIBRARY}", *includes, str(source)]
    try:
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("there is no C compiler: install gcc") from None
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["the compiler does not say why"])[0]
        raise SystemExit(f"what stands for a driver was not built: {told}")
    return made


def _headers() -> list[Path]:
    """CUDA's of this torch, and for what those leave out Triton's."""
    folders = [
        Path(place) / "include"
        for name in ("nvidia.cu13", "nvidia.cuda_runtime")
        if (found := _found(name)) is not None
        for place in found.submodule_search_locations or ()
    ]
    triton = _found("triton")
    assert triton is not None, "whoever asks for a library has looked for Triton"
    for place in triton.submodule_search_locations or ():
        folders.append(Path(place) / "backends" / "nvidia" / "include")
    return folders


def _found(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


def stand_in(load: Load) -> None:
    """Puts itself in the driver's place, in this process, for good.

    Args:
        load: called for each kernel that would have been loaded.
    """
    import torch
    import triton
    import triton.backends.nvidia.driver as nvidia
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    made_by: dict[str, Mapping[str, str]] = {}

    class Utils:
        def get_device_properties(self, device: int) -> dict[str, int]:
            asked: Any = torch.cuda.get_device_properties(device)
            return {
                "max_shared_mem": asked.shared_memory_per_block_optin,
                "max_num_regs": asked.regs_per_multiprocessor,
                "multiprocessor_count": asked.multi_processor_count,
                "warpSize": asked.warp_size,
            }

        def load_binary(
            self, name: str, cubin: bytes, shared: int, device: int
        ) -> tuple[object, object, int, int, int]:
            registers, stack = load(name, cubin, made_by.pop(name))
            asked: Any = torch.cuda.get_device_properties(device)
            words = stack // 4
            return object(), object(), registers, words, asked.max_threads_per_block

    class Launcher:
        def __init__(self, source: object, metadata: object) -> None:
            pass

    def begun(module: Any, function: Any, name: str, files: Mapping[str, str], key: str) -> None:
        made_by[name] = files

    class OnTheProcessor(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = dict(kwargs or {})
            if "device" in given:
                given["device"] = torch.device("cpu")
            return function(*args, **given)

    deduced = UniformValueConstantFolder._deduce_value

    def deduce(folder: Any, node: Any) -> Any:
        with OnTheProcessor():  # type: ignore[no-untyped-call]
            return deduced(folder, node)

    nvidia.CudaUtils, nvidia.CudaLauncher = Utils, Launcher
    triton.knobs.runtime.kernel_load_start_hook.add(begun)
    # torch's own word for a CUDA that is compiled in and has no device.
    setattr(FakeTensorMode, "avoid_device_init", True)  # noqa: B010 a property until now
    setattr(UniformValueConstantFolder, "_deduce_value", deduce)  # noqa: B010 of a typed class
