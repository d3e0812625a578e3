"""One training on two machines: two network namespaces, joined by a cable of their own."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_export import TINY
from tests.e2e.user import User, python_of_ranks, until
from trmcloud.pod.agent.watchdog import watchdog_of
from trmcloud.pod.machine import processes

HEAD = "10.77.0.1"


def why_not() -> str:
    if shutil.which("ip") is None:
        return "no ip command"
    if os.geteuid() != 0:
        return "network namespaces want root"
    name = f"trmc-try-{os.getpid()}"  # every worker asks, all at once
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made.stderr.strip()


_WHY_NOT = why_not()
pytestmark = [pytest.mark.more, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """The names of two namespaces that reach one another, and nothing else."""
    token = secrets.token_hex(3)
    names = (f"trmc-{token}a", f"trmc-{token}b")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip(*f"link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}".split())
        for number, name in enumerate(names, start=1):
            ip(*f"-n {name} addr add 10.77.0.{number}/24 dev eth0".split())
            ip(*f"-n {name} link set eth0 up".split())
            ip(*f"-n {name} link set lo up".split())
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Node:
    """One of the two machines, with a folder of its own."""

    def __init__(self, script: Path, namespace: str, rank: int, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.namespace = namespace
        self._in = ["ip", "netns", "exec", namespace]
        self._environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder),
            "PYTHON": str(python_of_ranks(folder / "bin", step_s=0.1) / "python3"),
            "NODES": "2", "NODE_RANK": str(rank), "HEAD": HEAD,
        }  # fmt: skip
        self._path = script
        self.log = folder / "script.log"

    def begin(self) -> None:
        self.script = self.start()

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [*self._in, "bash", str(self._path), *words],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log,
            )  # fmt: skip

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def pod(self) -> Path:
        return max((self.folder / "trmcloud-run" / "pods").iterdir())

    def lose(self) -> None:
        """All of it at once, as when a machine is taken away."""
        watchdog = watchdog_of(self.pod())
        assert watchdog is not None
        os.kill(watchdog[0], 9)
        while processes.kill_pod(self.pod().name, excluding=frozenset()):
            time.sleep(0.02)

    def end(self) -> None:
        """Whatever is left of it."""
        with contextlib.suppress(OSError, ValueError, AssertionError):
            self.lose()
        self.script.wait(30)


def until_both(is_so: Callable[[], object], nodes: list[Node]) -> None:
    give_up_at = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < give_up_at, "\n---\n".join(node.said() for node in nodes)
        time.sleep(0.1)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Both of them training together; whatever is left of them is ended."""
    user = User(tmp_path / "user", trainer=None)
    user.folder.mkdir()
    text = user.folder / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog.\n" * 1000)
    longer = (*TINY, "--budget", "1", "--set", "accumulation=2", "--data", str(text))
    user.run("export", "local", *longer, "-o", "t.sh")
    with two_machines() as names:
        made = [
            Node(user.folder / "t.sh", name, rank, tmp_path / f"node{rank}")
            for rank, name in enumerate(names)
        ]
        for node in made:
            node.begin()
        try:
            until_both(lambda: "on 2 × cpu" in made[0].said() and "step 1/" in made[0].said(), made)
            yield made
        finally:
            for node in made:
                node.end()


def test_the_loss_of_one_ends_the_other_at_once(nodes: list[Node]) -> None:
    head, other = nodes
    assert "on 2 nodes together" in head.said()
    lost_at = time.monotonic()
    other.lose()
    assert head.script.wait(100) == 24, head.said()
    # Long before its own hard stop, which is eight minutes away.
    print(f"ended {time.monotonic() - lost_at:.1f} s after the loss\n{head.said()}")
    assert (head.pod() / "ended.json").exists()
    # What was killed may still be in the list of processes for a moment.
    until(lambda: not processes.of_pod(head.pod().name), within_s=10.0, what="nothing of it runs")
    assert "attempt 2" not in head.said()


def test_a_cut_cable_ends_both(nodes: list[Node]) -> None:
    """Nothing tells of it: each trainer stands still, and its own agent ends it."""
    subprocess.run(["ip", "-n", nodes[1].namespace, "link", "set", "eth0", "down"], check=True)
    codes = [node.script.wait(240) for node in nodes]
    assert codes == [24, 24], "\n---\n".join(node.said() for node in nodes)
    assert all("killing the trainer: no step for" in node.said() for node in nodes)


def test_told_to_land_on_one_both_do_and_both_go_on_from_what_the_first_saved(
    nodes: list[Node],
) -> None:
    head, other = nodes
    assert other.start("land").wait(60) == 0
    codes = [node.script.wait(120) for node in nodes]
    assert codes == [20, 21], "\n---\n".join(node.said() for node in nodes)
    manifests = "trmcloud-run/runs/*/fast/checkpoints/*/manifest.json"
    assert list(head.folder.glob(manifests))
    assert not list(other.folder.glob(manifests))
    for node in nodes:
        node.log.unlink()
        node.script = node.start("--again")
    until_both(lambda: re.search(r"step \d+/", head.said()), nodes)
    assert "resumed from step" in head.said()
    assert list(other.folder.glob(manifests))  # sent there
