"""The entry command: what it is given, what it lays out and guards, and a run that a script
starts by itself."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.core.manifests import manifest
from tests.unit.pod.container import KEY, RUNPOD_POD, Container, given_environment, packed
from tests.unit.pod.leases import HARD_STOP_S, a_lease, job_of
from tests.unit.pod.provider import Provider
from tests.waiting import until
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.command import GIVEN_NAME
from trmcloud.core.contract.pod_contract import PODS_DIR, PodName
from trmcloud.core.contract.trainer_contract import load_job
from trmcloud.core.errors import ConflictError
from trmcloud.export.standalone import linger_s
from trmcloud.pod.agent.attempts import (
    PAID,
    RECORD_NAME,
    WALL,
    StandaloneAttempt,
    StandaloneAttempts,
    ended_at,
    read_lives,
    report_of,
    used_s,
    write_lives,
)
from trmcloud.pod.agent.nodes import Nodes, read_nodes
from trmcloud.pod.agent.terminate import own_ways_of, ways_of
from trmcloud.pod.boot import lay_out, read_boot_input
from trmcloud.pod.storage.checkpoint_copy import CheckpointCopier

# -- boot ---------------------------------------------------------------------------------------
# The entry command with real processes: it lays out, guards, ends the pod, and never exits.


def tried_all(provider: Provider) -> bool:
    return ("POST", "/graphql") in [(m, p) for m, p, _, _ in provider.asked]


def test_it_trains_and_no_process_inherits_a_key(
    boot: Callable[..., Container], lease: contract.Lease
) -> None:
    pod = boot(lease, TRMCLOUD_HOST_KEY=packed("no key at all"))
    until(pod.trains, what="training")
    assert pod.read(contract.LEASE_NAME)["epoch"] == 1
    assert pod.read(contract.CHECK_NAME) == {}
    inside = pod.inside()
    assert len(inside) >= 2, "agent, trainer"
    for pid in inside:
        inherited = Path(f"/proc/{pid}/environ").read_bytes()
        for secret in (KEY.encode(), packed("no key at all").encode(), b"TRMCLOUD_LEASE="):
            assert secret not in inherited
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("notes"), what="notes in the report")
    notes = pod.read(contract.REPORT_NAME)["notes"]
    assert notes == {"ssh": "no SSH: the host key is no OpenSSH private key"}


def test_done_means_ended_by_every_way_and_still_there(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider
) -> None:
    provider.answer("DELETE", f"/v2/pods/{RUNPOD_POD}", 403, '{"title": "Forbidden"}')
    pod = boot(lease, steps=5)
    until(lambda: tried_all(provider), what="the chain")
    until(lambda: pod.read("termination.json")["attempts"][-1]["ok"] is not None, what="its record")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "its work is done"
    record = pod.read("termination.json")
    assert record["why"] == "its work is done"
    assert [a["code"] for a in record["attempts"][:3]] == [404, 403, 404]
    report = contract.load_report((pod.pod_dir / contract.REPORT_NAME).read_text())
    assert report.result == "finished"
    # The report has the newest attempt alone, the container's log each of them.
    until(lambda: "refused, " in pod.read("agent.json")["notes"]["termination"], what="its note")
    assert "v2 delete: refused, code 403" in pod.log.read_text()
    assert KEY not in pod.log.read_text() + (pod.pod_dir / "termination.json").read_text()
    assert pod.lives_on()


def test_sigterm_kills_the_trainer_and_ends_the_pod(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider
) -> None:
    pod = boot(lease)
    until(pod.trains, what="training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), what="the chain")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "terminated"
    pod.process.send_signal(signal.SIGTERM)
    pod.process.send_signal(signal.SIGINT)
    pod.process.send_signal(signal.SIGHUP)
    assert pod.lives_on()


def test_a_pod_that_has_ended_trains_no_more_after_a_restart(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider
) -> None:
    pod = boot(lease)
    until(pod.trains, what="training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), what="the chain")
    provider.asked.clear()
    pod.restart()
    until(lambda: tried_all(provider), what="the chain again")
    assert pod.inside() == []
    assert pod.read("termination.json")["why"].startswith("it had ended before")


def test_a_restart_goes_on_and_does_not_extend_the_deadline(
    boot: Callable[..., Container], provider: Provider
) -> None:
    pod = boot(a_lease(time.time(), hard_stop_s=12.0))
    until(pod.trains, what="training")
    anchor = pod.read("anchor.json")
    pod.restart()
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("restarts", 0) > 0, what="a new agent")
    assert pod.read("anchor.json") == anchor
    until(lambda: tried_all(provider), what="the chain", within_s=30.0)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - anchor["boot"]
    assert passed < 12.0 + 8.0
    assert pod.inside() == []


@pytest.mark.parametrize(
    "damage",
    [
        {contract.ENV_LEASE: "-"},
        {contract.ENV_LEASE: "!!!"},
        {contract.ENV_LEASE: packed("{}")},
        {contract.ENV_JOBS: packed("[]")},
        {contract.ENV_CHECK: packed('{"count": "many"}')},
        {contract.ENV_ROOT: "/dev/null/nowhere"},
    ],
)
def test_what_cannot_be_understood_is_ended_at_once(
    boot: Callable[..., Container],
    lease: contract.Lease,
    provider: Provider,
    damage: dict[str, str],
) -> None:
    pod = boot(lease, **damage)
    until(lambda: tried_all(provider), what="the chain")
    until(lambda: pod.inside() == [], what="all inside ended")
    if contract.ENV_ROOT not in damage:
        assert pod.read("termination.json")["why"].startswith("what it was started with is damaged")
    assert pod.lives_on(0.2)


def test_it_stays_for_its_last_report_to_be_read(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider
) -> None:
    pod = boot(lease, steps=5, **{contract.ENV_LINGER_S: "600"})
    until(lambda: pod.read(contract.ENDED_NAME), what="the end of its work")
    assert pod.lives_on()
    assert provider.asked == []
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), what="the chain")


# -- What a pod is started with: read strictly, laid out, and no newer file is overwritten ------


def test_files_that_are_newer_or_the_same_stay(tmp_path: Path, lease: contract.Lease) -> None:
    given = read_boot_input(given_environment(lease, tmp_path))
    lay_out(given)
    job_path = tmp_path / contract.RUNS_DIR / "r1" / "fast" / contract.JOB_NAME
    lease_path = given.pod_dir / contract.LEASE_NAME
    before = [path.stat().st_mtime_ns for path in (job_path, lease_path)]
    lay_out(given)
    assert [path.stat().st_mtime_ns for path in (job_path, lease_path)] == before

    newer = replace(lease, epoch=7)
    lease_path.write_text(contract.dump(newer))
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == newer

    lease_path.write_text("damaged")
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == lease

    other = replace(job_of(lease, tmp_path), processes=8)
    lay_out(read_boot_input(given_environment(lease, tmp_path, [other])))
    assert load_job(job_path.read_text()).processes == 8


def test_the_further_machines_of_a_pod_upload_nothing_and_end_no_other(
    tmp_path: Path, lease: contract.Lease
) -> None:
    environment = given_environment(replace(lease, uploads=True), tmp_path)
    environment[contract.ENV_PROVIDER] = "skypilot+shutdown"
    for told, hold in (("", False), ("2 0 10.0.0.1", False), ("2 1 10.0.0.1", True)):
        given = read_boot_input({**environment, contract.ENV_NODES: told})
        assert (given.lease.hold, given.lease.uploads) == (hold, not hold)
    lay_out(given)
    assert read_nodes(given.pod_dir) == Nodes(2, 1, "10.0.0.1")
    environment |= {"TRMCLOUD_SKY_HOME": "/home/user", "TRMCLOUD_SKY_USER": "user"}
    ways = {way.name for way in ways_of(environment)}
    own = {way.name for way in own_ways_of(environment)}
    assert "poweroff" in own
    assert own < ways
    assert own_ways_of({contract.ENV_PROVIDER: "skypilot"}) == ()
    # Where the first one is lost it ends all of them, as that would have done.
    sky = {"TRMCLOUD_SKY_HOME": "/root", **environment}
    every = [way.name for way in own_ways_of(sky, whole=True)]
    assert every[0] == "skypilot teardown"
    assert set(every[1:]) == own
    assert own_ways_of({**sky, contract.ENV_PROVIDER: "none"}, whole=True) == ()
    for wrong in ("2", "2 2 h", "2 1 ", "two 1 h", "65 1 h", "0 0 h"):
        with pytest.raises(ValueError, match="which machine"):
            read_boot_input({**environment, contract.ENV_NODES: wrong})


def test_what_is_given_must_be_about_this_pod(tmp_path: Path, lease: contract.Lease) -> None:
    good = given_environment(lease, tmp_path)
    assert read_boot_input(good).jobs == (job_of(lease, tmp_path),)
    assert read_boot_input({k: v for k, v in good.items() if k != contract.ENV_CHECK}).check == "{}"
    foreign = replace(job_of(lease, tmp_path), run_id="r2")
    climbing = replace(job_of(lease, tmp_path), phase="..")
    for changes in (
        {contract.ENV_POD: "trmc-0badcafe-r1-g2-1700000000"},
        {contract.ENV_POD: "somebody"},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(foreign))]))},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(climbing))]))},
        {contract.ENV_JOBS: packed("{}")},
        {contract.ENV_ROOT: "relative"},
        {contract.ENV_LINGER_S: "long"},
    ):
        with pytest.raises(ValueError, match=r"."):
            read_boot_input({**good, **changes})


# -- given --------------------------------------------------------------------------------------
# Values that a command's pod was given are deleted at its end, and those of pods long past.


ROOT = Path(__file__).resolve().parents[3]
WATCH = """
import sys
from pathlib import Path
from trmcloud.pod.agent.watchdog import Watch
Watch(Path(sys.argv[1]), sys.argv[2], [15]).run()
"""


def test_a_pods_end_deletes_what_it_was_given_and_what_a_volume_kept(tmp_path: Path) -> None:
    """A pod whose machine was lost has left its values on a network volume."""
    now = int(time.time())
    own, lost, live = (
        str(PodName("0a1b2c3d", run, 1, hard_stop_at))
        for run, hard_stop_at in (("r1", now + 600), ("r2", now - 5), ("r3", now + 600))
    )
    given = {name: tmp_path / PODS_DIR / name / GIVEN_NAME for name in (own, lost, live)}
    for path in given.values():
        path.parent.mkdir(parents=True)
        path.write_text('{"TOKEN": "open-sesame"}')
    subprocess.run(
        [sys.executable, "-c", WATCH, str(tmp_path), own], cwd=ROOT, check=True, timeout=60
    )
    assert not given[own].exists()
    assert not given[lost].exists()
    assert given[live].exists(), "another pod of this volume still needs it"
    assert (given[own].parent / "ended.json").exists()


# -- A run's time is given once, however often its script is started ----------------------------


T = 1_795_000_000.0


def lives(*starts: float, again: int = 0) -> StandaloneAttempts:
    rows = tuple(
        StandaloneAttempt(n, f"pod{n}", T + at, again=n == again) for n, at in enumerate(starts, 1)
    )
    return StandaloneAttempts("r-0a1b2c", "0a1b2c3d", "trm", rows)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_lives(tmp_path) is None
    made = lives(0, 50).gave_up("no room")
    write_lives(tmp_path, made)
    assert read_lives(tmp_path) == made
    assert made.last is not None
    assert made.last.gave_up == "no room"
    assert made.lives[0].gave_up == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"lives": [{}]}', '{"lives": 3}', '{"lives": [], "version": 2}']
)
def test_a_damaged_record_gives_no_time_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(ConflictError, match="cannot be read"):
        read_lives(tmp_path)


@pytest.mark.parametrize(
    ("clock", "now", "seconds"),
    [
        (WALL, 500.0, 500.0),  # what lies between two starts is rented, too
        (PAID, 500.0, 30.0 + 20.0),
        (WALL, -100.0, 220.0),  # a clock that was set back gives nothing back
    ],
)
def test_what_is_used_by_each_clock(clock: str, now: float, seconds: float) -> None:
    ends = {1: T + 30, 2: T + 220}
    assert used_s(lives(0, 200), ends, clock, T + now) == seconds


@pytest.mark.parametrize("clock", [WALL, PAID])
def test_time_given_anew_counts_from_there(clock: str) -> None:
    ends = {1: T + 30, 2: T + 220, 3: T + 320}
    assert used_s(lives(0, 200, 300, again=2), ends, clock, T + 320) == (
        120.0 if clock == WALL else 40.0
    )
    assert used_s(lives(), {}, clock, T) == 0.0


def test_an_end_is_what_the_watchdog_noted_or_a_moment_after_the_last_sign(tmp_path: Path) -> None:
    made = lives(0)
    life = made.lives[0]
    pod_dir = tmp_path / contract.PODS_DIR / life.pod
    pod_dir.mkdir(parents=True)
    assert ended_at(tmp_path, made, life) == T + 2.0
    beat = tmp_path / contract.RUNS_DIR / made.run_id / "fast" / contract.HEARTBEAT_NAME
    beat.parent.mkdir(parents=True)
    for path, at in ((pod_dir / "agent.json", T + 40), (beat, T + 60)):
        path.write_text("{}")
        os.utime(path, (at, at))
    assert ended_at(tmp_path, made, life) == T + 62.0
    (pod_dir / contract.ENDED_NAME).write_text(json.dumps({"at": T + 55, "reason": "done"}))
    assert ended_at(tmp_path, made, life) == T + 55


def test_a_report_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    life = lives(0).lives[0]
    assert report_of(tmp_path, life) is None
    pod_dir = tmp_path / contract.PODS_DIR / life.pod
    pod_dir.mkdir(parents=True)
    (pod_dir / contract.REPORT_NAME).write_text("{]")
    assert report_of(tmp_path, life) is None


# -- The pieces of a run that a script starts by itself -----------------------------------------


NOW = 1_795_000_000.0


def saved(root: Path, name: str = "step-00000010") -> Path:
    folder = root / "runs" / "r1" / "fast" / contract.CHECKPOINTS_DIR / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "manifest.json").write_text("{}")
    return folder


def test_a_machine_is_kept_until_its_hard_stop_if_fetchable(
    tmp_path: Path,
) -> None:
    lease = a_lease(NOW)
    pod_dir = tmp_path / contract.PODS_DIR / lease.pod_name
    pod_dir.mkdir(parents=True)
    (pod_dir / contract.LEASE_NAME).write_text(contract.dump(lease))
    wanted = {contract.ENV_LINGER_S: "hard-stop"}
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 100) == 15.0
    saved(tmp_path)
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 100) == HARD_STOP_S - 100
    assert linger_s(tmp_path, lease.pod_name, wanted, NOW + 9999) == 15.0


@pytest.mark.parametrize(("wanted", "seconds"), [("120", 120.0), ("", 15.0), ("1e9", 3600.0)])
def test_or_for_as_many_seconds_as_asked_for(wanted: str, seconds: float, tmp_path: Path) -> None:
    assert linger_s(tmp_path, "none", {contract.ENV_LINGER_S: wanted}, NOW) == seconds


def test_a_finished_checkpoint_is_copied_once_its_manifest_last(tmp_path: Path) -> None:
    said: list[str] = []
    source = saved(tmp_path)
    keeper = CheckpointCopier(tmp_path / "runs" / "r1", tmp_path / "kept", said.append)
    assert keeper.copy_new() == 1
    copy = tmp_path / "kept" / "r1" / "fast" / contract.CHECKPOINTS_DIR / source.name
    assert sorted(path.name for path in copy.iterdir()) == ["manifest.json", "model.safetensors"]
    assert (copy / "model.safetensors").read_bytes() == b"weights"
    assert keeper.copy_new() == 0
    unfinished = saved(tmp_path, "step-00000020")
    (unfinished / "manifest.json").unlink()
    assert keeper.copy_new() == 0
    assert said == []


def test_a_folder_that_cannot_take_it_is_told_once_and_tried_again(tmp_path: Path) -> None:
    said: list[str] = []
    saved(tmp_path)
    blocked = tmp_path / "kept"
    blocked.write_text("a file")
    keeper = CheckpointCopier(tmp_path / "runs" / "r1", blocked, said.append)
    assert keeper.copy_new() == keeper.copy_new() == 0
    assert len(said) == 1
    assert str(blocked) in said[0]
    blocked.unlink()
    assert keeper.copy_new() == 1


@pytest.mark.parametrize("renames", [True, False])
def test_a_metric_that_came_later_is_copied_and_the_weights_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """In a share, and in a mounted bucket that knows no renames."""
    said: list[str] = []
    source = saved(tmp_path)
    early = manifest(10, None)
    (source / mf.MANIFEST_NAME).write_text(mf.to_json(early))
    run_dir, target = tmp_path / "runs" / "r1", tmp_path / "kept"
    keeper = CheckpointCopier(run_dir, target, said.append)
    assert keeper.copy_new() == 1
    copy = target / "r1" / "fast" / contract.CHECKPOINTS_DIR / source.name
    (copy / "model.safetensors").write_bytes(b"not touched")
    scored = mf.with_metric(early, 1.25, (3.0, 2.0))
    (source / mf.MANIFEST_NAME).write_text(mf.to_json(scored))
    if not renames:

        def refuse(*paths: object) -> None:
            raise OSError(errno.ENOSYS, "not implemented")

        monkeypatch.setattr(os, "replace", refuse)
    assert CheckpointCopier(run_dir, target, said.append).copy_new() == 1, (
        "one that was started anew, too"
    )
    assert mf.from_json((copy / mf.MANIFEST_NAME).read_text(), "copy") == scored
    assert (copy / "model.safetensors").read_bytes() == b"not touched"
    assert sorted(path.name for path in copy.iterdir()) == [mf.MANIFEST_NAME, "model.safetensors"]
    assert keeper.copy_new() == keeper.copy_new() == 0
    assert said == []
