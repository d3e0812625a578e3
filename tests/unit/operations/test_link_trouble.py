"""When a pod that does not answer is worth a word, and when it need not answer yet."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import trmcloud.providers.registry  # noqa: F401 (fills the traits)
from tests.unit.core.runs import AT, booting
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConnectionDropped, HostKeyChanged, LinkError
from trmcloud.operations.machines import Machines
from trmcloud.operations.run_queries import link_trouble

REFUSED = ConnectionDropped(
    "it refuses connections",
    next_step="allow SSH to that address (firewall, VPN, proxy), or set a ProxyJump in "
    "~/.ssh/config",
)
CHANGED = HostKeyChanged("another machine answers")


def run_at(provider: str) -> RunState:
    run = booting()
    assert run.generation is not None
    generation = replace(run.generation, provider=provider, up_at=AT)
    return replace(run, generations=(generation,))


def told(provider: str, after_s: float, trouble: LinkError) -> LinkError | None:
    link: Any = SimpleNamespace(trouble=lambda pod_name: trouble)
    context: Any = SimpleNamespace(
        machines=Machines({}, {provider: link}), wall=lambda: AT + after_s
    )
    return link_trouble(context, run_at(provider))


@pytest.mark.parametrize(
    ("provider", "quiet_s", "said_s"),
    [("runpod", 29.0, 31.0), ("vast", 29.0, 31.0), ("aws", 590.0, 610.0), ("gcp", 590.0, 610.0)],
)
def test_a_cluster_is_given_the_time_of_its_set_up(
    provider: str, quiet_s: float, said_s: float
) -> None:
    assert told(provider, quiet_s, REFUSED) is None
    assert told(provider, said_s, REFUSED) is REFUSED


@pytest.mark.parametrize("provider", ["runpod", "aws"])
def test_another_machine_at_its_address_is_said_at_once(provider: str) -> None:
    assert told(provider, 0.0, CHANGED) is CHANGED
