"""Staging on a pod: by rsync or without it, resumed, verified there, and never twice."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.contract.ssh_pod import POD, SshPod, needs_sshd, sha256_of, ssh_pod, tools, written
from trmcloud.adapters.ssh.link import SshPodLink
from trmcloud.adapters.ssh.push import local_rsync, parcel_of, push
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import LinkError
from trmcloud.ports.link import StageItem

pytestmark = needs_sshd
BARE = ("sh", "dd", "wc", "cat", "mkdir", "mv", "rm", "tar", "sha256sum", "grep")


@pytest.fixture(params=["rsync", "stream"])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SshPod]:
    """A pod that has everything, and one that has no rsync."""
    if request.param == "rsync" and local_rsync() is None:
        pytest.skip("there is no rsync on this machine")
    path = tools(tmp_path / "bin", *BARE) if request.param == "stream" else ""
    with ssh_pod(tmp_path, path=path) as made:
        made.rsync = request.param == "rsync"
        yield made


def link_of(pod: SshPod) -> SshPodLink:
    return SshPodLink(
        pod.home,
        lambda name: pod.server.address,
        root=str(pod.root),
        now=lambda: 0.0,
        user=pod.server.user,
    )


def code(folder: Path) -> dict[str, str]:
    """A folder of sources as a bundle is: small files in folders; their hashes."""
    for number in range(30):
        name = f"model/part{number}/module_{number}.py"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"NUMBER = {number}\n" * (number + 1))
    (folder / "model/empty.py").write_text("")
    return hashes(folder)


def data(folder: Path, size: int = 11 << 20) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    written(folder / "train.bin", size)
    (folder / "meta.json").write_text("{}")
    return hashes(folder)


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256_of(path) for path in files}


def check_there(folder: Path, sha256: Mapping[str, str]) -> None:
    assert hashes(folder) == {**sha256, ".staged": hashes(folder)[".staged"]}


def test_code_and_data_arrive_and_the_agent_is_told_last(pod: SshPod, tmp_path: Path) -> None:
    sources, bins = code(tmp_path / "src"), data(tmp_path / "data")
    (tmp_path / "src/.env").write_text("SECRET=1")
    code_dir, data_dir = f"{pod.root}/code/aa11", f"{pod.root}/data/bb22"
    items = [
        StageItem(tmp_path / "src", code_dir, sources),
        StageItem(tmp_path / "data", data_dir, bins),
    ]
    told: list[tuple[int, int]] = []
    link = link_of(pod)
    link.stage(POD, items, lambda *now: told.append(now))
    there = pod.connect().run("command -v rsync")
    assert (there.code == 0) == pod.rsync
    check_there(Path(code_dir), sources)
    check_there(Path(data_dir), bins)
    note = (pod.root / "pods" / POD / "staged.json").read_text()
    assert contract.load_staged(note) == contract.Staged(code_dir, (data_dir,))
    whole = sum((tmp_path / "src" / name).stat().st_size for name in sources)
    whole += sum((tmp_path / "data" / name).stat().st_size for name in bins)
    assert told == sorted(told)
    assert told[-1] == (whole, whole)
    assert not Path(data_dir + ".part").exists()
    link.close()


def test_what_is_there_already_is_not_sent_again(pod: SshPod, tmp_path: Path) -> None:
    bins = data(tmp_path / "data")
    items = [
        StageItem(tmp_path / "data", f"{pod.root}/data/bb22", bins),
        StageItem(tmp_path / "src", f"{pod.root}/code/aa11", code(tmp_path / "src")),
    ]
    link = link_of(pod)
    link.stage(POD, items[:1], lambda done, whole: None)
    assert not (pod.root / "pods").exists(), "without code there is nothing to begin with"
    before = (pod.root / "data/bb22/train.bin").stat()
    link.stage(POD, items, lambda done, whole: None)
    after = (pod.root / "data/bb22/train.bin").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (pod.root / "pods" / POD / "staged.json").exists()
    link.close()


def test_remains_of_a_cut_transfer_are_used_and_wrong_ones_replaced(
    pod: SshPod, tmp_path: Path
) -> None:
    bins = data(tmp_path / "data")
    part = pod.root / "data/bb22.part"
    part.mkdir(parents=True)
    right = (tmp_path / "data/train.bin").read_bytes()
    (part / "train.bin").write_bytes(right[: 5 << 20])
    (part / "meta.json").write_text("[]")  # of the right size, and wrong
    os.utime(part / "meta.json", (0, (tmp_path / "data/meta.json").stat().st_mtime))
    link = link_of(pod)
    link.stage(
        POD, [StageItem(tmp_path / "data", f"{pod.root}/data/bb22", bins)], lambda done, whole: None
    )
    check_there(pod.root / "data/bb22", bins)
    link.close()


def test_bytes_that_are_there_are_not_sent_again(pod: SshPod, tmp_path: Path) -> None:
    """Seen by what the stream leaves alone: the first blocks, which only a hash would judge."""
    if pod.rsync:
        pytest.skip("rsync compares what is there by itself")
    bins = data(tmp_path / "data")
    part = pod.root / "part"
    part.mkdir()
    (part / "train.bin").write_bytes(bytes((5 << 20) + 77))
    parcel = parcel_of(tmp_path / "data", bins)
    push(pod.connect(), parcel, str(part), lambda done, whole: None, rsync=False)
    right = (tmp_path / "data/train.bin").read_bytes()
    assert (part / "train.bin").read_bytes() == bytes(5 << 20) + right[5 << 20 :]


def test_a_transfer_that_is_cut_goes_on_by_itself(pod: SshPod, tmp_path: Path) -> None:
    bins = data(tmp_path / "data", 120 << 20)
    cuts: list[int] = []

    def cut(done: int, whole: int) -> None:
        if 0 < done < whole and len(cuts) < 2:
            cuts.append(pod.server.cut())

    item = StageItem(tmp_path / "data", f"{pod.root}/data/bb22", bins)
    link = link_of(pod)
    link.stage(POD, [item], cut)
    assert any(cuts), "nothing was cut: the test proves nothing"
    check_there(pod.root / "data/bb22", bins)
    link.close()


def test_a_file_that_is_not_what_was_announced_is_never_put_in_place(
    pod: SshPod, tmp_path: Path
) -> None:
    bins = {**data(tmp_path / "data", 1000), "meta.json": "00" * 32}
    link = link_of(pod)
    with pytest.raises(LinkError, match=r"meta\.json is not what was sent"):
        link.stage(
            POD,
            [StageItem(tmp_path / "data", f"{pod.root}/data/x", bins)],
            lambda done, whole: None,
        )
    assert not (pod.root / "data/x").exists()
    assert not (pod.root / "pods").exists()
    link.close()


@pytest.mark.parametrize("remote", ["/etc/cron.d", "{root}", "{root}/../x", "{root}/a b", "code/x"])
def test_nothing_is_put_outside_the_pods_folder(pod: SshPod, tmp_path: Path, remote: str) -> None:
    item = StageItem(tmp_path, remote.replace("{root}", str(pod.root)), {})
    with pytest.raises(LinkError, match="is not below"):
        link_of(pod).stage(POD, [item], lambda done, whole: None)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", "-x", "a\nb", "", ".x"])
def test_a_name_that_is_not_plain_is_not_sent(tmp_path: Path, name: str) -> None:
    with pytest.raises(LinkError, match="cannot be sent"):
        parcel_of(tmp_path, {name: "00" * 32})


def test_a_single_file_is_an_item_too(pod: SshPod, tmp_path: Path) -> None:
    data(tmp_path / "data", 1000)
    path = tmp_path / "data/train.bin"
    link = link_of(pod)
    item = StageItem(path, f"{pod.root}/data/one", {"train.bin": sha256_of(path)})
    link.stage(POD, [item], lambda done, whole: None)
    check_there(pod.root / "data/one", {"train.bin": sha256_of(path)})
    link.close()


def test_a_full_disk_there_is_named(pod: SshPod, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    small = pod.root / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        bins = data(tmp_path / "data", 9 << 20)
        parcel = parcel_of(tmp_path / "data", bins)
        with pytest.raises(LinkError, match="the pod's disk is full") as caught:
            push(pod.connect(), parcel, f"{small}/x", lambda done, whole: None, rsync=pod.rsync)
        assert "volume" in caught.value.next_step
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
