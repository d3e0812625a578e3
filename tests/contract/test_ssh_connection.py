"""The connection to a pod: pinned, multiplexed, made anew after a drop, and plain in its errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.ssh_pod import OTHER_POD, POD, SshPod, needs_sshd, ssh_pod
from tests.contract.test_ssh_link import REPORT
from tests.present import present
from tests.standins.loopback import Handler, serving_at
from trmcloud.adapters.ssh.connection import SshConnection, control_dir
from trmcloud.adapters.ssh.forward import forward
from trmcloud.adapters.ssh.keys import KeyStore
from trmcloud.adapters.ssh.session import environment
from trmcloud.adapters.ssh.sync import HEAD_LOST_S, PeerMachines
from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.errors import ConnectionDropped, HostKeyChanged, LinkError, LoginRefused

# -- ssh connection -----------------------------------------------------------------------------
# The connection to a pod: pinned, multiplexed, made anew after a drop, and plain in its errors.


pytestmark = needs_sshd


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[SshPod]:
    with ssh_pod(tmp_path) as made:
        yield made


# -- keys --------------------------------------------------------------------------------------


def test_keys_are_made_once_and_for_their_owner_alone(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "home")
    first, other = store.for_pod(POD), store.for_pod(OTHER_POD)
    assert KeyStore(tmp_path / "home").for_pod(POD) == first
    assert first.user_public == other.user_public
    assert first.host_public != other.host_public
    assert first.host_public.startswith("ssh-ed25519 ")
    assert "PRIVATE KEY" in first.host_private
    assert first.host_private not in repr(first)
    for path in (tmp_path / "home/keys").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not list((tmp_path / "home/keys").glob(".new-*"))


def test_a_pods_key_can_be_forgotten_and_strangers_have_none(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "home")
    first = store.for_pod(POD)
    store.forget(POD)
    assert store.for_pod(POD).host_private != first.host_private
    with pytest.raises(LinkError, match="not a pod of trmcloud"):
        store.for_pod("../../etc")


# -- commands ----------------------------------------------------------------------------------


def test_a_command_brings_its_output_its_code_and_its_words(pod: SshPod) -> None:
    connection = pod.connect()
    answer = connection.run("cat; echo oops >&2; exit 3", content=b"\x00\xffbytes")
    assert (answer.code, answer.out, answer.said) == (3, b"\x00\xffbytes", "oops")
    assert connection.run(["printf", "%s", "a b'c\"$HOME"]).out == b"a b'c\"$HOME"


def test_all_commands_share_one_connection(pod: SshPod) -> None:
    connection = pod.connect()
    peers = {connection.run('echo "$SSH_CONNECTION"').out for _ in range(3)}
    assert len(peers) == 1, "each came from another port"
    second = pod.connect()
    assert second.run('echo "$SSH_CONNECTION"').out in peers, "other processes share it too"


def test_nothing_secret_and_no_agent_reaches_the_pod(
    pod: SshPod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    said = pod.connect().run("env").out.decode()
    assert "rpa_secret" not in said
    assert "SSH_AUTH_SOCK" not in said
    # The user's configuration may hold a SendEnv: what ssh is not given, it cannot send.
    assert "rpa_secret" not in environment().values()
    assert environment()["SSH_AUTH_SOCK"], "a jump host may want the agent"


def test_more_than_was_asked_for_is_not_read(pod: SshPod) -> None:
    with pytest.raises(LinkError, match="more than 1000 bytes"):
        pod.connect().run("yes", max_bytes=1000)


def test_a_pod_that_floods_stderr_fills_no_memory(pod: SshPod) -> None:
    answer = pod.connect().run("head -c 30000000 /dev/zero | tr '\\0' x >&2; echo done")
    assert answer.out == b"done\n"
    assert len(answer.said) <= 1 << 13


def test_a_silent_pod_is_given_up_in_time(pod: SshPod) -> None:
    connection = pod.connect()
    connection.run("true")
    begun = time.monotonic()
    with pytest.raises(ConnectionDropped, match="in time"):
        connection.run("sleep 60", timeout_s=1.0)
    assert time.monotonic() - begun < 10
    assert connection.run("echo back").out == b"back\n"


# -- errors ------------------------------------------------------------------------------------


def test_a_dropped_connection_is_made_anew(pod: SshPod) -> None:
    connection = pod.connect()
    before = connection.run('echo "$SSH_CONNECTION"').out
    assert pod.server.cut() > 0
    assert connection.run('echo "$SSH_CONNECTION"').out != before


def test_a_server_that_is_down_is_named_and_found_again(pod: SshPod) -> None:
    connection = pod.connect()
    connection.run("true")
    pod.server.stop()
    with pytest.raises(ConnectionDropped, match="refuses connections"):
        connection.run("true")
    pod.server.start()
    assert connection.run("echo up").out == b"up\n"


def test_another_host_key_is_never_spoken_to(pod: SshPod) -> None:
    connection = pod.connect()
    connection.run("true")
    pod.server.stop()
    pod.server.set_host_key(pod.keys.for_pod(OTHER_POD).host_private)
    pod.server.start()
    marker = pod.root / "was-here"
    with pytest.raises(HostKeyChanged, match="another machine answers") as caught:
        connection.run(["touch", str(marker)])
    assert caught.value.next_step
    with pytest.raises(HostKeyChanged):
        connection.run(["touch", str(marker)])
    assert not marker.exists()


def test_the_pin_is_the_pods_and_not_the_addresss(pod: SshPod) -> None:
    """Another pod's name at the same address is another machine."""
    with pytest.raises(HostKeyChanged):
        pod.connect(alias=OTHER_POD).run("true")


def test_a_key_the_pod_does_not_know_is_refused(pod: SshPod, tmp_path: Path) -> None:
    stranger = KeyStore(tmp_path / "elsewhere")
    connection = SshConnection(
        pod.server.address,
        identity=stranger.identity(),
        known_hosts=pod.keys.known_hosts(POD),
        alias=POD,
        control_dir=control_dir(tmp_path / "elsewhere"),
        user=pod.server.user,
    )
    with pytest.raises(LoginRefused, match="does not accept"):
        connection.run("true")


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "", "$(id)", "h;id"])
def test_an_address_that_is_none_is_not_used(pod: SshPod, tmp_path: Path, host: str) -> None:
    with pytest.raises(LinkError, match="not a valid address"):
        SshConnection(
            (host, 22),
            identity=tmp_path / "id",
            known_hosts=tmp_path / "known",
            alias=POD,
            control_dir=tmp_path,
        )


def test_a_long_home_gets_short_sockets(tmp_path: Path) -> None:
    folder = control_dir(tmp_path / ("x" * 100))
    assert len(str(folder)) < 80
    assert folder.stat().st_mode & 0o777 == 0o700


# -- forwards ----------------------------------------------------------------------------------


def test_a_port_of_the_pod_is_reached_on_loopback_while_it_is_forwarded(pod: SshPod) -> None:
    import urllib.request

    class Board(Handler):
        def do_GET(self) -> None:
            self.answer(200, b"scalars")

    with serving_at(Board) as there:
        with forward(pod.connect(), there) as port:
            assert port != there
            url = f"http://127.0.0.1:{port}/"
            assert urllib.request.urlopen(url, timeout=10).read() == b"scalars"
            listening = Path("/proc/net/tcp").read_text()
            assert f"0100007F:{port:04X} 00000000:0000 0A" in listening, "on loopback alone"
        with pytest.raises(OSError):  # noqa: PT011
            urllib.request.urlopen(url, timeout=10)


# -- What is made of the word of a pod's further machines, over a real SSH server ---------------


class Second:
    """A pod's second machine, and what is told of the pod."""

    def __init__(self, pod: SshPod) -> None:
        self.now = 1_790_000_200.0
        self.folder = pod.root / "pods" / POD
        self.folder.mkdir(parents=True)
        connection = pod.connect()
        self.others = PeerMachines(lambda name: [connection], lambda: self.now)

    def says(self, text: str) -> None:
        (self.folder / "agent.json").write_text(text)

    def ended(self, result: str | None, message: str = "why", pod: str = POD) -> None:
        self.says(contract.dump(replace(REPORT, pod_name=pod, result=result, message=message)))

    def told(self, after_s: float = 60.0) -> tuple[str | None, str]:
        self.now += after_s
        told = self.others.judge(REPORT, str(self.folder))
        return told.result, told.message


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Second]:
    with ssh_pod(tmp_path) as pod:
        yield Second(pod)


def test_a_machine_that_cannot_be_trained_on_is_told_at_once(second: Second) -> None:
    assert second.told() == (None, "")  # it has said nothing yet
    second.ended(None)
    assert second.told() == (None, "")
    second.ended("unfit", "7 GPUs where 8 were rented\x1b[2J")
    assert second.told(1.0) == (None, "")  # asked again in a while
    assert second.told() == ("unfit", "machine 1: 7 GPUs where 8 were rented")


def test_the_first_ones_own_account_of_a_failure_is_waited_for(second: Second) -> None:
    second.ended("failed", "connection closed")
    assert second.told() == (None, "")
    own = replace(REPORT, result="failed", message="its own")
    assert second.others.judge(own, str(second.folder)) == own
    assert second.told() == ("failed", "machine 1: connection closed")


def test_another_speaks_for_the_pod_once_the_first_is_silent_for_long(second: Second) -> None:
    def instead(silent_s: float) -> contract.AgentReport | None:
        second.now += 60.0
        return second.others.instead(POD, str(second.folder), silent_s)

    second.ended(None)
    assert instead(10 * HEAD_LOST_S) is None, "it still trains: the first may be out of reach alone"
    kept = contract.CheckpointRef("fast", 20, "0" * 64, 10, 2.5)
    failed = replace(REPORT, pod_name=POD, result="failed", message="reset by peer", kept=(kept,))
    second.says(contract.dump(failed))
    assert instead(HEAD_LOST_S - 1.0) is None
    word = present(instead(HEAD_LOST_S))
    said = "the first machine was lost; machine 1: reset by peer"
    assert (word.result, word.message) == ("failed", said)
    assert word.kept == (), "nothing can be pulled from a machine that is not the first"


@pytest.mark.parametrize("result", ["finished", "landed", "stopped"])
def test_that_another_one_is_done_ends_nothing(second: Second, result: str) -> None:
    second.ended(result)
    assert [second.told() for _ in range(3)] == [(None, "")] * 3


def test_what_cannot_be_read_is_no_word(second: Second) -> None:
    for text in ("", "{", "[]", '{"result": "unfit"}'):
        second.says(text)
        assert second.told() == (None, "")
    second.ended("unfit", pod=OTHER_POD)
    assert second.told() == (None, "")

    def nobody(name: str) -> list[object]:
        raise ConnectionDropped("1 of 2 machines have an address")

    lost = PeerMachines(nobody, lambda: second.now)  # type: ignore[arg-type]
    assert lost.judge(REPORT, str(second.folder)) == REPORT
