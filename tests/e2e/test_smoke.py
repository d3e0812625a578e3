"""The smoke run against RunPod's stand-in: real pods, real agents, real ends."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.documents import lines_in
from tests.e2e.rented import skip_without_pods
from tests.e2e.runpod_user import LAUNCH, RentedUser
from tests.e2e.user import IMPATIENT, User, until
from tests.standins.runpod.catalog import GPUS
from tests.standins.runpod.fixture import judged
from tests.standins.runpod.standin import StandIn
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.budget import exposure_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO

HOLD = ("--minutes", "0.5", "-y")
TWO_PODS = "0.25"
NO_WAY = {"self_graphql": False, "self_action": False, "self_delete": False}


@pytest.fixture
def pods(tmp_path: Path, user: User) -> Iterator[StandIn]:
    """A stand-in with isolated pods, whose account is the user's."""
    skip_without_pods()
    with judged(tmp_path / "runpod") as one:
        user.environment |= one.environment
        user.environment["TRMCLOUD_RUNPOD_IMAGE"] = "an/image:with-this-machines-torch"
        yield one


def smoke(user: User, max_usd: str, *more: str) -> subprocess.Popen[str]:
    return user.start("smoke", "--provider", "runpod", "--max-usd", max_usd, *more)


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """stdout and stderr of a command that must end with ``code``."""
    out, err = process.communicate(timeout=300)
    print(out)
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err


def marks(out: str) -> dict[str, str]:
    """What was tried → its mark; of two lines of one name the later."""
    rows = [line.split() for line in out.splitlines() if line[:1] in "✔✘·" and line[1:2] == " "]
    return {("ends itself" if row[3] == "ends" else row[3]): row[0] for row in rows}


def verified(user: User) -> set[str]:
    return {layer for provider, layer in user.ledger().verified if provider == "runpod"}


def runs(user: User) -> list[RunState]:
    return sorted(user.ledger().runs.values(), key=lambda run: run.created_at)


def test_a_smoke_run_verifies_two_layers_and_leaves_nothing_rented(
    pods: StandIn, user: User
) -> None:
    out, _ = ended(smoke(user, TWO_PODS, *HOLD), 0)
    tried = marks(out)
    good = ("account", "rent", "boots", "ssh", "agent", "hardware", "file", "ends itself")
    assert {name: tried.get(name) for name in good} == dict.fromkeys(good, "✔")
    assert tried["prepaid"] == tried["controller"] == "✔"
    assert "MB/s and fetched at" in out
    assert pods.control.live() == []
    first, second = runs(user)
    assert first.generation is not None
    assert second.generation is not None
    assert pods.control.pod(first.generation.pod_name).ended_by == "self"
    assert pods.control.pod(second.generation.pod_name).ended_by == "api"
    assert float(first.cap + second.cap) <= float(TWO_PODS)
    billed = sum(pods.control.billed(run.generation.pod_name) for run in (first, second))  # type: ignore[union-attr,misc]
    assert billed <= float(TWO_PODS)
    assert verified(user) == {"agent", "prepaid"}
    assert exposure_of(traits_of("runpod"), user.ledger().verified, time.time()).enough
    (shown,) = user.json("status", first.run_id, "--json")["runs"]
    layers = {layer["name"]: layer for layer in shown["guards"]}
    assert layers["prepaid"]["state"] == "verified"
    assert "a prepaid account with $100.00 on 20" in layers["prepaid"]["message"]
    assert layers["agent"]["state"] == "silent"  # it worked once, and is no more


def test_a_pod_that_cannot_end_itself_is_ended_from_here_and_stays_unverified(
    pods: StandIn, user: User
) -> None:
    user.program = IMPATIENT
    pods.control.set(**NO_WAY)
    out, err = ended(smoke(user, TWO_PODS, *HOLD), 17)
    tried = marks(out)
    assert tried["file"] == "✔"
    assert tried["ends itself"] == "✘"
    assert tried["controller"] == "✔"
    assert "v2 delete refused (403)" in out
    assert err.splitlines()[0] == "error: the pod did not end itself"
    assert err.splitlines()[1].startswith("  try: ")
    assert pods.control.live() == []
    (run,) = runs(user)
    assert run.generation is not None
    assert pods.control.pod(run.generation.pod_name).ended_by == "api"
    assert verified(user) == {"prepaid"}
    assert not exposure_of(traits_of("runpod"), user.ledger().verified, time.time()).enough


def test_killed_in_the_middle_the_next_command_ends_and_settles_it(rented: RentedUser) -> None:
    """Though the pod cannot end itself."""
    rented.standin.control.set(**NO_WAY)
    process = smoke(rented, TWO_PODS, *HOLD)
    until(lambda: bool(runs(rented)) and runs(rented)[-1].result is not None, within_s=60)
    process.kill()
    process.communicate()
    assert len(rented.live()) == 1

    def looked() -> bool:
        rented.run("status")
        return not rented.live()

    until(looked, within_s=120, what="status ends it at its hard stop")
    run = rented.close_books()
    assert ZERO < run.settled <= run.cap
    assert float(run.settled) >= rented.billed() - 1e-6
    assert run.reserved == ZERO
    assert verified(rented) == set()


@pytest.mark.more
def test_after_a_smoke_run_a_launch_needs_no_word_and_its_own_books_close(
    rented: RentedUser,
) -> None:
    launch = (*LAUNCH, "--steps", "4", "--budget", "0.30", *rented.data)
    assert "trmcloud smoke --provider runpod" in rented.fails(*launch, code=4)
    out, _ = ended(smoke(rented, TWO_PODS, *HOLD, "--json"), 0)
    *steps, tried = lines_in(out)
    assert {step["schema"] for step in steps} == {"smoke-step/1"}
    assert all(step["passed"] is not False for step in steps), steps
    assert tried["schema"] == "smoke/1"
    rented.run("status")
    for _ in range(8):
        if not any(run.live for run in runs(rented)):
            break
        rented.clock.advance(1800.0)
        rented.run("status")
    first, second = runs(rented)
    assert not first.live
    assert not second.live
    settled = first.settled + second.settled
    assert float(settled) >= rented.billed() - 1e-6
    assert float(settled) <= float(TWO_PODS)
    process = rented.start(*launch)
    until(lambda: len(runs(rented)) == 3 and bool(rented.live()), within_s=60, what="rented")
    process.kill()
    process.communicate()


def test_status_shows_what_guards_a_live_pod_and_ctrl_c_ends_it_at_once(
    pods: StandIn, user: User
) -> None:
    process = smoke(user, TWO_PODS, "--minutes", "5", "-y")
    until(lambda: bool(runs(user)) and runs(user)[-1].result is not None, within_s=90)
    (run,) = runs(user)
    (shown,) = user.json("status", run.run_id, "--json")["runs"]
    layers = {layer["name"]: layer for layer in shown["guards"]}
    states = {name: layer["state"] for name, layer in layers.items()}
    assert states == {
        "trainer": "absent",
        "agent": "armed",
        "watchdog": "armed",
        "controller": "armed",
        "reap": "absent",
        "prepaid": "armed",
        "guard-elsewhere": "absent",
    }
    heard_at = datetime.fromisoformat(layers["agent"]["heard_at"]).timestamp()
    assert time.time() - heard_at < 30
    assert shown["max_overspend_usd"] == "0"
    said = {each["code"]: each["message"] for each in shown["notes"]}
    assert "while this controller runs" in said["max_overspend"]

    note = {"at": time.time(), "host": "a-server:1", "every_s": 300.0, "reached": ["runpod"]}
    (user.home / "guard.json").write_text(json.dumps(note))
    (shown,) = user.json("status", run.run_id, "--json")["runs"]
    states = {layer["name"]: layer["state"] for layer in shown["guards"]}
    assert states["reap"] == "armed"
    assert states["guard-elsewhere"] == "verified"
    assert float(shown["max_overspend_usd"]) == pytest.approx(0.46 * 300 / 3600, rel=0.01)

    process.send_signal(signal.SIGINT)
    ended(process, 130)
    until(lambda: not pods.control.live(), within_s=20)
    assert verified(user) == set()


def test_offers_that_all_refuse_are_tried_in_turn_and_nothing_is_held(
    paper: StandIn, user: User
) -> None:
    paper.control.set(forbidden_gpus=[gpu.id for gpu in GPUS])
    out, err = ended(smoke(user, "1", "-y"), 11)
    assert marks(out)["rent"] == "✘"
    assert err.startswith("error: nothing could be rented: ")
    (run,) = runs(user)
    assert not run.live
    assert len(run.generations) == 6
    assert float(run.reserved) == 0.0
    assert paper.control.world.all_pods() == []
    assert "smoke run" in user.refused("resume", "-y", run.run_id, code=8)
    out, _ = ended(smoke(user, "1", "-y", "--json"), 11)
    *steps, failure = lines_in(out)
    assert {step["schema"] for step in steps} == {"smoke-step/1"}
    assert [(step["code"], step["passed"]) for step in steps][-1] == ("rent", False)
    assert (failure["schema"], failure["code"]) == ("error/1", "provider")
