"""The smoke run: rent the cheapest pod and see, for real, which of its kill layers work.

It is a run like any other, reserved, recorded and settled by the ledger, whose Plan has no phases.
The one thing that is different: near the pod's hard stop nobody here touches it any more, since a
pod that was ended from outside proves nothing about what it can do by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from trmcloud.core.catalog.providers import traits_of
from trmcloud.core.clock import utc_day
from trmcloud.core.control import events as ev
from trmcloud.core.control.balance import AccountBalance, Billing, prepaid_limit
from trmcloud.core.control.events import FailureKind
from trmcloud.core.control.observation import PodStatus
from trmcloud.core.control.reason import Reason
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import Generation, RunState, State
from trmcloud.core.errors import (
    BudgetRefused,
    LinkError,
    NoCapacity,
    NotVerified,
    Outcome,
    PaymentRequired,
    ProviderError,
    StaleEpoch,
    TrmcloudError,
)
from trmcloud.core.money import ZERO, Usd, total
from trmcloud.core.spec.plan import Plan
from trmcloud.operations.checks.smoke_watch import (
    MadeLimit,
    PodWatch,
    SmokeSetting,
    Step,
    Verdict,
    last_way,
    terminated_at,
    why_ended,
)
from trmcloud.operations.context import Context
from trmcloud.operations.driving.drive import RunDriver
from trmcloud.operations.launch import launching
from trmcloud.operations.launch.short_rentals import make_smoke_plan, with_only_candidate
from trmcloud.operations.plans.launch_checks import check_needs
from trmcloud.operations.pod_request import LaunchData

FILE_BYTES = 16 << 20
_LOOK_S = 0.5
_HANDS_OFF_S = 2.0
"""From here to the hard stop this process does nothing: the pod must end by itself."""
LIMIT_AHEAD_S = 300.0
"""The time before its hard stop at which a pod's own limit must have ended it: the limit counts
whole minutes, is looked at once a minute, and ending takes a while."""
_LAST_LOOK_S = 15.0
"""Before the hard stop, when only that limit can have ended it."""
_NOT_RENTED = "the machine could not be rented"
_BILL_WAIT_S = 5.0


class Smoke:
    """One smoke run within ``max_usd``, its pods killed ``hold_s`` seconds after their intent."""

    def __init__(
        self,
        context: Context,
        ground: SmokeSetting,
        max_usd: Usd,
        hold_s: float,
        tell: Callable[[Step], None],
        words: Callable[[Reason], str],
    ) -> None:
        """``words``: the sentence of a reason."""
        self._context, self._ground = context, ground
        self._max_usd, self._hold_s = max_usd, hold_s
        self._tell, self._words = tell, words
        self._traits = traits_of(ground.provider)
        self._began_at = context.wall()
        self._account = AccountBalance()
        self._drivers: list[RunDriver] = []
        self._verified: list[str] = []
        self._trouble: TrmcloudError | None = None

    def check_account(self) -> None:
        """
        Raises:
            MissingTool: this machine could not reach a pod.
            AuthError: there is no key, or it is wrong.
            PaymentRequired: the balance is empty.
        """
        check_needs(self._context, self._ground.provider)
        compute = self._context.machines.computes[self._ground.provider]
        pods = compute.list_pods()
        self._account = account = self._ground.account()
        shown = str(account.balance) if account.balance is not None else "not reported"
        limit = f"{account.spend_limit}/h" if account.spend_limit is not None else "not reported"
        why = f" ({account.why})" if account.why else ""
        detail = f"the key works; {len(pods)} pods; balance {shown}, spend limit {limit}{why}"
        is_prepaid = account.billing is Billing.PREPAID
        empty = is_prepaid and account.balance is not None and account.balance <= ZERO
        self._say("account", not empty, detail)
        if empty:
            raise PaymentRequired(
                f"the balance is {account.balance}: nothing can be rented",
                next_step=f"add credit in {self._ground.provider}'s console",
            )

    def plan(self) -> Plan:
        """
        Raises:
            NoCapacity, BudgetRefused: see ``make_smoke_plan``.
        """
        now = self._context.wall()
        return make_smoke_plan(
            self._ground.offers(now),
            self._traits,
            self._max_usd,
            self._hold_s,
            self._ground.disk_rate,
            now,
        )

    def run(self, plan: Plan) -> Verdict:
        """Carry it out. However this is left, its pods are told to end.

        Raises:
            BudgetRefused: a cap of the ledger has no room.
            NoCapacity, ProviderError: nothing could be rented.
        """
        try:
            candidate_id = self._first_pod(plan)
            if candidate_id and self._trouble is None:
                self._second_pod(plan, with_only_candidate(plan, candidate_id))
            self._show_bill()
        except StaleEpoch:
            raise  # another command has taken the run over: its pod is that one's now
        except BaseException:
            self._abandon()
            raise
        self._release()
        return Verdict(tuple(self._verified), self._trouble)

    # -- the first pod ------------------------------------------------------------------------

    def _first_pod(self, plan: Plan) -> str:
        """Which candidate it was."""
        limit = self._ground.made_limit
        ahead_s = min(LIMIT_AHEAD_S, self._hold_s / 2)
        if limit is not None:
            limit.ahead(ahead_s)
        driver = launching.start(self._context, plan, data=LaunchData(), detached=True)
        self._drivers.append(driver)
        run = self._step_until(driver, lambda run: _has_pod(run))
        if limit is not None:
            limit.ahead(0.0)
        generation = self._rented(run, plan)
        watch = PodWatch(self._context, generation)
        checks: tuple[tuple[str, Callable[[RunDriver, PodWatch], tuple[bool, str]]], ...] = (
            ("boots", self._boots),
            ("ssh", self._ssh),
            ("agent", self._agent),
            ("hardware", self._hardware),
            ("file", self._file),
        )
        for name, check in checks:
            good, detail = check(driver, watch)
            self._say(name, good, detail)
            if not good:
                kind = LinkError if name in ("ssh", "file") else ProviderError
                self._trouble = kind(f"smoke run {driver.run_id}: {name}: {detail}")
                break
        if terminated_at(self._context, driver.run_id) is not None:
            ended = self._why(why_ended(self._context, driver.run_id), "by the controller")
            self._trouble = ProviderError(f"the pod was ended early: {ended}")
            self._controller_ends(driver, watch)
        elif self._ground.cut is not None:
            self._alone(driver, watch, limited=True)
        elif limit is None or not self._by_limit(driver, watch, limit):
            self._hands_off(driver, watch)
        self._verify_prepaid()
        return generation.candidate_id

    def _rented(self, run: RunState, plan: Plan) -> Generation:
        generation = run.generation
        if generation is None or generation.pod_id is None:
            full = [a for a in run.actions.values() if a.failed_kind is FailureKind.NO_CAPACITY]
            made = [g for g in run.generations if g.not_made]
            why = self._why(run.reason or (made[-1].not_made if made else None), _NOT_RENTED)
            self._say("rent", False, why)
            if full and len(full) == len(made):
                raise NoCapacity(
                    f"none of the {len(full)} cheapest offers is available",
                    next_step="try again in a few minutes, or with a higher --max-usd",
                )
            raise ProviderError(f"nothing could be rented: {why}", next_step="trmcloud doctor")
        candidate = plan.candidate(generation.candidate_id)
        stop = time.strftime("%H:%M:%S", time.localtime(generation.hard_stop_at))
        self._say(
            "rent",
            True,
            f"{candidate.hardware} in {candidate.region} at {generation.rate}/h; "
            f"hard stop {stop}; {generation.pod_name}",
        )
        return generation

    def _boots(self, driver: RunDriver, watch: PodWatch) -> tuple[bool, str]:
        began_at = self._context.wall()
        run = self._step_until(driver, lambda run: watch.status() is PodStatus.RUNNING)
        if watch.status() is PodStatus.RUNNING:
            return True, f"runs {self._context.wall() - began_at:.0f} s after it was listed"
        return False, self._cut_short(run, "it was not running before its time limit")

    def _ssh(self, driver: RunDriver, watch: PodWatch) -> tuple[bool, str]:
        why = "never asked"

        def in_() -> bool:
            nonlocal why
            why = self._ground.answers(watch.name)
            return not why

        run = self._step_until(driver, lambda run: in_())
        if not why:
            return True, "it answers with the host key made for it"
        return False, self._cut_short(run, why)

    def _agent(self, driver: RunDriver, watch: PodWatch) -> tuple[bool, str]:
        def heard(run: RunState) -> bool:
            return run.generation is not None and run.generation.agent_at is not None

        run = self._step_until(driver, heard)
        if heard(run):
            return True, "it reports, and knows when the pod must end"
        return False, self._cut_short(run, "no report")

    def _hardware(self, driver: RunDriver, watch: PodWatch) -> tuple[bool, str]:
        run = self._step_until(driver, lambda run: run.result is not None)
        if run.result == Outcome.FINISHED.value:
            return True, "the agent found the rented GPUs: right count and memory, no other user"
        return False, self._cut_short(run, "the agent did not report its hardware")

    def _file(self, driver: RunDriver, watch: PodWatch) -> tuple[bool, str]:
        try:
            trip = self._ground.round_trip(watch.name, FILE_BYTES)
        except TrmcloudError as error:
            return False, str(error)
        size_mb = trip.size_bytes / 1e6
        return True, (
            f"{size_mb:.0f} MB sent at {size_mb / max(trip.sent_s, 1e-3):.1f} MB/s and fetched at "
            f"{size_mb / max(trip.fetched_s, 1e-3):.1f} MB/s, same hash"
        )

    # -- its end ------------------------------------------------------------------------------

    def _hands_off(self, driver: RunDriver, watch: PodWatch) -> None:
        """The pod's own end: nothing here touches it until the kill latency is over."""
        left_s = watch.hard_stop_at - self._context.wall()
        if left_s > 2 * _HANDS_OFF_S:
            self._say(
                "hands off", None, f"{left_s:.0f} s to its hard stop; it must end without a command"
            )
        text, read_at = "", 0.0

        def look() -> None:
            nonlocal text, read_at
            now = self._context.wall()
            self._context.ledger.beat(driver.run_id, driver.epoch, now)
            if now >= watch.hard_stop_at - 1.0 and now - read_at >= _LOOK_S:
                text = self._ground.termination(watch.name) or text
                read_at = self._context.wall()

        gone_at = watch.await_gone(watch.hard_stop_at + self._traits.kill_latency_s, look)
        way, tried = last_way(text)
        refused = f"; before it: {tried}" if tried else ""
        if gone_at is not None and way and gone_at >= watch.hard_stop_at - 1.0:
            late_s = gone_at - watch.hard_stop_at
            how = f"{way}, {late_s:.0f} s after its hard stop"
            self._say("ends itself", True, f"gone by {how}{refused}")
            self._verify("agent", f"smoke run {driver.run_id}: {how}")
            return
        if gone_at is not None:
            why = "the way was not readable" if not way else f"before its hard stop, by {way}"
            self._say("ends itself", False, f"it is gone, {why}")
            self._unverified(f"the pod is gone, but it is not proven that it ended itself: {why}")
            return
        said = tried or (f"only an attempt by {way} was seen" if way else "no attempt was seen")
        latency_s = self._traits.kill_latency_s
        self._say(
            "ends itself", False, f"still there {latency_s:.0f} s after its hard stop: {said}"
        )
        self._unverified("the pod did not end itself")
        self._controller_ends(driver, watch)

    def _by_limit(self, driver: RunDriver, watch: PodWatch, limit: MadeLimit) -> bool:
        """Whether the limit with which the pod was made has ended it: before its hard stop, which
        its agent waits for, while nothing here touches it."""
        left_s = watch.hard_stop_at - self._context.wall()
        self._say("hands off", None, f"its own limit must end it within {max(0.0, left_s):.0f} s")

        def beat() -> None:
            self._context.ledger.beat(driver.run_id, driver.epoch, self._context.wall())

        gone_at = watch.await_gone(watch.hard_stop_at - _HANDS_OFF_S, beat)
        how = limit.how(watch.name) if gone_at is not None else ""
        if gone_at is None:
            why = "it started too late, or has no limit; use more --minutes"
            self._say(limit.layer, None, f"not gone before its hard stop: {why}")
            return False
        early_s = watch.hard_stop_at - gone_at
        self._say(limit.layer, bool(how), how or f"gone {early_s:.0f} s early, for another reason")
        if how:
            told = f"{how}, {early_s:.0f} s before its hard stop"
            self._verify(limit.layer, f"smoke run {driver.run_id}: {told}")
        else:
            self._unverified("the pod was gone early, but not because of the provider's limit")
        return True

    def _alone(self, driver: RunDriver, watch: PodWatch, *, limited: bool) -> None:
        """The pod's end with the line from here cut: nothing on this machine is in touch with it or
        its provider, which is asked afterwards alone. ``limited``: its own limit is set to come
        before the hard stop, which its agent waits for: what is gone in between was ended by that
        limit. Else the limit lies minutes behind the hard stop, at which the agent acts."""
        name, hard_stop_at = watch.name, watch.hard_stop_at
        if limited and self._set_limit(watch):
            self._cut()
            self._sleep_until(driver, hard_stop_at - _LAST_LOOK_S)
            if self._is_gone(driver, watch, hard_stop_at - _HANDS_OFF_S):
                how = "autodown, before its hard stop, while SkyPilot's server here is stopped"
                self._say("autodown", True, f"{name} was ended by its own limit: {how}")
                self._verify("autostop", f"smoke run {driver.run_id}: {how}")
                return
            self._say("autodown", False, "still there shortly before its hard stop")
            self._unverified("SkyPilot's autodown did not end the machine")
        self._cut()
        latest = hard_stop_at + self._traits.kill_latency_s
        self._sleep_until(driver, latest)
        if self._is_gone(driver, watch, latest + self._traits.kill_latency_s):
            how = "its agent, after its hard stop, while SkyPilot's server here is stopped"
            self._say("ends itself", True, f"gone by {how}")
            self._verify("agent", f"smoke run {driver.run_id}: {how}")
            return
        self._say("ends itself", False, "still there after its hard stop and the kill latency")
        self._unverified("the pod did not end itself")
        self._controller_ends(driver, watch)

    def _set_limit(self, watch: PodWatch) -> bool:
        left_s = watch.hard_stop_at - LIMIT_AHEAD_S - self._context.wall()
        if self._ground.limit is None or left_s < 60.0:
            self._say("autodown", None, "too little time is left to verify it: use more --minutes")
            return False
        try:
            self._ground.limit(watch.name, watch.hard_stop_at - LIMIT_AHEAD_S)
        except ProviderError as error:
            self._say("autodown", False, f"the limit could not be set: {error}")
            self._unverified("SkyPilot's autodown could not be set")
            return False
        return True

    def _cut(self) -> None:
        assert self._ground.cut is not None
        self._ground.cut()
        self._say("line cut", None, "SkyPilot's server here is stopped; it cannot end the machine")

    def _sleep_until(self, driver: RunDriver, until: float) -> None:
        while (now := self._context.wall()) < until:
            self._context.ledger.beat(driver.run_id, driver.epoch, now)
            self._context.clock.sleep(_LOOK_S)

    def _is_gone(self, driver: RunDriver, watch: PodWatch, until: float) -> bool:
        """By the first list that there is, and those that confirm it: a pod that is still listed
        may be ended by this very question."""
        while (listed := watch.listed()) is None and self._context.wall() < until:
            self._context.clock.sleep(_LOOK_S)
        if listed is not False:
            return False

        def beat() -> None:
            self._context.ledger.beat(driver.run_id, driver.epoch, self._context.wall())

        return (
            watch.await_gone(self._context.wall() + self._traits.kill_latency_s, beat) is not None
        )

    def _controller_ends(self, driver: RunDriver, watch: PodWatch) -> None:
        """By the controller's own decision."""
        asked_at = self._context.wall()
        gone_at = watch.await_gone(asked_at + 2 * self._traits.kill_latency_s, driver.step)
        if gone_at is None:
            self._say("controller", False, "the pod is still listed")
            self._trouble = ProviderError(
                f"{watch.name} was asked to end, but is still listed",
                next_step=f"end it in {self._ground.provider}'s console, then trmcloud admin "
                "reap --yes",
            )
            return
        asked_at = terminated_at(self._context, driver.run_id) or asked_at
        after_s = max(0.0, gone_at - asked_at)
        self._say("controller", True, f"asked the pod to end: gone within {after_s:.0f} s")

    # -- the second pod -----------------------------------------------------------------------

    def _second_pod(self, first: Plan, plan: Plan) -> None:
        """A pod that is ended from here, as soon as its agent has checked it."""
        left = self._max_usd - first.reservation
        if plan.reservation > left:
            missing = plan.reservation - left
            self._say("controller", None, f"a second pod was not tried: {missing} more is needed")
            return
        is_cut = self._ground.cut is not None
        limit = self._ground.made_limit
        by_limit = limit is not None
        if limit is not None:
            # Behind its hard stop: what ends it there is its agent.
            limit.ahead(-self._traits.kill_latency_s)
        try:
            driver = launching.start(
                self._context, plan, data=LaunchData(), detached=is_cut or by_limit
            )
        except BudgetRefused as error:
            self._say("controller", None, f"a second pod was not tried: {error}")
            return
        self._drivers.append(driver)
        run = self._step_until(driver, _has_pod)
        if limit is not None:
            limit.ahead(0.0)
        if run.generation is None or run.generation.pod_id is None:
            why = self._why(run.reason, _NOT_RENTED)
            self._say("controller", None, f"there was no second pod: {why}")
            return
        watch = PodWatch(self._context, run.generation)
        if is_cut and "agent" not in self._verified:
            self._step_until(driver, lambda run: run.result is not None)
            if terminated_at(self._context, driver.run_id) is None:
                self._alone(driver, watch, limited=False)
                return
        if by_limit and "agent" not in self._verified:
            self._step_until(driver, lambda run: run.result is not None)
            if terminated_at(self._context, driver.run_id) is None:
                self._hands_off(driver, watch)
                return
        self._step_until(
            driver,
            lambda run: terminated_at(self._context, driver.run_id) is not None,
            to_the_end=True,
        )
        self._controller_ends(driver, watch)

    # -- money and record ---------------------------------------------------------------------

    def _verify(self, layer: str, how: str) -> None:
        event = ev.LayerVerified(self._ground.provider, layer, how)
        self._context.ledger.verify_layer(event, self._context.wall())
        self._verified.append(layer)

    def _verify_prepaid(self) -> None:
        if "prepaid" not in self._traits.layers.standard:
            return
        ends_rent, why = prepaid_limit(self._account)
        self._say("prepaid", ends_rent, why)
        if ends_rent:
            day = utc_day(self._context.wall())
            self._verify("prepaid", f"a prepaid account with {self._account.balance} on {day}")

    def _unverified(self, what: str) -> None:
        self._trouble = NotVerified(
            what,
            next_step="launch with --accept-exposure USD, or run trmcloud admin guard install on a "
            "machine that is always on",
        )

    def _show_bill(self) -> None:
        """Show the provider's present bill, which may still grow; the ledger settles on the
        rest."""
        until = self._context.wall() + _BILL_WAIT_S
        runs = [driver.step() for driver in self._drivers]
        while any(self._bill(run) is None for run in runs) and self._context.wall() < until:
            self._context.clock.sleep(_LOOK_S)
        bills = [(run, self._bill(run)) for run in runs if run.generation is not None]
        known = [bill for _, bill in bills if bill is not None]
        final = len(known) == len(bills) and all(done for _, done in known)
        amount = total(amount for amount, _ in known)
        names = " ".join(run.run_id for run, _ in bills)
        state = "final" if final else f"not final yet; later: trmcloud report {names}"
        self._say(
            "billed", True if final else None, f"{amount} of at most {self._max_usd}, {state}"
        )

    def _bill(self, run: RunState) -> tuple[Usd, bool] | None:
        if run.generation is None or run.generation.pod_id is None:
            return None
        try:
            compute = self._context.machines.computes[self._ground.provider]
            bill = compute.bill(run.generation.pod_id)
        except ProviderError:
            return None
        return (bill.amount, bill.final) if bill is not None else None

    def _why(self, reason: Reason | None, otherwise: str) -> str:
        return (self._words(reason) if reason is not None else "") or otherwise

    def _cut_short(self, run: RunState, otherwise: str) -> str:
        """Why a check came to nothing, in the best words there are."""
        if run.result is not None and run.result != Outcome.FINISHED.value and run.reason:
            return self._why(run.reason, otherwise)
        if run.state in (State.SETTLING, State.SETTLED, State.CLOSED):
            return "the pod is gone"
        return otherwise

    def _say(self, name: str, good: bool | None, detail: str) -> None:
        now = self._context.wall()
        runs = [driver.run() for driver in self._drivers]
        spent = total(spent_so_far(run, now) for run in runs)
        self._tell(Step(name, good, detail, now - self._began_at, spent))

    # -- driving ------------------------------------------------------------------------------

    def _step_until(
        self, driver: RunDriver, done: Callable[[RunState], bool], *, to_the_end: bool = False
    ) -> RunState:
        """Drive until ``done``, until its pod is ended, or (without ``to_the_end``) until it is to
        be left alone."""
        while True:
            run = driver.step()
            generation = run.generation
            if not run.live or run.state in (State.SETTLING, State.SETTLED) or done(run):
                return run
            if generation is not None and generation.open and not to_the_end:
                if self._context.wall() >= generation.hard_stop_at - _HANDS_OFF_S:
                    return run
                if terminated_at(self._context, driver.run_id) is not None:
                    return run
            self._context.clock.sleep(_LOOK_S)

    def _abandon(self) -> None:
        """The user, or an error, wants no more of it: whatever was rented is told to end."""
        compute = self._context.machines.computes[self._ground.provider]
        for driver in self._drivers:
            generation = driver.run().generation
            if generation is None or not generation.open:
                continue
            try:
                compute.terminate(generation.pod_id or generation.pod_name)
                self._say("cut short", None, f"asked {generation.pod_name} to end")
            except ProviderError as error:
                self._say("cut short", False, f"{generation.pod_name} was not ended: {error}")
        self._release()

    def _release(self) -> None:
        for driver in self._drivers:
            self._context.ledger.release(driver.run_id, driver.epoch)


def _has_pod(run: RunState) -> bool:
    return run.generation is not None and run.generation.pod_id is not None
