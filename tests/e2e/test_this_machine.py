"""What renting needs of this machine, and what is said where the line to a pod is not there."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.documents import document_in
from tests.e2e.runpod_user import ACCEPT, LAUNCH, RentedUser
from tests.e2e.user import User, until
from trmcloud.core.catalog.providers import TRAITS
from trmcloud.core.control.run_state import State
from trmcloud.core.errors import Outcome

BOOT_S = TRAITS["runpod"].boot_deadline_s
WISH = (*LAUNCH, "--steps", "60", "--budget", "0.30", *ACCEPT)


def leave_only(user: User, *tools: str) -> None:
    """A PATH with these programs alone."""
    folder = user.folder / "bin"
    folder.mkdir()
    for tool in tools:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    user.environment["PATH"] = str(folder)


def findings(user: User) -> dict[str, dict[str, Any]]:
    process = user.start("doctor", "--json")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    return {finding["code"]: finding for finding in document_in(out)["checks"]}


@pytest.mark.parametrize(
    ("there", "lacks"),
    [(("ssh-keygen",), "ssh"), (("ssh",), "ssh-keygen")],
    ids=["no-ssh", "no-ssh-keygen"],
)
def test_without_ssh_nothing_is_rented(
    renter: RentedUser, there: tuple[str, ...], lacks: str
) -> None:
    leave_only(renter, "sh", "env", *there)
    for command in (
        (*WISH, *renter.data),
        ("smoke", "--provider", "runpod", "--max-usd", "0.25", "-y"),
    ):
        err = renter.refused(*command, code=6)
        assert f"{lacks}: it is not installed" in err
        assert "openssh-client" in err
    assert renter.creates() == 0
    assert renter.ledger().runs == {}
    found = findings(renter)[lacks]
    assert (found["passed"], found["message"][:19]) == (False, "it is not installed")
    assert "openssh-client" in found["next"]


def test_a_run_is_not_resumed_from_where_it_cannot_be_reached(renter: RentedUser) -> None:
    launch = renter.start(*WISH, *renter.data)
    renter.run_in(State.BOOTING)
    renter.clock.advance(BOOT_S)
    renter.see_out(launch, code=Outcome.LOST.exit_code)
    run = renter.close_books()
    leave_only(renter, "sh", "env", "ssh-keygen")
    assert "ssh: it is not installed" in renter.refused("resume", "-y", run.run_id, code=6)
    assert len(renter.truth()) == 1


def test_an_ssh_that_takes_no_configuration_rents_nothing(renter: RentedUser) -> None:
    """A user's own mistake, or an OpenSSH older than our options: ssh ends before it connects."""
    config = renter.folder / ".ssh" / "config"
    config.parent.mkdir(mode=0o700)
    config.write_text("Host *\n  Frobnicate yes\n")
    config.chmod(0o600)
    # OpenSSH looks where the account's home is, whatever $HOME says.
    real = shutil.which("ssh")
    folder = renter.folder / "wrapped"
    folder.mkdir()
    (folder / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {config} "$@"\n')
    (folder / "ssh").chmod(0o755)
    renter.environment["PATH"] = f"{folder}:{renter.env()['PATH']}"
    err = renter.refused(*WISH, *renter.data, code=6)
    assert "Bad configuration option: frobnicate" in err
    assert "correct ~/.ssh/config, or install OpenSSH 8.5 or newer" in err
    assert renter.creates() == 0
    assert findings(renter)["ssh"]["passed"] is False


def test_a_machine_that_rents_nothing_needs_no_ssh(user: User) -> None:
    leave_only(user, "sh", "env")
    process = user.start("doctor", "--json")
    out, _ = process.communicate(timeout=60)
    passed = {finding["code"]: finding["passed"] for finding in document_in(out)["checks"]}
    assert passed["ssh"] is passed["ssh-keygen"] is None


# -- the line --------------------------------------------------------------------------------------


@contextlib.contextmanager
def takes_and_says_nothing() -> Iterator[tuple[str, int]]:
    """An address behind a firewall that lets SSH through to nobody."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()
    for each in taken:
        each.close()


def begin(user: RentedUser, log: Path) -> subprocess.Popen[str]:
    """A launch whose lines are read while it goes on."""
    process = user.start(*WISH, *user.data)

    def read() -> None:
        assert process.stdout is not None
        with open(log, "w", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                file.flush()

    threading.Thread(target=read, daemon=True).start()
    return process


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_what_keeps_the_line_down_is_told_while_the_pod_boots(
    renter: RentedUser, tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "said"
    log.touch()
    says = {
        "refused": "it refuses connections: its SSH server is not up, or a firewall blocks it",
        "silent": "no connection to its address: a firewall may block it",
    }[kind]
    with contextlib.ExitStack() as stack:
        if kind == "silent":
            address = stack.enter_context(takes_and_says_nothing())
            machines = renter.standin.control.world.machines
            machines.address = lambda pod, port: address  # type: ignore[method-assign]
        launch = begin(renter, log)
        renter.run_in(State.BOOTING)
        assert "does not answer" not in log.read_text(), "a pod may take half a minute"
        renter.clock.advance(31.0)
        until(lambda: "\n    try: " in log.read_text(), what="trouble is told")
        told = log.read_text()
        assert f"  the pod does not answer: {says} (trmc-" in told
        assert "; retrying for 14 min" in told
        assert "    try: allow SSH to that address (firewall, VPN, proxy)" in told
        status = renter.json("status", "--json")["runs"][0]
        assert says in next(n["message"] for n in status["notes"] if n["code"] == "link")
        assert len(renter.live()) == 1, "the controller goes on"
        renter.clock.advance(BOOT_S)
        renter.see_out(launch, code=Outcome.LOST.exit_code)
        run = renter.close_books()
        until(lambda: "why: " in log.read_text(), what="the end is told")
    said = log.read_text()
    assert said.count("does not answer") == 1, said
    assert f"{run.run_id} lost: no machine of the run ever reported: nothing was trained" in said
    assert f"  why: the pod was ended: no agent within 15 min 00 s: {says} (trmc-" in said
    assert "trmcloud logs" not in said
    assert renter.live() == []
    assert renter.billed() <= float(run.settled) + 2e-6
