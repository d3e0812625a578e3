"""One recipe on one machine, before any price: settings that fit, memory, time, data, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.catalog.eval_tasks import SUITES
from trmcloud.core.catalog.hardware import LOCAL, hardware_name, parse_hardware
from trmcloud.core.catalog.interruptions import InterruptionRate
from trmcloud.core.clock import utc_day
from trmcloud.core.contract.bucket_layout import BUCKET_BYTES_PER_S
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.interruptions import best_interval_s, expected_segment_s
from trmcloud.core.planner.memory import Memory, checkpoint_bytes, weights_bytes
from trmcloud.core.planner.roofline import FITTED_AT, NODE_LINK_GB_S, assumed_format
from trmcloud.core.planner.speed import (
    FittedSettings,
    Machine,
    PhaseTime,
    fit_settings,
    may_be_slower,
    predict_phase,
    rented_machine,
    save_s,
    scoring_s,
    startup_s,
    step_seconds,
)
from trmcloud.core.spec.plan import Interval, PhasePlan, Remark, RemarkTopic
from trmcloud.core.spec.recipe import Recipe
from trmcloud.core.spec.settings import BYTE_PAIRS, CHAT, PhaseRecipe, as_option
from trmcloud.core.spec.spec import DataSource, RunSpec
from trmcloud.core.values import replace

# The time that training waits for its data, and the needs of that: bytes, cores, room on the
# disk.
#
# First principles: downloads at the machine's line, a tokenizer trained on one core, text
# tokenized on all cores beside training. What is assumed and what was measured stands at each
# constant.

RENTED_LINE_BYTES_PER_S = Interval(1000e6, 300e6, 100e6)
"""A rented machine's own line to the data's host: assumed, 100 to 1,000 MB/s."""
OWN_LINE_BYTES_PER_S = Interval(100e6, 25e6, 5e6)
"""This machine's line down: assumed."""
UPLOAD_BYTES_PER_S = Interval(50e6, 10e6, 1e6)
"""This machine's line up: assumed, 1 to 50 MB/s."""
VCPUS_PER_GPU = 12
"""Of a rented host: hosts of eight have 100 to 200, so this is their lower end."""
CPU_SHARE = 0.8
"""Of a host's cores, what tokenizing gets beside the ranks and their loaders."""
CPU_SHARE_BESIDE_CPU_TRAINING = 0.5
"""The share where training itself is on the CPUs."""
TOKENIZE_BYTES_PER_CPU_S = 1.0e6
"""Text one core tokenizes a second: 1.03 MB of Python sources measured on a developer's machine
(tokenizers 0.23, 65,536 ids), 2026-11-22. Prose was not measured, nor a server's cores."""
TRAIN_BYTES_PER_S = 1.7e6
"""Text a byte-pair tokenizer of 65,536 ids is trained on a second, by one core: 12.3 MB in 7.3 s
measured here, 2026-11-22."""
GENERATE_BYTES_PER_CPU_S = 4.0e6
"""Text by a formula, and its characters' ids: nominal."""
SUDOKU_BYTES_PER_CPU_S = {"4x4": 4.0e4, "9x9": 300.0}
"""Sudokus with one solution, by the size in a shard's name: timed on a busy core, 2026-11-27."""
IMPORT_S = 8.0
"""The part of the trainer's start in which it needs no data yet."""

_NOTHING = Interval(0.0, 0.0, 0.0)
_TOLD_FROM_S = 0.5
"""A wait that is shorter is none to a reader."""


class DataEstimate(NamedTuple):
    """The cost of a run's data. ``wait`` is the time that the ranks stand still for it."""

    where: str
    """The place where it is made, and why, in words."""
    wait: Interval
    """All of it: before the first step, and for shards that come too late."""
    begins_after_s: float = 0.0
    """P50 from a machine that is ready to its first batch."""
    late_s: float = 0.0
    """P50 of ``wait`` after training has begun."""
    download_bytes: int = 0
    text_bytes: int = 0
    """To be tokenized."""
    disk_bytes: int = 0
    tokens_bytes: int = 0
    """Of the tokens that are made there, which a bucket keeps for the next machine."""
    make_s: float = 0.0
    """P50 until all of it is there."""
    known: bool = True
    """Whether its size is known before it is fetched."""
    caveats: tuple[str, ...] = ()
    """What a user should know of the text."""

    def words(self, rate: Usd) -> tuple[str, ...]:
        """For a plan: where and why, then what that takes; ``rate`` in USD/h."""
        where = f"data: {self.where}"
        if not self.known:
            return where, "data: its size is not known before the download, and is not counted"
        parts = []
        if self.download_bytes:
            parts.append(f"{self.download_bytes / 1e9:,.1f} GB to download")
        if self.begins_after_s >= _TOLD_FROM_S:
            parts.append(f"training waits about {_time(self.begins_after_s)} for the first batch")
        if self.text_bytes:
            late = (
                f"training waits {_time(self.late_s)} for data"
                if self.late_s
                else "then no more waiting"
            )
            parts.append(f"prepared within {_time(self.make_s)} during training: {late}")
        if rate and self.wait.p50 >= _TOLD_FROM_S:
            parts.append(f"{cost(rate, self.wait.p50)} of waiting")
        return (where, "data: " + ", ".join(parts)) if parts else (where,)


class _Need(NamedTuple):
    """The needs of so many tokens."""

    download_bytes: int
    tokenized_s: float

    def made_after_s(self, line_bytes_per_s: float) -> float:
        """Seconds until all are there, downloads and tokenizing going on side by side."""
        return max(self.download_bytes / line_bytes_per_s, self.tokenized_s)


def estimate_data(
    source: DataSource,
    phases: Sequence[tuple[PhaseRecipe, int, float]],
    machine: Machine,
    *,
    tokens_here: int | None = None,
    has_tokenizer: bool = False,
) -> DataEstimate:
    """The wait for ``source`` on ``machine``.

    Args:
        phases: settings, tokens that are read, and P50 seconds of training, in running order.
        tokens_here: of a text that is sent from here.
        has_tokenizer: one is given, with the weights that training starts from.
    """
    rented = machine.local is None
    where = source.where_and_why(rented=rented)
    if source.data_set is None or not source.made_there:
        sent = _sent(where, tokens_here, phases[0][0]) if rented else DataEstimate(where, _NOTHING)
        return sent._replace(caveats=source.caveats)
    data_set, settings = source.data_set, phases[0][0]
    if not data_set.shard_tokens:
        return DataEstimate(where, _NOTHING, known=False, caveats=source.caveats)
    most = max(tokens for _, tokens, _ in phases)
    trains = settings.tokenizer in BYTE_PAIRS and not has_tokenizer and data_set.layout != "gpt2"
    line = RENTED_LINE_BYTES_PER_S if rented else OWN_LINE_BYTES_PER_S
    text_per_s = _cores(machine) * _text_bytes_per_cpu_s(data_set)
    shards = data_set.tokenizer_shards if trains else 1
    first_bytes = _download_bytes(data_set, shards)
    first_text = _text_bytes(data_set, 1) + (
        min(data_set.validation_text_bytes, data_set.shard_text_bytes) if data_set.validation else 0
    )
    sample = min(shards * data_set.shard_text_bytes, data_set.tokenizer_text_bytes) if trains else 0
    first_cpu_s = sample / TRAIN_BYTES_PER_S + first_text / text_per_s

    def needs(tokens: int) -> _Need:
        wanted = data_set.shards_for(tokens)
        return _Need(
            _download_bytes(data_set, max(wanted, shards)),
            sample / TRAIN_BYTES_PER_S + _text_bytes(data_set, wanted) / text_per_s,
        )

    trained = [(needs(tokens), training_s) for _, tokens, training_s in phases]

    def waits(line_bytes_per_s: float) -> tuple[float, float]:
        """(before the first step, later)"""
        first_s = max(0.0, first_bytes / line_bytes_per_s + first_cpu_s - IMPORT_S)
        late_s, trained_s = 0.0, first_s + IMPORT_S
        for need, training_s in trained:
            trained_s += training_s
            late_s = max(late_s, need.made_after_s(line_bytes_per_s) - trained_s)
        return first_s, late_s

    p10, p50, p90 = (waits(each) for each in (line.p10, line.p50, line.p90))
    whole, tokens_bytes = needs(most), 0
    if data_set.is_remote and data_set.layout != "gpt2":
        tokens_bytes = data_set.disk_bytes(most) - data_set.download_bytes(most)
    return DataEstimate(
        where,
        Interval(sum(p10), sum(p50), sum(p90)),
        begins_after_s=p50[0],
        late_s=p50[1],
        download_bytes=whole.download_bytes,
        text_bytes=_text_bytes(data_set, data_set.shards_for(most)),
        disk_bytes=data_set.disk_bytes(most),
        tokens_bytes=tokens_bytes,
        make_s=whole.made_after_s(line.p50),
        caveats=source.caveats,
    )


def _sent(where: str, tokens: int | None, settings: PhaseRecipe) -> DataEstimate:
    """Token files that go from here to a rented machine, while nothing is trained there."""
    if not tokens:
        return DataEstimate(where, _NOTHING)
    size = tokens * (2 if settings.vocab_size <= 1 << 16 else 4)
    line = UPLOAD_BYTES_PER_S
    wait = Interval(size / line.p10, size / line.p50, size / line.p90)
    return DataEstimate(where, wait, begins_after_s=wait.p50, disk_bytes=size)


def _cores(machine: Machine) -> float:
    if machine.local is None:
        return machine.processes / machine.nodes * VCPUS_PER_GPU * CPU_SHARE
    share = CPU_SHARE if machine.on_gpu else CPU_SHARE_BESIDE_CPU_TRAINING
    return max(1, machine.local.cpus) * share


def _text_bytes_per_cpu_s(data_set: DataSet) -> float:
    if data_set.layout == "sudoku":
        return SUDOKU_BYTES_PER_CPU_S.get(data_set.shards.partition("-")[0], 300.0)
    return GENERATE_BYTES_PER_CPU_S if data_set.is_generated else TOKENIZE_BYTES_PER_CPU_S


def _download_bytes(data_set: DataSet, shards: int) -> int:
    if not data_set.is_remote:
        return 0
    return (shards + bool(data_set.validation)) * data_set.shard_bytes


def _text_bytes(data_set: DataSet, shards: int) -> int:
    return 0 if data_set.layout == "gpt2" else shards * data_set.shard_text_bytes


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.1f} h"


# One recipe on one machine, before any price: settings that fit, memory, time, and why.
#
# Everything here depends on the hardware alone, so a plan over thousands of offers computes it
# once per (SKU, count).

HOUR_S = 3600.0

REMOTE_LANDING_MARGIN_S = 60.0
LOCAL_LANDING_MARGIN_S = 2.0
MIN_LOCAL_LANDING_S = 6.0
PULL_BYTES_PER_S = 50e6
"""From a pod to wherever the checkpoint survives, when nothing was measured."""
UPLOAD_MARGIN_S = 3.0
"""For an upload to be begun and answered for, whatever its size."""
HORIZON_S = 7 * 86_400.0
"""A run is planned for this time at most where no deadline and no hours say more."""
MANY_EPOCHS = 4
"""Beyond about four passes, repeated text is worth less and less (Muennighoff et al. 2023)."""


class Estimates(NamedTuple):
    """An outlook of the recipe on ``machine``: seconds and GB, no dollars."""

    machine: Machine
    hardware: str
    fitted: tuple[FittedSettings, ...]
    phases: tuple[PhasePlan, ...]
    times: tuple[PhaseTime, ...]
    startup: Interval
    seconds: Interval
    """Start-up and every phase, the last landing included."""
    landing_s: float
    useful_s: float
    """The least that a launch must have: start-up, compile, one step, landing (P50)."""
    kept_gb: float
    """Checkpoints that are kept, all phases together."""
    memory: Memory
    fits: bool
    """Whether the low end of what it needs is there."""
    reasons: tuple[Remark, ...]
    bucket: bool = False
    """Checkpoints go to a bucket, not to a network volume or this machine's disk."""
    volume_days: float | None = None
    """For how many days after the run its network volume is kept; None where it has none."""
    data: DataEstimate | None = None
    """The data's cost; None where it is unknown."""
    sent_gb: float = 0.0
    """A command's folder, sent as it is."""
    is_unsure: bool = False
    """It may not fit, and there is no smaller micro-batch to fall back to."""

    @property
    def data_gb(self) -> float:
        """Room that data takes on the machine's own disk."""
        return self.data.disk_bytes / 1e9 if self.data is not None else self.sent_gb

    @property
    def tokens_gb(self) -> float:
        """The size of its tokens in a bucket, from a rented machine."""
        rented = self.data is not None and self.machine.local is None
        return self.data.tokens_bytes / 1e9 if self.data is not None and rented else 0.0

    @property
    def tokens(self) -> int:
        return sum(phase.tokens for phase in self.phases)


def outlook_on(
    recipe: Recipe,
    spec: RunSpec,
    machine: Machine,
    *,
    fitted: tuple[FittedSettings, ...] = (),
    tokens_available: int | None = None,
    source: DataSource | None = None,
    interruptions: InterruptionRate | None = None,
    last_steps: int | None = None,
) -> Estimates:
    """The outlook of ``spec`` on ``machine``; ``last_steps`` sets the last phase's length.

    ``interruptions``: those of a spot machine, whose hours are the expected ones with them.

    ``fitted`` is that of another outlook on such a machine, however that is rented. ``source`` is
    what it trains on, where that is known.

    Raises:
        UsageError: settings that cannot go together.
    """
    fitted = fitted or _fitted_on(recipe, spec, machine)
    chosen: list[PhaseRecipe] = []
    times: list[PhaseTime] = []
    machine, reasons = _as_published(recipe, machine)
    for name, fit in zip(spec.phases, fitted, strict=True):
        settings = fit.settings
        if last_steps is not None and name == spec.phases[-1]:
            settings = replace(settings, steps=last_steps)
        if fit.why:
            about = RemarkTopic.SETTINGS if fit.fits(machine) else RemarkTopic.NEED
            reasons.append(Remark(about, f"{name}: {fit.why}"))
        if fit.may_not_fit(machine):
            reasons.append(Remark(RemarkTopic.WARNING, f"{name}: {_may_not_fit(fit, machine)}"))
        assumed = assumed_format(settings, machine.gpu, on_gpu=machine.on_gpu)
        if assumed.why:
            told = f"{name}: counted with {assumed.dtype}: {assumed.why}"
            reasons.append(Remark(RemarkTopic.SETTINGS, told))
        factor = _probed(settings, machine)
        if interruptions is not None:
            settings, longer = _against_interruptions(
                settings, machine, factor, interruptions.planned_per_hour, uploads=spec.pod_uploads
            )
            saves = (
                f"{name}: saves every {settings.save_every:,} steps because of interruptions, and "
                f"is expected to take {longer - 1:.1%} longer"
            )
            reasons.append(Remark(RemarkTopic.SETTINGS, saves))
            factor *= longer
        chosen.append(settings)
        times.append(predict_phase(settings, machine, factor))
    if (measured := machine.measured) is not None and measured.at:
        day = utc_day(measured.at)
        where = " at ".join(filter(None, (measured.board or measured.sku, measured.provider)))
        torch = f", torch {measured.torch}" if measured.torch else ""
        text = (
            f"its steps were measured on {day} ({measured.run_id or '--probe'}, {where}{torch}): "
            f"{_probed(chosen[0], machine):.2f} × the model's value"
        )
        reasons.append(Remark(RemarkTopic.SETTINGS, text))
    if lost := chosen[0].beaten_by.get(recipe.name):
        reasons.append(Remark(RemarkTopic.WARNING, lost))
    slower, why = may_be_slower(chosen[0])
    if why and machine.measured is None and machine.gpu is not None and not machine.published:
        reasons.append(Remark(RemarkTopic.RANGE, f"may take {slower:.2g} × as long: {why}"))
    tokens = [each.steps * each.tokens_per_step(machine.processes) for each in chosen]
    data = None
    # A chat phase's conversations are brought, and small.
    of_text = [
        (s, n, time.training.p50)
        for s, n, time in zip(chosen, tokens, times, strict=True)
        if s.phase != CHAT
    ]
    if source is not None and of_text:
        data = estimate_data(
            source,
            of_text,
            machine,
            tokens_here=tokens_available,
            has_tokenizer=bool(spec.initial_from),
        )
        times[0] = times[0]._replace(data=data.wait)  # the first phase waits for it
        whole = source.data_set.tokens if source.data_set is not None else 0
        if not tokens_available and 0 < whole < max(n for _, n, _ in of_text):
            tokens_available = whole  # a phase reads more than the named set has
    if spec.goal is not None and spec.goal.suite:
        asked = SUITES[spec.goal.suite].tokens(chosen[-1].sequence)
        scoring = scoring_s(asked, times[-1], chosen[-1], machine)
        times[-1] = times[-1]._replace(scoring=scoring)
    phases = [
        PhasePlan(
            name=name,
            settings=settings,
            tokens=count,
            flops=count * settings.work().train_flops,
            step_s=time.step,
            seconds=time.seconds,
            parts_s=time.parts_s(),
        )
        for name, settings, count, time in zip(spec.phases, chosen, tokens, times, strict=True)
    ]
    reasons += _cut(phases, recipe, spec, machine)
    reasons += _epochs([p for p in phases if p.name != CHAT], tokens_available, recipe)
    if machine.nodes > 1:
        network = (
            f"{machine.nodes} machines: the network between them is assumed to have "
            f"{NODE_LINK_GB_S:g} GB/s"
        )
        reasons.append(Remark(RemarkTopic.PLACE, network))
    in_bucket = bool(spec.bucket)
    worst = max((fit.memory for fit in fitted), key=lambda memory: memory.total)
    made = Estimates(
        machine=machine,
        hardware=hardware_of(machine),
        fitted=fitted,
        phases=tuple(phases),
        times=tuple(times),
        startup=_NOTHING,  # this and the next three are filled in last
        seconds=_NOTHING,
        useful_s=0.0,
        landing_s=_landing_s(times, chosen[-1], machine, uploads=spec.pod_uploads),
        kept_gb=sum(checkpoint_bytes(s) * (s.kept_checkpoints + in_bucket) for s in chosen) / 1e9,
        memory=worst,
        fits=all(fit.fits(machine) for fit in fitted),
        is_unsure=any(f.may_not_fit(machine) and f.settings.batch == 1 for f in fitted),
        reasons=tuple(reasons),
        bucket=in_bucket,
        volume_days=spec.volume_days if spec.volume else None,
        data=data,
    )
    return with_machine(machine, made, spec)


def with_machine(machine: Machine, outlook: Estimates, spec: RunSpec) -> Estimates:
    """``outlook``, no spot's, on a ``machine`` that differs from its own in how it is set up: with
    that machine's start-up time."""
    start, first = startup_s(machine), outlook.times[0]
    seconds = start
    for phase in outlook.phases:
        seconds = seconds + phase.seconds
    if spec.hours is not None:
        limit = spec.hours * HOUR_S + max(time.ending.p50 for time in outlook.times)
        seconds = Interval(
            min(seconds.p10, start.p10 + limit),
            min(seconds.p50, start.p50 + limit),
            min(seconds.p90, start.p90 + limit),
        )
    return outlook._replace(
        machine=machine,
        startup=start,
        seconds=seconds,
        useful_s=start.p50 + _before_training_s(first) + first.step.p50 + outlook.landing_s,
    )


def landing_point(outlook: Estimates, soft_stop_s: float) -> tuple[str, int, int] | None:
    """(phase, step, of steps) where the soft stop ends the run at P50; None if it does not."""
    left = soft_stop_s - outlook.startup.p50
    for phase, time in zip(outlook.phases, outlook.times, strict=True):
        if left < phase.seconds.p50 - time.ending.p50:
            steps = int(max(0.0, left - _before_training_s(time)) / time.pace_s)
            return phase.name, min(steps, phase.settings.steps), phase.settings.steps
        left -= phase.seconds.p50
    return None


def last_phase_steps(outlook: Estimates, seconds: float) -> int:
    """Steps of the last phase that ``seconds`` since the pod's start leave room for, at P50, with
    the landing reserve kept; 0 where not even one fits."""
    last = outlook.times[-1]
    left = seconds - outlook.startup.p50 - outlook.landing_s - _before_training_s(last)
    left -= sum(phase.seconds.p50 for phase in outlook.phases[:-1])
    return max(0, math.floor(left / last.pace_s))


FASTER = 0.75
"""A filled phase is planned for steps that take no more than this share of their P50: what follows
from the tables alone was off by more than its own P10 in rows of new sources."""


class FillSteps(NamedTuple):
    """Steps of the last phase that fit into its money and time: at P90, at P50, at P10, and the
    number that is planned, which no machine is expected to reach before the clock ends it."""

    least: int
    likely: int
    most: int
    planned: int


def fill_steps(outlook: Estimates, seconds: float) -> FillSteps:
    """Return the steps of the last phase where ``seconds`` since the pod's start end it, with the
    landing reserve kept; at least one each."""
    last = outlook.times[-1]
    likely = max(1, last_phase_steps(outlook, seconds))

    def fit(part: Callable[[Interval], float]) -> int:
        left = seconds - part(outlook.startup) - outlook.landing_s
        left -= part(last.start) + part(last.data) + part(last.compile)
        left -= sum(part(phase.seconds) for phase in outlook.phases[:-1])
        return max(1, math.floor(left / (last.pace_s * part(last.step) / last.step.p50)))

    least, most = fit(lambda each: each.p90), fit(lambda each: each.p10)
    return FillSteps(least, likely, most, max(most, math.ceil(likely / FASTER)))


def filled_outlook(likely: Estimates, planned: Estimates) -> Estimates:
    """Return the outlook of a run whose last phase the clock ends: the time and price of
    ``likely``, whose steps are those at P50, with the settings and the data of ``planned``, which
    has more. It takes as long however fast the machine is."""
    last, more = likely.phases[-1], planned.phases[-1]
    takes = last.seconds.p50
    timed = replace(
        last,
        settings=more.settings,
        tokens=more.tokens,
        flops=more.flops,
        seconds=Interval(takes, takes, takes),
    )
    whole = likely.seconds.p50
    return likely._replace(
        phases=(*likely.phases[:-1], timed),
        seconds=Interval(whole, whole, whole),
        data=planned.data,
        kept_gb=planned.kept_gb,
    )


def _before_training_s(time: PhaseTime) -> float:
    """P50 seconds of a phase in which no step is made, its landing apart."""
    return time.start.p50 + time.data.p50 + time.compile.p50


def hardware_of(machine: Machine) -> str:
    """The name a user asks for it by."""
    if machine.local is not None:
        return LOCAL
    return hardware_name(machine.name, machine.processes // machine.nodes, machine.nodes)


def _fitted_on(recipe: Recipe, spec: RunSpec, machine: Machine) -> tuple[FittedSettings, ...]:
    """The settings of each phase of ``spec`` that fit ``machine``."""
    hardware, overrides = hardware_of(machine), dict(spec.overrides)
    found = []
    for name in spec.phases:
        asked = recipe.resolve(name, hardware=hardware, gpus=machine.processes, overrides=overrides)
        asked = _with_length(asked, recipe, spec, machine.processes)
        found.append(fit_settings(asked, machine, overrides))
    return tuple(found)


def _with_length(
    settings: PhaseRecipe, recipe: Recipe, spec: RunSpec, processes: int
) -> PhaseRecipe:
    tokens = spec.tokens
    if spec.steps is not None:
        return replace(settings, steps=spec.steps)
    if spec.equal_work and recipe.reference_hardware and tokens is None:
        gpus = int(recipe.reference_hardware.partition("x")[0])
        reference = recipe.resolve(
            settings.phase,
            hardware=recipe.reference_hardware,
            gpus=gpus,
            overrides=dict(spec.overrides),
        )
        tokens = reference.steps * reference.tokens_per_step(gpus)
    if tokens is None:
        return settings
    steps = -(-tokens // settings.tokens_per_step(processes))
    return replace(settings, steps=max(1, steps))


def _as_published(recipe: Recipe, machine: Machine) -> tuple[Machine, list[Remark]]:
    """``machine`` with the ratio of the recipe's published time to the predicted one, of its own
    kind of GPU where that has a report, else of another."""
    if machine.gpu is None or machine.measured is not None or not recipe.published:
        return machine, []
    requests = {name: parse_hardware(name) for name in recipe.published}
    alike = [name for name in requests if machine.gpu.sku in requests[name].skus]
    name = (alike or list(requests))[0]
    like, report = requests[name], recipe.published[name]
    theirs = rented_machine(machine.gpu.sku if alike else like.skus[0], like.count)
    times = [
        predict_phase(recipe.resolve(phase, hardware=name, gpus=like.count), theirs)
        for phase in recipe.usual_phases
    ]
    of_steps_s = sum(time.training.p50 + time.evaluation.p50 for time in times)
    whole_s = sum(time.seconds.p50 for time in times)
    told = (
        f"published: {report.hours:g} h on {name} ({report.source}); "
        f"predicted: {whole_s / HOUR_S:.1f} h"
    )
    if not alike:
        told += f"; the same ratio is assumed on {machine.gpu.name}"
    ratio = 1 + (report.hours * HOUR_S - whole_s) / of_steps_s
    return machine._replace(published=ratio), [Remark(RemarkTopic.PUBLISHED, told)]


def _probed(settings: PhaseRecipe, machine: Machine) -> float:
    """Measured ÷ predicted step time, where this chip was probed."""
    probe = machine.measured
    if probe is None:
        return machine.published or 1.0
    is_of_this_fit = machine.gpu is None or probe.at >= FITTED_AT
    if probe.predicted_s > 0 and is_of_this_fit:
        return probe.step_s / probe.predicted_s
    measured = probe.step_s * probe.gpus / (probe.tokens_per_step * probe.flops_per_token)
    flops = settings.tokens_per_step(machine.processes) * settings.work().train_flops
    return measured / (step_seconds(settings, machine) * machine.processes / flops)


def _against_interruptions(
    settings: PhaseRecipe, machine: Machine, factor: float, per_hour: float, *, uploads: bool
) -> tuple[PhaseRecipe, float]:
    """The settings with the checkpoint interval that loses least, and the factor by which steps
    are expected to take longer.

    ``per_hour``: interruptions of one machine; the loss of one of several ends the work of all. A
    restart takes the machine's and the trainer's start, and the work that was done while the last
    checkpoint was still being written and uploaded is lost with what came after it.
    """
    per_s = per_hour * machine.nodes / HOUR_S
    step_s = step_seconds(settings, machine) * factor
    written_s = save_s(settings, machine).p50
    interval_s = best_interval_s(written_s, per_s)
    every = max(1, min(settings.steps, round(interval_s / step_s)))
    if uploads:
        written_s += checkpoint_bytes(settings) / BUCKET_BYTES_PER_S
    settings = replace(settings, save_every=every, save_minutes=0.0)
    begins = predict_phase(settings, machine, factor)
    restart_s = startup_s(machine).p50 + begins.start.p50 + begins.compile.p50 + written_s
    segment_s = every * begins.pace_s
    longer_s = expected_segment_s(segment_s, restart_s, per_s) - segment_s
    scaled_s = every * (begins.training.p50 + begins.evaluation.p50) / settings.steps
    return settings, 1.0 + longer_s / scaled_s


def _landing_s(
    times: list[PhaseTime], settings: PhaseRecipe, machine: Machine, *, uploads: bool
) -> float:
    """Seconds kept for the last evaluation and save, and for bringing it off the pod.

    One checkpoint may still be on its way to a bucket when the last one follows it there. On this
    machine, where other programs run, the last step may be late, too.
    """
    slowest = max(time.ending.p50 for time in times)
    upload_s = 0.0
    if uploads:
        upload_s = UPLOAD_MARGIN_S + 2 * checkpoint_bytes(settings) / BUCKET_BYTES_PER_S
    if machine.local is not None:
        slowest += max(time.step.p50 for time in times)
        return upload_s + max(MIN_LOCAL_LANDING_S, 1.5 * slowest + LOCAL_LANDING_MARGIN_S)
    away_s = upload_s or weights_bytes(settings) / PULL_BYTES_PER_S
    return 2 * slowest + REMOTE_LANDING_MARGIN_S + away_s


def _may_not_fit(fit: FittedSettings, machine: Machine) -> str:
    need = fit.memory
    text = f"may not fit: {need.least:,.0f}–{need.most:,.0f} of {machine.memory_gb:,.0f} GB"
    if fit.settings.batch == 1:
        return f"{text}, and the micro-batch is already one sequence"
    return f"{text}; if so, the trainer halves the micro-batch"


_CUT_BELOW = 0.9
"""Of the recipe's tokens, below which a plan says that ``--set`` leaves some out."""


def _cut(phases: list[PhasePlan], recipe: Recipe, spec: RunSpec, machine: Machine) -> list[Remark]:
    """Return a warning for each phase whose tokens the user's own settings cut."""
    of_goal = len(spec.goal.settings) if spec.goal is not None else 0
    own = spec.overrides[of_goal:]
    if not own or spec.tokens or spec.steps or spec.fills:
        return []
    typed = " ".join(as_option(*each) for each in own)
    lines = []
    for phase in phases:
        whole = recipe.resolve(
            phase.name,
            hardware=hardware_of(machine),
            gpus=machine.processes,
            overrides=dict(spec.overrides[:of_goal]),
        )
        tokens = whole.steps * whole.tokens_per_step(machine.processes)
        if phase.tokens < _CUT_BELOW * tokens:
            share = f"{phase.tokens / tokens:.0%} of the recipe's {tokens:,} tokens"
            text = f"{phase.name}: with {typed} it trains {share}; --tokens {tokens} trains all"
            lines.append(Remark(RemarkTopic.WARNING, text))
    return lines


def _epochs(phases: list[PhasePlan], available: int | None, recipe: Recipe) -> list[Remark]:
    """Return the number of times each phase reads the data, and a warning where it is large."""
    if not phases:
        return []
    whose = "the data's"
    # Rows of one text each take more tokens than the texts have: the recipe counts rows.
    in_rows = recipe.data_tokens and phases[0].settings.row_is_text
    if in_rows or not available:
        available, whose = recipe.data_tokens, "the recipe's data of"
    if not available:
        return []
    lines = []
    for phase in phases:
        epochs = phase.tokens / available
        about = RemarkTopic.DATA
        text = f"{phase.name}: {epochs:,.2f} epochs over {whose} {available:,} tokens"
        if epochs > MANY_EPOCHS and not phase.settings.varies_rows:
            about = RemarkTopic.WARNING
            text += f" — warning: after {MANY_EPOCHS} epochs repeated text helps less and less"
        lines.append(Remark(about, text))
    return lines
