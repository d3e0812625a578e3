"""``kill -9`` of the command at writes of its ledger: the next command settles what is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.crash.user import SHORT, CrashUser
from tests.drawn import drawn
from trmcloud.core.errors import Outcome
from trmcloud.core.money import ZERO
from trmcloud.operations.reasons import sentence

NewUser = Callable[[str], CrashUser]
AT_ONCE = 4
MOMENTS = 4


def test_killed_at_any_write_of_a_launch_the_next_command_settles_it(new_user: NewUser) -> None:
    first = new_user("whole")
    listed = first.folder / "writes"
    process = first.start_with(("--list", str(listed)), *SHORT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    writes = listed.read_text().splitlines()
    assert writes[0] == "open_run"
    assert writes[-1] == "append Closed"
    assert len(writes) >= 11

    def play(how: str, number: int) -> None:
        what = f"{how} write {number}, {writes[number - 1]}"
        user = new_user(f"{how}-{number}")
        dying = user.start_with(("--die", f"{how}:{number}"), *SHORT)
        out, err = dying.communicate(timeout=120)
        assert dying.returncode == -signal.SIGKILL, f"{what}\n{out}\n{err}"
        if (how, number) == ("before", 1):
            assert user.ledger().runs == {}, what
            return
        run = user.settled()
        rented = [g for g in run.generations if g.not_made is None]
        if rented:
            assert run.outcome is Outcome.FINISHED, f"{what}: {run.outcome} {sentence(run.reason)}"
            assert ZERO < run.settled == run.billed, what
        else:
            # Killed before it asked, or as it asked: a bystander carries no launch on.
            assert run.outcome in (Outcome.STOPPED, Outcome.NOT_STARTED), f"{what}: {run.outcome}"
            assert run.settled == ZERO, what
            assert list(user.pods()) == [], what
        assert len(run.generations) <= 1, f"{what}: nothing is rented twice"

    moments = [(how, n) for n in range(1, len(writes) + 1) for how in ("before", "after")]
    moments = drawn(moments, MOMENTS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(play, *moment) for moment in moments]:
            done.result()
