"""Training on several machines: each one's share, the network, and how ranks are started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from trmcloud.core.contract.command import PATHS, RENDEZVOUS
from trmcloud.core.contract.pod_contract import Lease
from trmcloud.core.errors import UsageError
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small, write_atomic
from trmcloud.pod.machine.prepare import TrainerSetup

# How a trainer's ranks are started: by torchrun, and one alone without it.

_MODULE = "model.train"
JOB = "trmcloud.pod.job.process"
_ALONE: Mapping[str, str] = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
}


def trainer_command(
    python: str, processes: int, environment: Mapping[str, str], nodes: Nodes | None = None
) -> tuple[list[str], dict[str, str]]:
    """The words that start ``processes`` ranks of the trainer, and their environment;
    ``nodes`` is one machine where it is None.

    A rank alone meets no other. torchrun would import torch for itself before the trainer does
    so again: seconds of rent at every start. The rank gets torchrun's variables all the
    same, since this process may itself be somebody's rank.
    """
    if nodes is not None and nodes.count > 1:
        # By fixed ranks, since node 0 has the checkpoints; a lost node ends the others.
        words = [
            *(python, "-m", "torch.distributed.run"),
            *("--nnodes", str(nodes.count), "--node_rank", str(nodes.rank)),
            *("--master_addr", nodes.head, "--master_port", str(nodes.port)),
            *("--max_restarts", "0", "--nproc_per_node", str(processes), "-m", _MODULE),
        ]
        return words, {**environment, **network(nodes, environment)}
    if processes == 1:
        return [python, "-m", _MODULE], {**environment, **_ALONE}
    words = [
        *(python, "-m", "torch.distributed.run", "--standalone"),
        # Its own host name need not resolve in a container.
        *("--local_addr", "127.0.0.1"),
        *("--nproc_per_node", str(processes), "-m", _MODULE),
    ]
    return words, dict(environment)


def job_command(
    setup: TrainerSetup,
    code_dir: str,
    environment: Mapping[str, str],
    processes: int = 1,
    nodes: Nodes | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The words that start a command's own process of ours, which the agent's Python runs; what was
    made ready for a trainer goes to the command. ``code_dir`` has that process of ours, where this
    machine was sent it. On several ``nodes`` of ``processes`` GPUs each, the command's environment
    has what its ranks meet by."""
    made = setup.over(environment)
    made[PATHS] = os.pathsep.join(path for path in setup.python_path if path != code_dir)
    if setup.python != sys.executable:
        made["PATH"] = os.pathsep.join((os.path.dirname(setup.python), made.get("PATH", "")))
    if nodes is not None and nodes.count > 1:
        made |= {**network(nodes, environment), **rendezvous(nodes, processes)}
    return [sys.executable, "-m", JOB], made


def rendezvous(nodes: Nodes, processes: int) -> dict[str, str]:
    """Return the variables of ``RENDEZVOUS``, and each once more under the name by which torchrun
    takes it for an option that was left out (``PET_``, torch.distributed.argparse_util)."""
    values = (nodes.head, nodes.port, nodes.count, nodes.rank, processes)
    made = {name: str(value) for name, value in zip(RENDEZVOUS, values, strict=True)}
    return {**made, **{f"PET_{name}": value for name, value in made.items()}}


# One training on several machines: who takes part, each one's share, and the network between
# them.
#
# Every node has an agent and a hard stop of its own. What they share is the rendezvous on node 0,
# and the training itself: where one is lost the others' trainers fail, are not started again, and
# each agent ends its own part.

NODES_NAME = "nodes.json"
PORT = 29_400
MOST = 64
_NEVER_HANGS_S = 864_000.0
_HANG_AFTER_S = 120.0
"""Every node is paid for while one of them is waited for."""
HEAD_LOST_S = 120.0
"""A first machine that answers no other one for so long is lost: what a restart of it may take."""
HEAD_LOOK_EVERY_S = 10.0
HEAD_PORT = 22
"""SkyPilot reaches every machine there, from the others too."""
_HEAD_TIMEOUT_S = 5.0
_SIOCGIFADDR = 0x8915
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Nodes(Value):
    """``rank`` of ``count``; ``head`` is node 0's address as the others reach it."""

    count: int = 1
    rank: int = 0
    head: str = ""
    port: int = PORT

    def check(self) -> Nodes:
        """
        Raises:
            UsageError: they cannot find one another.
        """
        if not 1 <= self.count <= MOST or not 0 <= self.rank < self.count:
            raise UsageError(
                f"node {self.rank} of {self.count}", next_step="NODES=2 NODE_RANK=0, or 1"
            )
        if self.count > 1 and not self.head:
            raise UsageError("no node is the head", next_step="HEAD=address of node 0")
        return self


ALONE = Nodes()


def for_nodes(lease: Lease, count: int) -> Lease:
    """``lease`` of nodes that were set up together, and begin at the same time."""
    if count == 1:
        return lease
    return replace(lease, hang_after_s=min(lease.hang_after_s, _HANG_AFTER_S))


def parse_nodes(text: str) -> Nodes:
    """Parse ``TRMCLOUD_NODES``; one node where it is empty.

    Raises:
        ValueError: it says nothing that can be.
    """
    if not text:
        return ALONE
    try:
        count, rank, head = text.split(" ")
        return Nodes(int(count), int(rank), head).check()
    except (ValueError, UsageError):
        raise ValueError(f"{text!r:.80} does not say which machine this is") from None


def lease_of_other(lease: Lease, *, of_a_command: bool = False) -> Lease:
    """The lease of a machine that is not the first: nothing is uploaded or pulled from there, and
    its part done it stays for the others, until the hard stop, the loss of the first, or the end
    of them all. A trainer that stands still is not waited for longer than all are paid for it. A
    command's ranks there print nothing as a rule: that says nothing of them."""
    held = replace(lease, hold=True, uploads=False)
    if of_a_command:
        return replace(held, hang_after_s=max(lease.hang_after_s, _NEVER_HANGS_S))
    return replace(held, hang_after_s=min(lease.hang_after_s, _HANG_AFTER_S))


class HeadWatch:
    """A watch on the first machine by another one, over their own network.

    ``answers`` asks it once; ``now`` is a clock in seconds that cannot be set. A head that never
    answered is none that was lost: what lies between may let nothing else through.
    """

    def __init__(
        self,
        answers: Callable[[], bool],
        now: Callable[[], float],
        lost_after_s: float = HEAD_LOST_S,
    ) -> None:
        self._answers, self._now, self._lost_after_s = answers, now, lost_after_s
        self._answered_at: float | None = None

    def look(self) -> None:
        """Ask once; takes as long as an answer may."""
        asked_at = self._now()
        if self._answers():
            self._answered_at = asked_at

    @property
    def is_lost(self) -> bool:
        if self._answered_at is None:
            return False
        return self._now() - self._answered_at >= self._lost_after_s


def head_answers(nodes: Nodes) -> bool:
    """Whether anything at the first machine's address does: one that refuses is there."""
    try:
        with socket.create_connection((nodes.head, HEAD_PORT), timeout=_HEAD_TIMEOUT_S):
            return True
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


def write_nodes(pod_dir: Path, nodes: Nodes) -> None:
    write_atomic(pod_dir / NODES_NAME, json.dumps(asdict(nodes)))


def read_nodes(pod_dir: Path) -> Nodes:
    """One node where nothing else was written down."""
    with contextlib.suppress(ValueError, TypeError):
        text = read_small(pod_dir / NODES_NAME)
        if text is not None:
            return Nodes(**json.loads(text))
    return Nodes()


def network(nodes: Nodes, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the network settings of gloo and NCCL: without them they take the interface that the
    host's own name leads to, which in a container is often the loopback."""
    if nodes.count == 1:
        return {}
    name = _interface_towards(nodes.head, nodes.port)
    return {key: name for key in _INTERFACES if name and key not in environment}


def _interface_towards(host: str, port: int) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)[20:24] == own:
                    return name
    return ""
