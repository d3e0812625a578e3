"""Saved plans on the page, and their launch: by ``trmcloud launch``, in a process of its own.

The page asks what the command asks, and then starts the command: with ``--detach``, since no
terminal stays with the run, and with an idempotency key that the page made with its question. So
each check and each refusal is the command's, a second click finds the run of the first one, and
the launch continues though the page's server ends.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trmcloud.api import Home
from trmcloud.app.balances import funds_reader
from trmcloud.app.context import Context
from trmcloud.app.kill_layers import verified_layers
from trmcloud.app.launch import Caller, Launch, Wish
from trmcloud.app.planning import load_plan, saved_plans
from trmcloud.cli.page.shown import money
from trmcloud.cli.page.watch import Jobs
from trmcloud.cli.views.launch import plan_lines, plan_rows
from trmcloud.cli.views.text import duration
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.control.bookkeeping import require_money, run_of_key
from trmcloud.core.control.budget import LAYERS_NEEDED, exposure_of
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import (
    BudgetRefused,
    ConflictError,
    NotFoundError,
    TrmcloudError,
    UsageError,
)
from trmcloud.core.money import Usd
from trmcloud.core.spec.plan import Plan
from trmcloud.core.text import one_line
from trmcloud.core.values import dataclass
from trmcloud.options import request_from
from trmcloud.wiring import trainer_package
from trmcloud.wiring_plans import build_planner

MOST_PLANS = 50
VERB = "launch"
_KEY = re.compile(r"[A-Za-z0-9_-]{16,64}")
_CENT = Usd("0.01")
_MOST_SAID = 1 << 20
_TYPED = "trmcloud launch {plan}"


def plans_json(context: Context) -> dict[str, Any]:
    """Return the answer of ``GET /api/plans``: plans that have not expired, the newest first."""
    now = context.wall()
    plans = saved_plans(context.home, now, MOST_PLANS, context.principal)
    return {"now": now, "plans": [_plan_json(context, plan, now) for plan in plans]}


def _plan_json(context: Context, plan: Plan, now: float) -> dict[str, Any]:
    chosen = plan.recommended
    told = dict(plan_rows(context, plan, verbose=False))
    return {
        "id": plan.id,
        "recipe": one_line(plan.spec.recipe),
        "phases": list(plan.spec.phases),
        "hardware": one_line(told.get("hardware", "none that fits")),
        "rate": money(chosen.rate) if chosen is not None else None,
        "cap": money(plan.cap),
        "reservation": money(plan.reservation),
        **_expected(plan),
        "survives": one_line(plan.survives),
        "created_at": plan.created_at,
        "expires_at": plan.expires_at,
        "refused": one_line(_why_not(context, plan, now)),
        "typed": _TYPED.format(plan=plan.id),
    }


def _expected(plan: Plan) -> dict[str, Any]:
    """What its work costs and takes at P50, or until its cap ends it."""
    chosen = plan.recommended
    if chosen is None:
        return {"expected": None, "takes": ""}
    amount = chosen.cost_p50 if plan.cap is None else min(chosen.cost_p50, plan.cap)
    takes_s = min(chosen.hours.p50 * 3600, chosen.hard_stop_s)
    return {"expected": money(amount), "takes": duration(takes_s)}


def _why_not(context: Context, plan: Plan, now: float) -> str:
    """Why it cannot be launched now, as far as that can be said without asking a provider."""
    if plan.spec.command is not None:
        return "it is the plan of a command, whose code it does not hold: run that in its folder"
    if not plan.launchable:
        return "nothing in this plan can be launched"
    try:
        _require_money(context, plan, now)
    except BudgetRefused as error:
        return str(error)
    return ""


def _require_money(context: Context, plan: Plan, now: float) -> None:
    """
    Raises:
        BudgetRefused: a budget lacks the plan's worst case.
    """
    new = RunState("", project=context.project, cap=plan.reservation)
    require_money(context.ledger.read(), new, plan.reservation, now)


# -- the question ----------------------------------------------------------------------------------


def foreseen_json(context: Context, plan_id: str) -> dict[str, Any]:
    """Return what ``trmcloud launch PLAN`` prints before its question, or why it refuses.

    Raises:
        UsageError, NotFoundError: there is no such plan, or it has expired.
    """
    plan = load_plan(context.home, plan_id, context.wall(), context.principal)
    answer = {
        "title": f"Launch {plan.id}",
        "lines": [one_line(line) for line in plan_lines(context, plan)],
        "also": [one_line(line) for line in _without_this_machine(context, plan)],
        "refused": "",
        "next": "",
        "typed": _TYPED.format(plan=plan.id),
        "button": f"Launch it, {plan.reservation} at most",
        "at_most": plan.reservation.plain(),
    }
    try:
        _check(context, plan_id)
    except TrmcloudError as error:
        answer |= {"refused": one_line(str(error)), "next": one_line(error.next_step)}
    return answer


def _check(context: Context, plan_id: str) -> None:
    """
    Raises:
        TrmcloudError: what would keep the command from launching it.
    """
    wish = Wish(request_from({"hardware": plan_id, "detach": True}))
    planner = build_planner(context.home, context.wall, funds_reader(context), context.principal)
    plan = Launch(context, planner, wish, Caller(), trainer_package).foresee()
    _require_money(context, plan, context.wall())


def _without_this_machine(context: Context, plan: Plan) -> list[str]:
    """What would end its machine, and what follows where this one is off."""
    now, said = context.wall(), []
    for provider in dict.fromkeys(plan.candidate(name).provider for name in plan.launchable):
        if provider == LOCAL:
            said.append(
                "Kill layers: the trainer, its agent and a watchdog, all of this machine; any one "
                "is enough. While this machine is off, nothing is trained and nothing is spent."
            )
            continue
        ends_at = now + max(plan.candidate(name).hard_stop_s for name in plan.launchable)
        lapsed = context.computes[provider].lapsing(ends_at)
        known = verified_layers(context, provider).items()
        counted = {key: at for key, at in known if key[1] not in lapsed}
        found = exposure_of(traits_of(provider), counted, now)
        said += [
            f"Kill layers at {provider} that work while this machine is off: "
            f"{', '.join(found.verified) or 'none'} verified, "
            f"{', '.join(found.unverified) or 'none'} not verified; {LAYERS_NEEDED} are needed.",
            "The pod's own agent saves and stops it at the soft stop and ends it at the hard stop, "
            "without this machine.",
        ]
    return said


# -- the launch ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BegunLaunch:
    """A launch that this server began. ``job`` is its number among the jobs."""

    key: str
    plan: str
    job: int


class Launches:
    """Launches by their idempotency keys. ``folder`` is where their commands are started; ``home``
    is None for the user's own."""

    def __init__(self, jobs: Jobs, home: Path | None, folder: Path) -> None:
        self._jobs, self._home, self._folder = jobs, home, folder
        self._begun: dict[str, BegunLaunch] = {}
        self._lock = threading.Lock()

    def start(self, home: Home, plan_id: str, wish: dict[str, str]) -> dict[str, Any]:
        """Start the command, once for each key.

        Raises:
            UsageError: no key, or another plan's. ConflictError: it would reserve more than was
                agreed to, or the same plan is being launched with another key.
            NotFoundError: there is no such plan.
        """
        key, context = wish.get("key", ""), home.context
        if not _KEY.fullmatch(key):
            raise UsageError("a launch takes a key of 16 to 64 letters and digits")
        with self._lock:
            if (begun := self._begun.get(key)) is None:
                plan = load_plan(context.home, plan_id, context.wall(), context.principal)
                _require_agreed(plan, wish.get("agreed", ""))
                started: queue.SimpleQueue[Ended] = queue.SimpleQueue()
                job = self._jobs.start(VERB, plan.id, lambda _: _said(*started.get()()))
                # Before the answer: once a click is answered, no end of this server undoes it.
                started.put(self._begin(_command(plan.id, key)))
                begun = self._begun[key] = BegunLaunch(key, plan.id, job)
        if begun.plan != plan_id:
            raise UsageError(f"this key is that of a launch of {begun.plan}")
        return {"key": key, "job": begun.job}

    def state(self, home: Home, key: str) -> dict[str, Any]:
        """Return the answer of ``GET /api/launches/{key}``: ``run`` once it is on record.

        Raises:
            NotFoundError: no such launch.
        """
        run = run_of_key(home.context.ledger.read(), key) if _KEY.fullmatch(key) else None
        begun = self._begun.get(key)
        if begun is None and run is None:
            raise NotFoundError("no launch with this key", next_step="look at the list of runs")
        number = begun.job if begun is not None else 0
        job = next((job for job in self._jobs.to_json() if job["number"] == number), None)
        return {
            "run": run.run_id if run is not None else None,
            "state": job["state"] if job is not None else "done",
            "error": job["text"] if job is not None and job["state"] == "failed" else "",
            "next": job["next"] if job is not None else "",
        }

    def _begin(self, command: list[str]) -> Ended:
        """Start it in a session of its own, and with files for its output: what ends this server
        does not end it."""
        environment = dict(os.environ)
        if self._home is not None:
            environment["TRMCLOUD_HOME"] = str(self._home)
        out = tempfile.TemporaryFile()  # noqa: SIM115  # closed once it has ended
        try:
            process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            out.close()
            why = error.strerror or str(error)
            return lambda: _not_started(why)

        def ended() -> tuple[int, str]:
            with out:
                code = process.wait()
                out.seek(0)
                return code, out.read(_MOST_SAID).decode("utf-8", "replace")

        return ended


Ended = Callable[[], tuple[int, str]]
"""Waits for a command; returns its exit code, and what it printed to stdout."""


def _not_started(why: str) -> tuple[int, str]:
    raise TrmcloudError(f"the launch could not be started: {why}", next_step="trmcloud doctor")


def _command(plan_id: str, key: str) -> list[str]:
    words = [VERB, plan_id, "--detach", "--yes", "--json", "--idempotency-key", key]
    return [sys.executable, "-m", "trmcloud", *words]


def _require_agreed(plan: Plan, agreed: str) -> None:
    try:
        amount = Usd(agreed or "0")
    except ValueError as error:
        raise UsageError(str(error)) from None
    if plan.reservation > amount + _CENT:
        raise ConflictError(
            f"it would reserve {plan.reservation}, and {amount} was agreed to",
            next_step="look at the question again",
        )


def _said(code: int, out: str) -> str:
    """Return what became of a launch, by the document that its command printed.

    Raises:
        TrmcloudError: it was refused, with the command's own words.
    """
    try:
        told = json.loads(out)
        schema = told["schema"]
    except (ValueError, KeyError, TypeError):
        raise TrmcloudError(
            f"the launch ended with exit code {code}", next_step="trmcloud status"
        ) from None
    if schema != "launch/1":
        next_step = str(told.get("next") or "")
        raise TrmcloudError(str(told.get("message", "refused")), next_step=next_step)
    run, outcome = told["run"], told.get("outcome")
    if outcome:
        raise TrmcloudError(f"{run} has ended: {outcome}", next_step=f"trmcloud status {run}")
    return f"{run} was launched, within {Usd(told['cap_usd'])}"
