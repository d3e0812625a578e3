"""Intents are kept in folders that other users write to: only this user's own are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trmcloud.adapters.local.intent_files import IntentFiles, intent_folders
from trmcloud.ports.intents import MOST_PODS, Intent

HOME = Path("/home/someone/.trmcloud")
INTENT = Intent("r-1f3a9c", "0a1b2c3d", 1_800_000_000.5, ("trmc-0a1b2c3d-r1f3a9c-g1-1800000000",))


def files(*folders: Path) -> IntentFiles:
    return IntentFiles(HOME, folders)


def path_in(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_kept_is_read_and_dropped(tmp_path: Path) -> None:
    assert files(tmp_path).keep(INTENT) == str(path_in(tmp_path))
    assert path_in(tmp_path).stat().st_mode & 0o777 == 0o600
    assert files(tmp_path).kept() == (INTENT,)
    assert IntentFiles(Path("/elsewhere"), [tmp_path]).kept() == ()
    files(tmp_path).drop(INTENT)
    assert list(tmp_path.iterdir()) == []


def test_a_later_one_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    later = Intent(INTENT.run_id, INTENT.ledger, INTENT.at + 1, ())
    files(tmp_path).keep(INTENT)
    files(tmp_path).keep(later)
    assert files(tmp_path).kept() == (later,)


def test_the_next_folder_serves_where_the_first_takes_nothing(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    kept_at = files(tmp_path / "missing", there).keep(INTENT)
    assert kept_at == str(path_in(there))
    assert files(tmp_path / "missing").keep(INTENT) == ""


def test_another_users_file_is_not_believed_nor_removed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    files(tmp_path).keep(INTENT)
    os.chown(path_in(tmp_path), 65534, 65534)
    assert files(tmp_path).kept() == ()
    assert files(tmp_path).keep(INTENT) == "", "its name is taken"
    files(tmp_path).drop(INTENT)
    assert path_in(tmp_path).stat().st_uid == 65534


def test_others_files_use_up_nothing_of_what_is_read(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    files(tmp_path).keep(INTENT)
    prefix = path_in(tmp_path).name.removesuffix(f"{INTENT.run_id}.json")
    for number in range(200):
        planted = tmp_path / f"{prefix}r-{number:06x}.json"
        planted.write_text("{}")
        os.chown(planted, 65534, 65534)
    assert files(tmp_path).kept() == (INTENT,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_one_that_others_may_touch_is_not_believed(tmp_path: Path, mode: int) -> None:
    files(tmp_path).keep(INTENT)
    path_in(tmp_path).chmod(mode)
    assert files(tmp_path).kept() == ()


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    files(tmp_path).keep(INTENT)
    path = path_in(tmp_path)
    (tmp_path / "real").mkdir()
    path.rename(tmp_path / "real" / "it")
    path.symlink_to(tmp_path / "real" / "it")
    assert files(tmp_path).kept() == ()
    path.unlink()
    os.link(tmp_path / "real" / "it", path)
    assert files(tmp_path).kept() == (), "it has a second name"
    path.unlink()
    os.mkfifo(path, 0o600)
    assert files(tmp_path).kept() == ()


_SAID = {"run": INTENT.run_id, "ledger": INTENT.ledger, "at": 1.0, "pods": []}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "[" * 2000,
        json.dumps(_SAID) + " " * 5000,
        json.dumps(_SAID | {"run": "r-ff"}),
        json.dumps(_SAID | {"ledger": "../etc"}),
        json.dumps(_SAID | {"at": True}),
        json.dumps(_SAID | {"at": "1"}),
        '{"run": "r-1f3a9c", "ledger": "", "at": NaN, "pods": []}',
        json.dumps(_SAID | {"pods": ["\\u001b[2J"]}),
        json.dumps(_SAID | {"pods": ["a"] * (MOST_PODS + 1)}),
        json.dumps(_SAID | {"pods": "all"}),
    ],
)
def test_words_that_are_none_of_ours_are_no_intent(tmp_path: Path, text: str) -> None:
    files(tmp_path).keep(INTENT)
    path_in(tmp_path).write_text(text)
    assert files(tmp_path).kept() == ()


def test_folders_are_absolute_and_each_named_once() -> None:
    given = {"XDG_RUNTIME_DIR": "/tmp", "TMPDIR": "relative"}
    assert intent_folders(given) == (Path("/tmp"), Path("/dev/shm"))
