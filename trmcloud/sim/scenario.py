"""What a simulated world is made of: runs, providers, what the user does, what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from trmcloud.core.control.events import GrantTerms
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.core.values import Value
from trmcloud.sim.world.facts import TruePaces
from trmcloud.sim.world.trainer import Shape


class SimRun(Value):
    """One run: when it is launched, its plan, how its training really goes, and what follows.

    ``resume_after_s``: how long after its end the user resumes it, once (0: never).
    """

    run_id: str
    at_s: float
    plan: Plan
    shapes: dict[str, Shape]
    project: str
    detached: bool
    stop_after_s: float
    resume_after_s: float
    fetch_after_s: float
    principal: str = ""
    """Who launches it, under a grant; empty: the ledger's owner."""
    resumed_by: str = ""
    elsewhere: bool = False
    """Whether it is launched and resumed from the other machine: a second client."""


class GrantAct(Value):
    """What happens to a principal's grant ``at_s``: give, raise, revoke, revoke_now, or approve,
    where the principal asks first for ``terms.total`` more and for ``terms.runs_at_once``."""

    at_s: float
    kind: str
    principal: str
    terms: GrantTerms | None = None


class Scenario(Value):
    """All that a seed means. ``faults`` strike by number, in this order of arming."""

    seed: int
    providers: tuple[str, ...]
    wishes: tuple[SimRun, ...]
    account_cap: Usd | None
    reaper: str
    """none, laptop (cron), or server (another machine)."""
    foreign: bool
    looks_every_s: float
    """The time between two commands of the user."""
    faults: tuple[str, ...]
    fault_seeds: tuple[int, ...]
    off: frozenset[str] = frozenset()
    """Layers that do nothing from beginning to end: trainer, agent, watchdog, controller."""
    paces: Mapping[str, TruePaces] = field(default_factory=dict)
    """By run: how fast its machines are, and what they say of it; the others tell no pace."""
    paid_in: Usd | None = None
    """The balance of each prepaid account at the beginning; None: none ever ends."""
    grants: tuple[GrantAct, ...] = ()
