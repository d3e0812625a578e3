"""Pulling from a pod and staging on it: verified and whole, resumed, or a plain error."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.ssh_pod import POD, SshPod, needs_sshd, sha256_of, ssh_pod, tools, written
from trmcloud.adapters.ssh.link import SshPodLink
from trmcloud.adapters.ssh.pull import pull
from trmcloud.adapters.ssh.push import parcel_of, push
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointFile
from trmcloud.core.errors import CheckpointError, ConnectionDropped, DoesNotFit, LinkError
from trmcloud.ports.compute import StageItem

# -- Pulling from a pod that drops, lies, or is slow: verified and whole, or a plain error ------


pytestmark = needs_sshd
BIG = 40 << 20


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[SshPod]:
    with ssh_pod(tmp_path) as made:
        yield made


def quiet(done: int, whole: int) -> None:
    pass


def bring(
    pod: SshPod,
    *files: CheckpointFile,
    into: Path,
    progress: Callable[[int, int], None] = quiet,
    lanes: int = 4,
) -> None:
    pull(pod.connect(), str(pod.root), files, into, progress, lanes=lanes)


def test_files_come_whole_and_progress_never_goes_back(pod: SshPod, tmp_path: Path) -> None:
    files = [
        written(pod.root / "weights.safetensors", BIG + 123),
        written(pod.root / "state.json", 17),
        written(pod.root / "tokenizer.json", 0),
        written(pod.root / "optimizer-0.safetensors", 1 << 20),
    ]
    told: list[tuple[int, int]] = []
    bring(pod, *files, into=tmp_path / "to", progress=lambda *now: told.append(now))
    for file in files:
        assert sha256_of(tmp_path / "to" / file.name) == file.sha256
    assert sorted(os.listdir(tmp_path / "to")) == sorted(file.name for file in files)
    whole = sum(file.size_bytes for file in files)
    assert told == sorted(told)
    assert told[-1] == (whole, whole)


def test_what_is_there_is_not_brought_again(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", 3 << 20)
    bring(pod, file, into=tmp_path / "to")
    (pod.root / file.name).unlink()
    bring(pod, file, into=tmp_path / "to")
    (tmp_path / "to" / file.name).write_bytes(bytes(3 << 20))
    with pytest.raises(CheckpointError, match="missing"):
        bring(pod, file, into=tmp_path / "to")


def test_a_transfer_that_is_cut_goes_on_by_itself(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", BIG)
    cuts: list[int] = []

    def cut(done: int, whole: int) -> None:
        if 0 < done < whole and len(cuts) < 3:
            cuts.append(pod.server.cut())

    slow = replace_dd(pod, tmp_path, 0.002)
    try:
        bring(pod, file, into=tmp_path / "to", progress=cut)
    finally:
        slow()
    assert any(cuts), "nothing was cut: the test proves nothing"
    assert sha256_of(tmp_path / "to" / file.name) == file.sha256


def replace_dd(pod: SshPod, tmp_path: Path, pause_s: float) -> Callable[[], None]:
    """Make the pod serve slowly, by a ``dd`` of its own that pauses after every block."""
    folder = tmp_path / "slow"
    folder.mkdir()
    script = folder / "dd"
    script.write_text(
        "#!/usr/bin/env python3\n"
        "import sys, time\n"
        "given = dict(word.split('=', 1) for word in sys.argv[1:])\n"
        "size = int(given['bs'])\n"
        "with open(given['if'], 'rb') as file:\n"
        "    file.seek(int(given['skip']) * size)\n"
        "    left = int(given['count']) * size\n"
        "    while left > 0 and (chunk := file.read(min(left, 65536))):\n"
        "        sys.stdout.buffer.write(chunk); sys.stdout.flush()\n"
        "        left -= len(chunk)\n"
        f"        time.sleep({pause_s})\n"
    )
    script.chmod(0o755)
    pod.server.stop()
    config = pod.server.folder / "config"
    before = config.read_text()
    config.write_text(before + f"SetEnv PATH={folder}:{os.environ['PATH']}\n")
    pod.server.start()

    def back() -> None:
        config.write_text(before)

    return back


def test_what_one_process_left_the_next_one_uses(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", BIG)
    into = tmp_path / "to"
    replace_dd(pod, tmp_path, 0.002)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, whole: int) -> None:
        if done > BIG // 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        bring(pod, file, into=into, progress=interrupt)
    assert sorted(os.listdir(into)) == [f".{file.name}.part", f".{file.name}.part.json"]
    told: list[int] = []
    bring(pod, file, into=into, progress=lambda done, _: told.append(done))
    assert told[0] > BIG // 4, "it began anew"
    assert sha256_of(into / file.name) == file.sha256
    assert os.listdir(into) == [file.name]


def test_a_note_unlike_what_is_there_costs_time_and_nothing_else(
    pod: SshPod, tmp_path: Path
) -> None:
    file = written(pod.root / "weights.safetensors", 5 << 20)
    right = {"size": file.size_bytes, "sha256": file.sha256}
    parts = ([[0, 4 << 20]], [[-5, 99]], [[0, 99_999_999]], [[0, 9], [3, 20]])
    notes = [
        *({**right, "done": done} for done in parts),
        [],
        {**right, "size": 5, "done": [[0, 99]]},
    ]
    for number, text in enumerate((*map(json.dumps, notes), "{")):
        into = tmp_path / str(number)
        into.mkdir()
        (into / f".{file.name}.part").write_bytes(bytes(4 << 20))
        (into / f".{file.name}.part.json").write_text(text)
        bring(pod, file, into=into)
        assert sha256_of(into / file.name) == file.sha256


# -- a hostile pod -----------------------------------------------------------------------------


def left_behind(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def test_a_name_leading_elsewhere_is_not_asked_for(pod: SshPod, tmp_path: Path) -> None:
    good = written(pod.root / "weights.safetensors", 10)
    for name in ("../weights.safetensors", "/etc/x.json", "a/b.json", "-x.json", ""):
        with pytest.raises(CheckpointError, match="not allowed"):
            bring(pod, replace(good, name=name), into=tmp_path / "a" / "to")
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "longer than expected"),
        (lambda path: os.truncate(path, 1 << 40), "longer than expected"),
        (lambda path: path.write_bytes(bytes(len(path.read_bytes()))), "is damaged"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: (path.rename(f"{path}x"), path.symlink_to(f"{path}x")), "is a link"),
        (lambda path: (path.unlink(), path.mkdir()), "is missing"),
        (lambda path: (path.unlink(), subprocess.run(["mkfifo", path], check=True)), "is missing"),
    ],
)
def test_a_file_that_is_not_what_its_manifest_says_never_gets_its_name(
    pod: SshPod, tmp_path: Path, spoil: Callable[[Path], object], match: str
) -> None:
    file = written(pod.root / "weights.safetensors", 9 << 20)
    spoil(pod.root / file.name)
    with pytest.raises(CheckpointError, match=match):
        bring(pod, file, into=tmp_path / "to")
    assert left_behind(tmp_path / "to") == []
    used = sum(path.stat().st_blocks * 512 for path in (tmp_path / "to").iterdir())
    assert used <= 10 << 20


def test_a_pod_that_answers_out_of_turn_is_left(pod: SshPod, tmp_path: Path) -> None:
    """Its sizes are longer than any number that can be."""
    file = written(pod.root / "weights.safetensors", 30 << 20)
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "wc").write_text("#!/bin/sh\nhead -c 100 /dev/zero | tr '\\0' 9\n")
    (fake / "wc").chmod(0o755)
    pod.server.stop()
    with open(pod.server.folder / "config", "a") as config:
        config.write(f"SetEnv PATH={fake}:{os.environ['PATH']}\n")
    pod.server.start()
    with pytest.raises(LinkError, match="the pod's answer was not expected"):
        bring(pod, file, into=tmp_path / "to")
    assert left_behind(tmp_path / "to") == []


def test_a_link_in_place_of_the_part_is_not_written_through(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", 1000)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    into = tmp_path / "to"
    into.mkdir()
    (into / f".{file.name}.part").symlink_to(victim)
    (into / file.name).symlink_to(victim)
    bring(pod, file, into=into)
    assert victim.read_text() == "precious"
    assert not (into / file.name).is_symlink()
    assert sha256_of(into / file.name) == file.sha256


# -- a poor pod, a poor disk -------------------------------------------------------------------


def test_a_pod_without_python_or_head_serves_all_the_same(tmp_path: Path) -> None:
    with ssh_pod(tmp_path, path=tools(tmp_path / "bin", "sh", "dd", "wc")) as bare:
        file = written(bare.root / "weights.safetensors", BIG)
        bring(bare, file, into=tmp_path / "to")
        assert sha256_of(tmp_path / "to" / file.name) == file.sha256


@pytest.mark.slow
def test_a_pod_that_stays_away_is_given_up_with_what_came(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", BIG)
    replace_dd(pod, tmp_path, 0.03)
    gone: list[int] = []

    def kill(done: int, whole: int) -> None:
        if done > BIG // 4 and not gone:
            gone.append(done)
            pod.server.stop()

    with pytest.raises(ConnectionDropped, match="refuses connections"):
        bring(pod, file, into=tmp_path / "to", progress=kill)
    pod.server.start()
    told: list[int] = []
    bring(pod, file, into=tmp_path / "to", progress=lambda done, _: told.append(done))
    assert told[0] >= gone[0] - (4 << 20)


def test_two_pulls_at_once_bring_it_once(pod: SshPod, tmp_path: Path) -> None:
    file = written(pod.root / "weights.safetensors", BIG)
    into = tmp_path / "to"
    failures: list[BaseException] = []

    def one() -> None:
        try:
            bring(pod, file, into=into)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sha256_of(into / file.name) == file.sha256
    assert os.listdir(into) == [file.name]


def test_too_little_room_here_is_said_before_anything_comes(pod: SshPod, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this machine mounts no tmpfs")
    try:
        file = written(pod.root / "weights.safetensors", BIG)
        with pytest.raises(DoesNotFit, match="are free"):
            bring(pod, file, into=small / "to")
        little = written(pod.root / "state.json", 6 << 20)

        def fill(done: int, whole: int) -> None:
            with open(small / "filler", "wb", buffering=0) as filler:
                try:
                    filler.write(bytes(8 << 20))
                except OSError:
                    return

        replace_dd(pod, tmp_path, 0.01)
        with pytest.raises(DoesNotFit, match="No space left"):
            bring(pod, little, into=small / "to", progress=fill)
        (small / "filler").unlink()
        bring(pod, little, into=small / "to")
        assert sha256_of(small / "to" / little.name) == little.sha256
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


# -- Staging on a pod: resumed, verified there, and never twice --------------------------------


BARE = ("sh", "dd", "wc", "cat", "mkdir", "mv", "rm", "tar", "sha256sum", "grep")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[SshPod]:
    """A pod with no more tools than staging needs."""
    with ssh_pod(tmp_path, path=tools(tmp_path / "bin", *BARE)) as made:
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


def test_code_and_data_arrive_and_the_agent_is_told_last(there: SshPod, tmp_path: Path) -> None:
    sources, bins = code(tmp_path / "src"), data(tmp_path / "data")
    (tmp_path / "src/.env").write_text("SECRET=1")
    code_dir, data_dir = f"{there.root}/code/aa11", f"{there.root}/data/bb22"
    items = [
        StageItem(tmp_path / "src", code_dir, sources),
        StageItem(tmp_path / "data", data_dir, bins),
    ]
    told: list[tuple[int, int]] = []
    link = link_of(there)
    link.stage(POD, items, lambda *now: told.append(now))
    check_there(Path(code_dir), sources)
    check_there(Path(data_dir), bins)
    note = (there.root / "pods" / POD / "staged.json").read_text()
    assert contract.load_staged(note) == contract.StagedFiles(code_dir, (data_dir,))
    whole = sum((tmp_path / "src" / name).stat().st_size for name in sources)
    whole += sum((tmp_path / "data" / name).stat().st_size for name in bins)
    assert told == sorted(told)
    assert told[-1] == (whole, whole)
    assert not Path(data_dir + ".part").exists()
    link.close()


def test_what_is_there_already_is_not_sent_again(there: SshPod, tmp_path: Path) -> None:
    bins = data(tmp_path / "data")
    items = [
        StageItem(tmp_path / "data", f"{there.root}/data/bb22", bins),
        StageItem(tmp_path / "src", f"{there.root}/code/aa11", code(tmp_path / "src")),
    ]
    link = link_of(there)
    link.stage(POD, items[:1], lambda done, whole: None)
    assert not (there.root / "pods").exists(), "without code there is nothing to begin with"
    before = (there.root / "data/bb22/train.bin").stat()
    link.stage(POD, items, lambda done, whole: None)
    after = (there.root / "data/bb22/train.bin").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (there.root / "pods" / POD / "staged.json").exists()
    link.close()


def test_remains_of_a_cut_transfer_are_used_or_replaced(there: SshPod, tmp_path: Path) -> None:
    bins = data(tmp_path / "data")
    part = there.root / "data/bb22.part"
    part.mkdir(parents=True)
    right = (tmp_path / "data/train.bin").read_bytes()
    (part / "train.bin").write_bytes(right[: 5 << 20])
    (part / "meta.json").write_text("[]")  # of the right size, and wrong
    os.utime(part / "meta.json", (0, (tmp_path / "data/meta.json").stat().st_mtime))
    link = link_of(there)
    link.stage(
        POD,
        [StageItem(tmp_path / "data", f"{there.root}/data/bb22", bins)],
        lambda done, whole: None,
    )
    check_there(there.root / "data/bb22", bins)
    link.close()


def test_bytes_that_are_there_are_not_sent_again(there: SshPod, tmp_path: Path) -> None:
    """Seen by what the stream leaves alone: the first blocks, which only a hash would judge."""
    bins = data(tmp_path / "data")
    part = there.root / "part"
    part.mkdir()
    (part / "train.bin").write_bytes(bytes((5 << 20) + 77))
    parcel = parcel_of(tmp_path / "data", bins)
    push(there.connect(), parcel, str(part), lambda done, whole: None)
    right = (tmp_path / "data/train.bin").read_bytes()
    assert (part / "train.bin").read_bytes() == bytes(5 << 20) + right[5 << 20 :]


def test_staging_that_is_cut_goes_on_by_itself(there: SshPod, tmp_path: Path) -> None:
    bins = data(tmp_path / "data", 120 << 20)
    cuts: list[int] = []

    def cut(done: int, whole: int) -> None:
        if 0 < done < whole and len(cuts) < 2:
            cuts.append(there.server.cut())

    item = StageItem(tmp_path / "data", f"{there.root}/data/bb22", bins)
    link = link_of(there)
    link.stage(POD, [item], cut)
    assert any(cuts), "nothing was cut: the test proves nothing"
    check_there(there.root / "data/bb22", bins)
    link.close()


def test_a_file_that_was_not_announced_is_never_placed(there: SshPod, tmp_path: Path) -> None:
    bins = {**data(tmp_path / "data", 1000), "meta.json": "00" * 32}
    link = link_of(there)
    with pytest.raises(LinkError, match=r"meta\.json was damaged on the way"):
        link.stage(
            POD,
            [StageItem(tmp_path / "data", f"{there.root}/data/x", bins)],
            lambda done, whole: None,
        )
    assert not (there.root / "data/x").exists()
    assert not (there.root / "pods").exists()
    link.close()


def test_nothing_is_put_outside_the_pods_folder(there: SshPod, tmp_path: Path) -> None:
    root = there.root
    for remote in ("/etc/cron.d", f"{root}", f"{root}/../x", f"{root}/a b", "code/x"):
        with pytest.raises(LinkError, match="is not below"):
            link_of(there).stage(POD, [StageItem(tmp_path, remote, {})], lambda *moved: None)


ODD_NAMES = [
    "a b.bin", " lead", "trail ", "é文.bin", "a#b", "a(1)&;$x'.bin", "-n", "-", ".zarray", ".z/.x",
    "back\\slash", "a: OK", "*", "tab\there", "n" * 255, "d/" * 40 + "x",
    *(os.fsdecode(bytes([byte]) + b"x" + bytes([byte])) for byte in range(0x80, 0x100)),
]  # fmt: skip


def test_files_of_any_name_arrive_unchanged(there: SshPod, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    large = os.fsdecode(b"-large \xe9 it's.bin")
    written(tmp_path / "data" / large, (4 << 20) + 1)
    bins = {name: sha256_of(tmp_path / "data" / name) for name in [*ODD_NAMES, large]}
    link, remote = link_of(there), there.root / "data/odd"
    part = Path(f"{remote}.part")
    part.mkdir(parents=True)
    for name in (ODD_NAMES[-1], "back\\slash", large):  # of an earlier attempt: of the right size
        (part / name).write_bytes(bytes((tmp_path / "data" / name).stat().st_size))
    link.stage(POD, [StageItem(tmp_path / "data", str(remote), bins)], quiet)
    check_there(remote, bins)
    link.close()


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/../b", "a\nb", "a\r", "", "x" * 3801])
def test_a_name_that_is_not_plain_is_not_sent(tmp_path: Path, name: str) -> None:
    with pytest.raises(LinkError, match="cannot be sent"):
        parcel_of(tmp_path, {name: "00" * 32})


def test_a_single_file_is_an_item_too(there: SshPod, tmp_path: Path) -> None:
    data(tmp_path / "data", 1000)
    path = tmp_path / "data/train.bin"
    link = link_of(there)
    item = StageItem(path, f"{there.root}/data/one", {"train.bin": sha256_of(path)})
    link.stage(POD, [item], lambda done, whole: None)
    check_there(there.root / "data/one", {"train.bin": sha256_of(path)})
    link.close()


def test_a_full_disk_there_is_named(there: SshPod, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    small = there.root / "small"
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
            push(there.connect(), parcel, f"{small}/x", lambda done, whole: None)
        assert "volume" in caught.value.next_step
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
