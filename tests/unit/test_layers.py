"""What may be relied upon on this machine: guards that act, intents of this user, tools that are
there."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from trmcloud.adapters.local.run_files import IntentFiles, intent_folders
from trmcloud.core.catalog.offers import Offer
from trmcloud.core.control.events import LayerVerified
from trmcloud.core.money import Usd
from trmcloud.operations.checks import doctor
from trmcloud.operations.driving.reap import ReapFindings, last_visit, note_visit
from trmcloud.operations.machines import Need
from trmcloud.operations.plans.kill_layers import verified_layers
from trmcloud.ports.ledger import MOST_PODS, Intent
from trmcloud.wiring import build_context

# -- layers -------------------------------------------------------------------------------------
# A guard on another machine counts for as long as it keeps coming by, and reached the provider.


ELSEWHERE = ("runpod", "guard-elsewhere")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRMCLOUD_HOME", str(tmp_path))
    return tmp_path


def visit(home: Path, **changes: Any) -> None:
    note = {"at": time.time(), "host": "a-server:boot", "every_s": 300.0, "reached": ["runpod"]}
    (home / "guard.json").write_text(json.dumps(note | changes))


def test_a_fresh_visit_from_another_machine_counts_beside_what_is_on_record(home: Path) -> None:
    visit(home)
    world = build_context()
    at = world.wall()
    world.ledger.verify_layer(LayerVerified("runpod", "agent", "smoke"), at)
    found = verified_layers(world, "runpod")
    assert set(found) == {ELSEWHERE, ("runpod", "agent")}
    assert at - found[ELSEWHERE] < 60


@pytest.mark.parametrize(
    "changes",
    [
        {"host": os.uname().nodename + ":another-boot"},
        {"at": 1_000_000_000.0},
        {"reached": []},
        {"reached": ["local"]},
        {"every_s": "often"},
        {"host": None, "at": None},
    ],
)
def test_any_other_visit_does_not(home: Path, changes: dict[str, Any]) -> None:
    visit(home, **changes)
    assert ELSEWHERE not in verified_layers(build_context(), "runpod")


def test_a_visit_says_whom_it_did_not_reach(home: Path) -> None:
    (home / "runpod").mkdir(parents=True)
    world = build_context()
    note_visit(world, 300.0, ReapFindings((), (("runpod", "HTTP 503"),)))
    seen = last_visit(world)
    assert seen is not None
    assert seen.reached == ("local",)
    note_visit(world, 300.0, ReapFindings((), ()))
    seen = last_visit(world)
    assert seen is not None
    assert seen.reached == ("local", "runpod")


# -- Intents are kept in folders that other users write to: only this user's own are read -------


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


# -- What doctor makes of the machine ----------------------------------------------------------


NOW = 1_800_000_000.0
DAY = 86_400.0


def test_what_renting_needs_is_bad_to_lack_only_where_machines_are_rented() -> None:
    needs = (Need("ssh", "OpenSSH_9.9p1"), Need("ssh-keygen", "it is not installed", True, "do it"))
    there, missing = doctor.check_needs(needs, rents=True)
    assert there == doctor.Finding("ssh", "ok", "OpenSSH_9.9p1")
    assert (missing.state, missing.fix) == ("bad", "do it")
    assert missing.detail == "it is not installed: no machine can be rented"
    assert doctor.check_needs(needs, rents=False)[1].state == "warn"


@pytest.mark.parametrize(
    ("used", "keys", "rents"),
    [("", [], False), ("", [False, False], False), ("", [False, True], True), ("vast", [], True)],
)
def test_machines_are_rented_where_there_were_pods_or_is_a_key(
    used: str, keys: list[bool], rents: bool
) -> None:
    assert doctor.rents_here(lambda name: name == used, iter(keys)) == rents


def test_no_key_is_looked_for_where_pods_are_known() -> None:
    keys = iter([True])
    assert doctor.rents_here(lambda name: True, keys)
    assert list(keys) == [True]


@pytest.mark.parametrize(
    ("ages", "state"), [([], "warn"), ([0, 3], "ok"), ([0, 90], "ok"), ([8, 90], "warn")]
)
def test_old_prices_are_told(ages: list[int], state: str) -> None:
    offers = [
        Offer("L4", 1, "runpod", "any", "i", Usd(1), False, NOW - age * DAY, "s") for age in ages
    ]
    offers.append(Offer("L4", 1, "lambda", "any", "i", Usd(1), False, NOW, "s"))
    found = doctor._prices(offers, NOW)
    assert found.state == state
    assert ("surcharge" in found.detail) == any(age > 60 for age in ages)
