"""What a user's OpenSSH says where it cannot get through, made by the kernel and told apart."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.standins.runpod.machines import no_namespaces
from trmcloud.adapters.ssh.checks import ssh_needs
from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.errors import ConnectionDropped, LinkError

ROOT = Path(__file__).resolve().parents[2]
TRY = """
import sys
from pathlib import Path
from trmcloud.adapters.ssh.connection import SshConnection
from trmcloud.core.errors import LinkError
here = Path(sys.argv[2])
connection = SshConnection(
    (sys.argv[1], 22022), identity=here / "id", known_hosts=here / "known", alias="trmc",
    control_dir=here,
)
try:
    connection.run("true", timeout_s=8.0)
except LinkError as error:
    print(type(error).__name__, "|", error, "|", error.next_step)
"""


def connection_to(folder: Path, address: tuple[str, int]) -> SshConnection:
    return SshConnection(
        address,
        identity=folder / "id",
        known_hosts=folder / "known",
        alias="trmc",
        control_dir=folder,
    )


@pytest.mark.skipif(bool(no_namespaces()), reason=no_namespaces())
@pytest.mark.parametrize(
    ("route", "host", "says"),
    [
        ("", "127.0.0.1", "it refuses connections"),
        ("prohibit", "10.8.0.1", "this machine blocks outgoing SSH: a firewall or a sandbox"),
        ("unreachable", "10.8.0.1", "there is no route to the pod"),
        ("", "10.8.0.1", "the network is not reachable from here"),
        ("", "no.such.host.invalid", "its address cannot be resolved"),
    ],
    ids=["refused", "prohibited", "no-route", "no-network", "no-name"],
)
def test_each_way_to_be_kept_out_is_told(tmp_path: Path, route: str, host: str, says: str) -> None:
    add = f"ip route add {route} {host}; " if route else ""
    inside = f'ip link set lo up; {add}exec "$@"'
    done = subprocess.run(
        ["unshare", "-n", "sh", "-c", inside, "sh", sys.executable, "-c", TRY, host, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    kind, _, rest = done.stdout.partition(" | ")
    assert kind == ConnectionDropped.__name__, done.stdout + done.stderr
    assert rest.startswith(says), rest
    assert "allow SSH to that address (firewall, VPN, proxy)" in rest.partition(" | ")[2]


def _silence(taken: socket.socket) -> None:
    taken.recv(1 << 10)
    threading.Event().wait(3.0)


def _reset(taken: socket.socket) -> None:
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    taken.close()


def _web(taken: socket.socket) -> None:
    taken.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    taken.close()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_silence, "no connection to its address: a firewall may block it"),
        (_reset, "the connection (is|was) closed"),
        (lambda taken: taken.close(), "the connection is closed before an SSH server answers"),
        (_web, "the connection is closed before an SSH server answers"),
    ],
    ids=["silence", "reset", "closed", "web-page"],
)
def test_a_middlebox_is_not_taken_for_the_pod(
    tmp_path: Path, answer: Callable[[socket.socket], None], says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # a connection that drops is made anew once
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(taken,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        connection = connection_to(tmp_path, server.getsockname())
        with pytest.raises(ConnectionDropped, match=says):
            connection.run("true", timeout_s=2.0)


def test_what_ssh_said_is_told_where_no_time_is_left_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the first try took most of it, and the second one gets nowhere."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nif mkdir {tmp_path}/tried 2> /dev/null; then\n"
        "  echo 'ssh: connect to host 127.0.0.1 port 22: Connection refused' >&2; exit 255\nfi\n"
        "exec sleep 20\n"
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    connection = connection_to(tmp_path, ("127.0.0.1", 22))
    with pytest.raises(ConnectionDropped, match="it refuses connections"):
        connection.run("true", timeout_s=2.0)
    assert (tmp_path / "tried").exists()


def test_a_configuration_that_ssh_refuses_is_no_trouble_of_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nexec /usr/bin/ssh -o Frobnicate=yes "$@"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    connection = connection_to(tmp_path, ("127.0.0.1", 22))
    with pytest.raises(LinkError, match="Bad configuration option: frobnicate") as caught:
        connection.run("true")
    assert not isinstance(caught.value, ConnectionDropped)
    assert "frobnicate" in connection.misconfigured(10.0)
    (need,) = [need for need in ssh_needs(tmp_path) if need.missing]
    assert need.name == "ssh"
    assert "frobnicate" in need.detail


def test_a_sound_machine_lacks_nothing(tmp_path: Path) -> None:
    needs = ssh_needs(tmp_path)
    assert [need.name for need in needs] == ["ssh", "ssh-keygen", "sockets"]
    assert not any(need.missing for need in needs)
    assert needs[0].detail.startswith("OpenSSH_")
