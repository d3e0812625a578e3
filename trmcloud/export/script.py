"""A plan as one bash script that stands by itself, or as a SkyPilot task that runs such a script.

The script holds the estimate, the settings, the steps, and the sources of agent and trainer: the
watchdog and agent of a pod do the work on the machine where it runs. A task is YAML, to be read and
edited, and needs no trmcloud to be launched; SkyPilot's own limit stands behind the watchdog's hard
stop.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.clock import utc_day
from trmcloud.core.codec import to_json
from trmcloud.core.durations import duration
from trmcloud.core.errors import DataError, NotSupported
from trmcloud.core.spec.plan import Candidate, Plan, divide_among_nodes, plan_to_json
from trmcloud.core.storage import pod_disks_gb
from trmcloud.core.sweep.job import SweepJob
from trmcloud.core.values import Value, replace
from trmcloud.operations.pod_request import pod_check
from trmcloud.operations.sending.packing import (
    JOB,
    PACKAGE,
    own_sources,
    pack,
    self_end_sources,
    sources,
)

# -- the script --------------------------------------------------------------------------------


BASH, SBATCH = "bash", "sbatch"
FORMS = (BASH, SBATCH)
_BODY = Path(__file__).with_name("standalone.sh")
_USE = (
    "RUN_DIR, DATA and PYTHON may be set in the environment. TRMCLOUD_AT_END=shutdown powers",
    "the machine off at the end, runpod removes the pod. A second start continues within the",
    "time of the first; --again gives the full time again.",
    "",
)
_ALWAYS = (
    "recipe", "phases", "hardware", "processes", "budget_usd", "rate_usd_per_hour", "data",
    "overrides", "steps", "hours", "tokens", "initial_from", "objective",
    "hour_value_usd",
)  # fmt: skip


class PinnedData(Value):
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
    sweep: SweepJob | None = None,
) -> str:
    """The script for ``candidate``. ``data`` is a path on the machine that will run it, or a data
    set that it downloads: then ``pinned`` says at which revision. With ``sweep`` it searches
    settings.

    Raises:
        NotSupported: another form than bash and sbatch.
    """
    if form not in FORMS:
        raise NotSupported(f"{form!r} is not a script", next_step=f"--as {' or '.join(FORMS)}")
    slurm = form == SBATCH
    spec = spec_text(plan, candidate, slurm=slurm, sweep=sweep)
    lines = [
        "#!/usr/bin/env bash",
        *(_slurm_lines(candidate) if slurm else ()),
        *(
            f"# {comment(line)}".rstrip()
            for line in (*estimate(plan, candidate, data, pinned, sweep), *_USE)
        ),
        "",
        f"DEFAULT_DATA={quote(data)}",
        f"TOKENS={max(phase.tokens for phase in candidate.phases)}",
        f"PAYLOAD_SHA256={payload.sha256}",
        "",
        "# The frozen plan, with all settings of all phases.",
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


def spec_text(
    plan: Plan, candidate: Candidate, *, slurm: bool = False, sweep: SweepJob | None = None
) -> str:
    """Return the input of ``trmcloud.export.standalone``: the plan with ``candidate`` alone, as
    JSON."""
    alone = replace(
        plan, candidates=(candidate,), launchable=(candidate.id,), recommended_id=candidate.id
    )
    check: dict[str, Any] = {}
    if candidate.provider != LOCAL:
        check = pod_check(plan.spec, candidate, candidate.soft_stop_s, candidate.phases)
        check["keeps_torch"] = True  # the script installs it, or the user did
    if slurm:
        # nvidia-smi may show a whole node's GPUs, other people's among them.
        check = {key: value for key, value in check.items() if key not in ("count", "idle")}
    clock = "paid" if slurm else "wall"
    told = plan_to_json(alone)
    # What was not asked for, and what is for a reader of the plan, is left out.
    told["limits"] = {}
    told["spec"] = {key: it for key, it in told["spec"].items() if it or key in _ALWAYS}
    data = {"version": 1, "clock": clock, "check": check, "plan": told}
    if sweep is not None:
        data["sweep"] = to_json(sweep)
    return json.dumps(data, indent=1)


def _slurm_lines(candidate: Candidate) -> list[str]:
    minutes = math.ceil(candidate.hard_stop_s / 60) + 2
    gpus = () if candidate.provider == LOCAL else (f"#SBATCH --gpus-per-node={candidate.gpus}",)
    return [
        "#SBATCH --job-name=trmcloud",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *gpus,
        f"#SBATCH --time={minutes}",
        f"#SBATCH --signal=B:USR1@{math.ceil(candidate.landing_s) + 120}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
    ]


def estimate(
    plan: Plan,
    chosen: Candidate,
    data: str,
    pinned: PinnedData | None = None,
    sweep: SweepJob | None = None,
) -> list[str]:
    """Return the lines at a script's head: hardware, price, time, cost and stops."""

    hours = chosen.hours
    does = "Trains" if sweep is None else "Searches settings of"
    lines = [
        "",
        f"{does} {plan.spec.recipe} on {chosen.hardware}; exported by trmcloud, works without it.",
        "",
        f"  plan      {plan.id}, made {utc_day(plan.created_at)}",
        f"  hardware  {chosen.gpus} x {chosen.sku}, as sold by {chosen.provider} {chosen.region}",
        f"  price     {chosen.rate}/h on {utc_day(chosen.priced_at)} ({chosen.source})",
    ]
    if sweep is not None:
        terms = sweep.terms
        rungs = ", ".join(str(rung) for rung in terms.rungs)
        lines += [
            f"  sweep     {' '.join(str(each) for each in terms.space.parameters)}",
            f"            {terms.slots} at a time at {terms.slot_rate}/h each; rungs at {rungs}",
        ]
    for phase in chosen.phases if sweep is None else ():
        s = phase.settings
        lines.append(
            f"  {phase.name:<9} {s.steps:,} steps of {s.batch} x {s.accumulation} x {chosen.gpus} "
            f"sequences of {s.sequence}; about {phase.seconds.p50 / 3600:.2f} h"
        )
    return [
        *lines,
        f"  time      {hours.p50:.2f} h ({hours.p10:.2f} to {hours.p90:.2f})",
        f"  cost      {chosen.cost_p50} ({chosen.cost_p10} to {chosen.cost_p90})",
        f"  stops     stops and saves {duration(chosen.soft_stop_s)} after its first start, killed "
        f"after {duration(chosen.hard_stop_s)}: at most {chosen.worst_case} at this price",
        f"  data      {data}",
        *([f"            {pinned.words}"] if pinned is not None else []),
        "",
    ]


# -- the sources that it carries ----------------------------------------------------------------


_ENTRY = "trmcloud.export.standalone"
_LINE_CHARS = 100


class Payload(Value):
    """A tar.gz of ``trmcloud/`` and ``model/``; the same sources give the same bytes."""

    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def lines(self) -> Iterator[str]:
        """Base64 in lines of 100 characters."""
        text = base64.b64encode(self.content).decode("ascii")
        for at in range(0, len(text), _LINE_CHARS):
            yield text[at : at + _LINE_CHARS]


def make_payload(trainer: Path, package: Path = PACKAGE, *, is_sweep: bool = False) -> Payload:
    """``trainer`` is the trainer's package, ``package`` trmcloud's own; a sweep's executor comes
    along with ``is_sweep``.

    Raises:
        DataError: the trainer's package has no source files, cannot be read, or imports a module
            that trmcloud does not have.
    """
    own = sources(trainer, "model")
    if not own:
        raise DataError("the trainer's package has no source files", where=str(trainer))
    try:
        entries, later = ((_ENTRY, JOB), ()) if is_sweep else ((_ENTRY,), (JOB,))
        files = own_sources(*entries, trainer=trainer, package=package, later=later)
        files |= self_end_sources(package=package)
        return Payload(pack(files | {name: path.read_bytes() for name, path in own.items()}))
    except OSError as error:
        raise DataError(f"it cannot be read: {error.strerror}", where=str(trainer)) from None


# -- a SkyPilot task ----------------------------------------------------------------------------


_TASK_STEPS = "trmcloud/export/task.sh"
_CARRIED = "~/.trmcloud/train.sh"
_INDENT = "    "


class SkyNames(Value):
    """SkyPilot's names for an export: its ``clouds`` by our names of those that need no key of
    theirs on the pod, a GPU at one of them by ``accelerator`` (provider, sku), and the minutes by
    which its own limit comes after the hard stop."""

    clouds: Mapping[str, str]
    accelerator: Callable[[str, str], str]
    limit_slack_minutes: int


def make_task(
    plan: Plan,
    candidate: Candidate,
    sky_names: SkyNames,
    *,
    data: str,
    path: Path,
    carrier: str = "",
    nodes: int = 1,
    pinned: PinnedData | None = None,
) -> str:
    """Return the task as YAML. ``data``: a path on the cluster or python-stdlib; ``path``: the
    task's own. ``carrier`` is the exported script with the sources; where it is empty, the task is
    launched from a checkout."""
    phases = "-".join(plan.spec.phases)
    steps = _CARRIED if carrier else _TASK_STEPS
    disk_gb = pod_disks_gb("skypilot", candidate.work_gb)
    accelerator = sky_names.accelerator(candidate.provider, candidate.sku)
    limit_minutes = math.ceil(divide_among_nodes(candidate, nodes).hard_stop_s / 60.0)
    limit_minutes += sky_names.limit_slack_minutes
    spec = spec_text(plan, candidate).splitlines()
    lines = [
        *(f"# {comment(line)}".rstrip() for line in estimate(plan, candidate, data, pinned)),
        *_on_several(candidate, nodes),
        f"#   {comment(f'sky launch {quote(str(path))}')}",
        "#",
        "# The clock runs from the first line of setup. Checkpoints are in",
        "# ~/trmcloud-run/runs until the hard stop; fetch them before, or set a bucket below.",
        f"name: {_name(plan.spec.recipe, candidate.hardware, phases)}",
        f"num_nodes: {nodes}",
        *([] if carrier else ["workdir: ."]),
        "resources:",
        f"  infra: {sky_names.clouds[candidate.provider]}",
        f"  accelerators: {{{accelerator}: {candidate.gpus}}}",
        f"  max_hourly_cost: {candidate.reserved_rate.plain()}",
        f"  disk_size: {disk_gb}",
        "  # If the watchdog fails to end the cluster.",
        f"  autostop: {{idle_minutes: {limit_minutes}, down: true, wait_for: none}}",
        "envs:",
        "  # Text, or a folder of text or of prepared data, on the cluster.",
        f"  DATA: {_text(data)}",
        "  # A folder that outlives the cluster: each finished checkpoint is copied into it.",
        '  TRMCLOUD_KEEP: ""',
        "  # The cluster is deleted at the hard stop if it has checkpoints,",
        "  # or this many seconds after the end if a number is set here (with a bucket: 120).",
        "  TRMCLOUD_AT_END: skypilot",
        "  TRMCLOUD_LINGER_S: hard-stop",
        *(() if carrier else ("  TRMCLOUD_SPEC: |", *(_INDENT + line for line in spec))),
        "# Storage: your bucket; then set TRMCLOUD_KEEP to /kept.",
        *(["file_mounts:", f"  {_CARRIED}: {_text(carrier)}"] if carrier else ["# file_mounts:"]),
        "#   /kept:",
        "#     source: s3://NAME",
        "#     mode: MOUNT_CACHED",
        "setup: |",
        *_command(f"bash {steps} set-up"),
        "run: |",
        *_command(f"bash {steps}"),
        "",
    ]
    return "\n".join(lines)


def _on_several(candidate: Candidate, count: int) -> list[str]:
    if count == 1:
        return []
    each = divide_among_nodes(candidate, count)
    accumulation = "/".join(str(phase.settings.accumulation) for phase in each.phases)
    return [
        f"# On {count} nodes: {each.rate}/h together, so all is killed after "
        f"{duration(each.hard_stop_s)}, for the same",
        f"# most; {accumulation} micro-batches per step on each GPU. The scaling is not known.",
        "#",
    ]


def _command(command: str) -> list[str]:
    return [
        '  export RUN_DIR="$HOME/trmcloud-run"',
        '  TRMCLOUD_SKY_USER="$(id -un)"',
        '  export TRMCLOUD_SKY_USER TRMCLOUD_SKY_HOME="$HOME"',
        f"  {command}",
    ]


def _name(recipe: str, hardware: str, phases: str) -> str:
    """A recipe may be a file, whose path is no name of a task."""
    stem = recipe.rpartition("/")[2].removesuffix(".toml")
    return re.sub(r"[^a-z0-9]+", "-", f"{stem}-{hardware}-{phases}".lower()).strip("-")


def _text(value: str) -> str:
    """A JSON string is one of YAML's, too."""
    return json.dumps(value, ensure_ascii=True)


# -- values in a shell script -------------------------------------------------------------------


_PLAIN = re.compile(rb"[A-Za-z0-9_@%+=:,./-]+")


def quote(text: str) -> str:
    """``text`` as one word of bash, in ASCII: bare, 'quoted', or $'escaped' where it must be.

    Bytes of a file's name that are not UTF-8 stay what they are.

    Raises:
        ValueError: a NUL, which no argument can hold.
    """
    content = os.fsencode(text)
    if b"\0" in content:
        raise ValueError("a NUL byte cannot be passed to a command")
    if _PLAIN.fullmatch(content):
        return content.decode("ascii")
    if re.fullmatch(rb"[A-Za-z0-9_@%+=:,./ -]*", content):
        return "'" + content.decode("ascii") + "'"
    return "$'" + "".join(_escaped(byte) for byte in content) + "'"


def _escaped(byte: int) -> str:
    character = chr(byte)
    if character in "'\\":
        return "\\" + character
    return character if 0x20 <= byte < 0x7F else f"\\x{byte:02x}"


def comment(text: str) -> str:
    """``text`` on one line, without what could end a comment or disturb a terminal."""
    shown = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
