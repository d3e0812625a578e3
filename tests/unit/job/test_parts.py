"""Files of one distributed checkpoint come from several machines, and only whole ones count."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until
from trmcloud.pod.job.artifacts import Artifact, ArtifactRefused, find_artifacts
from trmcloud.pod.job.parts import Channel, PartsReceiver, PartsSender, Refused, named_files
from trmcloud.pod.job.watcher import Watcher

KEY = "a" * 64


def lay(work: Path, folder: str, names: list[str], content: bytes = b"part") -> Path:
    at = work / folder
    at.mkdir(parents=True, exist_ok=True)
    for name in names:
        (at / name).write_bytes(content)
    return at


def index(at: Path, *names: str) -> None:
    """As DCP's coordinator writes it: a pickle that has each file's name once."""
    (at / ".metadata").write_bytes(pickle.dumps({"storage_data": list(names)}))


def kinds(work: Path) -> dict[str, str]:
    return {each.source: each.kind for each in find_artifacts(work, below="out").artifacts}


class Machines:
    """Two: the first has the index."""

    def __init__(self, folder: Path) -> None:
        self.first, self.other = folder / "first", folder / "other"
        self.said: list[str] = []
        self.receiver = PartsReceiver(folder / "spool", KEY, self.said.append, port=0)
        self.seen_first = Watcher(self.first, "out")
        self.seen_other = Watcher(self.other, "out")
        self.sender = PartsSender(("127.0.0.1", self.receiver.port), KEY)

    def look(self) -> list[str]:
        """What is whole on the first machine."""
        self.receiver.drop_stale()
        whole = [
            found.source
            for found in self.seen_first.settled(0.0, 0.0)
            if isinstance(found, Artifact)
        ]
        list(self.seen_other.settled(0.0, 0.0))
        self.receiver.look(self.seen_first.split)
        self.sender.look(self.seen_other.split)
        return whole


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.receiver.close()
    made.sender.end(0.0, 0.0, lambda: None)


def test_a_checkpoint_that_lacks_a_file_of_its_index_is_none(tmp_path: Path) -> None:
    at = lay(tmp_path, "out/step-20", ["__0_0.distcp"])
    assert kinds(tmp_path) == {}, "its index comes last"
    index(at, "__0_0.distcp", "__1_0.distcp")
    found = find_artifacts(tmp_path, below="out")
    assert found.artifacts == ()
    [split] = found.split
    assert split.missing == {"__1_0.distcp"}
    assert {file.path for file in found.rest} == {
        "out/step-20/.metadata",
        "out/step-20/__0_0.distcp",
    }, "it comes home unjudged at least"
    (at / "__1_0.distcp").write_bytes(b"x")
    assert kinds(tmp_path) == {"out/step-20": "torch-dcp"}


@pytest.mark.parametrize("pattern", ["out/*", "out/step-20"])
def test_no_pattern_and_no_report_makes_it_one(tmp_path: Path, pattern: str) -> None:
    at = lay(tmp_path, "out/step-20", ["__0_0.distcp"])
    index(at, "__0_0.distcp", "__1_0.distcp")
    watcher = Watcher(tmp_path, pattern)
    assert list(watcher.settled(0.0, 0.0)) == []
    assert [split.missing for split in watcher.split] == [{"__1_0.distcp"}]
    with pytest.raises(ArtifactRefused, match="not here yet"):
        watcher.look("out/step-20")


def test_a_step_with_such_a_folder_in_it_waits_for_its_files(tmp_path: Path) -> None:
    at = lay(tmp_path, "out/checkpoint-20/pytorch_model_fsdp_0", ["__0_0.distcp"])
    index(at, "__0_0.distcp", "__1_0.distcp")
    (at.parent / "scheduler.bin").write_bytes(b"x")
    assert kinds(tmp_path) == {}
    (at / "__1_0.distcp").write_bytes(b"x")
    assert kinds(tmp_path) == {"out/checkpoint-20": "accelerate"}


def test_torch_itself_names_its_files_so(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.state_dict_saver import save

    save({"weight": torch.ones(4)}, checkpoint_id=str(tmp_path / "out" / "step-1"), no_dist=True)
    at = tmp_path / "out" / "step-1" / ".metadata"
    about = at.stat()
    assert named_files(at, about.st_mtime_ns, about.st_size) == {"__0_0.distcp"}
    assert kinds(tmp_path) == {"out/step-1": "torch-dcp"}


def test_the_other_machines_file_comes_to_the_first(machines: Machines) -> None:
    at = lay(machines.first, "out/step-20", ["__0_0.distcp"])
    content = os.urandom(3 << 20)
    lay(machines.other, "out/step-20", ["__1_0.distcp"], content)
    assert machines.look() == []
    index(at, "__0_0.distcp", "__1_0.distcp")
    until(lambda: machines.look() == ["out/step-20"])
    assert (at / "__1_0.distcp").read_bytes() == content
    assert (at / "__1_0.distcp").stat().st_mtime_ns == (at / ".metadata").stat().st_mtime_ns
    assert not list((machines.first.parent / "spool").iterdir())


def test_a_save_over_the_last_one_has_no_file_of_that(machines: Machines) -> None:
    at = lay(machines.first, "out/last", ["__0_0.distcp"], b"one")
    other = lay(machines.other, "out/last", ["__1_0.distcp"], b"one")
    index(at, "__0_0.distcp", "__1_0.distcp")
    until(lambda: machines.look() == ["out/last"])
    # The next one, whose other half is written before its index.
    (other / "__1_0.distcp").write_bytes(b"two")
    (at / "__0_0.distcp").write_bytes(b"two")
    index(at, "__0_0.distcp", "__1_0.distcp")
    assert machines.look() == [], "one half of each would be no checkpoint"
    until(lambda: machines.look() == ["out/last"])
    assert (at / "__1_0.distcp").read_bytes() == b"two"


def test_a_file_of_a_later_save_than_the_index_is_not_asked_for(machines: Machines) -> None:
    at = lay(machines.first, "out/last", ["__0_0.distcp"])
    index(at, "__0_0.distcp", "__1_0.distcp")
    earlier = time.time_ns() - 10_000_000_000
    os.utime(at / ".metadata", ns=(earlier, earlier))
    lay(machines.other, "out/last", ["__1_0.distcp"])
    machines.look()
    key = ("", "out/last", "__1_0.distcp")
    assert machines.receiver._choose([(*key, 0.1)]) == []
    assert machines.receiver._choose([(*key, 60.0)]) == [key]


def states(at: Path, name: str, ranks: int) -> None:
    """Model states as DeepSpeed's engine writes them, by torch itself."""
    torch = pytest.importorskip("torch")
    at.mkdir(parents=True, exist_ok=True)
    about = {"global_steps": 7, "dp_world_size": ranks, "mp_world_size": 1, "ds_version": "0.18"}
    torch.save({"module": {"weight": torch.ones(300)}, **about}, at / name)


SHARD = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize("ranks", [2, 16, 300])
def test_a_deepspeed_folder_needs_the_shard_of_every_rank(tmp_path: Path, ranks: int) -> None:
    at = lay(tmp_path, "out/global_step7", [SHARD.format(n) for n in range(ranks - 1)])
    states(at, "mp_rank_00_model_states.pt", ranks)
    assert kinds(tmp_path) == {}
    [split] = find_artifacts(tmp_path, below="out").split
    assert split.missing == {SHARD.format(ranks - 1)}
    lay(tmp_path, "out/global_step7", [SHARD.format(ranks - 1)])
    assert kinds(tmp_path) == {"out/global_step7": "deepspeed"}


def test_zero_3_shares_the_weights_out_too(tmp_path: Path) -> None:
    at = lay(tmp_path, "out/global_step7", ["zero_pp_rank_0_mp_rank_00_optim_states.pt"])
    states(at, "zero_pp_rank_0_mp_rank_00_model_states.pt", 2)
    [split] = find_artifacts(tmp_path, below="out").split
    assert split.missing == {
        "zero_pp_rank_1_mp_rank_00_model_states.pt",
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    }


def test_deepspeeds_shards_of_the_other_machine_come_to_the_first(machines: Machines) -> None:
    at = lay(machines.first, "out/checkpoint-7/global_step7", [SHARD.format(0)])
    content = os.urandom(1 << 20)
    other = lay(machines.other, "out/checkpoint-7/global_step7", [SHARD.format(1)], content)
    states(at, "mp_rank_00_model_states.pt", 2)
    assert machines.look() == []
    shard = other / SHARD.format(1)
    earlier = time.time_ns() - 4_000_000_000
    os.utime(shard, ns=(earlier, earlier))  # written long ago: it is whole
    until(lambda: machines.look() == ["out/checkpoint-7"])
    assert (at / shard.name).read_bytes() == content


def test_shards_of_a_tag_that_is_written_over_are_not_mixed(machines: Machines) -> None:
    at = lay(machines.first, "out/last", [SHARD.format(0)])
    states(at, "mp_rank_00_model_states.pt", 2)
    lay(machines.other, "out/last", [SHARD.format(1)])
    machines.look()
    assert machines.receiver._choose([("", "out/last", SHARD.format(1), 60.0)]) == []
    assert [split.missing for split in machines.seen_first.split] == [{SHARD.format(1)}], (
        "the live line and the end name it"
    )


def test_a_machine_that_has_ended_stays_until_its_file_is_there(machines: Machines) -> None:
    at = lay(machines.first, "out/step-20", ["__0_0.distcp"])
    lay(machines.other, "out/step-20", ["__1_0.distcp"])
    index(at, "__0_0.distcp", "__1_0.distcp")
    machines.look()
    ended_at = time.monotonic()

    def meanwhile() -> None:
        if machines.look():
            machines.receiver.close()

    machines.sender.end(30.0, 30.0, meanwhile)
    assert (at / "__1_0.distcp").exists()
    assert time.monotonic() - ended_at < 10.0, "told that nothing more is wanted"


@pytest.mark.parametrize("has_files", [True, False])
def test_a_first_machine_that_asks_for_nothing_holds_no_other(
    machines: Machines, has_files: bool
) -> None:
    if has_files:
        lay(machines.other, "out/step-20", ["__1_0.distcp"])
    machines.look()
    began = time.monotonic()
    machines.sender.end(0.3 if has_files else 30.0, 30.0, lambda: None)
    assert time.monotonic() - began < 2.0
    if not has_files:
        until(
            lambda: "parts offered" not in [each.name for each in threading.enumerate()],
            10.0, "the sender's thread still runs",
        )  # fmt: skip


@pytest.mark.parametrize(
    "said", [b"\n", b"GET / HTTP/1.0\r\n\r\n", b"0" * 32 + b"\n{}\n", b"x" * 999]
)
def test_a_stranger_is_asked_for_nothing(machines: Machines, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", machines.receiver.port), timeout=5) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        heard = b""
        while chunk := stranger.recv(4096):
            heard += chunk
    assert len(heard) <= 33, "its nonce"


def test_another_key_is_not_heard(machines: Machines, tmp_path: Path) -> None:
    with socket.create_connection(("127.0.0.1", machines.receiver.port), timeout=5) as stranger:
        channel = Channel(stranger, "b" * 64, asks=False)
        channel.send({"offers": []})
        with pytest.raises((Refused, OSError)):
            channel.hear()


def pair() -> tuple[Channel, Channel]:
    one, two = socket.socketpair()
    made: list[Channel] = []
    import threading

    thread = threading.Thread(target=lambda: made.append(Channel(two, KEY, asks=False)))
    thread.start()
    asks = Channel(one, KEY, asks=True)
    thread.join()
    return asks, made[0]


def test_a_file_that_is_gone_or_too_large_is_not_taken(tmp_path: Path) -> None:
    asks, has = pair()
    has.send_file(tmp_path / "none")
    assert asks.receive_file(tmp_path / "into", 100, lambda: None) is False
    (tmp_path / "large").write_bytes(b"x" * 101)
    has.send_file(tmp_path / "large")
    with pytest.raises(Refused, match="have room"):
        asks.receive_file(tmp_path / "into", 100, lambda: None)


def test_a_message_that_was_heard_before_is_refused() -> None:
    asks, has = pair()
    has.send({"offers": []})
    assert asks.hear() == {"offers": []}
    has._sent = 0  # the same words once more
    has.send({"offers": []})
    with pytest.raises(Refused):
        asks.hear()
