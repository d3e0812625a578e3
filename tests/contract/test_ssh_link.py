"""The link to a rented pod: what it brings is what local readers find, however hostile the pod."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.ssh_pod import OTHER_POD, POD, RUN, SshPod, needs_sshd, ssh_pod, written
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.ssh.keys import KeyStore
from trmcloud.adapters.ssh.link import SshPodLink
from trmcloud.adapters.ssh.sync import remote_manifests
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.contract.manifest import CheckpointFile, to_json
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.errors import CheckpointError, ConnectionDropped, HostKeyChanged, LinkError

pytestmark = needs_sshd
WEIGHTS = CheckpointFile("weights.safetensors", "weights", 1000, "ab" * 32)
REPORT = contract.AgentReport(
    run_id=RUN,
    pod_name=POD,
    epoch=1,
    pid=7,
    started_at=1_790_000_000.0,
    at=1_790_000_100.0,
    phases=(contract.PhaseReport("fast", contract.PhaseState.RUNNING, step=12),),
    soft_stop_at=1_790_003_000.0,
    hard_stop_at=1_790_003_600.0,
)
BEAT = Heartbeat(
    run_id=RUN,
    phase="fast",
    attempt=1,
    pid=9,
    pid_started="1",
    at=1_790_000_100.0,
    state="training",
    step=12,
    steps=100,
)


class Time:
    def __init__(self) -> None:
        self.now = 1_790_000_200.0


class Rented:
    """A pod with an agent's files, and the link to it."""

    def __init__(self, pod: SshPod) -> None:
        self.pod, self.time = pod, Time()
        self.address: tuple[str, int] | None = pod.server.address
        self.asked = 0
        self.link = SshPodLink(
            pod.home,
            self._address,
            root=str(pod.root),
            now=lambda: self.time.now,
            user=pod.server.user,
        )
        self.files = LocalRunFiles(pod.home)
        self.there = pod.root / "runs" / RUN / "fast"
        self.here = pod.home / "runs" / RUN / "fast"
        self.there.mkdir(parents=True)
        (pod.root / "pods" / POD).mkdir(parents=True)
        self.say(REPORT)

    def _address(self, name: str) -> tuple[str, int] | None:
        self.asked += 1
        return self.address

    def say(self, report: contract.AgentReport) -> None:
        (self.pod.root / "pods" / POD / "agent.json").write_text(contract.dump(report))

    def report(self) -> contract.AgentReport | None:
        self.time.now += 60
        return self.link.report(POD)


@pytest.fixture
def rented(tmp_path: Path) -> Iterator[Rented]:
    with ssh_pod(tmp_path) as pod:
        made = Rented(pod)
        yield made
        made.link.close()


# -- reports and the mirror --------------------------------------------------------------------


def test_a_report_brings_what_local_readers_read(rented: Rented) -> None:
    (rented.there / "heartbeat.json").write_text(contract.dump(BEAT))
    (rented.there / "metrics.jsonl").write_text('{"kind": "train", "step": 1}\n')
    (rented.there / "train.log").write_text("step 1\n")
    manifest = rented.pod.save(WEIGHTS)
    assert rented.report() == REPORT
    assert rented.files.heartbeat(RUN, "fast") == BEAT
    assert [line["step"] for line in rented.files.metrics(RUN, "fast")] == [1]
    assert Path(rented.files.logs(RUN, "fast")).read_text() == "step 1\n"
    assert remote_manifests(rented.pod.home, RUN) == [manifest]
    assert rented.files.manifests(RUN) == [], "what was not pulled is not here"
    assert rented.files.phases(RUN) == ["fast"]


def test_only_what_is_new_is_brought_and_nothing_is_lost(rented: Rented) -> None:
    log, metrics = rented.there / "train.log", rented.there / "metrics.jsonl"
    text = ""
    for number in range(6):
        text += f"line {number} " + "x" * 150 * number + "\n"
        log.write_text(text)
        metrics.write_text(text)
        rented.report()
        assert (rented.here / "train.log").read_text() == text
        assert (rented.here / "metrics.jsonl").read_text() == text


def test_a_long_log_comes_in_pieces(rented: Rented) -> None:
    content = os.urandom((5 << 20) // 2).hex().encode()[: 5 << 19]
    (rented.there / "train.log").write_bytes(content)
    for _ in range(4):
        rented.report()
    assert (rented.here / "train.log").read_bytes() == content


def test_a_file_that_was_rewritten_there_is_rewritten_here(rented: Rented) -> None:
    """A trainer that resumes drops the lines beyond its checkpoint."""
    metrics = rented.there / "metrics.jsonl"
    for after in ("first\n" * 500, "short\n", "x" * 5000, "other" * 1000 + "\n", ""):
        metrics.write_text(after)
        rented.report()
        rented.report()
        assert (rented.here / "metrics.jsonl").read_text() == after


def test_manifests_follow_what_the_pod_has(rented: Rented) -> None:
    first, second = rented.pod.save(WEIGHTS, step=10), rented.pod.save(WEIGHTS, step=20)
    rented.report()
    assert remote_manifests(rented.pod.home, RUN) == [first, second]
    (rented.pod.folder_of(first) / "manifest.json").unlink()
    changed = replace(second, val_bpb=1.25)
    path = rented.pod.folder_of(second) / "manifest.json"
    path.write_text(to_json(changed))
    rented.report()
    assert remote_manifests(rented.pod.home, RUN) == [changed]


def test_more_manifests_than_one_answer_holds_come_in_the_end(rented: Rented) -> None:
    steps = list(range(1, 41))
    for step in steps:
        rented.pod.save(WEIGHTS, step=step)
    for _ in range(3):
        rented.report()
    assert [m.step for m in remote_manifests(rented.pod.home, RUN)] == steps


def test_it_asks_seldom_and_still_more_seldom_where_nobody_answers(rented: Rented) -> None:
    now = rented.time
    assert rented.link.report(POD) == REPORT
    count = rented.asked
    later = replace(REPORT, at=REPORT.at + 50)
    rented.say(later)
    now.now += 1.9
    assert rented.link.report(POD) == REPORT
    assert rented.asked == count
    now.now += 0.2
    assert rented.link.report(POD) == later
    rented.pod.server.stop()
    now.now += 60
    assert rented.link.report(POD) is None
    assert "refuses connections" in str(rented.link.trouble(POD))
    count = rented.asked
    now.now += 3.9
    assert rented.link.report(POD) is None
    assert rented.asked == count
    rented.pod.server.start()
    now.now += 30
    assert rented.link.report(POD) == later
    assert rented.link.trouble(POD) is None


def test_a_pod_that_hangs_holds_nobody_for_long(rented: Rented) -> None:
    agent = rented.pod.root / "pods" / POD / "agent.json"
    agent.unlink()
    os.mkfifo(agent)
    assert rented.report() is None
    (rented.there / "checkpoints").mkdir()
    fake = rented.pod.root / "fake"
    fake.mkdir()
    (fake / "stat").write_text("#!/bin/sh\nsleep 60\n")
    (fake / "stat").chmod(0o755)
    rented.pod.save(WEIGHTS)
    rented.pod.server.stop()
    with open(rented.pod.server.folder / "config", "a") as config:
        config.write(f"SetEnv PATH={fake}:{os.environ['PATH']}\n")
    rented.pod.server.start()
    begun = time.monotonic()
    assert rented.report() is None
    assert time.monotonic() - begun < 12
    assert "in time" in str(rented.link.trouble(POD))


def test_a_pod_without_an_address_is_out_of_reach(rented: Rented) -> None:
    rented.address = None
    assert rented.report() is None
    with pytest.raises(ConnectionDropped, match="no address yet"):
        rented.link.send_orders(POD, contract.Orders(epoch=1))


# -- a hostile pod -----------------------------------------------------------------------------


def test_a_report_that_is_not_one_is_none_and_replaces_none(rented: Rented) -> None:
    assert rented.report() == REPORT
    for text in ("", "null", "{" * 100_000, "x" * (2 << 20)):
        (rented.pod.root / "pods" / POD / "agent.json").write_text(text)
        assert rented.report() is None
        kept = (rented.pod.home / "pods" / POD / "agent.json").read_text()
        assert contract.load_report(kept) == REPORT


def test_hostile_files_reach_nothing_but_their_own_mirror(rented: Rented) -> None:
    secret = rented.pod.root.parent / "secret"
    secret.write_text("of the pod's host")
    (rented.there / "train.log").symlink_to(secret)
    (rented.there / "heartbeat.json").write_text(
        contract.dump(replace(BEAT, run_id="../../other", phase="fast"))
    )
    steps = rented.there / "checkpoints"
    for name in ("step-1", "step-00000001", "step-../../x", "step-00000002 x", "step-00000003"):
        folder = steps / name.replace("/", "_")
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"version": 1, "files": [{"name": "../x"}]}')
    rented.pod.save(replace(WEIGHTS, name="../evil.json"), step=4)
    moved = rented.pod.save(WEIGHTS, step=5)
    rented.pod.folder_of(moved).rename(rented.pod.folder_of(moved).with_name("step-00000006"))
    before = {path for path in rented.pod.home.rglob("*") if path.is_file()}
    assert rented.report() == REPORT
    made = {path for path in rented.pod.home.rglob("*") if path.is_file()} - before
    assert {path.name for path in made if "keys" not in path.parts and "ssh" not in path.parts} == {
        "agent.json"
    }
    assert remote_manifests(rented.pod.home, RUN) == []


def test_a_pod_of_no_run_of_ours_is_not_asked(rented: Rented) -> None:
    stranger = "trmc-0123abcd-rffffff-g1-1790000000"
    assert rented.link.report(stranger) is None
    assert "no run of this home" in str(rented.link.trouble(stranger))
    with pytest.raises(LinkError, match="not a pod of trmcloud"):
        rented.link.send_orders("../x", contract.Orders(epoch=1))


# -- orders, pulls, logs -----------------------------------------------------------------------


def test_orders_arrive_whole(rented: Rented) -> None:
    orders = contract.Orders(epoch=3, land=True, reason='the user\'s "wish" $(id)\n')
    rented.link.send_orders(POD, orders)
    folder = rented.pod.root / "pods" / POD
    assert contract.load_orders((folder / "orders.json").read_text()) == orders
    assert sorted(os.listdir(folder)) == ["agent.json", "orders.json"]


class Machines:
    """The first machine of a pod and two others; what is written to each is kept."""

    def __init__(self, rented: Rented, patch: pytest.MonkeyPatch) -> None:
        self.written: dict[str, dict[str, str]] = {"": {}, "way-1": {}, "way-2": {}}
        self.unreachable = ""
        pod = rented.pod
        ways = ("way-1", "way-2")
        self.link = SshPodLink(
            pod.home,
            lambda name: ("127.0.0.1", 22),
            now=time.time,
            ways_to_others=lambda name: ways,
        )
        machines = {id(self.link.connection(POD, way)): way for way in self.written}

        def write(connection: object, path: str, text: str, *, umask: str = "022") -> None:
            way = machines[id(connection)]
            if way and way == self.unreachable:
                raise ConnectionDropped("it does not answer", where=way)
            self.written[way][f"{path.rpartition('/')[2]} {umask}"] = text

        patch.setattr("trmcloud.adapters.ssh.link.write_text", write)

    def names(self) -> list[list[str]]:
        return [sorted(files) for files in self.written.values()]


@pytest.fixture
def machines(rented: Rented, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(rented, monkeypatch)


def test_every_machine_of_a_pod_is_told_to_land(machines: Machines) -> None:
    orders = contract.Orders(epoch=3, land=True)
    machines.link.send_orders(POD, orders)
    assert machines.names() == [["orders.json 022"]] * 3
    assert {text for files in machines.written.values() for text in files.values()} == {
        contract.dump(orders)
    }


def test_a_machine_that_does_not_answer_keeps_no_other_from_being_told(machines: Machines) -> None:
    machines.unreachable = "way-1"
    with pytest.raises(ConnectionDropped, match="does not answer"):
        machines.link.send_orders(POD, contract.Orders(epoch=3, land=True))
    assert machines.names() == [["orders.json 022"], [], ["orders.json 022"]]


def test_the_first_machine_alone_is_asked_to_save(machines: Machines) -> None:
    machines.link.send_orders(POD, contract.Orders(epoch=3, save=1))
    assert machines.names() == [["orders.json 022"], [], []]


def test_every_machine_has_the_variables_of_the_command(machines: Machines) -> None:
    machines.link.give_environment(POD, '{"TOKEN": "x"}')
    assert machines.names() == [["environment.json 077"]] * 3


def test_the_machines_of_a_pod_have_one_key_that_no_other_pod_has(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trmcloud.adapters.ssh.link.stage", lambda *told: None)
    machines.link.stage(POD, (), lambda done, whole: None)
    assert machines.names() == [["parts.key 077"]] * 3
    [key] = {text for files in machines.written.values() for text in files.values()}
    keys = KeyStore(machines.link._home)
    assert key == keys.shared(POD) != keys.shared(OTHER_POD)


def test_a_pulled_checkpoint_is_one_for_local_readers(rented: Rented) -> None:
    folder = rented.pod.folder_of(rented.pod.checkpoint())
    weights = written(folder / "weights.safetensors", 3 << 20)
    shard = written(folder / "optimizer-0.safetensors", 1 << 20)
    manifest = rented.pod.save(weights, replace(shard, kind="optimizer"))
    progress: list[int] = []
    rented.link.pull(POD, RUN, manifest, [weights.name], lambda done, _: progress.append(done))
    assert progress[-1] == weights.size_bytes
    (found,) = rented.files.manifests(RUN)
    assert [file.name for file in found.files] == [weights.name]
    rented.link.pull(POD, RUN, manifest, [shard.name], lambda done, whole: None)
    assert rented.files.manifests(RUN) == [manifest]
    out = rented.pod.home / "out"
    names = [file.name for file in manifest.files]
    rented.files.fetch(manifest, names, str(out), lambda done, whole: None)


def test_a_checkpoint_is_brought_to_where_it_is_wanted_and_lies_there_once(rented: Rented) -> None:
    folder = rented.pod.folder_of(rented.pod.checkpoint())
    weights = written(folder / "weights.safetensors", 3 << 20)
    manifest = rented.pod.save(weights)
    into = rented.pod.home / "elsewhere" / "best.partial"
    for _ in range(2):  # the second time, nothing is missing
        rented.link.fetch(POD, RUN, manifest, [weights.name], str(into), lambda done, whole: None)
    assert (into / weights.name).read_bytes() == (folder / weights.name).read_bytes()
    assert os.listdir(into) == [weights.name]
    assert os.listdir(into.parent) == [into.name], "no lock is left behind"
    assert rented.files.manifests(RUN) == []
    evil = replace(manifest, phase="../../../x")
    with pytest.raises(CheckpointError, match="phase is not what it should be"):
        rented.link.fetch(POD, RUN, evil, [weights.name], str(into), lambda done, whole: None)


def test_a_manifest_with_a_new_metric_is_pulled_again_without_its_files(
    rented: Rented,
) -> None:
    folder = rented.pod.folder_of(rented.pod.checkpoint())
    weights = written(folder / "weights.safetensors", 3 << 20)
    scored = rented.pod.save(weights)
    early = replace(scored, val_bpb=None, step_losses=())
    (folder / "manifest.json").write_text(to_json(early))
    kept = contract.CheckpointRef("fast", 120, weights.sha256, weights.size_bytes)
    rented.link.report(POD)
    assert rented.link.manifest(POD, RUN, kept) == early
    names = [weights.name]
    rented.link.pull(POD, RUN, early, names, lambda done, whole: None)
    with pytest.raises(CheckpointError, match="has a metric that its manifest lacks"):
        rented.link.manifest(POD, RUN, replace(kept, val_bpb=1.5))

    (folder / "manifest.json").write_text(to_json(scored))
    (folder / "weights.safetensors").rename(folder / "elsewhere")  # not to be asked for again
    rented.time.now += 60
    rented.link.report(POD)
    assert rented.link.manifest(POD, RUN, replace(kept, val_bpb=1.5)) == scored
    rented.link.pull(POD, RUN, scored, names, lambda done, whole: None)
    assert rented.files.manifests(RUN) == [scored]


def test_a_pull_that_fails_leaves_no_checkpoint(rented: Rented) -> None:
    folder = rented.pod.folder_of(rented.pod.checkpoint())
    weights = written(folder / "weights.safetensors", 1000)
    manifest = rented.pod.save(replace(weights, sha256="00" * 32))
    with pytest.raises(CheckpointError, match="damaged"):
        rented.link.pull(POD, RUN, manifest, [weights.name], lambda done, whole: None)
    assert rented.files.manifests(RUN) == []
    other = replace(manifest, run_id="r-000000")
    with pytest.raises(CheckpointError, match="not a checkpoint of"):
        rented.link.pull(POD, "r-000000", other, [weights.name], lambda done, whole: None)
    evil = replace(manifest, phase="../../../x")
    with pytest.raises(CheckpointError, match="phase is not what it should be"):
        rented.link.pull(POD, RUN, evil, [weights.name], lambda done, whole: None)


def test_it_can_tell_whether_a_pod_lets_us_in_and_why_not(rented: Rented) -> None:
    assert rented.link.answers(POD)
    rented.pod.server.stop()
    rented.pod.server.set_host_key(rented.pod.keys.for_pod(OTHER_POD).host_private)
    rented.pod.server.start()
    assert not rented.link.answers(POD)
    assert isinstance(rented.link.trouble(POD), HostKeyChanged)
    assert rented.report() is None, "a stranger's report is not read"


def test_somebody_logs_in_by_the_same_key_to_the_same_pod_alone(rented: Rented) -> None:
    command = ["sh", "-c", "cat; echo $0 done; exit 3", "it's"]
    done = subprocess.run(
        rented.link.login(POD, command, terminal=False),
        input="typed here",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (3, "typed hereit's done\n"), done.stderr
    shell = list(rented.link.login(POD))
    assert {"RequestTTY=yes", "EscapeChar=~", "ControlPath=none", "ForwardAgent=no"} < {*shell}
    rented.pod.server.stop()
    rented.pod.server.set_host_key(rented.pod.keys.for_pod(OTHER_POD).host_private)
    rented.pod.server.start()
    refused = subprocess.run(
        rented.link.login(POD, ["true"], terminal=False), capture_output=True, text=True
    )
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_nobody_logs_in_to_a_pod_without_an_address(rented: Rented) -> None:
    rented.address = None
    with pytest.raises(ConnectionDropped):
        rented.link.login(POD)
