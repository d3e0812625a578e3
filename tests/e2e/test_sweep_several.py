"""``trmcloud sweep`` on two machines of a cloud: SkyPilot's stand-in makes them and joins their
networks; executor, worker and trainer are the real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from tests.e2e.test_several_machines import Sailor, sailor  # noqa: F401  (a fixture)
from tests.e2e.test_sweep import SCRIPT, SPACE, told
from tests.e2e.user import until
from trmcloud.core.contract.manifest import from_json
from trmcloud.core.errors import Outcome
from trmcloud.core.money import Usd
from trmcloud.core.sweep import events as ev
from trmcloud.core.sweep.state import fold

SWEEP = (
    *("sweep", "2x1xL40S", "--provider", "digitalocean", "--recipe", "trm-tiny"),
    *("--phase", "fast", "--set", "depth=1", "--set", "width=32", "--set", "vocab_size=300"),
    *("--set", "sequence=64", "--set", "eval_tokens=1024", "--set", "compile=false"),
    *("--hours", "0.045", "--budget", "3", "-y"),
)
ACCEPT = ("--accept-exposure", "6")
PHASE = "/workspace/trmcloud/runs/*/fast"


def inside(user: Sailor, machine: str, script: str) -> str:
    """What it prints there; empty while the machine does not run."""
    try:
        return user.standin.control.inside(machine, f"{script} 2>/dev/null || true")
    except ValueError:
        return ""


def journal(user: Sailor, machine: str) -> tuple[ev.SweepEvent, ...]:
    return ev.read_journal(inside(user, machine, f"cat {PHASE}/sweep.jsonl"))


def trials_on(user: Sailor, machine: str) -> int:
    return len(inside(user, machine, f"ls -d {PHASE}/trials/*").split())


def wait_for(
    launch: subprocess.Popen[str], is_so: Callable[[], object], what: str, within_s: float = 300.0
) -> None:
    until(lambda: bool(is_so()) or launch.poll() is not None, within_s=within_s, what=what)
    assert launch.poll() is None, launch.communicate()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sweep_on_two_machines_outlives_the_loss_of_one(sailor: Sailor) -> None:  # noqa: F811
    launch = sailor.start(*SWEEP, *sailor.data, *ACCEPT, SPACE)

    wait = partial(wait_for, launch)
    wait(lambda: len(sailor.live()) == 2, "two machines")
    first, other = (pod.id for pod in sorted(sailor.live(), key=lambda pod: pod.name))
    wait(lambda: trials_on(sailor, other), "a trial runs on the other machine")
    # Its worker is killed in mid-trial: its agent starts another one, which is given trials again.
    beat = json.loads(inside(sailor, other, f"cat {PHASE}/heartbeat.json"))
    inside(sailor, other, f"kill -9 {beat['pid']}")
    wait(
        lambda: any(isinstance(e, ev.TrialLost) for e in journal(sailor, first)),
        "what ran there is lost",
    )
    wait(
        lambda: inside(sailor, first, f"grep -c 'machine 1 is here' {PHASE}/train.log") == "2\n",
        "it is back",
    )
    begun = len(journal(sailor, first))
    wait(lambda: len(journal(sailor, first)) > begun + 3, "the sweep goes on")
    # Now the whole machine is lost.
    sailor.standin.control.lose_host(other)
    out, err = sailor.see_out(launch, within_s=600)
    run = sailor.only_run()
    assert run.outcome is Outcome.FINISHED, out + err
    assert len([g for g in run.generations if g.not_made is None]) == 1, "one generation"
    assert sailor.live() == []
    assert run.settled <= run.cap
    rows = told(sailor)
    assert rows["best_trial"]
    text = (sailor.home / "runs" / run.run_id / "fast" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    events = [ev.read_event(json.dumps(e["said"])) for e in lines if e["kind"] == "sweep"]
    state = fold(events)
    assert state.ended
    assert not state.running
    assert state.spent + state.idle <= Usd("3")
    [lost, *_] = [event for event in events if isinstance(event, ev.TrialLost)]
    assert lost.usd > Usd(0), "its interval is charged"
    assert state.idle > Usd(0), "the lost machine's slot is paid on"
    fetched = sailor.run("fetch-best", run.run_id, "--into", str(sailor.folder / "best"))
    assert "fetched and verified" in fetched
    made = from_json((sailor.folder / "best" / "manifest.json").read_text(), "best")
    assert made.extra["sweep"]["trial"] == rows["best_trial"]


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_commands_trials_continue_on_either_machine_after_the_executor_was_killed(
    sailor: Sailor,  # noqa: F811
) -> None:
    sailor.cwd = sailor.folder / "project"
    sailor.cwd.mkdir()
    (sailor.cwd / "train.py").write_text(SCRIPT)
    launch = sailor.start(
        *("sweep", "2x1xL40S", "--provider", "digitalocean", "--hours", "0.05", "--budget", "3"),
        *("-y", *ACCEPT, "--eta", "2", "--grace", "2", "--checkpoint-gb", "0.001"),
        *("--checkpoints", "out", "--metric", "val_loss"),
        *("--resume", "python3 train.py {lr} {checkpoint}"),
        *(SPACE, "--", "python3", "train.py", "{lr}"),
    )
    wait = partial(wait_for, launch)
    wait(lambda: len(sailor.live()) == 2, "two machines")
    first, other = (pod.id for pod in sorted(sailor.live(), key=lambda pod: pod.name))
    phase = "/workspace/trmcloud/runs/*/train"

    def events() -> tuple[ev.SweepEvent, ...]:
        return ev.read_journal(inside(sailor, first, f"cat {phase}/sweep.jsonl"))

    wait(lambda: len(fold(events()).running) == 2, "both train")
    beat = json.loads(inside(sailor, first, f"cat {phase}/heartbeat.json"))
    inside(sailor, first, f"kill -9 {beat['pid']}")
    wait(
        lambda: sum(isinstance(event, ev.TrialLost) for event in events()) == 2,
        "the next executor accounts for both",
    )
    wait(lambda: any(isinstance(e, ev.TrialContinued) for e in events()), "one continues")
    logs = (f"cat {phase}/trials/*/train.log", first), (f"cat {phase}/trials/*/train.log", other)
    wait(
        lambda: any("resumed from" in inside(sailor, machine, line) for line, machine in logs),
        "from its own checkpoint",
    )
    out, err = sailor.see_out(launch, within_s=600)
    run = sailor.only_run()
    assert run.outcome is Outcome.FINISHED, out + err
    assert run.settled <= run.cap
    rows = told(sailor)
    sailor.run("fetch-best", "--into", str(sailor.folder / "best"))
    made = from_json((sailor.folder / "best" / "manifest.json").read_text(), "best")
    assert made.extra["sweep"]["trial"] == rows["best_trial"]
    print(out, rows)
