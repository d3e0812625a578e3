"""A user who rents: the stand-in of RunPod, real pods, and a clock that both of them look at.

The clock is real time plus what the test adds, so that nobody has to sit through the minutes that a
provider takes over its bills. Pods keep their own, real clock: time is moved on when they are gone.
"""

from __future__ import annotations

import json
import mmap
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.user import User, until
from tests.standins.runpod.machines import no_namespaces
from tests.standins.runpod.pods import Pod
from tests.standins.runpod.standin import StandIn
from tests.standins.sshd import find_sshd
from tests.standins.web import GivenClock
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.billing import awaiting_bill
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.money import Usd

_ENV_CLOCK = "TEST_CLOCK"
_SITECUSTOMIZE = f"""
import mmap, os, struct, time
path = os.environ.get("{_ENV_CLOCK}")
if path:
    with open(path, "rb") as file:
        page = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    added = lambda: struct.unpack_from("d", page)[0]
    real, real_clock = time.time, time.clock_gettime
    time.time = lambda: real() + added()
    boot = time.CLOCK_BOOTTIME
    time.clock_gettime = lambda clock: real_clock(clock) + (added() if clock == boot else 0)
"""

BILLED_AFTER_S = 400.0
"""More than RunPod's tick and the time for which a pod must be missed."""

LAUNCH = ("launch", "1xRTX4090", "--recipe", "trm-tiny", "--phase", "fast", "-y")
ACCEPT = ("--accept-exposure", "2")


def why_not() -> str:
    """Why pods cannot be rented here; empty where they can."""
    if find_sshd() is None:
        return "there is no sshd on this machine"
    return no_namespaces()


class TestClock(GivenClock):
    """Real time, and what was added to it, by a file that other processes read."""

    __test__ = False

    def __init__(self, path: Path) -> None:
        path.write_bytes(struct.pack("d", 0.0))
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)

    def __call__(self) -> float:
        return time.time() + self.added

    @property
    def added(self) -> float:
        return float(struct.unpack_from("d", self._page)[0])

    def advance(self, seconds: float) -> None:
        struct.pack_into("d", self._page, 0, self.added + seconds)


@dataclass
class RentedUser(User):
    """``standin`` is the only RunPod this user knows."""

    standin: StandIn = None  # type: ignore[assignment]
    clock: TestClock = None  # type: ignore[assignment]
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    looks: Sequence[str] = ("status",)
    """The command by which this user looks after what nobody drives."""

    def __post_init__(self) -> None:
        self.text = self.folder / "text.txt"
        self.text.write_text("def f(x):\n    return x\n" * 3000)
        site = self.folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        self.environment = {
            **self.standin.environment,
            _ENV_CLOCK: str(self.folder / "clock"),
            **self.environment,
        }

    def env(self) -> dict[str, str]:
        made = super().env()
        return made | {"PYTHONPATH": f"{self.folder / 'site'}:{made['PYTHONPATH']}"}

    @property
    def data(self) -> tuple[str, str]:
        return ("--data", str(self.text))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = super().start(*arguments)
        self.started.append(process)
        return process

    def end_everything(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    # -- what is true ---------------------------------------------------------------------------

    def live(self) -> list[Pod]:
        """Pods that cost rent in truth."""
        return self.standin.control.live()

    def truth(self) -> list[dict[str, Any]]:
        """All pods that there ever were, with what each has cost."""
        pods: list[dict[str, Any]] = self.standin.control.truth()["pods"]
        return pods

    def billed(self) -> float:
        """USD that all pods have cost in truth."""
        return sum(pod["billed"] for pod in self.truth())

    def asked(self, method: str, path: str = "/v2/pods") -> int:
        """How many requests of the account's key began so."""
        return sum(
            1
            for logged in self.standin.requests
            if logged.who == "account" and logged.method == method and logged.path.startswith(path)
        )

    def holding(self, pod: Pod, text: str) -> str:
        """Files and environments of a pod's processes that hold ``text``; its own, not those of
        the interpreter that is mounted into it."""
        files = "find /workspace /opt /root /tmp -xdev -type f"
        found = self.standin.control.inside(
            pod.id,
            f"{files} -exec grep -l {text} {{}} +; grep -l {text} /proc/[0-9]*/environ; "
            f"{files} | wc -l",
        )
        *named, looked_at = found.splitlines()
        assert int(looked_at) > 10, found
        return "\n".join(named)

    def creates(self) -> int:
        """How many pods the account's key has asked for: an end is a POST, too."""
        return sum(
            logged.who == "account" and (logged.method, logged.path) == ("POST", "/v2/pods")
            for logged in self.standin.requests
        )

    # -- what happens ---------------------------------------------------------------------------

    def run_in(self, *states: State, within_s: float = 150.0) -> RunState:
        """The only run, once it is in one of these states."""
        until(lambda: self._state() in states, within_s=within_s, what=f"{states}")
        return self.only_run()

    def _state(self) -> State | None:
        runs = list(self.ledger().runs.values()) if self.ledger_path.exists() else []
        return runs[0].state if runs else None

    def see_out(
        self, process: subprocess.Popen[str], code: int | Sequence[int] = 0, within_s: float = 150.0
    ) -> tuple[str, str]:
        """stdout and stderr of a command that drives a run to its end: its pod's, then its bill's,
        for which time is moved on."""
        deadline = time.monotonic() + within_s
        moved: set[tuple[int, State]] = set()
        while process.poll() is None:
            assert time.monotonic() < deadline, self._stuck(process)
            stands = self._waits_for_time()
            if stands is not None and stands not in moved:
                self.clock.advance(BILLED_AFTER_S)
                moved.add(stands)
            time.sleep(0.05)
        out, err = process.communicate()
        wanted = (code,) if isinstance(code, int) else code
        assert process.returncode in wanted, f"{process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return out, err

    def _waits_for_time(self) -> tuple[int, State] | None:
        """Where the only run stands, if its pod has ended and time alone can prove or bill it."""
        runs = list(self.ledger().runs.values()) if self.ledger_path.exists() else []
        generation = runs[0].generation if runs else None
        if generation is None or generation.absence is None or self.live():
            return None
        return generation.number, runs[0].state

    def _stuck(self, process: subprocess.Popen[str]) -> str:
        process.kill()
        out, err = process.communicate()
        return f"{self.only_run().state}\n{out}\n{err}\n{self.truth()}"

    def drive(self, *arguments: str, code: int | Sequence[int] = 0, within_s: float = 150.0) -> str:
        """stdout of a command that drives a run to its end."""
        return self.see_out(self.start(*arguments), code, within_s)[0]

    def close_books(self) -> RunState:
        """The next commands, until the run that nobody drives has been settled and billed."""
        until(lambda: not self.live(), what="every pod has ended")
        self.run(*self.looks)
        for _ in range(8):
            if not self.only_run().live and not awaiting_bill(self.only_run()):
                break
            self.clock.advance(1800.0)
            self.run(*self.looks)
        run = self.only_run()
        assert not run.live, run.state
        assert not awaiting_bill(run)
        return run

    def plan_to_bind(
        self,
        *arguments: str,
        hard_stop_s: float,
        landing_s: float,
        launch: Sequence[str] = LAUNCH,
    ) -> str:
        """The id of a saved plan whose stops bind soon; it reserves just what that costs."""
        made = self.json(*launch, *self.data, "--dry-run", "--json", *arguments)
        path = self.home / "plans" / f"{made['id']}.json"
        plan = json.loads(path.read_text())
        chosen = next(c for c in plan["candidates"] if c["id"] == plan["recommended_id"])
        rate, storage = Usd(chosen["most_rate_usd"]), Usd(chosen["storage_usd"])
        paid_s = hard_stop_s + traits_of(chosen["provider"]).kill_latency_s
        worst = Usd.from_micros(round(rate.micros * paid_s / 3600.0)) + storage
        chosen["soft_stop_s"] = hard_stop_s - landing_s
        chosen["hard_stop_s"], chosen["landing_s"] = hard_stop_s, landing_s
        chosen["worst_case_usd"] = worst.plain()
        plan["launchable"] = [chosen["id"]]
        plan["cap_usd"] = plan["reservation_usd"] = worst.plain()
        path.write_text(json.dumps(plan))
        return str(made["id"])


def in_hand(run: RunState, verb: str) -> bool:
    """Whether such an action was begun and has not ended."""
    return any(action.verb == verb and action.ended_at is None for action in run.actions.values())
