"""What a user sees of a run on a rented pod: on the stand-in, in isolated pods, over real SSH."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.rented import LAUNCH
from tests.e2e.test_terminal import Terminal
from tests.e2e.user import User, until
from tests.standins.runpod.standin import StandIn
from trmcloud.core.control.run_state import RunState, State
from trmcloud.core.errors import Outcome

LONG = ("--phase", "fast", "--steps", "20000")
ALONE = ("-d", "--accept-loss")


class Watched:
    """A command whose output is read as it comes; what it said on either stream."""

    def __init__(self, user: User, *arguments: str) -> None:
        self.said = ""
        self.process = user.start(*arguments)
        streams = (self.process.stdout, self.process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(each,)) for each in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterator[str]) -> None:
        for line in stream:
            self.said += line

    def says(self, text: str, *, within_s: float = 150.0) -> None:
        def said() -> bool:
            assert text in self.said or self.process.poll() is None, f"no {text!r}:\n{self.said}"
            return text in self.said

        until(said, within_s=within_s, what=f"{text!r} in:\n{self.said}")

    def ends(self, *, within_s: float = 150.0) -> int:
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.ends()


def pod_of(run: RunState) -> str:
    assert run.generation is not None
    return run.generation.pod_name


def files_on_pod(standin: StandIn, run: RunState) -> Path:
    return standin.control.workspace(pod_of(run)) / "trmcloud" / "runs" / run.run_id / "fast"


def steps_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("checkpoints/*/manifest.json"))


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_terminal_shows_every_stage_and_leaves_before_the_bill(
    lodger: User, runpod: StandIn
) -> None:
    window = Terminal(lodger, *LAUNCH, "--phase", "fast", "--steps", "600", columns=110)
    try:
        assert window.ends(within_s=120) == 0
    finally:
        window.abandon()
    plain = re.sub(r"\x1b\[\??[0-9;]*[A-Za-z]", "", window.shown)
    stages = re.findall(r"✔ (\S.*?) {2,}(?:\d+ min )?\d+ s · \$\d+\.\d+", plain)
    always = [
        "Renting", "Sending code and data", "Training fast", "Ending the pod",
        "Making sure it is gone",
    ]  # fmt: skip
    assert [stage for stage in stages if stage in always] == always
    # These may be over before anybody looks.
    brief = {
        "Booting",
        "Checking the machine",
        "Installing",
        "Starting the trainer",
        "Pulling checkpoints",
    }
    assert set(stages) <= {*always, *brief}
    assert "· 1xA100 at runpod" in plain
    assert "━" in plain
    assert "asks to stop at" in " ".join(plain.split())
    assert "not listed by runpod for" in plain
    assert "finished: every step was trained" in plain
    assert "its bill is not final yet ($0.0" in plain
    assert "the next command settles it" in " ".join(plain.split())
    run = lodger.only_run()
    assert run.state is State.SETTLING
    assert run.reserved
    assert ("fast", 600) in run.pulled
    assert runpod.control.live() == []

    # What came here serves every other command, the pod being gone.
    fetched = lodger.json("fetch-best", run.run_id, "--json")
    assert fetched["checkpoint"] == "fast/step-00000600"
    assert (Path(fetched["folder"]) / "weights.safetensors").exists()
    assert "gate after fast: passed" in lodger.run("status", run.run_id)
    (report,) = lodger.json("report", run.run_id, "--json")["runs"]
    assert report["best"]["checkpoint"] == "fast/step-00000600"
    # resume takes it up where it stands: only the bill is waited for, and not for long.
    assert "its bill is not final yet" in lodger.run("resume", "-y", run.run_id)


def test_a_run_left_alone_is_read_fetched_and_pruned_from_its_pod(
    lodger: User, runpod: StandIn
) -> None:
    out = lodger.run(*LAUNCH, *LONG, *ALONE)
    assert "continues without this command" in out
    run = lodger.only_run()
    there = files_on_pod(runpod, run)
    here = lodger.home / "runs" / run.run_id / "fast"
    until(lambda: len(steps_in(there)) >= 2, what="checkpoints on the pod")
    assert steps_in(here) == []

    # Its agent looks for new checkpoints every few seconds.
    until(lambda: "verified" in lodger.run("fetch-best", "--into", "first", code=(0, 3)))
    fetched = lodger.json("fetch-best", "--into", "best", "--json")
    assert (lodger.folder / "best" / "optimizer.safetensors").exists()
    assert fetched["checkpoint"].startswith("fast/step-")
    assert steps_in(here) == [], "it came to where it was wanted, and there alone"

    (there / "checkpoints" / "step-00000001").mkdir()
    worst = json.loads((there / "checkpoints" / steps_in(there)[0] / "manifest.json").read_text())
    (there / "checkpoints" / "step-00000001" / "manifest.json").write_text(
        json.dumps(worst | {"step": 1, "val_bpb": 99.0})
    )
    until(
        lambda: "delete fast/step-00000001" in lodger.run("prune", "-y", lodger.only_run().run_id),
        what="it is listed",
    )
    assert "step-00000001" not in steps_in(there)
    assert "stay on the pod's disk" in lodger.run("prune", "-y", lodger.only_run().run_id)

    log = there / "train.log"
    logs = Watched(lodger, "logs", "-f")
    try:
        with open(log, "a") as file:
            file.write("a first \x1b[31mline\n")
        logs.says("a first line\n")
        runpod.control.cut(pod_of(run))
        with open(log, "a") as file:
            file.write("a second line\n")
        logs.says("a second line\n")
        runpod.control.end(pod_of(run))
        assert logs.ends() == Outcome.LOST.exit_code
    finally:
        logs.process.kill()
    assert "\x1b" not in logs.said
    assert "a second line" in lodger.run("logs")
    # Following it, the command drove it: a pull may have been cut short with the pod.
    lodger.run("fetch-best", "--step", "7", code=(3, 10))
