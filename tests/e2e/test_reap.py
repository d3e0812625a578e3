"""What nobody owns is found and ended; what is not ours is never touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from tests.e2e.test_crashes import BUDGET, LAUNCH
from tests.e2e.user import User, kill, until
from trmcloud.core.contract.pod_contract import ENV_POD, PodName
from trmcloud.pod.machine import processes


def test_a_pod_of_a_lost_ledger_is_left_until_its_hard_stop_and_then_ended(user: User) -> None:
    user.environment["TRMCLOUD_STANDIN_FAULT"] = "deaf"
    user.run(*LAUNCH, "--set", "steps=100000", "-d")
    until(lambda: bool(user.pids("model.train")))
    for word in ("trmcloud.pod.agent.watchdog", "trmcloud.pod.agent.process"):
        for pid in user.pids(word):
            kill(pid)
    for name in ("ledger.db", "ledger.head"):
        (user.home / name).unlink()
    shutil.rmtree(user.home / "backups")
    assert "no pod without a run was found" in user.run("admin", "reap", "--yes")
    (pod,) = user.live_pods()
    deadline = int(pod.name.rpartition("-")[2])
    assert processes.of_pod(pod.name)
    until(lambda: "its hard stop has passed" in user.run("admin", "reap"), within_s=40)
    assert "ended" in user.run("admin", "reap", "--yes")
    assert processes.of_pod(pod.name) == []
    assert deadline > 0


def test_a_pod_this_ledger_does_not_know_is_ended_at_once(user: User) -> None:
    user.run("budget", "set", "month", "1")
    ledger = user.ledger().ledger_id
    name = str(PodName(ledger, "rdeadbe", 1, 4102444800))
    folder = user.home / "pods" / name
    folder.mkdir(parents=True)
    stray = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, ENV_POD: name},
    )
    (folder / "pod.json").write_text(
        '{"created_at": 1, "rate_usd_per_hour": "1", '
        f'"pid": {stray.pid}, "started": "{processes.started(stray.pid)}"}}'
    )
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert name in user.run("admin", "reap")
        assert stray.poll() is None
        assert f"ended {name}" in user.run("admin", "reap", "--yes")
        assert stray.wait(timeout=10) == -signal.SIGKILL or stray.returncode == -signal.SIGTERM
        assert foreign.poll() is None
    finally:
        for process in (stray, foreign):
            process.kill()
            process.wait()


def test_reaping_changes_no_run_that_has_ended(user: User) -> None:
    user.run(*LAUNCH, code=20)
    before = user.only_run()
    user.run("admin", "reap", "--yes")
    after = user.only_run()
    assert after == before
    assert after.settled <= BUDGET
