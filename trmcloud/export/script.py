"""A plan as one bash script that stands by itself: estimate, settings, steps, and the sources."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import ceil
from pathlib import Path
from typing import Any

from trmcloud.app.pod_request import pod_check
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.errors import NotSupported
from trmcloud.core.spec.plan import Candidate, Plan, plan_to_json
from trmcloud.export.payload import Payload
from trmcloud.export.shell import comment, quote

BASH, SBATCH = "bash", "sbatch"
FORMS = (BASH, SBATCH)
_BODY = Path(__file__).with_name("standalone.sh")
_USE = (
    "RUN_DIR, DATA and PYTHON may be set in the environment. TRMCLOUD_AT_END=shutdown powers",
    "the machine off at the end, runpod removes the pod. A second start goes on within the",
    "first one's time; --again gives it anew.",
    "",
)
_ALWAYS = (
    "recipe", "phases", "hardware", "processes", "budget_usd", "rate_usd_per_hour", "data",
    "overrides", "steps", "hours", "tokens", "initial_from", "strict_gate", "objective",
    "hour_value_usd",
)  # fmt: skip
_MIN_CUDA = "12.0"
"""torch for CUDA 12.8 runs on any driver of CUDA 12, by its minor versions' compatibility."""


@dataclass(frozen=True)
class PinnedData:
    """A data set that the script downloads. ``data_set`` is None where its host did not say which
    revision it has; ``words`` say which it is, or that there is none."""

    words: str
    data_set: DataSet | None = None


def script(
    plan: Plan,
    candidate: Candidate,
    payload: Payload,
    *,
    form: str,
    data: str,
    pinned: PinnedData | None = None,
) -> str:
    """The script for ``candidate``. ``data`` is a path on the machine that will run it, or a data
    set that it downloads: then ``pinned`` says at which revision.

    Raises:
        NotSupported: another form than bash and sbatch.
    """
    if form not in FORMS:
        raise NotSupported(f"{form!r} is no script", next_step=f"--as {' or '.join(FORMS)}")
    slurm = form == SBATCH
    spec = spec_text(plan, candidate, slurm=slurm)
    lines = [
        "#!/usr/bin/env bash",
        *(_slurm_lines(candidate) if slurm else ()),
        *(
            f"# {comment(line)}".rstrip()
            for line in (*estimate(plan, candidate, data, pinned), *_USE)
        ),
        "",
        f"DEFAULT_DATA={quote(data)}",
        f"TOKENS={max(phase.tokens for phase in candidate.phases)}",
        f"PAYLOAD_SHA256={payload.sha256}",
        "",
        "# The plan as it was frozen; every setting of every phase.",
        "write_spec() {",
        "    cat <<'END_OF_SPEC'",
        spec,
        "END_OF_SPEC",
        "}",
        "",
        *_data_set_lines(pinned),
        _BODY.read_text(encoding="utf-8").partition("\n")[2].rstrip(),
        "",
        'main "$@"',
        "exit",
        "",
        "# The sources, as a tar.gz in base64.",
        *(f"#:{line}" for line in payload.lines()),
        "",
    ]
    return "\n".join(lines)


def _data_set_lines(pinned: PinnedData | None) -> list[str]:
    """The data set's own record, so that a script fetches the files of its revision alone."""
    if pinned is None or pinned.data_set is None:
        return []
    return [
        "# The data set at its revision, used where DATA is the one named above.",
        "write_data_set() {",
        "    cat <<'END_OF_DATA_SET'",
        json.dumps(pinned.data_set.to_json()),
        "END_OF_DATA_SET",
        "}",
        "",
    ]


def spec_text(plan: Plan, candidate: Candidate, *, slurm: bool = False) -> str:
    """What ``trmcloud.export.standalone`` reads: the plan with ``candidate`` alone, as JSON."""
    alone = replace(
        plan, candidates=(candidate,), launchable=(candidate.id,), recommended_id=candidate.id
    )
    check: dict[str, Any] = {}
    if candidate.provider != LOCAL:
        check = {**pod_check(candidate), "min_cuda": _MIN_CUDA}
    if slurm:
        # nvidia-smi may show a whole node's GPUs, other people's among them.
        check = {key: value for key, value in check.items() if key not in ("count", "idle")}
    clock = "paid" if slurm else "wall"
    told = plan_to_json(alone)
    # What was not asked for, and what is for a reader of the plan, is left out.
    told["limits"] = {}
    told["spec"] = {key: it for key, it in told["spec"].items() if it or key in _ALWAYS}
    data = {"version": 1, "clock": clock, "check": check, "plan": told}
    return json.dumps(data, indent=1)


def _slurm_lines(candidate: Candidate) -> list[str]:
    minutes = ceil(candidate.hard_stop_s / 60) + 2
    gpus = () if candidate.provider == LOCAL else (f"#SBATCH --gpus-per-node={candidate.gpus}",)
    return [
        "#SBATCH --job-name=trmcloud",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *gpus,
        f"#SBATCH --time={minutes}",
        f"#SBATCH --signal=B:USR1@{ceil(candidate.landing_s) + 120}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]


def estimate(
    plan: Plan, chosen: Candidate, data: str, pinned: PinnedData | None = None
) -> list[str]:
    """What stands at a script's head: hardware, price, time, cost and stops."""

    def day(at: float) -> str:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d")

    hours = chosen.hours
    lines = [
        "",
        f"Trains {plan.spec.recipe} on {chosen.hardware}; exported by trmcloud, needs none itself.",
        "",
        f"  plan      {plan.id}, made {day(plan.created_at)}",
        f"  hardware  {chosen.gpus} x {chosen.sku}, as sold by {chosen.provider} {chosen.region}",
        f"  price     {chosen.rate}/h on {day(chosen.priced_at)} ({chosen.source})",
    ]
    for phase in chosen.phases:
        s = phase.settings
        lines.append(
            f"  {phase.name:<9} {s.steps:,} steps of {s.batch} x {s.accumulation} x {chosen.gpus} "
            f"sequences of {s.sequence}; about {phase.seconds.p50 / 3600:.2f} h"
        )
    return [
        *lines,
        f"  time      {hours.p50:.2f} h ({hours.p10:.2f} to {hours.p90:.2f})",
        f"  cost      {chosen.cost_p50} ({chosen.cost_p10} to {chosen.cost_p90})",
        f"  stops     lands {chosen.soft_stop_s:,.0f} s after its first start, killed after "
        f"{chosen.hard_stop_s:,.0f} s: at most {chosen.worst_case} at this price",
        f"  data      {data}",
        *([f"            {pinned.words}"] if pinned is not None else []),
        "",
    ]
