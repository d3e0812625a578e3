"""Hardware as nvidia-smi and /proc/mounts show it, sampled by the agent; what NCCL is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.present import present
from tests.waiting import until
from trmcloud.core.contract.pod_contract import GPU_NOTE, GpuCounters, window_from
from trmcloud.pod.machine.environment import has_nvlink, nccl_environment
from trmcloud.pod.machine.hardware import (
    SAMPLE_EVERY_S,
    WINDOW_S,
    Check,
    FoundHardware,
    GpuSampler,
    load_check,
    parse,
    parse_board,
    parse_gpus,
    refusals,
)

# -- What nvidia-smi and /proc/mounts say is read with suspicion and judged in plain words ------


H100 = "NVIDIA H100 80GB HBM3, 81559, 0, 570.133.20, 0"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 4, 550.127.05, 0"
GEFORCE = "NVIDIA GeForce RTX 4090, 24564, 1, 570.86.10, [N/A]"
SLICE = "NVIDIA H100 80GB HBM3 MIG 1g.10gb, 9984, 12, 570.133.20, [N/A]"
MOUNTS = """\
overlay / overlay rw,relatime,lowerdir=/a,upperdir=/b 0 0
proc /proc proc rw,nosuid 0 0
/dev/nvme1n1p1 /workspace xfs rw,relatime 0 0
/dev/nvme0n1p2 /a\\040place ext4 rw 0 0
"""


def seen(
    *rows: str, mounts: str = MOUNTS, watts: float | None = None, links: int | None = None
) -> FoundHardware:
    gpus, complaints = parse_gpus("\n".join(rows))
    return FoundHardware(gpus, complaints, mounts, watts=watts, links=links)


def texts(check: Check, found: FoundHardware) -> list[str]:
    return [refusal.text for refusal in refusals(check, found)]


FULL = Check(
    gpu=("NVIDIA H100 80GB HBM3",), count=2, memory_gb=80, board="SXM", volume=True, idle=True
)


def test_what_was_rented_is_accepted() -> None:
    assert texts(FULL, seen(H100, H100)) == []
    assert texts(Check(), seen()) == []


def test_fewer_other_and_no_gpus() -> None:
    assert texts(FULL, seen(H100)) == ["2 GPUs rented, 1 found"]
    assert texts(FULL, seen(H100, A100)) == [
        "GPU 1: NVIDIA H100 80GB HBM3 rented, NVIDIA A100-SXM4-80GB found"
    ]
    assert texts(FULL, seen()) == ["this machine shows no GPU"]


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
        ("GPU 0: 70000 MiB of its memory are in use", True)
    ]
    busy = refusals(check, seen("H100, 81559, 10, 570.1, 97"))
    assert [(r.text, r.may_pass) for r in busy] == [("GPU 0: it is 97 % busy", True)]
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


def test_a_slower_board_is_refused_unless_the_work_fits_on_it() -> None:
    pcie = H100.replace("80GB HBM3", "PCIe")
    check = Check(gpu=("*H100*",), board="SXM")
    assert texts(check, seen(H100)) == []
    assert texts(check, seen(pcie)) == ["H100 SXM rented, H100 PCIe found (by its name)"]
    assert texts(check, seen(H100, watts=350.0, links=0)) == [
        "H100 SXM rented, H100 PCIe found (by 350 W and 0 links, which its name contradicts)"
    ]
    assert texts(Check(board="SXM", slower_boards=("PCIe",)), seen(pcie)) == []
    assert texts(Check(board="PCIe"), seen(H100)) == [], "a faster one will do"
    assert texts(check, seen("NVIDIA H100, 81559, 0, 570.1, 0")) == [], "nothing tells it"


def test_the_driver_must_be_readable() -> None:
    unread = seen("H100, 81559, 0, [N/A], 0")
    assert texts(Check(count=1), unread) == ["the driver's version cannot be read: [N/A]"]
    assert texts(Check(gpu=("H100",)), unread) == [], "nothing was rented"
    assert seen(A100).driver == (550, 127, 5)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("700.00, 9.0\n700.00, 9.0\n", (700.0, 90)),
        ("1000.00, 10.0", (1000.0, 100)),
        ("[N/A], 8.6", (None, 86)),
        ('Field "compute_cap" is not a valid field to query.', (None, None)),
        ("", (None, None)),
        ("350.00, [N/A]", (350.0, None)),
    ],
)
def test_power_limit_and_compute_capability(
    text: str, read: tuple[float | None, int | None]
) -> None:
    assert parse_board(text) == read


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
        '{"gpu": "H100", "count": 8, "memory_gb": 80, "board": "SXM", "slower_boards": ["NVL"],'
        ' "mount": "/workspace", "volume": true, "idle": true}'
    )
    assert load_check(full) == Check(
        gpu=("H100",),
        count=8,
        memory_gb=80,
        board="SXM",
        slower_boards=("NVL",),
        volume=True,
        idle=True,
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
        '{"slower_boards": "NVL"}',
        '{"memory_gb": NaN}',
    ):
        with pytest.raises(ValueError, match=r"."):
            load_check(bad)


# -- The agent's look at its GPUs, with a real process that answers as nvidia-smi does ----------


ROW = "97, 71000, 81559, 1980\n"


class Gpus:
    """An ``nvidia-smi`` on the PATH, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "nvidia-smi"
        self.now = 1000.0
        self.says(ROW)
        self.sampler = GpuSampler()

    def says(self, rows: str, before: str = "") -> None:
        made = self.script.with_suffix(".new")
        made.write_text(f"#!/bin/sh\n{before}\ncat <<'ROWS'\n{rows}ROWS\n")
        made.chmod(0o755)
        os.replace(made, self.script)

    def sample(self, *, trains: bool = True) -> None:
        """Let one look be taken and answered."""
        self.now += SAMPLE_EVERY_S
        self.sampler.tend(self.now, trains=trains)
        self.answered(trains=trains)

    def answered(self, *, trains: bool) -> None:
        """Wait until nothing is asked any more."""

        def is_answered() -> bool:
            self.sampler.tend(self.now, trains=trains)
            return self.sampler._asked is None

        until(is_answered, within_s=30.0, what="an answer of nvidia-smi")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Gpus(tmp_path)


def test_samples_become_a_note(gpus: Gpus) -> None:
    assert gpus.sampler.notes() == {}
    gpus.sample()
    gpus.says(ROW.replace("97", "47"))
    gpus.sample()
    window = present(window_from(gpus.sampler.notes()[GPU_NOTE]))
    assert (window.samples, window.over_s) == (2, SAMPLE_EVERY_S)
    assert window.gpus == (GpuCounters(72.0, 71000.0, 81559.0, 1980.0),)


def test_idle_time_counts_from_the_last_sample_that_showed_any_gpu_busy(gpus: Gpus) -> None:
    """Beyond the window, and from the first sample where none did."""
    quiet = ROW.replace("97", "0")
    gpus.says(quiet * 2)
    gpus.sample()
    gpus.sample()
    assert gpus.sampler.window().idle_s == SAMPLE_EVERY_S  # type: ignore[union-attr]
    gpus.says(quiet + ROW)
    gpus.sample()
    assert gpus.sampler.window().idle_s == 0.0  # type: ignore[union-attr]
    gpus.says(quiet * 2)
    gpus.now += 2 * WINDOW_S
    gpus.sample()
    window = present(window_from(gpus.sampler.notes()[GPU_NOTE]))
    assert window.idle_s == 2 * WINDOW_S + SAMPLE_EVERY_S
    gpus.says(ROW.replace("97", "[N/A]"))
    gpus.sample()
    assert gpus.sampler.window().idle_s is None  # type: ignore[union-attr]
    gpus.sampler.forget()
    gpus.says(quiet)
    gpus.sample()
    assert gpus.sampler.window().idle_s == 0.0  # type: ignore[union-attr]


def test_no_oftener_than_it_should(gpus: Gpus) -> None:
    gpus.sample()
    gpus.now += SAMPLE_EVERY_S - 0.1
    gpus.sampler.tend(gpus.now, trains=True)
    assert gpus.sampler._asked is None


def test_what_does_not_train_does_not_count(gpus: Gpus) -> None:
    gpus.sample(trains=False)
    assert gpus.sampler.window() is None
    gpus.sampler.tend(gpus.now, trains=True)  # asked while it trained
    gpus.answered(trains=False)  # and answered while it saved
    assert gpus.sampler.window() is None


def test_an_old_sample_leaves_the_window(gpus: Gpus) -> None:
    gpus.sample()
    gpus.now += WINDOW_S
    gpus.sample()
    assert present(gpus.sampler.window()).samples == 1


def test_another_attempt_begins_anew(gpus: Gpus) -> None:
    gpus.sample()
    gpus.sampler.forget()
    assert gpus.sampler.notes() == {}


def test_a_gpu_that_fell_off_its_bus(gpus: Gpus) -> None:
    gpus.says(ROW * 2)
    gpus.sample()
    gpus.says("Unable to determine the device handle for GPU1: Unknown Error\n" + ROW)
    gpus.sample()
    window = present(gpus.sampler.window())
    assert (window.samples, len(window.gpus)) == (1, 1)


def test_one_that_fails_hangs_or_is_not_there(gpus: Gpus, tmp_path: Path) -> None:
    gpus.says(ROW, before="exit 9")
    gpus.sample()
    assert gpus.sampler.window() is None
    gpus.says(ROW, before="sleep 600")
    gpus.now += SAMPLE_EVERY_S
    gpus.sampler.tend(gpus.now, trains=True)
    gpus.now += 11.0
    gpus.sampler.tend(gpus.now, trains=True)  # killed; the next look comes in its turn
    assert gpus.sampler.window() is None
    gpus.script.unlink()
    absent = GpuSampler()
    absent.tend(gpus.now, trains=True)
    assert absent._asked is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("[N/A], 71000, 81559, ERR!\n", [GpuCounters(None, 71000.0, 81559.0, None)]),
        ("97, 71000, 81559\n", []),
        ("No devices were found\n", []),
        ("9" * 400 + ", 1, 2, 3\n", [GpuCounters(None, 1.0, 2.0, 3.0)]),
        ("-5, nan, inf, 1e9\n", [GpuCounters(None, None, None, None)]),
    ],
)
def test_what_it_prints_is_read_with_suspicion(text: str, read: list[GpuCounters]) -> None:
    assert list(parse(text)) == read


# -- NCCL is told what a rented container is known for, and no more -----------------------------


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
