"""The layers that would end a run's pod, and the possible spending beyond its cap if they fail."""

from __future__ import annotations

from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import ProviderTraits, traits_of
from trmcloud.core.clock import DatedFact, Maybe, utc_day
from trmcloud.core.contract.pod_contract import AgentReport
from trmcloud.core.contract.trainer_contract import Heartbeat
from trmcloud.core.control.budget import VERIFIED_FOR_S
from trmcloud.core.control.events import LayerVerified
from trmcloud.core.control.observation import PodSeen, PodStatus
from trmcloud.core.control.run_state import RunState
from trmcloud.core.money import ZERO, Usd, cost
from trmcloud.core.text import one_line
from trmcloud.core.values import Value
from trmcloud.operations.context import Context, is_unasked
from trmcloud.operations.driving.reap import GuardVisit, last_visit
from trmcloud.operations.run_queries import is_driven, last_report, newest_beat
from trmcloud.ports.ledger import Driver

VERIFIED, ARMED, SILENT, ABSENT = "verified", "armed", "silent", "absent"
WORKING = (VERIFIED, ARMED)
_TRAINER_SILENCE_S = 60.0
_MISSED_VISITS = 3
"""A reaper that has missed this many of its rounds is not counted on."""
_LIMITS = {
    "autostop": "the provider's own autostop",
    "timeout": "the provider's time-out for the pod",
    "shutdown": "a shutdown terminates the machine",
    "guard-elsewhere": "the reaper on another machine",
}
_NOT_ASKED = "not checked whether it is set: trmcloud status --live"
_SHOWN_S = 60.0
"""The greatest age of a list that is shown: the caller has just looked at every run."""


class Layer(Value):
    """One kill layer. ``state``: verified (seen to work for this account), armed (there, by its
    own word), silent (it was there), absent. ``heard_at`` is its last sign of life, epoch s."""

    name: str
    state: str
    detail: str
    heard_at: float | None = None


class MaxOverspend(Value):
    """The most that could be spent beyond the cap if all failed that may: ``amount`` is None where
    only time bounds it."""

    amount: Usd | None
    text: str


class Guards(Value):
    """The present protection of a run. ``layers`` is empty for a run that has no pod."""

    layers: tuple[Layer, ...]
    overshoot: MaxOverspend
    beat: Heartbeat | None


def guards_of(context: Context, run: RunState) -> Guards:
    """Look at one run: its files, its pod, the guard's note, and the ledger's record of layers."""
    beat = newest_beat(context, run)
    generation = run.generation
    if not run.live or generation is None or not generation.open:
        return Guards((), MaxOverspend(ZERO, str(ZERO)), beat)
    now = context.wall()
    traits = traits_of(generation.provider)
    driver = context.ledger.driver(run.run_id)
    driven = is_driven(context, driver)
    place = home_of(context, run, driver)
    if place and not traits.rented:
        layer = Layer("controller", ARMED if driven else ABSENT, place)
        return Guards((layer,), MaxOverspend(ZERO, f"{ZERO}: {place}, not rented"), beat)
    if is_unasked(context, run):
        report = last_report(context, run)
    else:
        report = context.machines.links[generation.provider].report(generation.pod_name)
    pod = _pod(context, run)
    visit = last_visit(context)
    # Where asking takes seconds, a mere look does not ask.
    settles = "trmcloud status --live" if traits.route.via else "any trmcloud command"
    seen = {
        "trainer": _heart("trainer", beat.at if beat else None, now, _TRAINER_SILENCE_S,
                          "saves and stops training at the soft stop"),
        "agent": _pod_side("agent", report, generation.agent_at, now, traits,
                           "ends the pod at the hard stop"),
        "watchdog": _watchdog(pod) if not traits.rented else
        _pod_side("watchdog", report, generation.agent_at, now, traits,
                  "restarts a killed agent; at the hard stop kills everything and ends the pod"),
        "controller": Layer("controller", ARMED, "a command is driving the run") if driven else
        Layer("controller", ABSENT, f"no command drives it now; {settles} settles it"),
        "reap": _reaper(visit, generation.provider, now),
    }  # fmt: skip
    if place:  # the pod reports to the home that launched it
        told = (name for name in ("trainer", "agent", "watchdog") if name in seen)
        seen |= {name: Layer(name, ABSENT, f"heard {place}, not here") for name in told}
    names = dict.fromkeys((*traits.layers.standard, *traits.layers.independent))
    seen |= _own_limits(context, generation.provider, generation.pod_name)
    known = _verified(context, traits, now)
    lapsing = context.machines.computes[generation.provider].lapsing(
        generation.latest_stop_at, generation.pod_name
    )
    layers = []
    for name in names:
        layer = seen.get(name) or Layer(name, ABSENT, _LIMITS.get(name, ""))
        if name == "guard-elsewhere":
            layer = _elsewhere(context, visit, generation.provider, now)
        record = None if name in lapsing else known.get(name)
        layers.append(_with_record(layer, record, heard=name in seen))
    if not traits.rented:
        layers.append(Layer("provider limit", ABSENT, "none on this machine"))
    overshoot = _overshoot(run, traits, {x.name: x for x in layers}, pod, visit)
    return Guards(tuple(layers), overshoot, beat)


def home_of(context: Context, run: RunState, driver: Driver | None) -> str:
    """``on ada-laptop, by ada``: the machine and the person that a run of another home belongs to,
    as far as the ledger says; empty for a run of this home."""
    if not context.files.is_elsewhere(run.run_id):
        return ""
    who = driver.controller if driver is not None else None
    host = one_line(who.host.partition(":")[0]) if who is not None else ""
    person = run.creator or run.payer.principal
    place = f"on {host}" if host else "in another home"
    return f"{place}, by {one_line(person)}" if person else place


def _own_limits(context: Context, provider: str, pod_name: str) -> dict[str, Layer]:
    """The provider's own, where it can be asked which of them stand."""
    if provider in context.machines.unasked:
        names = traits_of(provider).layers.standard
        return {n: Layer(n, ABSENT, _NOT_ASKED) for n in names if n in ("autostop", "shutdown")}
    return {
        limit.layer: Layer(limit.layer, ARMED if limit.armed else ABSENT, limit.detail)
        for limit in context.machines.computes[provider].own_limits(pod_name)
    }


def _with_record(layer: Layer, record: str | None, *, heard: bool) -> Layer:
    """Add the account's record to the layer: nothing to one that should be heard of and is not."""
    if record is None or (heard and layer.state not in WORKING):
        return layer
    detail = f"{layer.detail}; {record}" if layer.detail else record
    return Layer(layer.name, VERIFIED, detail, layer.heard_at)


def _verified(context: Context, traits: ProviderTraits, now: float) -> dict[str, str]:
    """Layer → when and how it was seen to work for the account, not too long ago."""
    found: dict[str, str] = {}
    for record in context.ledger.records(""):
        event = record.event
        if isinstance(event, LayerVerified) and event.provider == traits.name:
            found.pop(event.layer, None)
            if now - record.at <= VERIFIED_FOR_S:
                day = utc_day(record.at)
                found[event.layer] = f"seen to work {day}: {event.how}"
    return found


def _heart(name: str, at: float | None, now: float, patience_s: float, detail: str) -> Layer:
    if at is None:
        return Layer(name, ABSENT, "no report yet")
    age_s = max(0.0, now - at)
    state = ARMED if age_s <= patience_s else SILENT
    return Layer(name, state, f"{detail}; ♥ {age_s:.0f} s ago", at)


def _pod_side(
    name: str,
    report: AgentReport | None,
    first_at: float | None,
    now: float,
    traits: ProviderTraits,
    detail: str,
) -> Layer:
    """Make a layer that only the pod's own report shows; ``first_at`` is when it was first
    heard."""
    if report is None and first_at is not None:
        return Layer(name, SILENT, "it reported earlier, but does not answer now", first_at)
    return _heart(name, report.at if report else None, now, traits.silence_s, detail)


def _watchdog(pod: Maybe[PodSeen | None]) -> Layer:
    """On this machine it is the pod."""
    there = (
        isinstance(pod, DatedFact)
        and pod.value is not None
        and pod.value.status is PodStatus.RUNNING
    )
    return Layer("watchdog", ARMED if there else ABSENT, "kills everything at the hard stop")


def _reaper(visit: GuardVisit | None, provider: str, now: float) -> Layer:
    if visit is None:
        return Layer("reap", ABSENT, "no timer here: trmcloud admin guard install")
    age_s = max(0.0, now - visit.at)
    detail = f"the reaper on {visit.machine} last ran {age_s / 60:.0f} min ago"
    if provider != LOCAL and provider not in visit.reached:
        return Layer("reap", SILENT, f"{detail} and could not reach {provider}", visit.at)
    return Layer("reap", ARMED if _is_due(visit, now) else SILENT, detail, visit.at)


def _elsewhere(context: Context, visit: GuardVisit | None, provider: str, now: float) -> Layer:
    name = "guard-elsewhere"
    if visit is None or visit.machine == context.caller.controller.host.partition(":")[0]:
        return Layer(name, ABSENT, "no reaper of another machine shares this home")
    reaper = _reaper(visit, provider, now)
    state = VERIFIED if reaper.state == ARMED else reaper.state
    return Layer(name, state, reaper.detail, visit.at)


def verified_layers(context: Context, provider: str) -> dict[tuple[str, str], float]:
    """(provider, layer) → when it was last seen to work, epoch s: what the ledger has on record,
    and the reaper of another machine for as long as it keeps running."""
    known = dict(context.ledger.read().verified)
    layer = _elsewhere(context, last_visit(context), provider, context.wall())
    if layer.state == VERIFIED and layer.heard_at is not None:
        known[(provider, layer.name)] = layer.heard_at
    return known


def _is_due(visit: GuardVisit, now: float) -> bool:
    return now - visit.at <= _MISSED_VISITS * visit.every_s


def _overshoot(
    run: RunState,
    traits: ProviderTraits,
    layers: dict[str, Layer],
    pod: Maybe[PodSeen | None],
    visit: GuardVisit | None,
) -> MaxOverspend:
    generation = run.generation
    assert generation is not None
    if isinstance(pod, DatedFact) and pod.value is None and generation.pod_id is not None:
        return MaxOverspend(ZERO, f"{ZERO}: the pod is not listed any more")
    working = {name for name, layer in layers.items() if layer.state in WORKING}
    if not traits.rented and working & {"watchdog", "agent"}:
        return MaxOverspend(ZERO, f"{ZERO}: nothing is rented")
    if layers["agent"].state == VERIFIED:
        return MaxOverspend(ZERO, f"{ZERO}: the agent ends the pod (verified)")
    if visit is not None and working & {"reap", "guard-elsewhere"}:
        amount = cost(generation.rate, visit.every_s)
        return MaxOverspend(amount, f"{amount}, until the reaper runs again")
    if "controller" in working:
        return MaxOverspend(ZERO, f"{ZERO} while this controller runs")
    text = f"{generation.rate}/h until a command runs here"
    if "autostop" in working:
        text += ", at most until the provider's own autostop"
    elif "timeout" in working:
        text += ", at most until the provider's own time-out"
    elif "prepaid" in working:
        text += ", at most the account's balance"
    return MaxOverspend(None, text)


def _pod(context: Context, run: RunState) -> Maybe[PodSeen | None]:
    generation = run.generation
    assert generation is not None
    pods = context.machines.list_pods(generation.provider, context.wall(), _SHOWN_S)
    if not isinstance(pods, DatedFact):
        return pods
    mine = [p for p in pods.value if p.name == generation.pod_name and not p.gone]
    return DatedFact(mine[0] if mine else None, pods.at)
