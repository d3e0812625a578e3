"""The entry command with real processes: it lays out, guards, ends the pod, and never exits."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pod.conftest import a_lease, job_of
from tests.unit.pod.provider import Provider
from trmcloud.core import pod_contract as contract
from trmcloud.pod import processes
from trmcloud.pod.boot import lay_out, read_given
from trmcloud.pod.nodes import Nodes, read_nodes
from trmcloud.pod.sshd import Sshd
from trmcloud.pod.terminate import own_ways_of, ways_of

ROOT = Path(__file__).resolve().parents[3]
STANDIN = ROOT / "tests" / "standins" / "trainer"
RUNPOD_POD = "abc123"
KEY = "rpa_KEYKEYKEY"
SSHD = "/usr/sbin/sshd"

Until = Callable[..., None]


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def given_environment(
    lease: contract.Lease, root: Path, jobs: Sequence[contract.PhaseJob] | None = None
) -> dict[str, str]:
    rows = [json.loads(contract.dump(job)) for job in jobs or (job_of(lease, root),)]
    return {
        contract.ENV_POD: lease.pod_name,
        contract.ENV_ROOT: str(root),
        contract.ENV_LEASE: packed(contract.dump(lease)),
        contract.ENV_JOBS: packed(json.dumps(rows)),
        contract.ENV_CHECK: packed("{}"),
        contract.ENV_LINGER_S: "0",
    }


class Container:
    """A container whose first process is ``trmcloud.pod.boot``."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.pod_name = environment[contract.ENV_POD]
        self.root = Path(environment[contract.ENV_ROOT])
        self.pod_dir = self.root / contract.PODS_DIR / self.pod_name
        self.log = folder / "container.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "trmcloud.pod.boot"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def inside(self) -> list[int]:
        """The pod's processes but the first."""
        return processes.of_pod(self.pod_name, excluding=frozenset({self.process.pid}))

    def stop(self) -> None:
        """All of it dies at once, as a deleted container does."""
        self.process.kill()
        self.process.wait()
        while processes.kill_pod(self.pod_name):
            time.sleep(0.02)

    def restart(self) -> None:
        self.stop()
        self.process = self._start()

    def heartbeat(self) -> contract.Heartbeat | None:
        path = self.root / contract.RUNS_DIR / "r1" / "fast" / contract.HEARTBEAT_NAME
        return contract.load_heartbeat(path.read_text()) if path.exists() else None

    def trains(self) -> bool:
        beat = self.heartbeat()
        return beat is not None and beat.state == "training" and bool(self.inside())

    def read(self, name: str) -> Any:
        path = self.pod_dir / name
        return json.loads(path.read_text()) if path.exists() else None

    def lives_on(self, seconds: float = 0.7) -> bool:
        time.sleep(seconds)
        return self.process.poll() is None


@pytest.fixture
def boot(tmp_path: Path, provider: Provider) -> Iterator[Callable[..., Container]]:
    made: list[Container] = []

    def start(lease: contract.Lease, steps: int = 100_000, **changes: str) -> Container:
        root = tmp_path / "workspace"
        root.mkdir(exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "RUNPOD_POD_ID": RUNPOD_POD,
            "RUNPOD_API_KEY": KEY,
            "RUNPOD_API_BASE_URL": provider.url,
            "TRMCLOUD_RUNPOD_API": provider.url,
            **given_environment(lease, root, [job_of(lease, root, steps)]),
            **changes,
        }
        stage(root, lease.pod_name)
        made.append(Container(tmp_path, {k: v for k, v in environment.items() if v != "-"}))
        return made[-1]

    yield start
    for container in made:
        container.stop()


def stage(root: Path, pod_name: str) -> None:
    """Code and data as the controller leaves them: a folder each, then the note that names them."""
    code, data = root / "code" / "c0de", root / "data" / "da7a"
    shutil.copytree(STANDIN / "model", code / "model", dirs_exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    folder = root / contract.PODS_DIR / pod_name
    folder.mkdir(parents=True, exist_ok=True)
    note = {"version": 1, "code": str(code), "data": [str(data)]}
    (folder / contract.STAGED_NAME).write_text(json.dumps(note))


def tried_all(provider: Provider) -> bool:
    return ("DELETE", f"/v2/pods/{RUNPOD_POD}") in [(m, p) for m, p, _, _ in provider.asked]


def test_it_trains_and_no_process_inherits_a_key(
    boot: Callable[..., Container], lease: contract.Lease, until: Until
) -> None:
    pod = boot(lease, TRMCLOUD_HOST_KEY=packed("no key at all"))
    until(pod.trains, "training")
    assert pod.read(contract.LEASE_NAME)["epoch"] == 1
    assert pod.read(contract.CHECK_NAME) == {}
    inside = pod.inside()
    assert len(inside) >= 2, "agent, trainer"
    for pid in inside:
        inherited = Path(f"/proc/{pid}/environ").read_bytes()
        for secret in (KEY.encode(), packed("no key at all").encode(), b"TRMCLOUD_LEASE="):
            assert secret not in inherited
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("notes"), "notes in the report")
    notes = pod.read(contract.REPORT_NAME)["notes"]
    assert notes == {"ssh": "no SSH: the host key is no OpenSSH private key"}


def test_done_means_ended_by_every_way_and_still_there(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    provider.answer("DELETE", f"/v2/pods/{RUNPOD_POD}", 403, '{"title": "Forbidden"}')
    pod = boot(lease, steps=5)
    until(lambda: tried_all(provider), "the chain")
    until(lambda: pod.read("termination.json")["attempts"][-1]["ok"] is not None, "its record")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "its work is done"
    record = pod.read("termination.json")
    assert record["why"] == "its work is done"
    assert [a["code"] for a in record["attempts"][-3:]] == [404, 404, 403]
    report = contract.load_report((pod.pod_dir / contract.REPORT_NAME).read_text())
    assert report.result == "finished"
    until(lambda: "v2 delete: refused, code 403" in pod.read("agent.json")["notes"]["termination"])
    assert KEY not in pod.log.read_text() + (pod.pod_dir / "termination.json").read_text()
    assert pod.lives_on()


def test_sigterm_kills_the_trainer_and_ends_the_pod(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease)
    until(pod.trains, "training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")
    assert pod.inside() == []
    assert pod.read(contract.ENDED_NAME)["reason"] == "terminated"
    pod.process.send_signal(signal.SIGTERM)
    pod.process.send_signal(signal.SIGINT)
    pod.process.send_signal(signal.SIGHUP)
    assert pod.lives_on()


def test_a_pod_that_has_ended_trains_no_more_after_a_restart(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease)
    until(pod.trains, "training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")
    provider.asked.clear()
    pod.restart()
    until(lambda: tried_all(provider), "the chain again")
    assert pod.inside() == []
    assert pod.read("termination.json")["why"].startswith("it had ended before")


def test_a_restart_goes_on_and_does_not_extend_the_deadline(
    boot: Callable[..., Container], provider: Provider, until: Until
) -> None:
    pod = boot(a_lease(time.time(), hard_stop_s=12.0))
    until(pod.trains, "training")
    anchor = pod.read("anchor.json")
    pod.restart()
    until(lambda: (pod.read(contract.REPORT_NAME) or {}).get("restarts", 0) > 0, "a new agent")
    assert pod.read("anchor.json") == anchor
    until(lambda: tried_all(provider), "the chain", 30.0)
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - anchor["boot"]
    assert passed < 12.0 + 8.0
    assert pod.inside() == []


@pytest.mark.parametrize(
    "damage",
    [
        {contract.ENV_LEASE: "-"},
        {contract.ENV_LEASE: "!!!"},
        {contract.ENV_LEASE: packed("{}")},
        {contract.ENV_JOBS: packed("[]")},
        {contract.ENV_CHECK: packed('{"count": "many"}')},
        {contract.ENV_ROOT: "/dev/null/nowhere"},
    ],
)
def test_what_cannot_be_understood_is_ended_at_once(
    boot: Callable[..., Container],
    lease: contract.Lease,
    provider: Provider,
    until: Until,
    damage: dict[str, str],
) -> None:
    pod = boot(lease, **damage)
    until(lambda: tried_all(provider), "the chain")
    assert pod.inside() == []
    if contract.ENV_ROOT not in damage:
        assert pod.read("termination.json")["why"].startswith("what it was started with is damaged")
    assert pod.lives_on(0.2)


def test_it_stays_for_its_last_report_to_be_read(
    boot: Callable[..., Container], lease: contract.Lease, provider: Provider, until: Until
) -> None:
    pod = boot(lease, steps=5, **{contract.ENV_LINGER_S: "600"})
    until(lambda: pod.read(contract.ENDED_NAME), "the end of its work")
    assert pod.lives_on()
    assert provider.asked == []
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: tried_all(provider), "the chain")


# -- what it lays out -------------------------------------------------------------------------
def test_files_that_are_newer_or_the_same_stay(tmp_path: Path, lease: contract.Lease) -> None:
    given = read_given(given_environment(lease, tmp_path))
    lay_out(given)
    job_path = tmp_path / contract.RUNS_DIR / "r1" / "fast" / contract.JOB_NAME
    lease_path = given.pod_dir / contract.LEASE_NAME
    before = [path.stat().st_mtime_ns for path in (job_path, lease_path)]
    lay_out(given)
    assert [path.stat().st_mtime_ns for path in (job_path, lease_path)] == before

    newer = replace(lease, epoch=7)
    lease_path.write_text(contract.dump(newer))
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == newer

    lease_path.write_text("damaged")
    lay_out(given)
    assert contract.load_lease(lease_path.read_text()) == lease

    other = replace(job_of(lease, tmp_path), processes=8)
    lay_out(read_given(given_environment(lease, tmp_path, [other])))
    assert contract.load_job(job_path.read_text()).processes == 8


def test_the_further_machines_of_a_pod_upload_nothing_and_end_no_other(
    tmp_path: Path, lease: contract.Lease
) -> None:
    environment = given_environment(replace(lease, uploads=True), tmp_path)
    environment[contract.ENV_PROVIDER] = "skypilot+shutdown"
    for told, hold in (("", False), ("2 0 10.0.0.1", False), ("2 1 10.0.0.1", True)):
        given = read_given({**environment, contract.ENV_NODES: told})
        assert (given.lease.hold, given.lease.uploads) == (hold, not hold)
    lay_out(given)
    assert read_nodes(given.pod_dir) == Nodes(2, 1, "10.0.0.1")
    environment |= {"TRMCLOUD_SKY_HOME": "/home/user", "TRMCLOUD_SKY_USER": "user"}
    ways = {way.name for way in ways_of(environment)}
    own = {way.name for way in own_ways_of(environment)}
    assert "poweroff" in own
    assert own < ways
    assert own_ways_of({contract.ENV_PROVIDER: "skypilot"}) == ()
    for wrong in ("2", "2 2 h", "2 1 ", "two 1 h", "65 1 h", "0 0 h"):
        with pytest.raises(ValueError, match="which machine"):
            read_given({**environment, contract.ENV_NODES: wrong})


def test_what_is_given_must_be_about_this_pod(tmp_path: Path, lease: contract.Lease) -> None:
    good = given_environment(lease, tmp_path)
    assert read_given(good).jobs == (job_of(lease, tmp_path),)
    assert read_given({k: v for k, v in good.items() if k != contract.ENV_CHECK}).check == "{}"
    foreign = replace(job_of(lease, tmp_path), run_id="r2")
    climbing = replace(job_of(lease, tmp_path), phase="..")
    for changes in (
        {contract.ENV_POD: "trmc-0badcafe-r1-g2-1700000000"},
        {contract.ENV_POD: "somebody"},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(foreign))]))},
        {contract.ENV_JOBS: packed(json.dumps([json.loads(contract.dump(climbing))]))},
        {contract.ENV_JOBS: packed("{}")},
        {contract.ENV_ROOT: "relative"},
        {contract.ENV_LINGER_S: "long"},
    ):
        with pytest.raises(ValueError, match=r"."):
            read_given({**good, **changes})


# -- sshd -------------------------------------------------------------------------------------
needs_sshd = pytest.mark.skipif(not Path(SSHD).exists(), reason="openssh-server is not installed")


def a_key(path: Path) -> tuple[str, str]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.read_text(), path.with_name(path.name + ".pub").read_text()


def a_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ssh(folder: Path, port: int, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    _, host_public = (folder / "host").read_text(), (folder / "host.pub").read_text()
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {host_public}")
    chosen = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(known),
        "IdentitiesOnly": "yes",
        "IdentityFile": str(folder / "user"),
        "ConnectTimeout": "5",
        **options,
    }
    flags = [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]
    return subprocess.run(
        ["ssh", "-F", "/dev/null", *flags, "-p", str(port), "127.0.0.1", *words],
        capture_output=True,
        text=True,
        timeout=30,
    )


@needs_sshd
def test_ssh_with_the_pinned_key_and_nothing_else(
    boot: Callable[..., Container], lease: contract.Lease, tmp_path: Path, until: Until
) -> None:
    host_private, _ = a_key(tmp_path / "host")
    _, user_public = a_key(tmp_path / "user")
    a_key(tmp_path / "stranger")
    port = a_port()
    pod = boot(
        lease,
        PATH=f"{os.environ['PATH']}:/usr/sbin",
        **{
            contract.ENV_HOST_KEY: packed(host_private),
            contract.ENV_AUTHORIZED_KEY: user_public.strip(),
            contract.ENV_SSH_PORT: str(port),
        },
    )
    until(lambda: ssh(tmp_path, port, "true").returncode == 0, "a login")
    said = ssh(tmp_path, port, "env")
    assert KEY not in said.stdout
    assert "TRMCLOUD" not in said.stdout
    stranger = ssh(tmp_path, port, "true", IdentityFile=str(tmp_path / "stranger"))
    assert "Permission denied (publickey)" in stranger.stderr

    # A killed trainer, or a killed server, does not leave the pod out of reach.
    (server,) = (
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _is_server_of(int(pid), pod.process.pid)
    )
    os.kill(server, signal.SIGKILL)
    until(lambda: "sshd ended" in pod.log.read_text(), "the end of sshd seen")
    until(lambda: ssh(tmp_path, port, "true").returncode == 0, "a login again")
    until(pod.trains, "training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: pod.read(contract.ENDED_NAME), "the end")
    assert ssh(tmp_path, port, "true").returncode == 0


def _is_server_of(pid: int, parent: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        title = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return "[listener]" in title and stat.rpartition(")")[2].split()[1] == str(parent)


def test_no_sshd_is_told_and_not_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("trmcloud.pod.sshd._PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    made = Sshd(22, key, "ssh-ed25519 AAAA", tmp_path / "log", told.append)
    made.tend()
    assert made.child is None
    assert told == ["no sshd on this image: this pod cannot be reached by SSH"]


def test_an_sshd_that_does_not_stay_up_is_started_with_growing_pauses(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    clock = [0.0]
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    made = Sshd(
        22,
        key,
        "ssh-ed25519 AAAA",
        tmp_path / "log",
        told.append,
        program="/bin/false",
        now=lambda: clock[0],
    )
    pauses = []
    made.tend()
    for _ in range(5):
        assert made.child is not None
        made.child.wait()
        made.tend()
        ended_at = clock[0]
        while made.child is None:
            clock[0] += 0.25
            made.tend()
        pauses.append(clock[0] - ended_at)
        if len(pauses) == 3:
            clock[0] += 100.0
    assert pauses == [0.5, 2.0, 10.0, 0.5, 2.0], "one that stayed up a while begins anew"
    for host, user in (("junk", "ssh-ed25519 A"), (key, "junk"), (key, "ssh-ed25519 A\nssh-rsa B")):
        with pytest.raises(ValueError, match="key"):
            Sshd(22, host, user, tmp_path / "log", told.append)
