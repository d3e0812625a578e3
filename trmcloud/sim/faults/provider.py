"""Faults 15–42: providers that lie, lag, forget and raise prices; the ledger's own troubles."""

from __future__ import annotations

from trmcloud.core.catalog.hardware import GPUS, on_other_board, slowdown
from trmcloud.core.catalog.offers import DAY_S
from trmcloud.core.contract.boards import NVL, PCIE
from trmcloud.core.control import events as ev
from trmcloud.core.control.renting import storage_beside_disks
from trmcloud.core.money import Usd, cost
from trmcloud.core.spec.plan import Candidate, Plan
from trmcloud.operations.driving.reconciling import reconcile
from trmcloud.sim.faults.arm import Fault, FaultContext, answer, window
from trmcloud.sim.world.account import Observer, RentedMachine
from trmcloud.sim.world.controllers import Process

HOUR_S = 3600.0


def _comes_late(arms: FaultContext) -> None:
    """Within the provider's longest delay, or now and then beyond all that is known of it."""
    mood = "too late" if arms.rng.random() < 0.25 else "late"
    text = f"a create is {'far too slow' if mood == 'too late' else 'slow'}"
    answer("next_creates", mood, text)(arms)


def _stuck(arms: FaultContext) -> None:
    mood = arms.rng.choice(("stuck", "refused"))
    answer("next_deletes", mood, f"a delete will be {mood}")(arms)


def _half_the_gpus(arms: FaultContext) -> None:
    if arms.rng.random() < 0.4:
        arms.set_knob("never_boots", arms.number, "a pod will never start")
    else:
        arms.set_knob("wrong_gpus", True, "pods have half the GPUs")


def _omits(arms: FaultContext) -> None:
    if arms.rng.random() < 0.5:
        arms.set_knob("list_flickers", True, "lists flicker while a pod is new")
    else:
        arms.set_knob("list_omits_s", arms.rng.uniform(30, 240), "lists omit new pods")


def _shows_dead(arms: FaultContext) -> None:
    arms.set_knob("lists_dead_s", arms.rng.uniform(30, 3600), "lists show dead pods as running")


def _offline(arms: FaultContext) -> None:
    machine = arms.rng.choice((arms.world.laptop, arms.world.laptop, arms.world.server))
    seconds = 30 * 240 ** arms.rng.random()

    def cut() -> None:
        machine.online = False

        def back() -> None:
            machine.online = True
            arms.world.wake()

        arms.world.queue.after(seconds, back)

    arms.strike(arms.some_time(-0.02, 1.1), f"{machine.name} is offline {seconds:.0f} s", cut)


def _garbage(arms: FaultContext) -> None:
    if arms.rng.random() < 0.5:
        arms.set_knob("statuses_unknown", True, "unknown statuses")
    else:
        window("garbage_until", 30, 3600, "answers are no JSON")(arms)


def _no_capacity(arms: FaultContext) -> None:
    draw = arms.rng.random()
    if draw < 0.25:
        answer("next_creates", "sold out", "the first offer is sold out")(arms)
        return
    if draw < 0.5:
        text = "a create is taken, and then nothing is found"
        answer("next_creates", "sold out later", text)(arms)
        return
    arms.for_a_while("no_capacity_until", arms.soon(), 30 * 240 ** arms.rng.random(), "sold out")


def _dearer(arms: FaultContext) -> None:
    factor = arms.rng.uniform(1.05, 2.0)
    if arms.rng.random() < 0.5:
        arms.set_knob("price_at_boot", factor, f"pods cost {factor:.2f} × the quote")
        return

    def reprice(rented: RentedMachine) -> None:
        rented.reprice(int(rented.rate_micros * factor), arms.world.queue.now)

    at, text = arms.some_time(0.05, 0.95), f"costs {factor:.2f} × from now on"
    arms.strike_pod(at, text, reprice, felt=True)


def _boot_fails(arms: FaultContext) -> None:
    """A host that never starts the container, says so in its log, and bills the pod as running."""
    count = arms.rng.choice((1, 1, 2))
    arms.set_knob("boots_failing", count, f"{count} pods will fail to boot, as their logs say")


def _other_board(arms: FaultContext) -> None:
    """A host of a slower board than was rented, whose agent refuses it, or only says so; where the
    work is done on it in time it trains."""
    knobs = arms.world.knobs
    form = arms.rng.choice((PCIE, NVL))
    slower = on_other_board("H100-SXM", form)
    assert slower is not None
    most = slowdown(GPUS["H100-SXM"], slower, 8)
    count, factor = arms.rng.choice((1, 1, 2)), arms.rng.uniform(1.0, most)
    silent = arms.rng.random() < 0.3

    def turn() -> None:
        knobs.other_boards, knobs.other_board = count, f"NVIDIA H100 {form}"
        knobs.board_factor, knobs.silent_board = factor, silent

    arms.strike(arms.soon(), f"{count} pods are of H100 {form}", turn)


def _bill_lags(arms: FaultContext) -> None:
    arms.set_knob("bill_lag_s", arms.rng.uniform(600, 24 * HOUR_S), "bills lag")


def _billed_on(plan: Plan, candidate: Candidate) -> int:
    """Micro-dollars that are kept for a pod's storage after its end; its network volume has a bill
    apart."""
    planned_s = min(candidate.hours.p50 * HOUR_S, candidate.hard_stop_s)
    volume = cost(candidate.volume_rate, planned_s + plan.spec.volume_days * DAY_S)
    return max(0, storage_beside_disks(candidate).micros - volume.micros)


def _storage_tail(arms: FaultContext) -> None:
    least = min(_billed_on(w.plan, c) for w in arms.scenario.wishes for c in w.plan.candidates)
    tail = int(least * arms.rng.random())
    if tail:
        arms.set_knob("storage_tail_micros", tail, "storage is billed after the delete")


def _head_lost(arms: FaultContext) -> None:
    """Of several machines that are one pod: the others are all there, and billed, and none of them
    can be spoken to in the first one's place but to ask how its own part ended."""

    def lose(rented: RentedMachine) -> None:
        if rented.account.habits.joins_machines and rented.pod.running:
            rented.pod.others.lose_head()
            arms.world.observed(arms.number)

    arms.strike_pod(arms.some_time(0.05, 0.95), "has lost the first of its machines", lose)


def _broke(arms: FaultContext) -> None:
    def broke() -> None:
        for account in arms.world.accounts.values():
            if account.habits.prepaid and account.living:
                for rented in list(account.living):
                    account.host_lost(rented, "provider's $0 rule")
                arms.world.observed(arms.number)

    if any(account.habits.prepaid for account in arms.world.accounts.values()):
        arms.strike(arms.some_time(0.02, 1.0), "the balance is $0", broke)


def _preempted(arms: FaultContext) -> None:
    def lose(rented: RentedMachine) -> None:
        rented.account.host_lost(rented, "preempted")

    arms.strike_pod(arms.some_time(0.02, 1.0), "is preempted", lose, felt=True)


def _host_lost(arms: FaultContext) -> None:
    def lose(rented: RentedMachine) -> None:
        rented.account.host_lost(rented, "host lost")
        arms.world.files.lose_volume(rented.run_id)
        rented.pod.report = rented.pod.durable_report = None

    arms.strike_pod(arms.some_time(0.02, 1.0), "host and volume are lost", lose, felt=True)


def _restarted(arms: FaultContext) -> None:
    seconds = arms.rng.uniform(30, 900)

    def restart(rented: RentedMachine) -> None:
        if not rented.pod.running or rented.account.habits.self_ends == "exit":
            return
        arms.from_now("link_down_until", seconds)
        rented.pod.restart_container(wiped=arms.rng.random() < 0.5)
        arms.world.observed(arms.number)

    arms.strike_pod(arms.some_time(0.02, 1.0), "restarts with another address", restart)


def _timer_ignored(arms: FaultContext) -> None:
    """The provider forgets a pod's own deadline, and its watchdog is dead: others must act."""

    def ignore(rented: RentedMachine) -> None:
        rented.pod.kill_watchdog()
        rented.pod.guard = None
        rented.pod.kill_agent()

    if any(a.habits.ignores_timer for a in arms.world.accounts.values()):
        at, text = arms.some_time(0.05, 0.9), "has no guard, its timer is ignored"
        arms.strike_pod(at, text, ignore, felt=True)


def _vanishes(arms: FaultContext) -> None:
    """No list has a pod that runs, and it is not found by its id: mostly for no longer than lists
    may lag."""
    seconds = arms.rng.uniform(20, 240) if arms.rng.random() < 0.6 else 300 * 6 ** arms.rng.random()

    def hide(rented: RentedMachine) -> None:
        # Before its agent was there nothing but a list could show that it lives.
        if rented.account.lags and (rented.pod.had_agent or seconds <= 240):
            rented.hidden_until = arms.world.queue.now + seconds
            rented.hidden_for_long = seconds > 240
            arms.world.queue.at(rented.hidden_until + 0.1, arms.world.wake)

    at, text = arms.some_time(0.02, 1.0), f"is not listed for {seconds:.0f} s"
    arms.strike_pod(at, text, hide)


def _stopped(arms: FaultContext) -> None:
    """By its host, which was lost or had a higher bid for it."""

    def stop(rented: RentedMachine) -> None:
        if rented.account.habits.stops and rented.pod.running:
            rented.stop(arms.world.queue.now)
            arms.world.observed(arms.number)

    text = "is stopped by its host, and its disk is billed on"
    arms.strike_pod(arms.some_time(0.02, 1.0), text, stop)


def _stops_itself(arms: FaultContext) -> None:
    arms.set_knob("self_end_stops", True, "a pod's own key can stop it and not destroy it")


def _traffic(arms: FaultContext) -> None:
    """Within what its plan has for traffic."""

    def charge(rented: RentedMachine) -> None:
        plans = [wish.plan for wish in arms.scenario.wishes]
        least = min(_billed_on(plan, each) for plan in plans for each in plan.candidates)
        left = max(0, least - arms.world.knobs.storage_tail_micros)
        amount = int(left * arms.rng.random())
        if amount and rented.account.habits.stops and not rented.traffic_micros:
            rented.traffic_micros = amount
            rented.storage_micros += amount
            if rented.unowned_at is not None:
                rented.exposed_micros += amount
            arms.world.observed(arms.number)

    arms.strike_pod(arms.some_time(0.02, 1.0), "is charged for its traffic", charge)


def _flipped(arms: FaultContext) -> None:
    """A record of a run, now and then one of the whole ledger, is damaged until its user has it
    put back from a backup of the ledger."""
    world = arms.world

    def flip() -> None:
        records = world.ledger.records()
        # A charge that is written once more, since it could not be read, is not to be put back.
        of_ledger = [r.seq for r in records if isinstance(r.event, ev.CapSet)]
        of_runs = [r.seq for r in records if r.run_id]
        chosen = of_ledger if of_ledger and arms.rng.random() < 0.15 else of_runs
        if chosen:
            world.ledger.flip(arms.rng.choice(chosen))
            world.queue.after(10.0 * 8640 ** arms.rng.random(), mend)

    def mend() -> None:
        world.ledger.mend()
        world.wake()

    arms.strike(arms.some_time(0.0, 1.05), "a bit flips in the ledger", flip)


def _backup(arms: FaultContext) -> None:
    """The ledger's file is put back to what it was some time ago; its user accepts that later."""
    world = arms.world
    kept: list[object] = []

    def restore() -> None:
        world.forgotten = True
        world.restored_at = world.queue.now
        world.ledger.restore(kept[0])
        world.observed(arms.number)
        # Now and then while a pod that it has forgotten is too new to be listed.
        world.queue.after(5.0 * 1440 ** arms.rng.random(), accept)

    def accept() -> None:
        user = Process(world, world.laptop, "user")
        user.do(lambda: user.world.ledger.accept_restored(user.world.wall()))
        user.do(lambda: reconcile(user.world))
        user.kill()
        if world.ledger.is_older:
            world.queue.after(1800.0, accept)

    at = arms.some_time(0.02, 0.9)
    if arms.rng.random() < 0.4:
        # From before a launch: it forgets a whole run, whose pod may live.
        at = arms.some_time(0.0, 0.0) - 1.5
    if at <= world.queue.now:
        kept.append(world.ledger.backup())
    else:
        world.queue.at(at, lambda: kept.append(world.ledger.backup()))
    later_s = 2.0 * 3600 ** arms.rng.random()
    arms.strike(at + later_s, "an old backup of the ledger is restored", restore)


def _cap_cut(arms: FaultContext) -> None:
    def cut() -> None:
        ledger = arms.world.ledger
        held = sum(r.settled.micros + r.reserved.micros for r in ledger.read().runs.values())
        cap = Usd.from_micros(int(held * arms.rng.random()))
        ledger.set_cap(ev.CapSet("account", "", cap, "user"), arms.world.queue.now)
        arms.world.emit(Observer.on_cap_set, cap)
        if held:
            arms.world.observed(arms.number)

    arms.strike(arms.some_time(0.02, 0.95), "the account's cap is cut", cut)


def _cap_raised(arms: FaultContext) -> None:
    """Raised just as a reservation is being judged."""
    if arms.scenario.account_cap is None:
        return

    def raised() -> None:
        ledger = arms.world.ledger
        cap = ledger.read().caps.get(("account", ""))
        if cap is not None:
            more = Usd.from_micros(int(cap.micros * arms.rng.uniform(1.0, 1.5)))
            ledger.set_cap(ev.CapSet("account", "", more, "user"), arms.world.queue.now)
            arms.world.emit(Observer.on_cap_set, more)

    arms.trap(arms.rng.choice(("open.before", "reopen.before")), "raise", then=raised)


FAULTS: dict[str, tuple[str, Fault]] = {
    "15": (
        "create fails but made",
        answer("next_creates", "fails but made", "a create will fail"),
    ),
    "16": ("create times out, the pod comes late", _comes_late),
    "17": ("create makes two", answer("next_creates", "twice", "a create will make two")),
    "18": ("lists omit the new", _omits),
    "19": ("lists show the dead", _shows_dead),
    "20": (
        "delete does nothing",
        answer("next_deletes", "ignored", "a delete will do nothing"),
    ),
    "21": ("delete says 404", answer("next_deletes", "404", "a delete will say 404")),
    "22": ("stuck while terminating", _stuck),
    "23": ("429 storm", window("throttled_until", 30, 1800, "too many requests")),
    "24": ("5xx for half an hour", window("outage_until", 300, 3600, "the provider is down")),
    "25": ("no name, no TLS", _offline),
    "26": ("answers are garbage", _garbage),
    "27": ("key revoked", window("key_revoked_until", 300, 14400, "the key is revoked")),
    "28": ("no capacity", _no_capacity),
    "29": ("fewer GPUs than asked for", _half_the_gpus),
    "30": ("price above the quote", _dearer),
    "31": ("bills lag", _bill_lags),
    "32": ("storage billed after the delete", _storage_tail),
    "33": ("balance at $0", _broke),
    "34": ("preempted", _preempted),
    "35": ("host and volume lost", _host_lost),
    "36": ("restart with another address", _restarted),
    "37": ("provider's timer ignored", _timer_ignored),
    "38": ("ledger locked", window("ledger_locked_until", 5, 900, "the ledger is locked")),
    "39": ("ledger damaged", window("ledger_damaged_until", 300, 7200, "the ledger is damaged")),
    "40": ("old backup restored", _backup),
    "41": ("budget cut below what is spent", _cap_cut),
    "42": ("budget raised meanwhile", _cap_raised),
    "76": ("a bit flipped in the ledger", _flipped),
    "73": ("first of several machines lost", _head_lost),
    "90": ("a running pod is not listed", _vanishes),
    "91": ("stopped by its host, its disk billed on", _stopped),
    "92": ("a pod's own key stops it, and destroys nothing", _stops_itself),
    "93": ("traffic is billed", _traffic),
    "96": ("the host has another board", _other_board),
    "79": ("boot fails, as its log says", _boot_fails),
}
