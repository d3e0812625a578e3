"""Judges a tried command: observations in, checks and the line to type out. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated

from trmcloud.core.contract.command import NO_SIGNAL, Command
from trmcloud.core.contract.command_terms import MOST_LINE_CHARS
from trmcloud.core.contract.records import Step, within
from trmcloud.core.text import first_of, one_line, size_text
from trmcloud.core.values import Value, replace
from trmcloud.pod.job.readings import is_of_settings
from trmcloud.pod.job.readings import plain_name as metric_key

# -- observations -------------------------------------------------------------------------------

_Count = Annotated[int, within(0, 1 << 53)]
_Seconds = Annotated[float, within(0.0, 1e7)]


class SeenSave(Value):
    """An artifact that the command wrote."""

    source: str
    """Its path in the command's folder; one that begins with ``~/`` is in its HOME."""
    size_bytes: _Count
    step: Step | None = None
    kind: str = ""
    """The name of its layout."""
    is_file: bool = True
    beside: tuple[str, ...] = ()
    """Its other files, by their paths as ``source`` is."""


class SeenKey(Value):
    """A named number of the log or of TensorBoard's files. ``last`` is None for NaN and inf."""

    name: str
    count: _Count
    last: float | None = None
    pattern: str = ""
    """The ``--metric`` that reads it; empty: its name does."""
    changes: bool = True
    """Its values differ, or there is only one."""
    held_out: bool = False
    """Each line that has it is of a test or a validation, by its words."""


class Attempt(Value):
    """One start of the command, until all its processes had ended."""

    ran_s: _Seconds = 0.0
    """Until it ended or was asked to stop."""
    code: int | None = None
    """None: it ran until it was asked to stop. Below zero: the number of the signal that ended
    it."""
    lines: _Count = 0
    last_lines: tuple[str, ...] = ()
    first_step: Step | None = None
    last_step: Step | None = None
    step_s: _Seconds | None = None
    memory_bytes: _Count = 0
    keys: tuple[SeenKey, ...] = ()
    saves: tuple[SeenSave, ...] = ()
    told: bool = False
    left_s: _Seconds | None = None
    """Seconds from the request to stop until it had ended; None: it had to be killed."""
    saved_s: _Seconds | None = None
    """Seconds from the request to stop until its last write of an artifact; None: it wrote none."""
    left_behind: _Count = 0
    """Processes that were alive after the command itself had ended."""
    too_large: bool = False
    """It was ended, since it had written more than allowed."""


class SeenPath(Value):
    """A path that a Python process of the command opened."""

    path: str
    writes: bool
    there: bool


class Observed(Value):
    """The observations of one trial. Paths are absolute."""

    first: Attempt
    resumed: Attempt | None = None
    resumed_from: str = ""
    resumed_step: Step | None = None
    """The step of that checkpoint, where its name or its state has one."""
    resumed_by: tuple[str, ...] = ()
    """The words that resumed it, with ``{checkpoint}`` in them."""
    pythons: tuple[str, ...] = ()
    """Interpreters that were observed; none: no process was observed."""
    modules: tuple[str, ...] = ()
    """Top-level modules beside the standard library's whose import was tried."""
    paths: tuple[SeenPath, ...] = ()
    sources: tuple[str, ...] = ()
    """The files of the copy that Python read as source, relative to it."""
    other_files: _Count = 0
    other_bytes: _Count = 0
    """Files that it wrote beside artifacts."""
    trackers: tuple[str, ...] = ()
    """Those of ``TRACKERS`` that have written offline."""
    network_blocked: bool = False
    why_not_started: str = ""
    version: int = 1


# -- facts, which need the file system, and the checks of them -----------------------------------


class MissingFile(Value):
    """A file or module that the command did not find in the copy, and that is here."""

    name: str
    why: str
    fix: str
    is_sent: bool = False
    """It is in the copy, at another place than where it was looked for."""

    @property
    def said(self) -> str:
        how = "is sent, but" if self.is_sent else "exists here but was not sent:"
        return f"{self.name} {how} {self.why}"


class Tracker(Value):
    """A tracker of experiments: the variables that keep it offline, the variable of its key, and
    the beginning of what it then writes, in the working folder or in HOME."""

    name: str
    offline: tuple[str, ...]
    key: str
    writes: str


TRACKERS = (
    Tracker("wandb", ("WANDB_MODE=offline",), "WANDB_API_KEY", "wandb/offline-run-"),
    Tracker("neptune", ("NEPTUNE_MODE=offline",), "NEPTUNE_API_TOKEN", ".neptune/"),
    Tracker(
        "comet_ml", ("COMET_MODE=offline", "COMET_START_ONLINE=0"), "COMET_API_KEY",
        ".cometml-runs/",
    ),
    Tracker("clearml", ("CLEARML_OFFLINE_MODE=1",), "CLEARML_API_ACCESS_KEY", ".clearml/"),
    Tracker("swanlab", ("SWANLAB_MODE=offline",), "SWANLAB_API_KEY", "swanlog/"),
)  # fmt: skip


MLFLOW_SERVER = "MLFLOW_TRACKING_URI"
"""The variable of MLflow's server; without it, MLflow writes to the working folder."""


class Facts(Value):
    """All that is judged of one trial."""

    command: Command
    observed: Observed
    files: int = 0
    for_s: float = 60.0
    most_bytes: int = 0
    data: str = ""
    """``--data``, as it was typed."""
    missing: tuple[MissingFile, ...] = ()
    outside_reads: tuple[str, ...] = ()
    outside_writes: tuple[str, ...] = ()
    own_modules: tuple[MissingFile, ...] = ()
    """Modules that were imported from outside the copy."""
    modules: tuple[str, ...] = ()
    """Installed modules that were imported."""
    unnamed: tuple[str, ...] | None = ()
    """Imported distributions that no requirements file names or brings, and no image has; None:
    the Python that ran is none of the user's, so what it has is not known."""
    requirements: str = ""
    """The file of requirements in the tree; empty: there is none."""
    hub_reads: tuple[str, ...] = ()
    """Entries of the model hub's cache that were read."""
    online: bool = False
    """Downloads were let through."""
    trackers: tuple[str, ...] = ()
    """Those of ``TRACKERS`` that the command has used, offline."""
    has_keys: tuple[str, ...] = ()
    """Of these, the ones whose keys this shell has."""


class Result(str, Enum):
    """The result of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Check(Value):
    """One check with one line of evidence; ``fix`` is what to change, empty where nothing is."""

    name: str
    result: Result
    evidence: str
    fix: str = ""
    details: tuple[str, ...] = ()


NAMES = ("starts", "reads", "imports", "writes", "metric", "pace", "stops", "resumes", "gpu")
COMPILED_READERS = (
    "pyarrow", "datasets", "safetensors", "tokenizers", "h5py", "cv2", "tensorflow", "tensorstore",
    "sentencepiece", "polars", "duckdb", "lance", "decord", "av", "torchaudio", "torchcodec",
    "xgboost", "lightgbm", "catboost", "netCDF4", "zarr",
)  # fmt: skip
"""Modules that open files without an event of Python's."""
_OFFLINE = re.compile(
    r"offline ?mode|HF_HUB_OFFLINE|LocalEntryNotFound|network is unreachable|name resolution"
    r"|name or service not known|couldn.t connect to|max retries exceeded|getaddrinfo",
    re.I,
)
"""Messages of a command that needs a network, in the words of libc and the hub's libraries."""
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([A-Za-z0-9_.]{1,80})'")
_MOST_NAMES = 8
"""Of numbers, in the check of the metric."""


def judge(facts: Facts) -> tuple[Check, ...]:
    """Return the checks in the order of ``NAMES``; each passed, failed or unknown."""
    started = _starts(facts)
    if facts.observed.why_not_started:
        rest = (Check(name, Result.UNKNOWN, "it did not start") for name in NAMES[1:-1])
        return started, *rest, _gpu(facts)
    made = (
        started, _reads(facts), _imports(facts), _writes(facts), _metric(facts), _pace(facts),
        _stops(facts), _resumes(facts), _gpu(facts),
    )  # fmt: skip
    if not facts.observed.first.code:
        return made
    # It has to start before anything else is worth changing.
    others = (
        replace(check, fix="") if check.result is Result.UNKNOWN else check for check in made[1:]
    )
    return started, *others


def _starts(facts: Facts) -> Check:
    seen, first = facts.observed, facts.observed.first
    if seen.why_not_started:
        return Check("starts", Result.FAILED, seen.why_not_started)
    details = tuple(first.last_lines)
    if first.too_large:
        return Check(
            "starts", Result.FAILED,
            f"it wrote more than {facts.most_bytes / 1e9:g} GB within {first.ran_s:.0f} s, and "
            "was stopped", "use --gb with a higher limit",
        )  # fmt: skip
    if first.code and not facts.online and any(map(_OFFLINE.search, first.last_lines)):
        return Check(
            "starts", Result.UNKNOWN,
            f"{_ended(first.code, first.ran_s)}: it needs the network, which is closed in a trial",
            "allow downloads with --online", details,
        )  # fmt: skip
    if first.code:
        fix = "; ".join(dict.fromkeys(each.fix for each in facts.missing))
        if any("get_ipython" in line for line in details):
            fix = fix or (
                "it was exported from a notebook: run it with ipython, or delete its "
                "get_ipython() lines"
            )
        why = [each.said for each in facts.missing]
        how = _ended(first.code, first.ran_s)
        return Check("starts", Result.FAILED, "; ".join([how, *why[:3]]), fix, details)
    if first.left_behind:
        count = f"{first.left_behind} process{'es' * (first.left_behind != 1)}"
        return Check(
            "starts", Result.FAILED,
            f"the command ended after {first.ran_s:.1f} s and left {count} running: a run ends "
            "with its command, and ends them",
            "start it in the foreground, without & or nohup",
        )  # fmt: skip
    if first.code == 0:
        if first.last_step is None and not first.saves and not first.keys:
            return Check(
                "starts", Result.FAILED,
                f"it finished with code 0 after {first.ran_s:.1f} s, without a step, a metric or "
                "a checkpoint", "", details,
            )  # fmt: skip
        return Check("starts", Result.PASSED, f"it finished with code 0 after {first.ran_s:.1f} s")
    if not first.lines:
        return Check(
            "starts", Result.UNKNOWN,
            f"it ran for {first.ran_s:.0f} s and printed nothing",
        )  # fmt: skip
    files = f"{facts.files:,} file{'s' * (facts.files != 1)}"
    return Check("starts", Result.PASSED, f"it ran for {first.ran_s:.0f} s in a copy of {files}")


def _reads(facts: Facts) -> Check:
    seen = facts.observed
    absent = [each for each in (*facts.missing, *facts.own_modules) if not each.is_sent]
    if absent or facts.outside_reads:
        told = [f"{each.name} ({each.why})" for each in absent] + list(facts.outside_reads)
        fixes = [each.fix for each in absent]
        if facts.outside_reads:
            fixes.append("use --data FOLDER; the script finds it in $TRMCLOUD_DATA")
        return Check(
            "reads", Result.FAILED, f"not among the files to send: {first_of(told)}",
            "; ".join(dict.fromkeys(fixes)),
        )  # fmt: skip
    if not seen.pythons:
        return Check("reads", Result.UNKNOWN, "no Python process was seen")
    hub = f"; from the hub's cache here: {first_of(facts.hub_reads)}" if facts.hub_reads else ""
    compiled = [name for name in COMPILED_READERS if name in facts.modules]
    if compiled:
        return Check(
            "reads", Result.UNKNOWN,
            f"only files to send were seen; some may be missing: {', '.join(compiled)} "
            f"{'read' if len(compiled) > 1 else 'reads'} without an event{hub}",
        )  # fmt: skip
    return Check("reads", Result.PASSED, f"only files to send{hub}")


def _imports(facts: Facts) -> Check:
    if not facts.observed.pythons:
        return Check("imports", Result.UNKNOWN, "no Python process was seen")
    lacking = _lacking(facts)
    if lacking:
        return Check(
            "imports", Result.FAILED, f"{lacking} is not installed here",
            "install it here and try again: its other imports are not known yet",
        )  # fmt: skip
    if facts.unnamed is None:
        python = facts.observed.pythons[0]
        return Check(
            "imports", Result.UNKNOWN,
            f"{python} is not the python of your PATH, and was not asked for its packages",
        )  # fmt: skip
    if facts.unnamed:
        where = facts.requirements or "requirements.txt"
        said = f"{where} does not name" if facts.requirements else "no requirements file names"
        one = len(facts.unnamed) == 1
        return Check(
            "imports", Result.FAILED,
            f"{said} {first_of(facts.unnamed, 8)}, which {'is' if one else 'are'} imported",
            f"add {'it' if one else 'them'} to {where}, and --pip {where}",
        )  # fmt: skip
    if facts.requirements:
        return Check("imports", Result.PASSED, f"all are named by {facts.requirements}")
    return Check("imports", Result.PASSED, "all are in the default image")


def _lacking(facts: Facts) -> str:
    """The module that ended it by not being here at all; empty where none did."""
    first = facts.observed.first
    absent = " ".join(each.name for each in (*facts.missing, *facts.own_modules))
    for line in first.last_lines if first.code else ():
        if found := _NO_MODULE.search(line):
            return "" if found.group(1).partition(".")[0] in absent else found.group(1)
    return ""


def _writes(facts: Facts) -> Check:
    saves, seen = facts.observed.first.saves, facts.observed
    absolute = (
        f"; really written, outside the copy: {first_of(facts.outside_writes)}"
        if facts.outside_writes
        else ""
    )
    others = ""
    if seen.other_files:
        files = f"{seen.other_files:,} other file{'s' * (seen.other_files != 1)}"
        others = f"; {files}, {size_text(seen.other_bytes)}"
    if not saves:
        return Check(
            "writes", Result.UNKNOWN,
            f"no checkpoint within {seen.first.ran_s:.0f} s{others}{absolute}",
            "" if seen.first.code else "use a longer --for, or save more often in the trial",
        )  # fmt: skip
    largest = max(save.size_bytes for save in saves)
    place = checkpoints_place(saves)
    kinds = ", ".join(sorted({save.kind for save in saves if save.kind}))
    count = f"{len(saves)} checkpoint{'s' * (len(saves) != 1)}"
    told = f"{count}{f' ({kinds})' if kinds else ''} in {place}, the largest {size_text(largest)}"
    result = Result.FAILED if facts.outside_writes else Result.PASSED
    fix = "write inside the working folder" if facts.outside_writes else ""
    return Check("writes", result, told + others + absolute, fix)


def _metric(facts: Facts) -> Check:
    first, command = facts.observed.first, facts.command
    keys = {metric_key(key.name): key for key in one_of_each(first.keys)}
    spellings = {plain: _spellings(first.keys, plain) for plain in keys}
    chosen = best_key(list(keys.values()))
    compared = _worth_naming(list(keys.values()))
    if chosen is not None and chosen not in compared:
        compared = [*compared[: _MOST_NAMES - 1], chosen]
    others = len(keys) - len(compared)
    shown = first_of(
        [_key_text(key, spellings[metric_key(key.name)]) for key in compared], _MOST_NAMES
    )
    shown += f", and {others} other name{'s' * (others != 1)}" if others else ""
    if command.metric:
        found = keys.get(metric_key(command.metric_name))
        if found is not None:
            times = f"{found.count:,} value{'s' * (found.count != 1)}"
            last = (
                f", the last {found.last:g}"
                if found.last is not None
                else ", the last one not finite"
            )
            return Check("metric", Result.PASSED, f"{command.metric_name}: {times}{last}")
        seen = f"; seen: {shown}" if keys else "; no other number was seen either"
        return Check(
            "metric", Result.FAILED if first.lines else Result.UNKNOWN,
            f"{command.metric_name} did not appear within {first.ran_s:.0f} s{seen}",
            "use a longer --for, or --metric with one of these" if keys else "",
        )  # fmt: skip
    if not keys:
        return Check("metric", Result.UNKNOWN, "its log and event files have no named number")
    if chosen is None:
        return Check(
            "metric",
            Result.UNKNOWN,
            f"seen: {shown}; no number was chosen to compare checkpoints (--metric)",
        )
    return Check("metric", Result.PASSED, f"seen: {shown}; best checkpoint by {chosen.name}")


def _pace(facts: Facts) -> Check:
    first = facts.observed.first
    memory = f"{first.memory_bytes / 1e9:.2f} GB of this machine's memory"
    if first.step_s is None or first.first_step is None or first.last_step is None:
        steps = "no step was seen" if first.last_step is None else "too few steps to know a pace"
        return Check("pace", Result.UNKNOWN, f"{steps}; {memory}")
    steps = f"steps {first.first_step:,} to {first.last_step:,}"
    return Check("pace", Result.PASSED, f"{first.step_s:.3g} s a step ({steps}); {memory}")


def _stops(facts: Facts) -> Check:
    first, command = facts.observed.first, facts.command
    way = f"SIG{command.stop_signal}" if command.stop_signal != NO_SIGNAL else "its stop file"
    if not first.told:
        why = "it had ended before" if first.code is not None else "it was not asked to stop"
        return Check("stops", Result.UNKNOWN, why)
    if first.left_s is None:
        return Check(
            "stops", Result.FAILED,
            f"it was still running {command.grace_s:g} s after {way}, and was killed"
            + (f"; it saved after {first.saved_s:.1f} s" if first.saved_s is not None else ""),
            "use a longer --grace, or save often: a run keeps its saved checkpoints",
        )  # fmt: skip
    if first.saved_s is not None:
        return Check(
            "stops", Result.PASSED,
            f"saved {first.saved_s:.1f} s after {way}, exited after {first.left_s:.1f} s",
        )  # fmt: skip
    if first.saves:
        return Check(
            "stops", Result.PASSED,
            f"it exited {first.left_s:.1f} s after {way} without a save: a run keeps earlier "
            "checkpoints",
        )  # fmt: skip
    return Check(
        "stops", Result.UNKNOWN, f"it exited {first.left_s:.1f} s after {way}, and saved nothing"
    )


def _resumes(facts: Facts) -> Check:
    seen, resumed = facts.observed, facts.observed.resumed
    if resumed is None:
        why = (
            "there was no checkpoint to resume from"
            if facts.command.resume
            else "no --resume was given"
        )
        words = " ".join(map(_quoted, facts.command.words))
        fix = "" if facts.command.resume else f"--resume '{words} … {{checkpoint}}'"
        return Check("resumes", Result.UNKNOWN, why, fix)
    details = tuple(resumed.last_lines)
    came = f"from {one_line(seen.resumed_from)}"
    is_guess = not facts.command.resume
    if is_guess:
        came += f" by {seen.resumed_by[-2]}"
    broken = Result.UNKNOWN if is_guess else Result.FAILED
    if resumed.code:
        how = _ended(resumed.code, resumed.ran_s)
        return Check("resumes", broken, f"{came}: {how}", "", details)
    if resumed.first_step is None:
        return Check("resumes", Result.UNKNOWN, f"{came}: its log shows no step")
    if seen.resumed_step is None:
        begins, first = resumed.first_step, seen.first.first_step
        if first is not None and begins > first:
            return Check("resumes", Result.PASSED, f"{came}: its first step was {begins:,}")
        return Check("resumes", Result.UNKNOWN, f"{came}: its first step was {begins:,}")
    if resumed.first_step >= seen.resumed_step:
        return Check("resumes", Result.PASSED, f"{came}: its first step was {resumed.first_step:,}")
    return Check(
        "resumes", broken, f"{came}: it started again at step {resumed.first_step:,}", "", details
    )


def _gpu(facts: Facts) -> Check:
    return Check(
        "gpu", Result.UNKNOWN, "not measured: memory and pace on a GPU",
        probe_line(facts),
    )  # fmt: skip


def failed(checks: Sequence[Check]) -> tuple[Check, ...]:
    return tuple(check for check in checks if check.result is Result.FAILED)


# -- the line to type ----------------------------------------------------------------------------

_LEAST_GB = 0.01
_ROOM = 1.5
"""A checkpoint on another machine may hold more: optimizer states that were empty here."""
_PROBE_STEPS = 200


class RequestedMachine(Value):
    """The machine and money of the printed line, as they were typed to ``try``."""

    hardware: str = ""
    rate: str = ""
    budget: str = ""

    @property
    def is_rented(self) -> bool:
        return self.hardware not in ("", "local")


def run_line(facts: Facts, hired: RequestedMachine) -> str:
    """Return the whole ``trmcloud run …`` line that follows from what was seen, quoted for a
    shell."""
    rented = hired.is_rented
    where = [hired.hardware] if rented else ["local", "--rate", hired.rate or "1"]
    words = ["trmcloud", "run", *where, "--budget", hired.budget or "1"]
    offline = [word for each in _kept_offline(facts) for word in each.offline]
    command = [*(["env", *offline] if offline else []), *facts.command.words]
    return shlex.join([*words, *_options(facts, rented=rented), "--", *command])


def differences(facts: Facts) -> tuple[str, ...]:
    """Return a sentence for each way in which the run of ``run_line`` differs from the trial."""
    kept = _kept_offline(facts)
    found = [
        f"{each.name} was offline here; the run takes {each.key} from this shell"
        for each in TRACKERS
        if each.name in facts.trackers and each not in kept
    ]
    found += [
        f"{each.name} stays offline in the run: {each.key} is not set; with it, use "
        f"--env {each.key}"
        for each in kept
    ]
    if facts.command.pip:
        found.append(
            f"the packages of this machine were used; the run installs {facts.command.pip}"
        )
    return tuple(found)


def _kept_offline(facts: Facts) -> list[Tracker]:
    """The trackers that would ask for a key that nobody gave."""
    return [
        each for each in TRACKERS if each.name in facts.trackers and each.name not in facts.has_keys
    ]


def probe_line(facts: Facts) -> str:
    """Return the line of a paid probe, capped, that answers what needs a GPU."""
    given = [word for name in facts.command.env for word in ("--env", name)]
    data = [*_root(facts.command), *(["--data", facts.data] if facts.data else [])]
    pip = ["--pip", facts.requirements] if facts.requirements else []
    words = ["trmcloud", "run", "any", "--memory", "20", "--probe", str(_PROBE_STEPS)]
    words += ["--budget", "1", *data, *given, *pip]
    return shlex.join([*words, "--", *facts.command.words])


def _options(facts: Facts, *, rented: bool) -> list[str]:
    command, first = facts.command, facts.observed.first
    made = _root(command)
    if facts.data:
        made += ["--data", facts.data]
    place = command.checkpoints or (checkpoints_place(first.saves) if first.saves else "")
    if place:
        made += ["--checkpoints", place]
        if first.saves:
            made += ["--checkpoint-gb", f"{_checkpoint_gb(first.saves):g}"]
    made += _metric_options(facts)
    made += ["--grace", f"{_grace_s(facts):g}"]
    if command.stop_signal != "TERM":
        made += ["--stop-signal", command.stop_signal]
    if command.stop_file:
        made += ["--stop-file", command.stop_file]
    keys = [each.key for each in TRACKERS if each.name in facts.has_keys]
    for name in dict.fromkeys((*command.env, *keys)):
        made += ["--env", name]
    pip = command.pip or (facts.requirements if rented else "")
    if pip:
        made += ["--pip", pip]
    if command.image:
        made += ["--image", command.image]
    resume = command.resume
    if not resume and _resumes(facts).result is Result.PASSED:
        resume = facts.observed.resumed_by
    if resume:
        made += ["--resume", " ".join(map(_quoted, resume))]
    return made


def _root(command: Command) -> list[str]:
    """``--root ..``, where the command is started below the tree that is sent."""
    depth = len(command.folder.split("/")) if command.folder else 0
    return ["--root", "/".join([".."] * depth)] if depth else []


def _quoted(word: str) -> str:
    """A word as a shell takes it; braces, which only a shell with expansion reads, stay plain."""
    return word if re.fullmatch(r"[\w@%+=:,./{}-]+", word, re.A) else shlex.quote(word)


def _metric_options(facts: Facts) -> list[str]:
    command = facts.command
    if command.metric:
        return ["--metric", command.metric, *_order(command.metric_name, command.higher_is_better)]
    chosen = best_key(one_of_each(facts.observed.first.keys))
    if chosen is None:
        return []
    higher = bool(is_higher_better(chosen.name))
    return ["--metric", chosen.pattern or chosen.name, *_order(chosen.name, higher)]


def _order(name: str, higher: bool) -> list[str]:
    """The option that says which value is best, where the name does not say "the lowest"."""
    told = "max" if higher else "min"
    return ["--best", told] if higher or is_higher_better(name) is not False else []


def _grace_s(facts: Facts) -> float:
    """The grace that is worth its reservation: what a save took, twice, and 5 s."""
    first = facts.observed.first
    if not first.told or first.left_s is None:
        return facts.command.grace_s
    return float(min(facts.command.grace_s, 5 + math.ceil(2 * (first.saved_s or 0.0))))


def _checkpoint_gb(saves: Sequence[SeenSave]) -> float:
    """In GB, two digits, rounded up."""
    needed = max(save.size_bytes for save in saves) / 1e9 * _ROOM
    if needed <= _LEAST_GB:
        return _LEAST_GB
    unit = 10.0 ** (math.floor(math.log10(needed)) - 1)
    return round(math.ceil(needed / unit) * unit, 6)


def checkpoints_place(saves: Sequence[SeenSave]) -> str:
    """The folder that holds all of ``saves``, or a pattern where they are in the working folder
    itself. A folder whose name bears a time or an id would be another one in the next run."""
    names = {name for save in saves for name in (save.source, *save.beside)}
    folders = [_lasting(name.rpartition("/")[0]) for name in sorted(names)]
    common = folders[0].split("/") if folders[0] else []
    for folder in folders[1:]:
        parts = folder.split("/") if folder else []
        same = [a for a, b in zip(common, parts, strict=False) if a == b]
        common = common[: len(same)] if common[: len(same)] == same else []
    if common:
        return "/".join(common)
    tops = {name.partition("/")[0] for name in names}
    if any(map(_OF_ONE_RUN.search, tops)):
        return "."
    if len(tops) == 1 and not re.search("[0-9]", min(tops)):
        return min(names) if len(names) == 1 else min(tops)
    suffixes = {name.rpartition(".")[2] for name in tops if "." in name}
    if len(suffixes) == 1 and all("." in name for name in tops):
        return f"*.{next(iter(suffixes))}"
    heads = {re.split(r"[-_.]?[0-9]", name, maxsplit=1)[0] for name in tops}
    return f"{next(iter(heads))}*" if len(heads) == 1 and "" not in heads else "."


_OF_ONE_RUN = re.compile(
    r"(?<![0-9])(?:19|20)[0-9]{2}[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12][0-9]|3[01])(?![0-9])"
    r"|(?<![0-9])[0-2][0-9][-_.:h][0-5][0-9][-_.:m][0-5][0-9](?![0-9])"
    r"|(?<![0-9])1[0-9]{9}(?![0-9])"
    r"|(?:^|[-_])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}(?:[-_]|$)",
    re.I,
)
"""Parts of a folder's name that are new in each run: dates, times of day, seconds since 1970 and
hexadecimal ids."""


_OF_ONE_SAVE = re.compile(
    r"(?:^|[-_.])(?:step|epoch|ep|iter|iteration|checkpoint|ckpt|version|exp|trial)s?[-_=.]?[0-9]+$",
    re.I,
)
"""Folders that a script counts: its next save, or its next attempt, has another one."""


def _lasting(folder: str) -> str:
    """The beginning of a path that the next save and the next run will have too."""
    parts = folder.split("/")
    volatile = (
        n for n, part in enumerate(parts) if _OF_ONE_RUN.search(part) or _OF_ONE_SAVE.search(part)
    )
    return "/".join(parts[: next(volatile, len(parts))])


# -- named numbers of a line -----------------------------------------------------------------------

_NUMBER = r"[-+]?(?:[0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf)\b"
_PAIR = re.compile(
    rf"""(?<![\w./-])([A-Za-z_][A-Za-z0-9_./@-]{{0,60}}(?:(?<!\.)\ [A-Za-z_][A-Za-z0-9_]{{0,30}})?)
    (['"]?\s{{0,8}}[=:]\s{{0,8}}['"]?)({_NUMBER})""",
    re.X | re.I,
)
_WORDS = re.compile(
    rf"""\b((?:(?:val|valid|validation|eval|test|dev|train|training)[ _-])?
    (?:loss|acc|accuracy|ppl|perplexity|bpb|bpc)|[A-Z]{{1,20}}@[0-9]{{1,4}})(\s{{1,8}})({_NUMBER})""",
    re.X | re.I,
)
_NO_METRIC = re.compile(
    r"(global_?|num_|total_|n_)?(step|timestep|update|iter|iteration|epoch)s?|lr|learning_rate|time|seconds|elapsed|eta|seed|"
    r"port|pid|rank|world_size|device|.*(/s|_per_sec.*|per_second|time|_ms|samples|tokens)", re.I
)  # fmt: skip
_OF_A_LIBRARY = re.compile(r"\[?[IWEF][0-9]{4} [0-9:.]+ ")
"""How lines of glog begin, of PyTorch and TensorFlow: a number there is no metric."""
_PLACE = re.compile(r".*\.(py|pyx|c|cc|cpp|cu|h|rs|go|js)|https?|file", re.I)
"""Names that stand before the number of a line or a port."""
_HELD_OUT = re.compile(r"val|eval|test|dev|held", re.I)
_OF_HELD_OUT = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test|dev)\b", re.I)
_OWN_BEST_BY = ("metrics/mAP50-95", "metrics/accuracy_top1")
"""The names by which a framework (Ultralytics) chooses the checkpoint that it calls best."""
_LOWER = re.compile(
    r"(.*loss|nll|.*ppl|.*perplexity|bpb|bpc|error|err|s?map?e|r?msl?e|wer|cer|fid|fvd|lpips|crps|brier)",
    re.I,
)
_HIGHER = re.compile(
    r"(.*acc|.*accuracy|f1|bleu|rouge\w?|auc|map(?:50|75)?|rewards?|score|returns?|precision|recall|r2"
    r"|m?iou|dice|top[15]|prec|psnr|ssim|spearman|pearson|ndcg|mrr|mcc|kappa|meteor|chrf)",
    re.I,
)


class NamedNumber(Value):
    """A number of a line of text, its name and the pattern that finds it."""

    name: str
    value: float
    pattern: str


def numbers_in(text: str) -> tuple[NamedNumber, ...]:
    """Return the named numbers of a line, the leftmost of each name; step counters are none."""
    found: dict[str, NamedNumber] = {}
    if _OF_A_LIBRARY.match(text) or is_of_settings(text):
        return ()
    for match in (
        *_PAIR.finditer(text[:MOST_LINE_CHARS]),
        *_WORDS.finditer(text[:MOST_LINE_CHARS]),
    ):
        typed, between, number = match.groups()
        name = re.sub(r"[^\w./@-]+", "_", typed.strip())
        if _NO_METRIC.fullmatch(name) or _PLACE.fullmatch(name) or name in found:
            continue
        try:
            value = float(number.replace(",", ""))
        except ValueError:
            continue
        found[name] = NamedNumber(name, value, _pattern(typed, between, number))
    return tuple(found.values())


def is_of_held_out(text: str) -> bool:
    """Whether a line is of a test or a validation: ``Test set: Average loss: 0.0265``."""
    return _OF_HELD_OUT.search(text) is not None


def _pattern(typed: str, between: str, number: str) -> str:
    """``val_loss=([0-9.]+)``: what finds the number by the text before it."""
    digits = "[0-9.]+" if re.fullmatch(r"[0-9.]+", number) else "[-+0-9.,a-zA-Z]+"
    if re.fullmatch(r"[=:]", between):
        joint = between
    elif between.isspace():
        joint = r"\s+"
    else:
        joint = r"[^\w.+-]+"
    name = re.escape(typed).replace(r"\ ", " ").replace("\\_", "_").replace(r"\-", "-")
    return rf"{'' if re.match('val|eval|test', typed) else BOUNDARY}{name}{joint}({digits})"


BOUNDARY = r"\b"


def best_key(keys: Sequence[SeenKey]) -> SeenKey | None:
    """The key by which checkpoints are best compared: the one by which its framework does, else a
    held-out loss, else a held-out score, else a loss; None where no key looks like one."""

    def rank(key: SeenKey) -> tuple[bool, bool, bool, int]:
        return (
            key.name not in _OWN_BEST_BY,
            not (key.held_out or _HELD_OUT.search(key.name)),
            not _says(_LOWER, key.name),
            len(key.name),
        )

    may_be = [key for key in keys if _may_compare(key.name)]
    if {side for key in may_be for side in _sides(key.name)} == {0, 1}:
        may_be = [key for key in may_be if not _sides(key.name)]
    return min(may_be, key=rank) if may_be else None


_ADVERSARIES = re.compile(r"d|disc|discriminator"), re.compile(r"g|gen|generator")


def _sides(name: str) -> tuple[int, ...]:
    """The networks of an adversarial training whose loss it is: the lowest one of either belongs
    to no good model."""
    plain = name.lower()
    sides = (n for n, pattern in enumerate(_ADVERSARIES) if _says(pattern, plain))
    return tuple(sides) if _says(_LOWER, name) else ()


def one_of_each(keys: Sequence[SeenKey]) -> list[SeenKey]:
    """One key of each metric: of several spellings one that is read by its name, then the one with
    the most values."""
    found: dict[str, SeenKey] = {}
    for key in keys:
        before = found.get(metric_key(key.name))
        if before is None or _ease(key) > _ease(before):
            found[metric_key(key.name)] = key
    return list(found.values())


def _ease(key: SeenKey) -> tuple[bool, int]:
    return not key.pattern, key.count


def _spellings(keys: Sequence[SeenKey], plain: str) -> list[str]:
    return [key.name for key in keys if metric_key(key.name) == plain]


def _worth_naming(keys: Sequence[SeenKey]) -> list[SeenKey]:
    """The keys that may be the metric, at most ``_MOST_NAMES``: those that look like a loss or a
    score, of these the ones whose values change, if any does, and held-out ones before others."""
    found = [key for key in keys if _may_compare(key.name)] or list(keys)
    found = [key for key in found if key.changes] or found
    first = sorted(found, key=lambda key: _HELD_OUT.search(key.name) is None)[:_MOST_NAMES]
    return [key for key in found if key in first]


def _may_compare(name: str) -> bool:
    return _says(_LOWER, name) or _says(_HIGHER, name)


def is_higher_better(name: str) -> bool | None:
    """Return whether the highest value of a metric of this name is the best; None where the name
    does not tell."""
    if name.rpartition(" ")[2] in ("l1", "l2"):  # LightGBM's; another's is a penalty
        return False
    return not _says(_LOWER, name) if _may_compare(name) else None


def _says(pattern: re.Pattern[str], name: str) -> bool:
    """Whether a word of the name is one that ``pattern`` knows: ``val/acc_top1`` has three."""
    return any(pattern.fullmatch(word) for word in re.split(r"[^A-Za-z0-9]+", name))


# -- words -----------------------------------------------------------------------------------------


def requirement_names(texts: Mapping[str, str]) -> frozenset[str]:
    """The distributions that requirements files name, by PEP 503.

    Args:
        texts: file name → content, of requirements*.txt and environment.yml.
    """
    found = set()
    for name, text in texts.items():
        for line in text.splitlines():
            said = line.split("#")[0].strip()
            if name.endswith((".yml", ".yaml")):
                said = said[1:].strip() if said.startswith("-") else ""
            match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)", said)
            if match and not said.endswith(":"):
                found.add(plain_name(match[1]))
    return frozenset(found)


def plain_name(name: str) -> str:
    """A distribution's name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower().strip("-")


def _key_text(key: SeenKey, spellings: Sequence[str]) -> str:
    others = [name for name in spellings if name != key.name]
    also = f", also written {' and '.join(others)}" if others else ""
    return f"{key.name} ({key.count:,} value{'s' * (key.count != 1)}{also})"


def _ended(code: int, ran_s: float) -> str:
    how = f"code {code}" if code >= 0 else f"signal {-code}"
    return f"it ended with {how} after {ran_s:.1f} s"
