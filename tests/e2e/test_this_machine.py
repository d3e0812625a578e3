"""What renting needs of this machine, and what is said where the line to a pod is not there."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import leave_only, until
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

BOOT_S = TRAITS["runpod"].boot_deadline_s
WISH = (*LAUNCH, "--steps", "60", "--budget", "0.30", *ACCEPT)


def test_a_run_is_not_resumed_from_where_it_cannot_be_reached(renter: RentedUser) -> None:
    launch = renter.start(*WISH, *renter.data)
    renter.run_in(State.BOOTING)
    renter.clock.advance(BOOT_S)
    renter.see_out(launch, code=Outcome.LOST.exit_code)
    run = renter.close_books()
    leave_only(renter, "sh", "env", "ssh-keygen")
    assert "ssh: it is not installed" in renter.refused("resume", "-y", run.run_id, code=6)
    assert len(renter.truth()) == 1


# -- the line --------------------------------------------------------------------------------------


def begin(user: RentedUser, log: Path) -> subprocess.Popen[str]:
    """A launch whose lines are read while it goes on."""
    process = user.start(*WISH, *user.data)

    def read() -> None:
        assert process.stdout is not None
        with open(log, "w", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()

    threading.Thread(target=read, daemon=True).start()
    return process


def test_what_keeps_the_line_down_is_told_while_the_pod_boots(
    renter: RentedUser, tmp_path: Path
) -> None:
    log = tmp_path / "said"
    log.touch()
    says = "it refuses connections: its SSH server is not up, or a firewall blocks it"
    launch = begin(renter, log)
    renter.run_in(State.BOOTING)
    assert "does not answer" not in log.read_text(), "a pod may take half a minute"
    renter.clock.advance(31.0)
    until(lambda: "\n    try: " in log.read_text(), what="the line about the trouble")
    told = log.read_text()
    assert f"  the pod does not answer: {says} (trmc-" in told
    assert "; retrying for 14 min" in told
    assert "    try: allow SSH to that address (firewall, VPN, proxy)" in told
    status = renter.json("status", "--json")["runs"][0]
    assert says in next(n["message"] for n in status["notes"] if n["code"] == "link")
    assert len(renter.live()) == 1, "the controller keeps its pod"
    renter.clock.advance(BOOT_S)
    renter.see_out(launch, code=Outcome.LOST.exit_code)
    run = renter.close_books()
    until(lambda: "why: " in log.read_text(), what="the line about the end")
    said = log.read_text()
    assert said.count("does not answer") == 1, said
    assert f"{run.run_id} lost: no machine of the run ever reported: nothing was trained" in said
    assert f"  why: the pod was ended: no agent within 15 min 00 s: {says} (trmc-" in said
    assert "trmcloud logs" not in said
    assert renter.live() == []
    assert renter.billed() <= float(run.settled) + 2e-6
