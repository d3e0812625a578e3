"""A real Slurm of one node on this machine: Debian's packages, loopback alone, below one folder.

It needs ``slurmctld``, ``slurmd`` and ``munged`` (``apt-get install slurm-wlm``), and root, whom
``slurmd`` wants to be.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
_UP_S = 60.0
_CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={control_port}
SlurmdPort={node_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
MinJobAge=300
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=one Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why it cannot be started here; empty where it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no Slurm here ({', '.join(absent)}): apt-get install slurm-wlm"
    return "" if os.geteuid() == 0 else "slurmd wants to be root"


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """A Slurm that takes jobs, until the block ends; gives the environment of its commands.

    Raises:
        RuntimeError: it did not come up; its logs lie below ``folder``.
    """
    for name in ("munge", "spool", "state"):
        (folder / name).mkdir(parents=True, mode=0o755)
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    ports = iter(_free_ports(2))
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            folder=folder, host=socket.gethostname().partition(".")[0], cpus=os.cpu_count(),
            control_port=next(ports), node_port=next(ports),
        )
    )  # fmt: skip
    environment = {"PATH": _path(), "HOME": str(folder), "SLURM_CONF": str(conf), "LANG": "C"}
    munge = folder / "munge"
    commands = (
        ["munged", "-F", "-f", f"--key-file={key}", f"--socket={munge}/socket",
         f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-N", "one", "-f", str(conf)],
    )  # fmt: skip
    children: list[subprocess.Popen[bytes]] = []
    try:
        for words in commands:
            with open(folder / f"{words[0]}.out", "wb") as out:
                children.append(
                    subprocess.Popen(words, env=environment, stdout=out, stderr=out, cwd=folder)
                )
            if words[0] == "munged":
                _until(lambda: (munge / "socket").exists(), children, folder)
        _until(lambda: "State=IDLE" in _node(environment), children, folder)
        yield environment
    finally:
        for child in reversed(children):
            child.terminate()
        for child in reversed(children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
            if child.poll() is None:
                child.kill()
                child.wait()


def _node(environment: dict[str, str]) -> str:
    words = ["scontrol", "show", "node", "one"]
    return subprocess.run(words, env=environment, capture_output=True, text=True).stdout


def _until(is_so: object, children: list[subprocess.Popen[bytes]], folder: Path) -> None:
    assert callable(is_so)
    give_up_at = time.monotonic() + _UP_S
    while not is_so():
        ended = [child.args for child in children if child.poll() is not None]
        if ended or time.monotonic() > give_up_at:
            said = "".join(p.read_text()[-2000:] for p in folder.glob("*.out"))
            raise RuntimeError(f"Slurm did not come up; ended: {ended}\n{said}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _path() -> str:
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
