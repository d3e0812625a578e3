"""Canary keys in the user's environment appear nowhere else: not on a pod, in argv, in any file."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.user import SMALL, User, until
from trmcloud.pod.machine import processes

CANARY = "canary-7d1f0c"
KEYS = (
    *("RUNPOD_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"),
    *("WANDB_API_KEY", "GITHUB_TOKEN", "LAMBDA_KEY", "MY_PASSWORD", "SOMETHING_PRIVATE"),
)


def test_canary_keys_reach_no_pod_no_argv_no_file(user: User) -> None:
    for number, key in enumerate(KEYS):
        user.environment[key] = f"{CANARY}-{number}"
    hold = user.hold()  # it trains until it was looked at
    process = user.start(
        "launch", "local", *SMALL, "--phase", "fast", "--steps", "150", "--budget", "1", "-y"
    )
    until(lambda: bool(user.pids("model.train")))
    (pod,) = user.live_pods()
    for pid in [*processes.of_pod(pod.name), process.pid]:
        assert CANARY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for pid in processes.of_pod(pod.name):
        assert CANARY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    hold.unlink()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert CANARY not in out + err
    user.run("fetch-best", "--into", str(user.folder / "best"))
    for path in user.folder.rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


def test_a_crash_report_holds_no_values(user: User) -> None:
    """An unexpected error keeps code and lines, never values."""
    user.run("budget", "set", "month", "1")
    for key in KEYS:
        user.environment[key] = CANARY
    user.environment["TMPDIR"] = str(user.folder)
    user.environment["TRMCLOUD_PROJECT"] = "p"
    # A home that turns into a file under the command's feet is nothing anybody planned for.
    runs = user.home / "runs"
    runs.write_text("not a folder")
    process = user.start(
        "launch", "local", *SMALL, "--phase", "fast", "--steps", "20", "--budget", "0.5", "-y"
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert err.splitlines()[0].startswith(("error: ", "data: "))
    assert CANARY not in out + err
    for path in user.folder.glob("trmcloud-crash-*"):
        assert CANARY not in path.read_text()
