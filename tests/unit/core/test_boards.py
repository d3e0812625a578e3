"""PCIe, SXM and NVL told apart, by what nvidia-smi prints on real machines."""

from __future__ import annotations

import pytest

from trmcloud.core.catalog.hardware import GPUS, gpu_of, on_other_board, slowdown
from trmcloud.core.contract.boards import BoardSeen, active_links, board_from, classify, is_worse

# Of published sessions: names with their power limits, as runs on rented and own machines show
# them; the link table is that of two bridged H100 PCIe cards.
BRIDGED = """\
GPU 0: NVIDIA H100 PCIe (UUID: GPU-6968dfc2-d444-d92c-c36b-6abe53445cb9)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
\t Link 2: 26.562 GB/s
\t Link 3: 26.562 GB/s
\t Link 4: <inactive>
\t Link 5: <inactive>
\t Link 6: 26.562 GB/s
\t Link 7: 26.562 GB/s
\t Link 8: 26.562 GB/s
\t Link 9: 26.562 GB/s
\t Link 10: <inactive>
\t Link 11: <inactive>
\t Link 12: 26.562 GB/s
\t Link 13: 26.562 GB/s
\t Link 14: 26.562 GB/s
\t Link 15: 26.562 GB/s
\t Link 16: <inactive>
\t Link 17: <inactive>
GPU 1: NVIDIA H100 PCIe (UUID: GPU-9b1446e2-8a89-4cf6-b68c-a98d99e958d3)
\t Link 0: 26.562 GB/s
"""


@pytest.mark.parametrize(
    ("name", "watts", "links", "form"),
    [
        ("NVIDIA H100 80GB HBM3", 700, 18, "SXM"),
        ("NVIDIA H100 PCIe", 350, 12, "PCIe"),
        ("NVIDIA H100 PCIe", 350, 0, "PCIe"),
        ("NVIDIA H100 PCIe", 310, None, "PCIe"),
        ("NVIDIA H100 NVL", 400, 12, "NVL"),
        ("NVIDIA H200", 700, 18, "SXM"),
        ("NVIDIA H200 NVL", 600, 18, "NVL"),
        ("NVIDIA H20", 500, 18, "SXM"),
        ("NVIDIA A100-SXM4-80GB", 400, 12, "SXM"),
        ("NVIDIA A100-SXM4-80GB", 500, 12, "SXM"),
        ("NVIDIA A100-SXM-64GB", None, None, "SXM"),
        ("NVIDIA A100 80GB PCIe", 300, 0, "PCIe"),
        ("NVIDIA A100-PCIE-40GB", 250, None, "PCIe"),
        ("Tesla V100-SXM2-16GB", 300, 6, "SXM"),
        ("NVIDIA B200", 1000, 18, "SXM"),
        ("NVIDIA GB200", 1200, 18, "SXM"),
        ("NVIDIA GH200 480GB", 900, 18, "SXM"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 600, 0, "PCIe"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 600, 0, "PCIe"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 300, 0, "PCIe"),
        ("NVIDIA GeForce RTX 3090", 350, 4, "PCIe"),
        ("NVIDIA L40S", 350, None, "PCIe"),
        ("NVIDIA A10G", 300, None, "PCIe"),
        ("Tesla T4", 70, None, "PCIe"),
        # Names that do not say it: a hypervisor's, or a seller's.
        ("NVIDIA H100", 700, None, "SXM"),
        ("NVIDIA H100", 350, 0, "PCIe"),
        ("NVIDIA H100", None, 18, "SXM"),
        ("NVIDIA H100", None, 12, ""),
        ("NVIDIA H100", None, None, ""),
        ("NVIDIA A100", 400, 12, "SXM"),
        ("NVIDIA A100", 300, 12, "PCIe"),
        ("NVIDIA A100", None, 12, ""),
        ("GPU of tomorrow", 1400, 18, ""),
        ("", None, None, ""),
    ],
)
def test_the_form_factor(name: str, watts: float | None, links: int | None, form: str) -> None:
    assert classify(name, watts, links).form == form


def test_a_name_is_not_believed_against_power_limit_and_links() -> None:
    assert classify("NVIDIA H100 80GB HBM3", 350, 0).form == "PCIe"
    assert "which its name contradicts" in classify("NVIDIA H100 80GB HBM3", 350, 0).by
    assert classify("NVIDIA H100 80GB HBM3", 350, 18).form == "SXM", "a limit can be set lower"
    assert classify("NVIDIA H100 80GB HBM3", 700, 0).form == "SXM", "one GPU of a host has no peer"
    assert classify("NVIDIA H100 80GB HBM3", None, 0).form == "SXM"


def test_links_are_those_of_the_first_gpu_that_carry_data() -> None:
    assert active_links(BRIDGED) == 12
    switched = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)\n" + "".join(
        f"\t Link {n}: 26.562 GB/s\n" for n in range(18)
    )
    assert active_links(switched) == 18
    assert active_links("GPU 0: NVIDIA L4 (UUID: GPU-1)\n") == 0
    assert active_links("") is None
    assert active_links("Failed to initialize NVML: Driver/library version mismatch") is None
    assert active_links(f"GPU 0: x\n Link 0: {'9' * 400} GB/s\n") == 0


def test_which_board_is_worse() -> None:
    assert is_worse("PCIe", "SXM")
    assert is_worse("NVL", "SXM")
    assert is_worse("PCIe", "NVL")
    for found, planned in (
        ("SXM", "PCIe"),
        ("SXM", "SXM"),
        ("", "SXM"),
        ("PCIe", ""),
        ("x", "SXM"),
    ):
        assert not is_worse(found, planned)


def test_a_gpu_on_another_board_and_how_much_slower_it_may_be() -> None:
    sxm, pcie = GPUS["H100-SXM"], on_other_board("H100-SXM", "PCIe")
    assert pcie is GPUS["H100-PCIe"]
    assert slowdown(sxm, pcie, 1) == pytest.approx(3350 / 2000)
    assert slowdown(sxm, pcie, 8) == pytest.approx(450 / 64), "links bind eight of them"
    assert on_other_board("A100-80GB-PCIe", "SXM") is GPUS["A100-80GB-SXM"], "not the 40 GB one"
    assert on_other_board("H200", "PCIe") is None
    assert on_other_board("SIM", "PCIe") is None


def test_forms_of_the_catalogue() -> None:
    forms = {sku: gpu.form for sku, gpu in GPUS.items()}
    sxm = {"B200", "B300", "GB200", "H200", "H100-SXM", "A100-80GB-SXM", "A100-40GB", "MI300X"}
    assert {sku for sku, form in forms.items() if form == "SXM"} == sxm
    assert forms["H100-NVL"] == "NVL"


def test_a_note_is_read_with_suspicion() -> None:
    seen = BoardSeen("NVIDIA H100 PCIe", 350.0, 12, "570.1", "2.7.1+cu118")
    assert board_from(seen.to_text()) == seen
    assert board_from(BoardSeen("x").to_text()) == BoardSeen("x")
    steering = BoardSeen("\x1b[31mH100")
    assert board_from(steering.to_text()) == BoardSeen("H100")
    for bad in ("", "[]", "{}", "5", "null", "[" * 900, "x" * 2000, '["a", "b", 1, "", ""]',
                '["a", NaN, 1, "", ""]', '["a", 1, true, "", ""]', '["a", 1, -1, "", ""]',
                '["a", 1, 1, 5, ""]', '["a", 1e9, 1, "", ""]'):  # fmt: skip
        assert board_from(bad) is None, bad


@pytest.mark.parametrize(
    ("name", "memory_gb", "sku"),
    [
        ("NVIDIA H100 80GB HBM3", 85.5, "H100-SXM"),
        ("NVIDIA H100 PCIe", 85.5, "H100-PCIe"),
        ("NVIDIA H200", None, "H200"),
        ("NVIDIA GH200 480GB", None, "GH200"),
        ("NVIDIA GB200", None, "GB200"),
        ("NVIDIA A100-SXM4-80GB", 85.9, "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", None, "A100-80GB-PCIe"),
        ("NVIDIA A100-PCIE-40GB", 42.9, "A100-40GB"),
        ("NVIDIA GeForce RTX 4090", 25.8, "RTX4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX-PRO-6000"),
        ("AMD Instinct MI300X OAM", None, "MI300X"),
        ("NVIDIA L40S", None, "L40S"),
        # Alike, and not the same: no figure of the table holds for them.
        ("NVIDIA H200 NVL", None, None),
        ("NVIDIA H20", None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17.2, None),
        ("NVIDIA GeForce RTX 3090 Ti", None, None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, None),
        ("NVIDIA RTX A1000 Laptop GPU", 4.3, None),
        ("NVIDIA A10", None, None),
        ("", None, None),
    ],
)
def test_a_gpu_is_known_by_its_whole_name_and_memory(
    name: str, memory_gb: float | None, sku: str | None
) -> None:
    gpu = gpu_of(name, memory_gb)
    assert (gpu.sku if gpu is not None else None) == sku
