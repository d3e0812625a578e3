"""Which of the user's variables a pod on this machine sees."""

from __future__ import annotations

import pytest

from trmcloud.providers.local.compute import may_travel

SECRETS = (
    "TORCH_TOKEN", "TORCH_HUB_TOKEN", "CUDA_SECRET", "NVIDIA_API_KEY", "NVIDIA_NGC_APIKEY",
    "TRITON_PASSWORD", "NCCL_PASSWD", "OMP_CREDENTIALS", "MKL_AUTH", "PYTORCH_PRIVATE",
    "TRMCLOUD_SECRET", "TRMCLOUD_S3_SECRET", "TRMCLOUD_S3_KEY", "TRMCLOUD_UI_TOKEN",
    "TORCH_token", "CUDA_Pwd", "TORCH_PASSPHRASE", "TRMCLOUD_WEBHOOK_URL", "LC_TOKEN",
    "TORCHX_DSN", "CUDA_COOKIE", "TORCH_PAT", "TORCH_SIGNATURE", "TORCH_HUB_AUTHORIZATION",
)  # fmt: skip
HARMLESS = (
    "PATH", "HOME", "LC_ALL", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES",
    "NCCL_DEBUG", "OMP_NUM_THREADS", "OMP_PROC_BIND", "MKL_NUM_THREADS", "KMP_AFFINITY",
    "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TORCH_LOGS", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_KERNEL_CACHE_PATH", "TORCH_COMPILE_DEBUG", "TRITON_CACHE_DIR", "TRMCLOUD_HOME",
    "TRMCLOUD_TRAINER", "TRMCLOUD_INSTALL_HASHES", "TRMCLOUD_KEEP", "CUDA_CACHE_PATH",
    "CUDA_CACHE_DISABLE", "TORCH_CUDNN_V8_API_ENABLED", "TORCH_NCCL_AVOID_RECORD_STREAMS",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_what_may_hold_a_secret_passes_by_no_prefix(name: str) -> None:
    assert not may_travel(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_hardware_and_libraries_are_set_by_passes(name: str) -> None:
    assert may_travel(name)
