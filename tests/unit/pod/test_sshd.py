"""A pod's SSH server: the pinned key and nothing else, started anew, and never fatal."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.standins.sshd import find_sshd
from tests.unit.pod.container import KEY, Container, packed
from tests.waiting import until
from trmcloud.core.contract import pod_contract as contract
from trmcloud.pod.machine.sshd import Sshd

needs_sshd = pytest.mark.skipif(find_sshd() is None, reason="openssh-server is not installed")


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
        "ConnectTimeout": "25",
        **options,
    }
    flags = [part for key, value in chosen.items() for part in ("-o", f"{key}={value}")]
    return subprocess.run(
        ["ssh", "-F", "/dev/null", *flags, "-p", str(port), "127.0.0.1", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )


@needs_sshd
def test_ssh_with_the_pinned_key_and_nothing_else(
    boot: Callable[..., Container], lease: contract.Lease, tmp_path: Path
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
    until(lambda: ssh(tmp_path, port, "true").returncode == 0, what="a login")
    said = ssh(tmp_path, port, "env")
    assert KEY not in said.stdout
    assert "TRMCLOUD" not in said.stdout

    def turned_away() -> bool:
        stranger = ssh(tmp_path, port, "true", IdentityFile=str(tmp_path / "stranger"))
        assert stranger.returncode != 0
        print(stranger.stderr)  # pytest shows it where the test failed
        return "Permission denied (publickey)" in stranger.stderr

    until(turned_away, what="a stranger told so")

    # A killed trainer, or a killed server, does not leave the pod out of reach.
    (server,) = (
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _is_server_of(int(pid), pod.process.pid)
    )
    os.kill(server, signal.SIGKILL)
    until(lambda: "sshd ended" in pod.log.read_text(), what="the end of sshd seen")
    until(lambda: ssh(tmp_path, port, "true").returncode == 0, what="a login again")
    until(pod.trains, what="training")
    pod.process.send_signal(signal.SIGTERM)
    until(lambda: pod.read(contract.ENDED_NAME), what="the end")
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
    monkeypatch.setattr("trmcloud.pod.machine.sshd._PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
    made = Sshd(22, key, "ssh-ed25519 AAAA", tmp_path / "log", told.append)
    made.tend()
    assert made.child is None
    assert told == ["no sshd on this image: this pod cannot be reached by SSH"]


def test_an_sshd_that_does_not_stay_up_is_started_with_growing_pauses(tmp_path: Path) -> None:
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
