"""A command's working folder: what is put back into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.present import present
from trmcloud.core.contract.command import Command
from trmcloud.core.contract.command_terms import CheckpointTree, TreeFile
from trmcloud.pod.job.shelf import CommandCheckpoints
from trmcloud.pod.job.watcher import Watcher
from trmcloud.pod.job.workspace import note_latest, put_back


def tree_of(source: str, *paths: str, is_file: bool = False) -> CheckpointTree:
    files = tuple(TreeFile(path, f"file-{n:04d}.bin") for n, path in enumerate(paths, 1))
    return CheckpointTree(source, files, is_file)


def lay(folder: Path, *paths: str, text: str = "whole") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.mark.parametrize("there", ["nothing", "a file", "a folder"])
def test_a_checkpoint_takes_the_place_of_what_an_attempt_left(tmp_path: Path, there: str) -> None:
    copies, place = tmp_path / "resume", tmp_path / "work" / "out" / "last"
    lay(copies, "last/model.bin")
    if there == "a file":
        lay(place.parent, place.name, text="half")
    elif there == "a folder":
        lay(place, "model.bin", "more.bin", text="half")
    tree = tree_of("out/last", "model.bin")
    assert put_back(copies, tmp_path / "work", tree) == place
    assert [path.name for path in place.iterdir()] == ["model.bin"]
    assert (place / "model.bin").read_text() == "whole"
    assert not list(copies.iterdir())


def test_files_beside_each_other_are_all_put_back(tmp_path: Path) -> None:
    """As nanochat's model_000100.pt and optim_000100.pt, and TensorFlow's shards."""
    copies, work = tmp_path / "resume", tmp_path / "work"
    names = ("model_000100.pt", "optim_000100.pt", "meta_000100.json")
    lay(copies, *names)
    lay(work, "out/optim_000100.pt", text="half")
    tree = tree_of("out/model_000100.pt", *names, is_file=True)
    assert put_back(copies, work, tree) == work / "out" / "model_000100.pt"
    assert {path.name: path.read_text() for path in (work / "out").iterdir()} == dict.fromkeys(
        names, "whole"
    )


@pytest.mark.parametrize(
    ("there", "stays"),
    [
        ({"model.pt": "newer", "config.json": "newer"}, True),
        ({"model.pt": "newer"}, False),
        ({"model.pt": "PK\3\4half", "config.json": "newer"}, False),
        ({}, False),
    ],
    ids=["whole", "one is missing", "one is cut off", "nothing"],
)
def test_a_best_that_stands_there_whole_is_left_alone(
    tmp_path: Path, there: dict[str, str], stays: bool
) -> None:
    copies, work = tmp_path / "resume", tmp_path / "work"
    lay(copies, "best/model.pt", "best/config.json")
    lay(work, "out/best/checkpoint-3/model.pt", text="of step 3")
    for name, text in there.items():
        lay(work, f"out/best/{name}", text=text)
    tree = tree_of("out/best", "model.pt", "config.json")
    assert put_back(copies, work, tree, is_latest=False) == work / "out" / "best"
    found = {
        path.name: path.read_text() for path in (work / "out/best").iterdir() if path.is_file()
    }
    assert found == (there if stays else dict.fromkeys(("model.pt", "config.json"), "whole"))
    assert (work / "out/best/checkpoint-3/model.pt").read_text() == "of step 3"


@pytest.mark.parametrize(
    ("there", "noted"),
    [
        (None, "global_step50"),
        ("global_step75", "global_step50"),
        ("global_step60", "global_step60"),
    ],
    ids=["no note", "one of a checkpoint that is gone", "one of a checkpoint that is there"],
)
def test_deepspeed_finds_what_was_put_back(tmp_path: Path, there: str | None, noted: str) -> None:
    lay(tmp_path, "ds/global_step50/mp_rank_00_model_states.pt")
    lay(tmp_path, "ds/global_step60/mp_rank_00_model_states.pt")
    if there is not None:
        lay(tmp_path, "ds/latest", text=f"{there}\n")
    note_latest(tmp_path / "ds" / "global_step50", "deepspeed")
    assert (tmp_path / "ds" / "latest").read_text().strip() == noted
    note_latest(tmp_path / "other" / "model", "torch-dcp")
    assert not (tmp_path / "other").exists()


def test_a_name_that_leads_out_of_the_working_folder_is_not_written_to(tmp_path: Path) -> None:
    copies, work = tmp_path / "resume", tmp_path / "work"
    lay(copies, "last.pt")
    for folder in (work, tmp_path / "outside"):
        folder.mkdir()
    (work / "out").symlink_to(tmp_path / "outside")
    for source in ("out/last.pt", "."):
        tree = tree_of(source, "last.pt", is_file=True)
        assert put_back(copies, work, tree) == copies / "last.pt"
    assert not list((tmp_path / "outside").iterdir())


def test_a_place_outside_the_working_folder_is_one_that_the_command_names(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lay(home, ".cache/nanochat/model_3.pt", "single/model.pt")
    watcher = Watcher(tmp_path / "work", "~/.cache/nanochat:~/single/model.pt", home=home)
    clock = iter(range(1, 9))
    shelf = CommandCheckpoints(tmp_path / "kept", "r", "p", Command(("x",)), lambda: next(clock))
    for found in watcher.settled(1.0, 0.0):
        assert not isinstance(found, tuple), found
        assert shelf.take(found, None, None) is not None
    trees = [shelf.tree_of(made) for made in shelf.to_put_back()]
    assert trees, "nothing was taken"
    for tree in trees:
        assert (present(watcher.outside(tree)) / tree.source).read_text() == "whole", tree
    other = CheckpointTree("model_3.pt", trees[0].files, True, place="/etc")
    assert watcher.outside(other) is None
