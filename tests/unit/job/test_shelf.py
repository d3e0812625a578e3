"""A command's files become checkpoints of ours; its event files are read as they grow."""

from __future__ import annotations

import json
import os
import pickle
import random
import zipfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.present import present
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.manifest import MANIFEST_NAME, pick_best
from trmcloud.core.errors import CheckpointError
from trmcloud.core.text import CONTROL, one_line
from trmcloud.operations.checkpoints.fetching import under_own_names
from trmcloud.pod.job import shelf as shelves
from trmcloud.pod.job.artifacts import Artifact, ArtifactRefused, files_below
from trmcloud.pod.job.readings import EventFiles, Reading, reading_of
from trmcloud.pod.job.reporting import CommandReporter
from trmcloud.pod.job.shelf import CheckpointTaker, CommandCheckpoints, Metric, on_disk, restore
from trmcloud.pod.job.watcher import FilesRecord, Watcher

# -- A command's files become checkpoints of ours: watched, copied, named, pruned, restored -----


COMMAND = Command(("x",), metric="acc", higher_is_better=True, keep_best=1)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "out").mkdir(parents=True)
    return tmp_path / "work"


def shelf_at(tmp_path: Path, begins_at: int = 1_800_000_000) -> CommandCheckpoints:
    ticks = count(begins_at)
    return CommandCheckpoints(
        tmp_path / "checkpoints", "r-1", "train", COMMAND, lambda: float(next(ticks))
    )


def seen(work: Path, name: str) -> Artifact:
    return present(Watcher(work, "out").look(name))


def settled(watcher: Watcher, now: float) -> list[str]:
    return [
        found.name if isinstance(found, Artifact) else f"{found[0]}: {found[1]}"
        for found in watcher.settled(now, 2.0)
    ]


def test_what_has_stopped_changing_is_handed_out_once(work: Path) -> None:
    watcher = Watcher(work, "out")
    (work / "out" / "model.pt").write_bytes(b"one")
    assert settled(watcher, 0.0) == []
    assert settled(watcher, 1.9) == []
    assert settled(watcher, 2.0) == ["out/model.pt"]
    watcher.done(seen(work, "out/model.pt"))
    assert settled(watcher, 9.0) == []
    (work / "out" / "model.pt").write_bytes(b"another")
    assert settled(watcher, 10.0) == []
    assert settled(watcher, 12.0) == ["out/model.pt"]


@pytest.mark.parametrize(
    ("checkpoints", "found"),
    [
        ("out", ["out/checkpoint-5", "out/wandb/model.pt", "out/model.pt"]),
        ("out/*.txt", ["out/notes.txt"]),
        ("out/model.pt", ["out/model.pt"]),
        ("nowhere", []),
        ("", ["out/checkpoint-5", "out/wandb/model.pt", "out/model.pt"]),
    ],
)
def test_which_files_may_be_checkpoints(work: Path, checkpoints: str, found: list[str]) -> None:
    for name in ("model.pt", "notes.txt", ".hidden.pt", "model.pt.tmp", "tmp-model.pt"):
        (work / "out" / name).write_bytes(b"x")
    for name in ("checkpoint-5", "wandb", "tmp-checkpoint-6"):
        (work / "out" / name).mkdir()
        (work / "out" / name / "model.pt").write_bytes(b"x")
    (work / "out" / "latest").symlink_to("checkpoint-5")
    watcher = Watcher(work, checkpoints)
    settled(watcher, 0.0)
    assert settled(watcher, 5.0) == found


def test_what_lies_beside_the_named_places_comes_home_too(work: Path) -> None:
    (work / "train.py").write_bytes(b"sent")
    sent = files_below(work)
    for name in ("out/step-5.pt", "out/notes.csv", "final.pt", "hf/model.safetensors", "x.log"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_bytes(b"new" * 100)
    (work / "hf/config.json").write_bytes(b"{}")
    watcher = Watcher(work, "out", FilesRecord(None, {"": sent}))
    assert settled(watcher, 0.0) == []
    assert settled(watcher, 5.0) == ["out/step-5.pt"]
    assert {file.path for file in watcher.others()} == {
        *("out/notes.csv", "final.pt", "hf/model.safetensors", "hf/config.json")
    }
    assert {
        file.path for file in Watcher(work, "nowhere", FilesRecord(None, {"": sent})).others()
    } >= {"out/step-5.pt"}


def test_the_best_by_a_metric_of_which_more_is_better_is_kept(tmp_path: Path, work: Path) -> None:
    shelf = shelf_at(tmp_path)
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.7), (40, 0.6)):
        (work / "out" / "model.pt").write_bytes(os.urandom(50))
        metric = Metric(accuracy, "report")
        made = present(shelf.take(seen(work, "out/model.pt"), step, metric))
        assert made.extra["metric"] == {"name": "acc", "value": accuracy, "by": "report"}
    assert [made.step for made in shelf.manifests()] == [20, 40], "the best, and the latest"
    assert present(pick_best(shelf.manifests())).step == 20


def test_an_attempt_from_the_beginning_prunes_nothing_of_an_earlier_one(
    tmp_path: Path, work: Path
) -> None:
    def save(shelf: CommandCheckpoints, step: int, accuracy: float | None) -> None:
        (work / "out" / "model.pt").write_bytes(os.urandom(50))
        metric = Metric(accuracy, "report") if accuracy is not None else None
        assert shelf.take(seen(work, "out/model.pt"), step, metric) is not None

    first = shelf_at(tmp_path)
    for step, accuracy in ((800, 0.9), (1600, 0.7), (2400, 0.6)):
        save(first, step, accuracy)
    assert [made.step for made in first.manifests()] == [800, 2400]
    again = shelf_at(tmp_path, 1_900_000_000)
    for step, accuracy in ((400, 0.4), (900, 0.8), (1200, 0.5)):
        save(again, step, accuracy)
    assert [made.step for made in again.manifests()] == [800, 900, 1200, 2400]
    best = present(pick_best(again.manifests()))
    assert best.step == 800, "the best of all attempts"
    latest = again.to_put_back()[0]
    assert latest.step == 1200
    goes_on = shelf_at(tmp_path, 2_000_000_000)
    goes_on.continue_from(latest)
    save(goes_on, 1300, 0.85)
    assert [made.step for made in goes_on.manifests()] == [800, 1300, 2400], "one training"


def test_a_full_disk_costs_no_earlier_attempt_a_checkpoint(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(shelf: CommandCheckpoints, step: int) -> None:
        (work / "out" / "model.pt").write_bytes(os.urandom(50))
        shelf.take(seen(work, "out/model.pt"), step, Metric(1.0 - step / 100, "report"))

    first = shelf_at(tmp_path)
    save(first, 10)
    save(first, 20)
    monkeypatch.setattr(shelves, "_room", lambda folder: 0)
    again = shelf_at(tmp_path, 1_900_000_000)
    with pytest.raises(ArtifactRefused, match="the disk has room for"):
        save(again, 30)
    assert [made.step for made in again.manifests()] == [10, 20]


def test_a_final_model_says_the_step_that_another_checkpoint_has(
    tmp_path: Path, work: Path
) -> None:
    shelf = shelf_at(tmp_path)
    for name in ("checkpoint-20", "final"):
        folder = work / "out" / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors())
        (folder / "config.json").write_text("{}")
    (work / "out" / "checkpoint-20" / "optimizer.pt").write_bytes(b"x")
    (work / "out" / "final" / "config.json").write_text('{"final": 1}')
    whole, final = (
        shelf.take(seen(work, f"out/{name}"), 20, None) for name in ("checkpoint-20", "final")
    )
    assert whole is not None
    assert (whole.step, whole.final_at, whole.trained_to) == (20, None, 20)
    assert final is not None
    assert (final.step, final.final_at, final.trained_to) == (21, 20, 20)


def test_a_save_has_the_step_of_its_value_where_the_log_ran_ahead(
    tmp_path: Path, work: Path
) -> None:
    job = SimpleNamespace(run_id="r-1", phase="train", settings={})
    tell = CommandReporter(tmp_path, job, COMMAND, 1, 100.0)  # type: ignore[arg-type]
    said: list[str] = []
    watcher, shelf = Watcher(work, "out"), shelf_at(tmp_path)
    taker = CheckpointTaker(work, watcher, shelf, tell, said.append, 1 << 30)
    (work / "out" / "model.pt").write_bytes(b"a state")
    at = seen(work, "out/model.pt").saved_at
    tell.read(Reading(500, {}, at=at - 0.1), at)
    tell.read(Reading(500, {"acc": 0.7}, at=at), at)
    tell.read(Reading(None, {"acc": 0.7}, at=at + 0.1), at + 0.1)
    tell.read(Reading(530, {}, at=at + 0.2), at + 0.2)
    assert tell.step_at(at) == 530
    taker.settled(at, 2.0)
    taker.settled(at + 3.0, 2.0)
    taker.collect(to_the_end=True)
    (made,) = shelf.manifests()
    assert (made.step, made.val_bpb) == (500, -0.7), said


def test_one_that_loses_its_optimizer_has_the_value_of_the_version_that_never_settled(
    tmp_path: Path, work: Path
) -> None:
    """As Ultralytics' last.pt where its last epoch was short: the version of the epoch before was
    taken, that of the last one only seen."""
    job = SimpleNamespace(run_id="r-1", phase="train", settings={})
    tell = CommandReporter(tmp_path, job, COMMAND, 1, 100.0)  # type: ignore[arg-type]
    watcher, shelf = Watcher(work, "out"), shelf_at(tmp_path)
    taker = CheckpointTaker(work, watcher, shelf, tell, lambda line: None, 1 << 30)
    path = work / "out" / "last.pt"

    def save(at: float, content: bytes, acc: float | None) -> None:
        path.write_bytes(content)
        os.utime(path, (at, at))
        if acc is not None:
            tell.read(Reading(None, {"acc": acc}, at=at), at)

    save(1000.0, b"epoch 1" * 100, 0.75)
    taker.settled(1000.0, 2.0)
    taker.settled(1003.0, 2.0)
    taker.collect(to_the_end=True)
    save(1004.0, b"epoch 2" * 100, 0.5)
    taker.settled(1004.0, 2.0)
    save(1005.0, b"epoch 2", None)
    tell.order.has_ended = True
    taker.settled(1005.5, 0.0)
    taker.collect(to_the_end=True)
    first, second = sorted(shelf.manifests(), key=lambda made: made.step)
    assert (first.val_bpb, second.val_bpb) == (-0.75, -0.5)


def safetensors() -> bytes:
    return (2).to_bytes(8, "little") + b"{}"


def test_the_very_same_is_taken_once_and_a_step_never_twice(tmp_path: Path, work: Path) -> None:
    path = work / "out" / "model.pt"
    path.write_bytes(b"one")
    shelf = shelf_at(tmp_path)
    assert shelf.take(seen(work, "out/model.pt"), 5, None) is not None
    assert shelf.take(seen(work, "out/model.pt"), 5, None) is None
    assert shelf_at(tmp_path).take(seen(work, "out/model.pt"), 6, None) is None, "nor by another"
    path.write_bytes(b"two")
    assert present(shelf.take(seen(work, "out/model.pt"), 5, None)).step == 6


def test_what_changes_under_the_copy_is_no_checkpoint(tmp_path: Path, work: Path) -> None:
    path = work / "out" / "model.pt"
    path.write_bytes(b"one")
    candidate = seen(work, "out/model.pt")
    path.write_bytes(b"grown since")
    shelf = shelf_at(tmp_path)
    with pytest.raises(ArtifactRefused, match="changed while it was copied"):
        shelf.take(candidate, 5, None)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(ArtifactRefused):
        shelf.take(candidate, 5, None)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_half_a_file_of_a_known_format_is_none(tmp_path: Path, work: Path) -> None:
    whole = work / "out" / "model.pt"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    shelf = shelf_at(tmp_path)
    half = work / "out" / "half.pt"
    half.write_bytes(whole.read_bytes()[:500])
    with pytest.raises(ArtifactRefused, match="its zip has no end"):
        shelf.take(seen(work, "out/half.pt"), 1, None)
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    tensors = len(header).to_bytes(8, "little") + header + bytes(16)
    for length, is_whole in ((len(tensors), True), (len(tensors) - 1, False), (4, False)):
        (work / "out" / "w.safetensors").write_bytes(tensors[:length])
        if is_whole:
            assert shelf.take(seen(work, "out/w.safetensors"), 2, None) is not None
        else:
            with pytest.raises(ArtifactRefused, match="cut off"):
                shelf.take(seen(work, "out/w.safetensors"), 3, None)


def test_a_folder_is_restored_under_its_own_names(tmp_path: Path, work: Path) -> None:
    folder = work / "out" / "checkpoint-7"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"m" * 9)
    (folder / "deep" / "State of it.bin").write_bytes(pickle.dumps({"a": 1}))
    shelf = shelf_at(tmp_path)
    with pytest.raises(ArtifactRefused):
        shelf.take(seen(work, "out/checkpoint-7"), 7, None)  # 9 bytes are no safetensors
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    made = present(shelf.take(seen(work, "out/checkpoint-7"), 7, None))
    assert "opens" not in made.extra, "that is for the home to find out"
    assert [file.name for file in made.weights] == ["file-0001.bin"], "the largest"
    kept = tmp_path / "checkpoints" / "step-00000007"
    assert sorted(path.name for path in kept.iterdir()) == [
        *("file-0001.bin", "file-0002.bin"),
        *(MANIFEST_NAME, "tree.json"),
    ]
    back = shelf.restore(made, tmp_path / "back")
    assert back == tmp_path / "back" / "checkpoint-7"
    assert pickle.loads((back / "deep" / "State of it.bin").read_bytes()) == {"a": 1}


@pytest.mark.parametrize("path", ["../out", "/etc/x", "a/../../b", "", "a//b", "x\0"])
def test_names_that_lead_out_are_never_written(tmp_path: Path, work: Path, path: str) -> None:
    (work / "out" / "model.pt").write_bytes(b"one")
    shelf = shelf_at(tmp_path)
    made = present(shelf.take(seen(work, "out/model.pt"), 1, None))
    folder = tmp_path / "checkpoints" / "step-00000001"
    tree = json.loads((folder / "tree.json").read_text())
    tree["files"][0]["path"] = path
    (folder / "tree.json").write_text(json.dumps(tree))
    with pytest.raises(CheckpointError, match=r"tree\.json cannot be used"):
        restore(folder, made, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_damaged_copy_is_not_restored(tmp_path: Path, work: Path) -> None:
    (work / "out" / "model.pt").write_bytes(b"one")
    made = present(shelf_at(tmp_path).take(seen(work, "out/model.pt"), 1, None))
    folder = tmp_path / "checkpoints" / "step-00000001"
    (folder / "file-0001.bin").write_bytes(b"two")
    with pytest.raises(CheckpointError, match="differs from its manifest"):
        restore(folder, made, tmp_path / "back")


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "checkpoints" / f"{shelves.MAKING}step-00000001-1"
    left.mkdir(parents=True)
    shelf_at(tmp_path)
    assert not left.exists()


ODD = (
    "a\x1b]0;owned\x07.pt", "a\nb", "a\rb", "a\tb", "a\x7fb", "a\x9bb", "a\u202eb", "a\u2066b",
    "a\u200bb", "\ufeffb", "%1B", "%", "%%", "%2", "%25", "100%", "%\x1b", "%2\x1b", "%%1B", "é%é",
    "plain.pt", "a b", "\U000e0041", "%E2%80%AE", "\u2028",
)  # fmt: skip


def test_control_characters_are_written_so_that_no_two_names_are_one() -> None:
    names = [*ODD, *(one + other for one in ODD for other in ODD)]
    written = {name: on_disk(name) for name in names}
    assert len(set(written.values())) == len(set(names))
    for name, there in written.items():
        assert unquote(there) == name
        assert one_line(there) == there, "nothing that a terminal would not show"
        assert there.count("/") == 0
    assert on_disk("deep/State of it (50%).bin") == "deep/State of it (50%).bin"
    assert on_disk("\ud83d") == "%ED%A0%BD", "half of a character, which no disk takes"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_every_name_comes_back(name: str) -> None:
    assert unquote(on_disk(name)) == name
    assert not CONTROL.search(on_disk(name))


def test_a_hostile_pods_odd_names_reach_no_disk(tmp_path: Path, work: Path) -> None:
    """Our agent refuses to take such a file; another pod writes into its list what it likes."""
    folder = work / "out" / "checkpoint-7"
    folder.mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"one")
    (folder / "b.bin").write_bytes(b"other")
    made = present(shelf_at(tmp_path).take(seen(work, "out/checkpoint-7"), 7, None))
    kept = tmp_path / "checkpoints" / "step-00000007"
    tree = json.loads((kept / "tree.json").read_text())
    tree["source"] = "out/check\x1b[2Jpoint\n"
    odd = {"a.bin": "de\u202eep/a\x1b.bin", "b.bin": "de\u202eep/a%1B.bin"}
    for file in tree["files"]:
        file["path"] = odd[file["path"]]
    (kept / "tree.json").write_text(json.dumps(tree))
    own = under_own_names(made, kept)
    assert own.path.name == "check%1B[2Jpoint%0A"
    deep = own.path / "de%E2%80%AEep"
    assert (deep / "a%1B.bin").read_bytes() == b"one"
    assert (deep / "a%251B.bin").read_bytes() == b"other"
    written = list((kept / "own").rglob("*"))
    assert len(written) == 4
    assert not [path for path in written if CONTROL.search(path.name)]


def test_two_names_that_one_disk_takes_for_one_are_refused(tmp_path: Path, work: Path) -> None:
    (work / "out" / "model.pt").write_bytes(b"one")
    shelf = shelf_at(tmp_path)
    made = present(shelf.take(seen(work, "out/model.pt"), 7, None))
    kept = tmp_path / "checkpoints" / "step-00000007"
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "model.pt").write_bytes(b"there before")
    with pytest.raises(FileExistsError):
        restore(kept, made, tmp_path / "into")


# -- TensorBoard's event files, written by its own packages, read by ours as they grow ----------


def written(folder: Path) -> Path:
    """A file as torch's writer makes it: scalars of both styles, and what is no scalar."""
    numpy = pytest.importorskip("numpy")
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder)) as writer:
        writer.add_scalar("eval/loss", 2.5, 10)
        writer.add_histogram("weights", numpy.arange(9.0), 10)
        writer.add_text("note", "hello", 11)
        writer.add_scalar("eval/loss", 1.25, 20, new_style=True)
        writer.add_scalar("eval/loss", float("nan"), 30)
    [path] = folder.glob("events.out.tfevents.*")
    return path


def told(readings: list[Reading]) -> list[tuple[int | None, str]]:
    return [(reading.step, f"{reading.metrics['eval/loss']:g}") for reading in readings]


def test_scalars_of_both_styles_are_read_and_nothing_else(tmp_path: Path) -> None:
    files = EventFiles(tmp_path)
    written(tmp_path / "runs" / "today")
    assert told(files.take(0.0)) == [(10, "2.5"), (20, "1.25"), (30, "nan")]
    assert files.seen == 3
    assert files.take(10.0) == []


def test_what_stood_there_before_is_of_another_run(tmp_path: Path) -> None:
    path = written(tmp_path)
    files = EventFiles(tmp_path)
    assert files.take(0.0) == []
    written(tmp_path / "later")
    assert len(files.take(10.0)) == 3
    assert path.exists()


def test_a_file_that_grows_byte_by_byte_says_each_event_once(tmp_path: Path) -> None:
    content = written(tmp_path / "elsewhere").read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    files, found = EventFiles(work), list[Reading]()
    with open(work / "events.out.tfevents.1", "wb", buffering=0) as file:
        for at in range(0, len(content), 7):
            file.write(content[at : at + 7])
            found += files.take(float(at * 10))
    assert told(found) == [(10, "2.5"), (20, "1.25"), (30, "nan")]


def test_a_record_longer_than_any_that_is_read_is_passed_over(tmp_path: Path) -> None:
    content = written(tmp_path / "elsewhere").read_bytes()
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    picture = (3 << 20).to_bytes(8, "little") + bytes(4 + (3 << 20) + 4)
    (work / "events.out.tfevents.1").write_bytes(picture + content)
    found = files.take(0.0) + files.take(10.0) + files.take(20.0)
    assert len(found) == 3


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_costs_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray(written(tmp_path / "elsewhere").read_bytes())
    for _ in range(20):
        content[rng.randrange(len(content))] = rng.randrange(256)
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    (work / "events.out.tfevents.1").write_bytes(content)
    for round_ in range(3):
        assert len(files.take(round_ * 10.0)) <= 3


def test_links_and_folders_that_are_links_are_not_followed(tmp_path: Path) -> None:
    path = written(tmp_path / "elsewhere")
    work = tmp_path / "work"
    work.mkdir()
    files = EventFiles(work)
    (work / path.name).symlink_to(path)
    (work / "runs").symlink_to(path.parent)
    assert files.take(0.0) == []


@pytest.mark.parametrize("event", [b"", b"\xff" * 40, b"\x0a", b"\x2a\x7f", bytes(100)])
def test_what_is_no_event_says_nothing(event: bytes) -> None:
    assert reading_of(event) is None


def test_the_seconds_of_each_state_are_told(tmp_path: Path) -> None:
    job = SimpleNamespace(run_id="r-1", phase="train", settings={})
    tell = CommandReporter(tmp_path, job, COMMAND, 1, 100.0)  # type: ignore[arg-type]
    for state, at in (("training", 103.0), ("saving", 110.0)):
        tell.enter(state, at)
    tell.end("finished", "", 112.0)
    assert tell.beat.seconds == {"starting": 3.0, "training": 7.0, "saving": 2.0}
    tell.write(112.5)
    assert tell.beat.at == 112.0, "a heartbeat is written once a second"


def test_equal_bytes_are_stored_once(work: Path, tmp_path: Path) -> None:
    shelf = shelf_at(tmp_path)
    for step, name in enumerate(("last.pt", "best.pt"), 1):
        (work / "out" / name).write_bytes(b"weights" * 1000)
        shelf.take(seen(work, f"out/{name}"), step, None)
    copies = [path.stat() for path in sorted((tmp_path / "checkpoints").glob("*/*.bin"))]
    assert [copy.st_nlink for copy in copies] == [2, 2]
    assert len({copy.st_ino for copy in copies}) == 1


def test_the_same_weights_have_a_sure_metric_where_the_first_has(
    work: Path, tmp_path: Path
) -> None:
    for by, is_sure in (("state", True), ("order", False)):
        shelf = shelf_at(tmp_path / by)
        for step, name in enumerate(("last.pt", "best.pt"), 1):
            (work / "out" / name).write_bytes(b"weights")
            metric = Metric(0.5, by) if step == 1 else None
            made = present(shelf.take(seen(work, f"out/{name}"), step, metric))
        assert (made.own_metric, made.is_sure) == (("acc", 0.5), is_sure)
