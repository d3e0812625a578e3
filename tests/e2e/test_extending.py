"""A run whose stop is tight, and whose machine is slower than planned, on RunPod's stand-in."""

from __future__ import annotations

import json

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import until
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

#: Planned for that card at 5 ms a step. The trainer here takes 80: more than the tight stop allows.
SLOW = (
    *("--steps", "300000", "--budget", "50", "--set", "depth=1", "--set", "width=32"),
    *("--set", "vocab_size=256", "--set", "sequence=64", "--set", "compile=false"),
    *("--set", "log_every=10", "--set", "eval_every=1000", "--set", "save_every=100000"),
)


def test_a_run_whose_pace_needs_more_time_reserves_it(
    renter_in: RentedUser, image_env: dict[str, str]
) -> None:
    image_env["TRMCLOUD_STANDIN_FAULT"] = "slow"
    launch = renter_in.start(*LAUNCH, *SLOW, *renter_in.data, *ACCEPT)
    planned = renter_in.run_in(State.RUNNING)
    first = planned.generation
    assert first is not None
    assert planned.reserved < planned.cap, "the stop is tight"

    def is_extended() -> bool:
        machine = renter_in.only_run().generation
        return machine is not None and machine.is_extended

    until(is_extended, within_s=150.0, what="a later stop is reserved")
    run = renter_in.only_run()
    machine = run.generation
    assert machine is not None
    assert machine.hard_stop_at > first.hard_stop_at
    assert planned.reserved < run.reserved <= run.cap

    def on_pod(path: str) -> str:
        words = ("sh", "-c", f"cat /workspace/trmcloud/{path}")
        return renter_in.run("ssh", run.run_id, "--", *words)

    def has_it() -> bool:
        return bool(json.loads(on_pod("pods/*/lease.json"))["hard_stop_at"] == machine.hard_stop_at)

    until(has_it, within_s=60.0, what="the machine's lease has it")
    landing_s = first.hard_stop_at - first.soft_stop_at
    deadline = float(on_pod(f"runs/{run.run_id}/fast/deadline"))
    assert abs(deadline - (machine.hard_stop_at - landing_s)) < 30.0, "and so has its trainer"
    (pod,) = renter_in.live()
    stop_in_name = int(pod.name.rsplit("-", 1)[1])
    assert stop_in_name >= machine.hard_stop_at, "a reaper without the ledger lets it work"
    renter_in.run("stop", run.run_id, "-y")
    out, _ = renter_in.see_out(launch, code=Outcome.STOPPED.exit_code)
    assert "needs more time: $" in out
    assert renter_in.only_run().settled <= run.reserved
