"""A home with a run in it, damaged, locked or out of date: each a clear error and a safe state."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ended_home, mortal
from tests.e2e.user import LAUNCH, SMALL, User, until
from tests.typist import InProcess, typist
from trmcloud.adapters.ledger.records import VERSION
from trmcloud.core.money import ZERO

__all__ = ["ended_home", "mortal", "typist"]


@pytest.fixture
def owner(typist: InProcess, ended_home: Path) -> User:
    shutil.copytree(ended_home, typist.home)
    return typist


def _said(user: User, *arguments: str) -> str:
    """Both streams of a command that ends well, on one line."""
    code, out, err = user.ended(*arguments)
    assert code == 0, err
    return " ".join(f"{out} {err}".split())


def best_of(user: User) -> Path:
    return next(user.home.glob("runs/*/fast/checkpoints/step-00000040"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwrite(path: Path) -> None:
    path.write_text("garbage")


def _make_empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip_bit(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        [(body,)] = conn.execute("SELECT body FROM events WHERE kind = 'Settled'")
        conn.execute("UPDATE events SET body = ? WHERE kind = 'Settled'", (body.replace("0", "1"),))
    conn.close()


def _age(path: Path) -> None:
    with sqlite3.connect(path) as conn:
        conn.execute(f"UPDATE meta SET version = {VERSION + 1}")
    conn.close()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_truncate, "the ledger is damaged"),
        (_overwrite, "the ledger is damaged"),
        (_make_empty, "the ledger is damaged: it is empty"),
        (Path.unlink, "the ledger is missing, but one existed here"),
    ],
)
def test_a_ledger_that_cannot_be_read_is_restored_and_what_was_lost_is_said(
    owner: User, harm: Callable[[Path], None], says: str
) -> None:
    before = owner.only_run()
    harm(owner.home / "ledger.db")
    shown = _said(owner, "status")
    assert f"the ledger could not be used ({says}" in shown
    assert "backup 3" in shown
    assert "nothing was lost: no record was written after that backup" in shown
    assert owner.only_run() == before
    assert "could not be used" not in _said(owner, "status"), "it is said once"


def test_a_flipped_bit_quarantines_its_run_and_nothing_new_is_rented(owner: User) -> None:
    run_id = owner.only_run().run_id
    _flip_bit(owner.home / "ledger.db")
    shown = owner.run("status")
    assert f"damaged: {run_id}: its records are damaged; 11 of 12 could be read" in shown
    assert "it counts as at most $1.00" in shown
    for arguments in (("fetch-best", run_id), ("resume", run_id)):
        assert "trmcloud admin ledger restore" in owner.refused(*arguments, code=7)
    owner.run("admin", "ledger", "restore", "--yes")
    assert "damaged" not in owner.run("status")
    assert owner.only_run().run_id == run_id


def test_a_ledger_of_a_newer_version_is_left_as_it_is(owner: User) -> None:
    _age(owner.home / "ledger.db")
    for arguments in (("status",), (*LAUNCH, "--budget", "1"), ("fetch-best",), ("resume",)):
        said = owner.refused(*arguments, code=7)
        assert "this ledger was written by a newer version of trmcloud" in said
    assert len(list(owner.home.glob("runs/*"))) == 1


def test_a_locked_ledger(owner: User) -> None:
    conn = sqlite3.connect(owner.home / "ledger.db", isolation_level=None)
    conn.execute("BEGIN EXCLUSIVE")
    try:
        assert "another process has locked the ledger for 5 s" in owner.refused("status", code=7)
    finally:
        conn.close()
    owner.run("status")


def test_a_backup_is_accepted_and_what_it_forgot_is_found_and_charged(owner: User) -> None:
    """The ledger is put back to what it was before its only run."""
    (run,) = owner.ledger().runs.values()
    with sqlite3.connect(owner.ledger_path) as conn:
        conn.execute("DELETE FROM events")
        conn.execute("DELETE FROM drivers")
    conn.close()
    for arguments in (("status",), (*LAUNCH, "--budget", "1")):
        said = owner.refused(*arguments, code=7)
        assert "the ledger has lost records: it was restored from a backup, or replaced" in said
        assert "reap --accept-restored" in said
    said = owner.run("admin", "reap", "--accept-restored", "--yes")
    until(lambda: "is reconciled" in said or "is reconciled" in owner.run("admin", "reap", "--yes"))
    ledger = owner.ledger()
    (stray,) = ledger.strays.values()
    assert ledger.runs == {}
    assert (stray.pod_name, stray.billed) == (run.generations[0].pod_name, run.settled)
    assert ledger.line("account", "").settled == run.settled > ZERO
    assert f"of this, {run.settled} for orphaned pods" in owner.run("budget", "show")
    assert "nothing to accept" in owner.refused("admin", "reap", "--accept-restored", code=2)


def _flip_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


def _lose_weights(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()


def _link_weights(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_flip_weights, "weights.safetensors is damaged"),
        (_lose_weights, "weights.safetensors is missing"),
        (_link_weights, "weights.safetensors is a link"),
    ],
)
def test_a_damaged_checkpoint_is_not_fetched(
    owner: User, harm: Callable[[Path], None], says: str
) -> None:
    harm(best_of(owner))
    assert says in owner.refused("fetch-best", "--into", "best", code=10)
    assert not (owner.folder / "best").exists()
    # The one before it is still there to be had.
    fetched = owner.json("fetch-best", "--step", "20", "--into", "earlier", "--json")
    assert fetched["checkpoint"] == "fast/step-00000020"


@pytest.mark.parametrize(
    "harm",
    [
        lambda manifest: "{",
        lambda manifest: manifest.replace('"weights.safetensors"', '"../weights.safetensors"'),
        lambda manifest: manifest.replace('"step": 40', '"step": 41'),
    ],
    ids=["no JSON", "parent folder", "another's"],
)
def test_a_checkpoint_whose_manifest_is_no_good_is_none(
    owner: User, harm: Callable[[str], str]
) -> None:
    folder = best_of(owner)
    text = (folder / "manifest.json").read_text()
    changed = harm(text)
    (folder / "manifest.json").write_text(changed)
    assert owner.json("fetch-best", "--json")["checkpoint"] == "fast/step-00000020"
    assert "damaged" in owner.run("status", owner.only_run().run_id)
    shutil.rmtree(folder.with_name("step-00000020"))
    err = owner.refused("fetch-best", "--into", "more", code=10)
    assert "has no complete checkpoint; fast/step-00000040" in err
    if '"step": 41' not in changed:
        assert owner.refused("launch", "local", *SMALL, "--budget", "1", "-y", "--from",
                             str(folder), code=10)  # fmt: skip


def test_nothing_starts_from_a_damaged_checkpoint(owner: User) -> None:
    _flip_weights(best_of(owner))
    arguments = (*LAUNCH, "--budget", "1", "--from", str(best_of(owner)))
    assert "it does not match its manifest" in owner.refused(*arguments, code=10)
    owner.trainer = None
    for command in ("sample", "eval"):
        err = owner.refused(command, str(best_of(owner)), code=10)
        assert "weights.safetensors does not have the hash in its manifest" in err
    empty = owner.folder / "empty"
    empty.mkdir()
    assert "no checkpoint here" in owner.refused("sample", str(empty), code=10)


def test_nothing_starts_from_weights_of_another_shape(owner: User) -> None:
    run = owner.only_run().run_id
    err = owner.refused(*LAUNCH, "--budget", "1", "--set", "width=64", "--from", run, code=10)
    assert "trained with width 32, not 64" in err
    assert "--set width=32" in err


def test_fetch_best_spares_what_is_there(owner: User) -> None:
    taken = owner.folder / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("my only copy")
    assert "holds other files" in owner.refused("fetch-best", "--into", "taken", code=8)
    assert (taken / "thesis.txt").read_text() == "my only copy"
    (owner.folder / "file").write_text("mine")
    assert "there is another file in the place of the checkpoint" in owner.refused(
        "fetch-best", "--into", "file", code=8
    )
    err = owner.refused("fetch-best", "--into", "file/best", code=1)
    assert "not a directory" in err
    assert (owner.folder / "file").read_text() == "mine"
    assert "has no checkpoint at step 7" in owner.refused("fetch-best", "--step", "7", code=3)
    assert "has no checkpoint" in owner.refused("fetch-best", "--phase", "extreme", code=3)


def test_a_run_that_is_over_is_neither_stopped_nor_resumed(owner: User) -> None:
    assert "has already ended: finished" in owner.refused("stop", code=8)
    assert "has finished: there is nothing to resume" in owner.refused("resume", "-y", code=8)
    assert "has no log of extreme" in owner.refused("logs", "--phase", "extreme", code=3)


def test_a_home_that_became_read_only(owner: User, mortal: tuple[str, ...]) -> None:
    """Looking still works where nothing has to be written."""
    before = owner.run("status")
    owner.wrapper = mortal
    folders = [owner.home, *(path for path in owner.home.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    try:
        assert owner.run("status") == before
        owner.run("report")
        for arguments in (("plan",), (*LAUNCH, "--budget", "1")):
            assert "the plan cannot be saved" in owner.refused(*arguments, code=8)
        assert "the ledger cannot be used" in owner.refused("budget", "set", "month", "5", code=7)
        err = owner.refused("fetch-best", "--into", str(owner.home / "best"), code=1)
        assert "permission denied" in err
    finally:
        for path in folders:
            path.chmod(0o755)
