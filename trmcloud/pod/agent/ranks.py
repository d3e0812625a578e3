"""How a trainer's ranks are started: by torchrun, and one alone without it."""

from __future__ import annotations

from collections.abc import Mapping

from trmcloud.pod.agent.nodes import Nodes, network

_MODULE = "model.train"
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
