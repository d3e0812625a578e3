from __future__ import annotations

import pytest

from trmcloud.core.catalog.hardware import (
    GPUS,
    GUIDE_HARDWARE,
    LocalMachine,
    find_gpu,
    nodes_of,
    parse_hardware,
)
from trmcloud.core.errors import UsageError


@pytest.mark.parametrize("text", GUIDE_HARDWARE)
def test_the_guides_hardware_is_known_under_its_own_name(text: str) -> None:
    request = parse_hardware(text.lower())
    assert request.text == text
    assert not request.is_local


def test_a100_is_any_80_gb_a100_and_never_the_40_gb_one() -> None:
    request = parse_hardware("8xA100")
    assert request.skus == ("A100-80GB-SXM", "A100-80GB-PCIe")
    assert not request.accepts("A100-40GB", 8)
    assert all(GPUS[sku].memory_gb == 80 for sku in request.skus)


def test_h100_is_the_sxm_part_and_the_others_go_by_name() -> None:
    assert parse_hardware("8xH100").skus == ("H100-SXM",)
    assert parse_hardware("8xh100-pcie").skus == ("H100-PCIe",)


def test_several_machines_are_counted_before_what_each_has() -> None:
    request = parse_hardware("2X8xh100")
    assert (request.text, request.nodes, request.count) == ("2x8xH100", 2, 8)
    assert request.skus == ("H100-SXM",)
    assert parse_hardware("1x8xH100") == parse_hardware("8xH100")
    assert nodes_of("") == nodes_of("local") == nodes_of("8xH100") == 1
    for text in ("0x8xH100", "65x8xH100", "2x2x8xH100", "2xlocal", "2x8x"):
        with pytest.raises(UsageError):
            parse_hardware(text)


def test_local_has_no_sku() -> None:
    assert parse_hardware(" Local ").is_local


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8xH1000", "8xH100"),
        ("8xA10", "8xA10G"),
        ("H100", "8xH100"),
        ("lokal", "local"),
        ("gpu", "one of"),
        ("2xRTX309", "2xRTX3090"),
    ],
)
def test_the_nearest_name_is_offered(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hardware(text)
    assert hint in caught.value.next_step


@pytest.mark.parametrize("text", ["0xH100", "65xH100", "-1xH100", "8x", "x", ""])
def test_impossible_counts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hardware(text)


def test_links_are_one_way_and_fall_back_to_pcie() -> None:
    assert find_gpu("h100-sxm").link_gb_s(8) == 450
    assert find_gpu("H100-SXM").link_gb_s(16) == 64
    assert find_gpu("H100-PCIe").link_gb_s(8) == 64
    assert find_gpu("RTX4090").link_gb_s(2) == 16, "no direct copies between 4090s"


def test_no_peak_is_the_sparse_one() -> None:
    assert GPUS["H100-SXM"].peak_flops("bfloat16") == 989e12
    assert GPUS["A100-80GB-SXM"].peak_flops("bfloat16") == 312e12
    assert GPUS["A100-80GB-SXM"].peak_flops("float32") == 156e12


def test_cpus_are_shared_between_processes() -> None:
    machine = LocalMachine("four cores", 4, 16.0, peak_flops_per_process=100e9)
    assert machine.default_processes == 2
    assert machine.peak_flops(4) == 50e9
