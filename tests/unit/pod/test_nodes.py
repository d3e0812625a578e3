"""Several machines as one: their shares, their ranks, and what no loss may cost."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.pod.leases import a_lease
from trmcloud.adapters.files import load_recipe
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.contract import supervisor
from trmcloud.core.contract.command_terms import ON_SEVERAL
from trmcloud.core.contract.pod_contract import PhaseReport, PhaseState
from trmcloud.core.errors import UsageError
from trmcloud.core.money import cost
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.plan import Candidate, divide_among_nodes
from trmcloud.core.spec.settings import PHASES
from trmcloud.core.spec.spec import RunSpec
from trmcloud.pod.agent.nodes import (
    HEAD_LOST_S,
    HeadWatch,
    Nodes,
    head_answers,
    job_command,
    lease_of_other,
    network,
    read_nodes,
    trainer_command,
    write_nodes,
)
from trmcloud.pod.machine.prepare import TrainerSetup

# -- nodes --------------------------------------------------------------------------------------
# Several machines as one: their shares, their words to torchrun, and what no loss may cost.


NOW = 1_795_000_000.0


def candidate(*phases: str) -> Candidate:
    spec = RunSpec("trm", phases, "8xH100")
    plan = make_plan(spec, load_recipe("trm"), load_offers(NOW), NOW, "p-0000")
    assert plan.recommended is not None
    return plan.recommended


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_nodes_together_cost_no_more_than_the_one_that_was_planned(count: int) -> None:
    alone = candidate("fast")
    each = divide_among_nodes(alone, count)
    assert cost(each.rate, each.hard_stop_s) <= cost(alone.rate, alone.hard_stop_s + 1)
    assert each.hard_stop_s - each.soft_stop_s == pytest.approx(alone.landing_s)
    before, after = alone.phases[0].settings, each.phases[0].settings
    assert after.accumulation * count >= before.accumulation
    if before.accumulation % count == 0:
        assert after.accumulation * count == before.accumulation


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(UsageError, match="one phase"):
        divide_among_nodes(candidate(*PHASES), 2)
    short = candidate("fast")
    with pytest.raises(UsageError, match="too little to train"):
        divide_among_nodes(replace(short, hard_stop_s=3 * short.landing_s), 2)


@pytest.mark.parametrize("nodes", [Nodes(2, 2, "h"), Nodes(0), Nodes(65, 0, "h"), Nodes(2, 0, "")])
def test_nodes_that_cannot_meet_are_refused(nodes: Nodes) -> None:
    with pytest.raises(UsageError):
        nodes.check()


def test_torchrun_joins_them_by_the_head_and_starts_nothing_again(tmp_path: Path) -> None:
    words, _ = trainer_command("python", 8, {}, read_nodes(tmp_path))
    assert "--standalone" in words
    write_nodes(tmp_path, Nodes(2, 1, "127.0.0.1"))
    words, environment = trainer_command("python", 8, {}, read_nodes(tmp_path))
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    for option, value in (
        ("--nnodes", "2"), ("--node_rank", "1"), ("--master_addr", "127.0.0.1"),
        ("--max_restarts", "0"), ("--nproc_per_node", "8"),
    ):  # fmt: skip
        assert words[words.index(option) + 1] == value


def test_the_interface_that_leads_to_the_head_is_named_unless_somebody_did() -> None:
    assert network(Nodes(), {}) == {}
    nodes = Nodes(2, 1, "127.0.0.1")
    assert network(nodes, {})["NCCL_SOCKET_IFNAME"] == "lo"
    assert network(nodes, {"GLOO_SOCKET_IFNAME": "ib0"}) == {"NCCL_SOCKET_IFNAME": "lo"}


def test_a_trainer_that_lost_a_node_is_not_started_again() -> None:
    lost = PhaseReport("fast", state=PhaseState.ENDED, outcome="crashed", attempts=1, saved_step=10)
    view = supervisor.TrainerView(None, 0.0, 400.0, 500.0)
    alone = a_lease(NOW)
    assert isinstance(supervisor.supervise(alone, (lost,), view), supervisor.StartPhase)
    act = supervisor.supervise(replace(alone, max_restarts=-1), (lost,), view)
    assert isinstance(act, supervisor.EndPod)


def test_a_head_is_lost_once_it_has_been_silent_for_long_and_not_before() -> None:
    answers, now = [True], [0.0]
    watch = HeadWatch(lambda: answers[0], lambda: now[0])
    watch.look()
    answers[0] = False
    now[0] = HEAD_LOST_S - 1.0
    watch.look()
    assert not watch.is_lost
    answers[0] = True
    watch.look()
    answers[0] = False
    now[0] += HEAD_LOST_S - 1.0
    watch.look()
    assert not watch.is_lost, "it had been restarted"
    now[0] += 2.0
    assert watch.is_lost


def test_a_head_that_never_answered_is_none_that_was_lost() -> None:
    now = [0.0]
    watch = HeadWatch(lambda: False, lambda: now[0])
    watch.look()
    now[0] = 10 * HEAD_LOST_S
    watch.look()
    assert not watch.is_lost


def test_a_head_that_refuses_is_there_and_one_without_a_way_is_not() -> None:
    assert head_answers(Nodes(2, 1, "127.0.0.1"))
    assert not head_answers(Nodes(2, 1, "a-name.invalid"))


def test_the_others_take_a_trainer_that_stands_still_for_hung_within_two_minutes() -> None:
    lease = replace(a_lease(NOW), hang_after_s=300.0, uploads=True)
    other = lease_of_other(lease)
    assert (other.hang_after_s, other.hold, other.uploads) == (120.0, True, False)
    assert lease_of_other(replace(lease, hang_after_s=60.0)).hang_after_s == 60.0


def test_a_commands_ranks_on_other_machines_may_print_nothing() -> None:
    lease = replace(a_lease(NOW), hang_after_s=60.0)
    assert lease_of_other(lease, of_a_command=True).hang_after_s > lease.hard_stop_at - NOW


def test_a_command_on_several_machines_is_given_what_its_ranks_meet_by() -> None:
    _, alone = job_command(TrainerSetup(sys.executable), "", {}, 8, Nodes())
    assert "MASTER_ADDR" not in alone
    _, made = job_command(TrainerSetup(sys.executable), "", {}, 8, Nodes(2, 1, "127.0.0.1"))
    expected = {"MASTER_ADDR": "127.0.0.1", "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "8"}
    for name, value in expected.items():
        assert (made[name], made[f"PET_{name}"]) == (value, value)
    assert set(ON_SEVERAL) <= made.keys()


# -- ranks --------------------------------------------------------------------------------------


def test_one_rank_is_started_without_torchrun_and_is_nobody_elses_rank() -> None:
    given = {"PATH": "/bin", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
    words, environment = trainer_command("python3", 1, given)
    assert words == ["python3", "-m", "model.train"]
    assert environment == {
        **given, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip


def test_several_ranks_are_torchruns() -> None:
    words, environment = trainer_command("python3", 8, {"PATH": "/bin"})
    assert words[:3] == ["python3", "-m", "torch.distributed.run"]
    assert words[-4:] == ["--nproc_per_node", "8", "-m", "model.train"]
    assert environment == {"PATH": "/bin"}
