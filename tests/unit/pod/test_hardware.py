"""What nvidia-smi and /proc/mounts say is read with suspicion and judged in plain words."""

from __future__ import annotations

import pytest

from trmcloud.pod.machine.hardware import (
    Check,
    Seen,
    load_check,
    parse_cuda,
    parse_gpus,
    refusals,
)

H100 = "NVIDIA H100 80GB HBM3, 81559, 0, 570.133.20, 0"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 4, 550.127.05, 0"
GEFORCE = "NVIDIA GeForce RTX 4090, 24564, 1, 570.86.10, [N/A]"
SLICE = "NVIDIA H100 80GB HBM3 MIG 1g.10gb, 9984, 12, 570.133.20, [N/A]"
PAGE = """\
Sat Nov 21 09:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
"""
MOUNTS = """\
overlay / overlay rw,relatime,lowerdir=/a,upperdir=/b 0 0
proc /proc proc rw,nosuid 0 0
/dev/nvme1n1p1 /workspace xfs rw,relatime 0 0
/dev/nvme0n1p2 /a\\040place ext4 rw 0 0
"""


def seen(*rows: str, cuda: tuple[int, int] | None = None, mounts: str = MOUNTS) -> Seen:
    gpus, complaints = parse_gpus("\n".join(rows))
    return Seen(gpus, complaints, cuda, mounts)


def texts(check: Check, found: Seen) -> list[str]:
    return [refusal.text for refusal in refusals(check, found)]


FULL = Check(
    gpu=("NVIDIA H100 80GB HBM3",),
    count=2,
    memory_gb=80,
    min_cuda="12.8",
    volume=True,
    idle=True,
)


def test_what_was_rented_is_accepted() -> None:
    assert texts(FULL, seen(H100, H100, cuda=(12, 8))) == []
    assert texts(Check(), seen()) == []


def test_fewer_other_and_no_gpus() -> None:
    assert texts(FULL, seen(H100, cuda=(12, 8))) == ["2 GPUs rented, 1 found"]
    assert texts(FULL, seen(H100, A100, cuda=(12, 8))) == [
        "GPU 1: NVIDIA H100 80GB HBM3 rented, NVIDIA A100-SXM4-80GB found"
    ]
    assert texts(FULL, seen(cuda=(12, 8))) == ["this machine shows no GPU"]


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("H100", "NVIDIA H100 80GB HBM3", True),
        ("nvidia h100 80gb hbm3", "NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H100*", "NVIDIA H100 PCIe", True),
        ("H100*", "NVIDIA H100 PCIe", False),
        ("NVIDIA H200", "NVIDIA H100 PCIe", False),
    ],
)
def test_names_by_part_or_by_pattern(pattern: str, name: str, fits: bool) -> None:
    row = f"{name}, 81559, 0, 570.133.20, 0"
    assert (texts(Check(gpu=(pattern,)), seen(row)) == []) is fits


def test_any_of_several_names_will_do() -> None:
    check = Check(gpu=("A100-SXM4-80GB", "A100 80GB PCIe"), count=1)
    assert texts(check, seen(A100)) == []
    assert texts(check, seen(H100)) == [
        "GPU 0: A100-SXM4-80GB or A100 80GB PCIe rented, NVIDIA H100 80GB HBM3 found"
    ]


def test_a_slice_is_not_a_gpu() -> None:
    assert texts(Check(gpu=("H100",)), seen(SLICE)) == [
        "GPU 0: NVIDIA H100 80GB HBM3 MIG 1g.10gb is a slice of a GPU, a whole one was rented"
    ]
    assert texts(Check(gpu=("H100*MIG*", "*H100*MIG 1g*")), seen(SLICE)) == []


def test_memory_is_judged_with_the_slack_a_gpu_keeps_for_itself() -> None:
    smallest = {"L4": (24, 23034), "A100-40": (40, 40536), "B200": (180, 183359)}
    for name, (sold_gb, mib) in smallest.items():
        row = f"NVIDIA {name}, {mib}, 0, 570.1, 0"
        assert texts(Check(memory_gb=sold_gb), seen(row)) == [], name
    assert texts(Check(memory_gb=80), seen("A100, 40536, 0, 550.1, 0")) == [
        "GPU 0: 80 GB rented, 43 GB found"
    ]


def test_a_gpu_that_somebody_uses_is_refused_and_looked_at_again() -> None:
    check = Check(idle=True)
    full = refusals(check, seen("H100, 81559, 70000, 570.1, 99"))
    assert [(r.text, r.may_pass) for r in full] == [
        ("GPU 0: somebody uses 70000 MiB of its memory", True)
    ]
    busy = refusals(check, seen("H100, 81559, 10, 570.1, 97"))
    assert [(r.text, r.may_pass) for r in busy] == [("GPU 0: somebody keeps it 97 % busy", True)]
    assert texts(check, seen("H100, 81559, 4077, 570.1, 5")) == []
    assert texts(check, seen("H100, 81559, 4079, 570.1, 5")) != []
    assert texts(check, seen(GEFORCE)) == [], "utilisation is not told by every GPU"


@pytest.mark.parametrize(
    "field", ["[N/A]", "ERR!", "[Unknown Error]", "[GPU requires reset]", "", "-1", "inf"]
)
def test_memory_that_cannot_be_read_is_no_memory(field: str) -> None:
    row = f"NVIDIA H100 80GB HBM3, {field}, 0, 570.1, 0"
    (text,) = texts(Check(memory_gb=80), seen(row))
    assert text.startswith("GPU 0: its memory cannot be read")
    row = f"NVIDIA H100 80GB HBM3, 81559, {field}, 570.1, 0"
    (text,) = texts(Check(idle=True), seen(row))
    assert text.startswith("GPU 0: the memory in use cannot be read")


@pytest.mark.parametrize(
    "sentence",
    [
        "Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure"
        " that the latest NVIDIA driver is installed and running.",
        "Failed to initialize NVML: Driver/library version mismatch",
    ],
)
def test_a_sentence_instead_of_a_row_is_a_refusal(sentence: str) -> None:
    told = texts(Check(count=1), seen(H100, sentence))
    assert told[0].startswith("nvidia-smi says: ")
    assert texts(Check(volume=True), seen(sentence)) == [], "no GPU was asked for"


def test_control_characters_do_not_pass_through() -> None:
    (told,) = texts(Check(gpu=("H100",)), seen("\x1b[31mEvil\x07 GPU, 1, 0, 570.1, 0"))
    assert "\x1b" not in told
    assert "\x07" not in told


def test_driver_and_cuda() -> None:
    assert parse_cuda(PAGE) == (12, 8)
    assert parse_cuda(PAGE.replace("CUDA Version", "CUDA UMD Version")) == (12, 8)
    assert parse_cuda("nothing") is None
    assert texts(Check(min_cuda="12.8"), seen(A100, cuda=(12, 4))) == [
        "CUDA 12.8 is needed, driver 550.127.05 runs 12.4"
    ]
    assert texts(Check(min_cuda="12.8"), seen(A100)) == [
        "CUDA 12.8 is needed, driver 550.127.05 is too old for it"
    ]
    assert texts(Check(min_cuda="12.8"), seen(H100)) == []
    assert texts(Check(min_cuda="12.4"), seen(A100)) == []
    assert texts(Check(min_driver="570.26"), seen(A100)) == [
        "driver 570.26 or newer is needed, 550.127.05 found"
    ]
    assert texts(Check(min_driver="570.26"), seen(H100)) == []
    assert texts(Check(min_driver="9"), seen("H100, 81559, 0, [N/A], 0")) == [
        "the driver's version cannot be read: [N/A]"
    ]


def test_the_volume_must_be_a_mount_of_its_own() -> None:
    check = Check(volume=True)
    assert texts(check, seen()) == []
    assert texts(Check(volume=True, mount="/a place"), seen()) == []
    assert texts(check, seen(mounts="overlay / overlay rw 0 0\n")) == [
        "/workspace is not a volume but the container's own disk"
    ]
    assert texts(check, seen(mounts=MOUNTS + "tmpfs /workspace tmpfs ro,size=1k 0 0\n")) == [
        "/workspace is mounted read-only"
    ]
    assert texts(Check(volume=True, mount="/"), seen()) != []
    assert texts(Check(volume=False), seen(mounts="")) == []


def test_a_check_is_read_strictly() -> None:
    full = (
        '{"gpu": "H100", "count": 8, "memory_gb": 80, "min_cuda": "12.8", "min_driver": "",'
        ' "mount": "/workspace", "volume": true, "idle": true}'
    )
    assert load_check(full) == Check(
        gpu=("H100",), count=8, memory_gb=80, min_cuda="12.8", volume=True, idle=True
    )
    assert load_check("{}") == Check()
    assert load_check('{"gpu": ["a", "b"]}').gpu == ("a", "b")
    for bad in (
        "[]",
        "{",
        '{"gpus": 8}',
        '{"count": "8"}',
        '{"count": true}',
        '{"count": -1}',
        '{"volume": 1}',
        '{"gpu": [1]}',
        '{"gpu": 7}',
        '{"min_cuda": "new"}',
        '{"memory_gb": NaN}',
    ):
        with pytest.raises(ValueError, match=r"."):
            load_check(bad)
