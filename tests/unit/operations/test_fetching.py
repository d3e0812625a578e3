"""Fetching writes into its own new folder, whatever a manifest or the folders there are called."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.command_terms import TREE_NAME
from trmcloud.core.contract.manifest import CheckpointFile, CheckpointManifest
from trmcloud.core.errors import CheckpointError, ConflictError, TrmcloudError
from trmcloud.operations.checkpoints.fetching import copy, under_own_names
from trmcloud.ports.machine import Progress

TEXT = b"weights"
SHA = hashlib.sha256(TEXT).hexdigest()
WEIGHTS = CheckpointFile("weights.safetensors", "weights", 7, SHA)


def manifest(*files: CheckpointFile, recipe: str = "trm-tiny") -> CheckpointManifest:
    return CheckpointManifest(
        run_id="r-1f3a9c", phase="fast", step=10, tokens=1, created_at=1.0, recipe=recipe,
        settings={}, world_size=1, val_bpb=1.0, step_losses=(), cooled=False, data_sha256="",
        tokenizer_sha256="", files=files or (WEIGHTS,),
    )  # fmt: skip


def source(wanted: CheckpointManifest, names: Sequence[str], into: str, progress: Progress) -> None:
    """Writes as a source does: into the folder that it is given."""
    Path(into).mkdir(exist_ok=True)
    for name in names:
        (Path(into) / name).write_bytes(TEXT)


def fetched(wanted: CheckpointManifest, into: Path) -> None:
    copy(source, wanted, into, weights_only=False, progress=lambda done, size: None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project's folder, beside another one with what is dear."""
    for name in ("project", "dear"):
        (tmp_path / name).mkdir()
    (tmp_path / "dear" / "id_rsa").write_text("dear")
    (tmp_path / "dear" / "weights.safetensors").write_text("dear")
    return tmp_path / "project"


def is_dear(place: Path) -> bool:
    dear = place.parent / "dear"
    found = {path.name: path.read_text() for path in dear.iterdir()}
    return found == {"id_rsa": "dear", "weights.safetensors": "dear"}


def test_a_link_in_the_place_of_what_is_being_fetched_is_refused(place: Path) -> None:
    (place / "best.partial").symlink_to(place.parent / "dear")
    with pytest.raises(ConflictError, match="a link"):
        fetched(manifest(), place / "best")
    assert is_dear(place)


def test_other_files_in_the_place_of_what_is_being_fetched_stay(place: Path) -> None:
    (place / "best.partial").mkdir()
    (place / "best.partial" / "notes.txt").write_text("mine")
    with pytest.raises(ConflictError, match="holds other files"):
        fetched(manifest(), place / "best")
    assert (place / "best.partial" / "notes.txt").read_text() == "mine"
    assert not (place / "best").exists()


@pytest.mark.parametrize("where", ["best", "best/weights.safetensors", "best.partial/x.part"])
def test_no_link_in_a_folder_is_followed(place: Path, where: str) -> None:
    fetched(manifest(), place / "best")
    path = place / where
    if path.is_dir():
        os.rename(path, place / "aside")
    elif path.exists():
        path.unlink()
    path.parent.mkdir(exist_ok=True)
    dear = place.parent / "dear"
    path.symlink_to(dear if where == "best" else dear / "weights.safetensors")
    with pytest.raises(ConflictError):
        fetched(manifest(), place / "best")
    assert is_dear(place)


@pytest.mark.parametrize(
    "file",
    [
        CheckpointFile("config.json", "state", 7, SHA),
        CheckpointFile("package.json", "tokenizer", 7, SHA),
        CheckpointFile("adapter_model.safetensors", "weights", 7, SHA),
        CheckpointFile("trmcloud-run.json", "state", 7, SHA),
    ],
    ids=lambda file: file.name,
)
def test_a_name_that_no_checkpoint_has_is_refused(place: Path, file: CheckpointFile) -> None:
    for recipe in ("trm-tiny", RECIPE):
        with pytest.raises(CheckpointError, match="its manifest calls a file"):
            fetched(manifest(file, recipe=recipe), place / "best")
    assert list(place.iterdir()) == []


HOSTILE = (
    "../x", "/etc/x", "a/../../x", "..", ".", "", "x\0y", "~/x", "./../x", "manifest.json",
    "weights.safetensors/../../x", "a//b", "\x1b[2J", "CON", "x" * 600, "own/../../../x",
    "trmcloud-run", "\u202egpj.x", "a\nb",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("which", ["source", "file"])
def test_a_commands_own_names_lead_out_of_no_folder(place: Path, name: str, which: str) -> None:
    tree = {
        "version": 1,
        "source": name if which == "source" else "out/model",
        "is_file": False,
        "files": [{"path": name if which == "file" else "a.pt", "name": "file-0001.bin"}],
    }
    folder = place / "best"
    folder.mkdir()
    (folder / "file-0001.bin").write_bytes(TEXT)
    (folder / TREE_NAME).write_text(json.dumps(tree))
    wanted = manifest(CheckpointFile("file-0001.bin", "weights", 7, SHA), recipe=RECIPE)
    (folder / mf.MANIFEST_NAME).write_text(mf.to_json(wanted))
    with contextlib.suppress(TrmcloudError):
        under_own_names(wanted, folder)
    if name in ("CON", "manifest.json", "a\nb"):
        assert (folder / "own").is_dir(), "an odd name is one"
    assert is_dear(place)
    assert [path.name for path in place.iterdir()] == ["best"]
    assert {path.name for path in folder.iterdir()} <= {
        "file-0001.bin", TREE_NAME, mf.MANIFEST_NAME, "own",
    }  # fmt: skip


@pytest.mark.parametrize("is_written_again", [False, True])
def test_two_fetches_into_one_folder_both_end_well(place: Path, is_written_again: bool) -> None:
    """The second one ends while the first has just received its files."""
    into = place / "best"

    def overtaken(
        wanted: CheckpointManifest, names: Sequence[str], to: str, tell: Progress
    ) -> None:
        source(wanted, names, to, tell)
        if not into.exists():
            fetched(wanted, into)
            if is_written_again:
                source(wanted, names, to, tell)

    made = copy(overtaken, manifest(), into, weights_only=False, progress=lambda done, size: None)
    assert made.already_there
    assert (into / WEIGHTS.name).read_bytes() == TEXT
    assert [path.name for path in place.iterdir()] == ["best"]


def test_an_interrupted_fetch_goes_on(place: Path) -> None:
    (place / "best.partial").mkdir()
    (place / "best.partial" / ".weights.safetensors.part").write_bytes(b"wei")
    fetched(manifest(), place / "best")
    assert sorted(path.name for path in (place / "best").iterdir()) == [
        mf.MANIFEST_NAME, "weights.safetensors",
    ]  # fmt: skip
