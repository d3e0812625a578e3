"""NCCL is told what a rented container is known for, and no more."""

from __future__ import annotations

import pytest

from trmcloud.pod.machine.nccl import has_nvlink, nccl_environment


@pytest.mark.parametrize(
    ("name", "switched"),
    [
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-40GB", True),
        ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True),
        ("NVIDIA B200", True),
        ("NVIDIA B300 SXM6 AC", True),
        ("NVIDIA GB200", True),
        ("NVIDIA A100 80GB PCIe", False),
        ("NVIDIA A100-PCIE-40GB", False),
        ("NVIDIA H100 PCIe", False),
        ("NVIDIA H100 NVL", False),
        ("NVIDIA H200 NVL", False),
        ("NVIDIA L40S", False),
        ("NVIDIA L4", False),
        ("NVIDIA GeForce RTX 4090", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", False),
        ("", False),
    ],
)
def test_who_is_joined_by_nvlink(name: str, switched: bool) -> None:
    assert has_nvlink(name) is switched


def test_a_switched_board_is_left_to_nccl() -> None:
    assert nccl_environment("NVIDIA H100 80GB HBM3", 8, True) == {
        "NCCL_DEBUG": "WARN",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }


def test_pcie_cards_do_not_reach_into_one_another() -> None:
    made = nccl_environment("NVIDIA L40S", 2, False)
    assert made["NCCL_P2P_LEVEL"] == "NVL"


def test_one_gpu_or_none_has_nobody_to_talk_to() -> None:
    assert nccl_environment("NVIDIA H100 80GB HBM3", 1, True) == {}
    assert nccl_environment("", 0, False) == {}
    assert nccl_environment("", 2, False) == {}
