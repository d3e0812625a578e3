"""How a trainer's ranks are started: by torchrun, and one alone without it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from trmcloud.core.contract.command import PATHS
from trmcloud.pod.agent.nodes import Nodes, network
from trmcloud.pod.machine.prepare import TrainerSetup

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

    A rank alone has nobody to meet. torchrun would import torch for itself before the trainer does
    so again: seconds of rent at every start. What torchrun would tell the rank is told all the
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
    setup: TrainerSetup, code_dir: str, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The words that start a command's own process of ours, which the agent's Python runs; what was
    made ready for a trainer goes to the command. ``code_dir`` has that process of ours, where this
    machine was sent it."""
    made = setup.over(environment)
    made[PATHS] = os.pathsep.join(path for path in setup.python_path if path != code_dir)
    if setup.python != sys.executable:
        made["PATH"] = os.pathsep.join((os.path.dirname(setup.python), made.get("PATH", "")))
    return [sys.executable, "-m", JOB], made
