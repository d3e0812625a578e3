"""The arithmetic of a plan: one hardware explained, rows of batches, a measured command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trmcloud.cli.views.plan import age_days
from trmcloud.cli.views.text import duration, table
from trmcloud.core.catalog.hardware import GPUS, LOCAL, Gpu, hardware_name, parse_hardware
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.money import Usd, cost
from trmcloud.core.planner.candidates import SPOT_NOTE
from trmcloud.core.planner.command_outlook import (
    HOST_FACTOR,
    CommandProbe,
    seconds_text,
    transfer_speed,
)
from trmcloud.core.planner.memory import checkpoint_bytes, predict_memory
from trmcloud.core.planner.roofline import (
    FITTED,
    MAX_LOGITS,
    NODE_LINK_GB_S,
    SOFTWARE,
    assumed_format,
    kernel_share,
    step_of,
    time_step,
)
from trmcloud.core.planner.speed import predict_phase, rented_machine, steps_between_saves
from trmcloud.core.spec.guides import BatchRow
from trmcloud.core.spec.plan import Candidate, Interval, PhasePlan, Plan
from trmcloud.core.spec.settings import PhaseRecipe, rate_for
from trmcloud.core.values import replace

HOUR_S = 3600.0


def explain(plan: Plan, text: str) -> list[str]:
    """The lines for the best candidate of the hardware named, or of the candidate's id.

    Raises:
        NotFoundError: no such candidate in the plan.
        UsageError: no such hardware.
    """
    candidate = _find(plan, text)
    lines = [_headline(candidate, plan)]
    if told := plan.limits.get("test settings"):
        lines.append(f"test settings: {told}")
    for phase in candidate.phases:
        lines += ["", *_phase(candidate, phase)]
    lines += ["", *_money(candidate, plan)]
    lines += ["", "memory of one GPU", *_memory(candidate)]
    lines += ["", *(f"  {reason.text}" for reason in candidate.reasons)]
    claims = _claims(candidate)
    if claims:
        lines += ["", "the guide's figures", *claims]
    return lines


def _find(plan: Plan, text: str) -> Candidate:
    for candidate in plan.candidates:
        if candidate.id == text:
            return candidate
    request = parse_hardware(text)
    for candidate in plan.candidates:
        if request.is_local and candidate.provider == LOCAL:
            return candidate
        if candidate.nodes == request.nodes and request.accepts(candidate.sku, candidate.gpus):
            return candidate
    raise NotFoundError(
        f"the plan has no candidate on {request.text}",
        next_step=f"trmcloud plan --hardware {request.text} --explain {request.text}",
    )


def _headline(c: Candidate, plan: Plan) -> str:
    where = c.region if c.provider == LOCAL else f"{c.provider} {c.region}"
    each = f"{c.gpus} × {c.sku}" if c.nodes == 1 else f"{c.nodes} machines of {c.gpus} × {c.sku}"
    text = f"{c.hardware}: {each}, {where}, {c.rate}/h"
    return text if c.provider == LOCAL else f"{text} {age_days(plan, c)} days ago ({c.source})"


def _phase(c: Candidate, phase: PhasePlan) -> list[str]:
    s = phase.settings
    work = s.work()
    per_step = s.tokens_per_step(c.world_size)
    gflop = work.train_flops / 1e9
    matmul_mflop = (work.matmul_flops + work.head_flops) / 2e6
    in_matmuls = f"6 × {matmul_mflop:,.0f}M in matmuls + attention"
    lines = [
        f"{phase.name}: {s.steps:,} steps",
        _line("tokens per step", f"{s.batch} × {s.accumulation} × {c.world_size} × {s.sequence}",
              f"{per_step:,}"),
        _line("FLOPs per token", s.flops_formula or in_matmuls, f"{gflop:,.2f} GFLOP"),
        _line("FLOPs per step", f"{per_step:,} × {gflop:,.2f} GFLOP",
              f"{per_step * gflop / 1e6:,.2f} PFLOP"),
    ]  # fmt: skip
    gpu = GPUS.get(c.sku)
    if gpu is not None:
        dtype = assumed_format(s, gpu).dtype
        peaks = {"float32": 0.5, "float8": 2.0}.get(dtype, 1.0)
        peak = gpu.bf16_tflops * peaks
        sustained = FITTED.sustained_share(gpu, peaks=peaks)
        step = step_of(s, gpu, c.nodes)
        kernel = FITTED.attention_share * kernel_share(step.kernel, gpu)
        kernel *= s.sequence / (s.sequence + FITTED.attention_fill)
        detail = time_step(step, gpu, c.world_size, FITTED, nodes=c.nodes)
        scale = phase.step_s.p50 / detail.total
        lines += [
            _line("matmul rate", f"{dtype}: {peak:,.0f} TFLOP/s dense × {sustained:.2f} sustained"
                  f" at {gpu.tdp_w} W", f"{peak * sustained:,.0f} TFLOP/s"),
            _line("matmuls", "blocks and head, forward and backward", f"{detail.matmul:.3f} s"),
            _line("attention", f"{work.mask_share:.0%} of the square, at {kernel:.2f} of that rate",
                  f"{detail.attention:.3f} s"),
            _line("memory traffic", f"norms, activations, logits ÷ {gpu.memory_gb_s:,.0f} GB/s",
                  f"{detail.traffic:.3f} s"),
            _line("software", f"the sum × {FITTED.software[SOFTWARE]:.2f}: published trainings",
                  f"{detail.lost:.3f} s"),
            _line("recompute", _recompute_text(s),
                  f"{detail.recompute:.3f} s"),
            _line("optimizer", f"{s.optimizer}", f"{detail.optimizer:.3f} s"),
            _line("links", f"{s.sharding} over {_slowest(c, gpu):,.0f} GB/s one-way, minus the "
                           "part hidden by backward", f"{detail.links:.3f} s"),
            _line("host", "between steps and between passes", f"{detail.overhead:.3f} s"),
        ]  # fmt: skip
        if abs(scale - 1) > 0.001:
            lines.append(_line("probe or spot", "measured ÷ predicted", f"× {scale:.3f}"))
        possible = phase.step_s.p50 * c.world_size * gpu.peak_flops(s.dtype)
        mfu = per_step * work.train_flops / possible
        lines.append(_line("step", f"{mfu:.1%} MFU on the dense peak", f"{phase.step_s.p50:.3f} s"))
    else:
        lines.append(_line("step", "FLOPs ÷ nominal peak × MFU", f"{phase.step_s.p50:.3f} s"))
    for name, seconds in phase.parts_s.items():
        lines.append(_line(name, _PARTS.get(name, ""), f"{seconds:,.0f} s"))
    lines.append(_line("phase", f"p10 {phase.seconds.p10:,.0f} · p90 {phase.seconds.p90:,.0f} s",
                       f"{phase.seconds.p50:,.0f} s"))  # fmt: skip
    return lines


_PARTS = {
    "data": "waiting for the first shards, and for later ones",
    "training": "steps × step",
    "compile": "torch.compile, cold",
    "start": "torchrun, importing torch, NCCL, opening the data",
    "evaluation": "forward passes over eval_tokens, every eval_every steps",
    "saving": "pause for a copy in memory at each save",
    "landing": "the last evaluation and save",
}


def _slowest(c: Candidate, gpu: Gpu) -> float:
    """GB/s of the link that a ring waits for."""
    own = gpu.link_gb_s(c.gpus)
    return own if c.nodes == 1 else min(own, NODE_LINK_GB_S)


def _recompute_text(s: PhaseRecipe) -> str:
    selective = "selective " if s.selective_checkpointing else ""
    parts = [f"{selective}activation checkpointing"] if s.activation_checkpointing else []
    if s.head_again and s.batch * s.sequence * s.vocab_size > MAX_LOGITS:
        parts.append("the head in pieces")
    return ", ".join(parts) or "off"


def _money(c: Candidate, plan: Plan) -> list[str]:
    rate = c.planned_rate or c.rate
    lines = [
        "money",
        _line("start-up", "boot, environment, code and data", f"{c.startup_s.p50:,.0f} s"),
        _line("run", f"{c.hours.p10:.2f} – {c.hours.p90:.2f} h", f"{c.hours.p50:.2f} h"),
        _line("rent", f"{c.hours.p50:.2f} h × {rate}", str(c.cost_p50 - c.storage)),
    ]
    for phase in c.phases:
        lines.append(_saves(c, phase, rate))
    if c.storage:
        kept = sum(checkpoint_bytes(p.settings) * p.settings.kept_checkpoints for p in c.phases)
        what = f"the pod's disks; {kept / 1e9:,.1f} GB kept for the run and 7 days"
        lines.append(_line("storage", what, str(c.storage)))
    lines += [
        _line("cost", f"p10 {c.cost_p10} · p90 {c.cost_p90}", str(c.cost_p50)),
        _line("soft, hard stop", f"{duration(c.soft_stop_s)}, {duration(c.hard_stop_s)} from start",
              f"≤ {c.worst_case}"),
    ]  # fmt: skip
    if c.spot:
        lines.append(f"  {SPOT_NOTE}")
    if plan.spec.objective == "value":
        value = float(c.cost_p50) + c.hours.p50 * float(plan.spec.hour_value)
        lines.append(_line("value", f"cost + hours × {plan.spec.hour_value}", f"${value:,.2f}"))
    return lines


def _saves(c: Candidate, phase: PhasePlan, rate: Usd) -> str:
    s = phase.settings
    seconds = phase.parts_s.get("saving", 0.0)
    every = steps_between_saves(s, phase.step_s.p50)
    count = (s.steps - 1) // every
    size_gb = checkpoint_bytes(s) / 1e9
    shards = f" in {c.world_size} shards" if s.sharding == "fsdp" and c.world_size > 1 else ""
    every_h = every * phase.step_s.p50 / HOUR_S
    how = f"{count:,} of {size_gb:,.1f} GB{shards}, every {every_h:.1f} h, beside training"
    return _line(f"saves of {phase.name}", how, str(cost(rate, seconds)))


def _memory(c: Candidate) -> list[str]:
    worst = max(
        c.phases, key=lambda p: predict_memory(p.settings, c.world_size, on_gpu=c.sku in GPUS).total
    )
    memory = predict_memory(worst.settings, c.world_size, on_gpu=c.sku in GPUS)
    notes = {
        "weights": "float32, and autocast's copy",
        "gradients": "float32",
        "optimizer": worst.settings.optimizer,
        "communication": worst.settings.sharding,
        "activations": f"batch {worst.settings.batch} × {worst.settings.sequence} tokens",
        "logits": "one piece of the head at a time if there are many",
        "workspace": "CUDA context, compiled kernels",
        "snapshot": "checkpoint being saved; for a GPU in the host's memory",
    }
    lines = [
        _line(name, notes[name], f"{gb:,.2f} GB")
        for name, gb in memory._asdict().items()
        if gb or name != "snapshot"
    ]
    span = f"of {c.memory_gb:,.0f} GB; {memory.least:,.1f} to {memory.most:,.1f} in published peaks"
    return [*lines, _line("sum", span, f"{memory.total:,.1f} GB")]


def _claims(c: Candidate) -> list[str]:
    lines: list[str] = []
    guide = c.phases[0].settings.guide
    if guide is None:
        return lines
    claims = {claim.phase: claim for claim in guide.rows if claim.hardware == c.hardware}
    for phase in c.phases:
        claim = claims.get(phase.name)
        if claim is None:
            continue
        low, high = claim.step_s
        ours = phase.seconds.p50 / 60
        lines += [
            f"  {phase.name}: {low:g}–{high:g} s per step, "
            f"{claim.minutes[0]:g}–{claim.minutes[1]:g} min, "
            f"${claim.cost_usd[0]:g}–{claim.cost_usd[1]:g} at {claim.rate}/h",
            f"    recomputed from its figures: {claim.steps:,} × {low:g}–{high:g} s = "
            f"{claim.arithmetic_minutes[0]:.1f}–{claim.arithmetic_minutes[1]:.1f} min",
            f"    here a step takes {phase.step_s.p50 / high:.1f} × its longest; the phase of "
            f"{ours:,.0f} min is {ours / claim.minutes[1]:.1f} × its longest",
        ]
    for said, truth in guide.said:
        lines += [f"  {said}", f"    {truth}"]
    if hours := guide.steps_in_hours:
        per_hour = HOUR_S / c.phases[0].step_s.p50
        lines.append(
            f"    here: {per_hour:,.0f} steps per hour, {per_hour * hours:,.0f} in {hours:g} h"
        )
    return lines


def _line(name: str, how: str, result: str) -> str:
    return f"  {name:<18}{how:<66}{result:>16}"


STEPS = 50_000
_HEADER = (
    "batch", "on", "batch × acc.", "a step", "GB said", "here", "h said", "here", "lr table", "√",
)  # fmt: skip


def batch_lines(
    settings: PhaseRecipe, batches: Sequence[BatchRow], rates: Mapping[int, float]
) -> list[str]:
    """A line for each of a guide's ``batches``, each with its 50,000 steps.

    Args:
        rates: of the recipe, by sequences a step.
    """
    rows = [_row(each, settings, rates) for each in batches]
    lines = (f"its batches, {STEPS:,} steps for each batch size", *table(_HEADER, rows))
    return [f"  {line}" for line in lines]


def _row(row: BatchRow, asked: PhaseRecipe, rates: Mapping[int, float]) -> tuple[str, ...]:
    settings = replace(asked, batch=row.batch, accumulation=row.accumulation, steps=STEPS)
    whole = settings.global_batch(row.gpus)
    memory = predict_memory(settings, row.gpus).total
    hours = predict_phase(settings, rented_machine(row.sku, row.gpus)).seconds.p50 / 3600
    return (
        row.name,
        hardware_name(row.sku, row.gpus),
        f"{row.batch} × {row.accumulation}",
        str(whole),
        _pair(row.memory_gb),
        f"{memory:,.0f}",
        _pair(row.hours) if row.hours else "–",
        f"{hours:,.0f}",
        _rate(whole, "table", rates),
        _rate(whole, "sqrt", rates),
    )


def _pair(pair: tuple[float, float]) -> str:
    low, high = pair
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _rate(whole: int, rule: str, rates: Mapping[int, float]) -> str:
    try:
        return f"{rate_for(whole, rule, rates, 'the recipe'):.2g}"
    except UsageError:
        return "–"


def probe_lines(probed: CommandProbe | None, steps: int | None) -> list[str]:
    """A line for what was measured where it ran, and one for each other GPU; how long ``steps`` of
    them would take."""
    if probed is None:
        return [
            "  measured        nothing: its log shows too few steps; use --metric or a longer time"
        ]
    measured = probed.measured
    step_s = Interval(measured.fast_s, measured.step_s, measured.slow_s)
    lines = [
        f"  measured        {seconds_text(step_s)} per step, over {measured.steps:,} steps",
        f"  memory          {measured.memory_bytes / 1e9:.2f} GB of the host's, on "
        f"{measured.cores:.1f} cores",
    ]
    sku, busy, used_gb = probed.sku, probed.busy, probed.used_gb
    if sku not in GPUS:
        return [
            *lines,
            "  elsewhere       not known: the pace on a CPU does not predict that on a GPU",
        ]
    share = f"busy {busy:.0%}" if busy is not None else "its share of the time is not known"
    lines.append(f"  {sku:<15} {share}" + (f", {used_gb:.1f} GB in use" if used_gb else ""))
    others = [gpu for name, gpu in GPUS.items() if name != sku]
    for other in transfer_speed(measured, GPUS[sku], others, busy, used_gb):
        words = f"  {other.sku:<15} {seconds_text(other.step_s)} a step"
        if steps:
            low, high = (s * steps for s in (other.step_s.p10, other.step_s.p90))
            words += f", {duration(low)} to {duration(high)} in total"
        lines.append(words + ("" if other.fits is not False else "; too little memory"))
    lines.append(
        "  · for the same number of GPUs: between the ratio of peaks and that of bandwidths, the "
        f"host's part within a factor of {HOST_FACTOR:g}"
    )
    return lines
