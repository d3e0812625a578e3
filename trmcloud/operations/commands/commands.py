"""``run``: a command of the user's own under the same plan, reservation and guards as a recipe."""

# Annotations are values here: a command's parameters are made from them.
import contextlib
import functools
import hashlib
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trmcloud.core.catalog.hardware import LOCAL, looks_like_hardware, parse_hardware
from trmcloud.core.catalog.providers import TRAITS, rentable
from trmcloud.core.contract.bucket import MOST_GRANTED_FILES
from trmcloud.core.contract.command import (
    CODE_NAME,
    CONSTRAINTS_NAME,
    FOLDERS_NAME,
    MOST_HASHED_BYTES,
    NO_SIGNAL,
    PACKAGES_NAME,
    PINS_NAME,
    RECIPE,
    STOP_SIGNALS,
    Command,
    CommandSource,
    is_inside,
)
from trmcloud.core.contract.command_objects import why_not_in_bucket
from trmcloud.core.contract.pod_contract import SENDABLE, is_sendable
from trmcloud.core.errors import DataError, UsageError
from trmcloud.core.nearest import nearest
from trmcloud.core.planner.command_outlook import CommandProbe
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.text import one_line
from trmcloud.core.values import Value, replace
from trmcloud.io.children import ReaderStopped, find_program, reader_environment, run_reader
from trmcloud.io.hashing import file_sha256
from trmcloud.operations.commands.trial_checks import is_higher_better
from trmcloud.operations.context import Context
from trmcloud.operations.plans.launch_checks import check_disk
from trmcloud.operations.plans.measurements import probe_of
from trmcloud.operations.plans.planning import Planner
from trmcloud.operations.plans.preparing import PreparedLaunch, check_launch
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.sending.git_tree import GitStopped
from trmcloud.operations.sending.packing import commands_share
from trmcloud.operations.sending.staging import data_files, unreadable
from trmcloud.operations.sending.working_tree import (
    WorkingTree,
    differs_from_commit,
    look_at,
    pack,
    why_left_out,
)
from trmcloud.options import (
    LaunchRequest,
    Parser,
    Rare,
    checked,
    option,
    parse_money,
    placed,
    request_from,
    rows_of,
)

_MOST_WORDS = 1000
_ANY = re.compile(r"(?:([1-9][0-9]?)x)?any")
"""The cheapest hardware with that many GPUs."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_GB = 4000.0
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,237}")


def _words(flag: str, words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        raise UsageError(
            "the command to run is missing",
            next_step="write it after --: run local --budget 1 -- python train.py",
        )
    if len(words) > _MOST_WORDS or any("\0" in word or len(word) > 1 << 14 for word in words):
        raise UsageError("the command is too long")
    return tuple(words)


def _path_inside(flag: str, path: str) -> str:
    if not path:
        return ""
    if not is_inside(os.path.normpath(path)):
        raise UsageError(
            f"{flag} takes a name inside the working tree, not {path[:80]!r}",
            next_step=f"{flag} {Path(path).name or 'out'}",
        )
    return os.path.normpath(path)


def _places(flag: str, named: str) -> str:
    """Places that are watched, separated by ``:``: inside the working tree, absolute, or below
    ``~``."""
    return os.pathsep.join(_place(flag, each) for each in named.split(os.pathsep) if each)


def _place(flag: str, path: str) -> str:
    if not path.startswith(("/", "~")):
        return _path_inside(flag, path)
    if path.startswith("~") and not path.startswith("~/"):
        raise UsageError(f"{flag} {path[:80]}: only ~/ stands for the command's home folder")
    plain = os.path.normpath(path)
    if plain in ("/", "~") or "\0" in plain or ".." in plain.split("/") or len(plain) > 512:
        raise UsageError(f"{flag} {path[:80]}: give the folder in which the command saves")
    return plain


def _folder_below(root: str, here: Path) -> str:
    """Return ``here``'s name below ``root``; empty where it is ``root``."""
    top = os.path.realpath(here / os.path.expanduser(root))
    name = os.path.relpath(os.path.realpath(here), top)
    if not os.path.isdir(top) or name.split(os.sep)[0] == os.pardir:
        raise UsageError(
            f"--root takes a folder that contains this one, not {root[:80]!r}",
            next_step="--root .. sends the folder above, with everything in it",
        )
    return "" if name == os.curdir else Path(name).as_posix()


def _metric(flag: str, metric: str) -> str:
    if len(metric) > 500:
        raise UsageError(f"{flag} is too long for a pattern")
    if "(" not in metric:
        return metric
    try:
        groups = re.compile(metric).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"{flag} is not a valid pattern: {error}", next_step=f"{flag} 'val_loss=([0-9.]+)'"
        ) from None
    if groups != 1:
        raise UsageError(
            f"{flag} has {groups} groups; exactly one must be the value",
            next_step=f"{flag} 'val_loss=([0-9.]+)'; (?:…) for other brackets",
        )
    return metric


def _is_higher_better(flag: str, best: str) -> bool:
    if best not in ("", "min", "max"):
        raise UsageError(f"{flag} takes min or max, not {best!r}", next_step=f"{flag} min")
    return best == "max"


def _variables(flag: str, names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"{flag} takes the name of a variable, not its value: "
                f"{name.partition('=')[0][:40]!r}",
                next_step=f"{flag} WANDB_API_KEY; the value is read from this shell",
            )
        if name.startswith("TRMCLOUD_"):
            raise UsageError(f"{flag} {name[:60]}: this variable is set automatically")
        if name not in os.environ:
            raise UsageError(f"{flag} {name}: this shell has no such variable")
    return tuple(names)


def _image(flag: str, image: str) -> str:
    if image and not _IMAGE.fullmatch(image):
        raise UsageError(
            f"{flag} takes the name of a container image, not {image[:80]!r}",
            next_step=f"{flag} pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
        )
    return image


def _stop_signal(flag: str, text: str) -> str:
    signal = text.upper().removeprefix("SIG") if text else "TERM"
    if signal not in (*STOP_SIGNALS, NO_SIGNAL.upper()):
        raise UsageError(
            f"{flag} must be one of {', '.join(STOP_SIGNALS)} or {NO_SIGNAL}, not {text[:20]!r}",
            next_step=f"{flag} TERM",
        )
    return NO_SIGNAL if signal == NO_SIGNAL.upper() else signal


def _resume_words(flag: str, text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    if not words:
        raise UsageError(
            f"{flag} does not contain a command",
            next_step=f"{flag} 'python train.py --resume {{checkpoint}}'",
        )
    return words


def _seconds(most: float) -> Parser:
    return checked(
        lambda seconds: math.isfinite(seconds) and 0 < seconds <= most,
        f"{{flag}} takes seconds up to {most:,.0f}, not {{value:g}}",
    )


def _bytes(flag: str, gigabytes: float) -> int:
    if not 0 < gigabytes <= _MOST_GB:
        raise UsageError(f"{flag} must be from 0 to {_MOST_GB:g}, not {gigabytes:g}")
    return round(gigabytes * 1e9)


_OWN = "Your own command"
_OWN_RARE = Rare(_OWN)
_RUN = "rehearse run sweep"
_TRIED = _RUN + " try"


# fmt: off
class CommandRequest(Value):
    """The options about a command, as they were typed: nothing is checked. The place of each
    row is in ``Command``."""

    words: Sequence[str] = option(
        "command", (), "The command to run, after --, as in this shell.", _TRIED + " launch export",
        _OWN, metavar="-- COMMAND…", parse=_words, in_file=True,
        but={
            "launch": {
                "help": "A command instead of a recipe, after --, as in this shell.",
                "metavar": "[-- COMMAND…]",
                "is_required": False,
            },
            "rehearse": {
                "help": "A command instead of a recipe, after --, as for launch.",
                "metavar": "[-- COMMAND…]",
                "is_required": False,
            },
            "sweep": {
                "help": "Settings to search (lr=log:1e-4,1e-2 width=int:64,256 depth=2|4), then "
                        "-- and the command with {lr} {width}, if no recipe is trained.",
                "metavar": "NAME=VALUES… [-- COMMAND…]",
                "is_required": False,
            },
            "export": {
                "help": "Settings to search (lr=log:1e-4,1e-2 depth=2,4): the script is a sweep.",
                "metavar": "[NAME=VALUES…]",
                "is_required": False,
            },
        },
    )
    checkpoints: str = option(
        "--checkpoints", "",
        "Folder or pattern (out/ckpt-*) in which it saves checkpoints, also outside the working "
        "tree (~/.cache/run); separate several by colons. Default: the whole tree.",
        _TRIED, _OWN, metavar="DIR", parse=_places, in_file=True,
    )
    metric: str = option(
        "--metric", "",
        "Metric that decides which checkpoint is best: a key in its log (val_loss=1.2, JSON, "
        "dicts, tables), TensorBoard files or checkpoints, or a pattern: 'val_loss=([0-9.]+)'.",
        _TRIED, _OWN, metavar="METRIC", parse=_metric, in_file=True,
    )
    best: str = option(
        "--best", "",
        "Whether the lowest (min) or highest (max) metric is best. Needed where its name does not "
        "tell, as that of a loss (min), an accuracy, F1 or reward (max) does.",
        _TRIED, _OWN_RARE,
        place="higher_is_better", parse=_is_higher_better, in_file=True,
        not_beside="metric",
    )
    keep_best: int = option(
        "--keep-best", 2, "Best checkpoints to keep besides the latest.", _RUN, _OWN_RARE,
        in_file=True,
        parse=checked(lambda n: 1 <= n <= 1000, "{flag} must be from 1 to 1000, not {value}"),
    )
    checkpoint_gb: float = option(
        "--checkpoint-gb", 2.0, "Largest checkpoint size; this storage is reserved.", _RUN,
        _OWN_RARE,
        metavar="GB", place="checkpoint_bytes", parse=_bytes, in_file=True,
    )
    env: Sequence[str] = option(
        "--env", (), "Variable of this shell to pass to the command, repeatable.", _TRIED, _OWN,
        metavar="NAME", parse=_variables, in_file=True,
    )
    pip: str = option(
        "--pip", "",
        "Packages to install first: requirements.txt, pyproject.toml (with [EXTRA] after it), "
        "uv.lock or environment.yml.", _TRIED, _OWN,
        metavar="FILE", parse=_path_inside, in_file=True,
    )
    root: str = option(
        "--root", "",
        "Folder that contains this one, to send completely; the command starts in this folder "
        "there, and finds its modules.", _TRIED, _OWN_RARE, metavar="DIR",
        place="folder", in_file=True,
    )
    image: str = option(
        "--image", "", "Container image instead of RunPod's default.", _TRIED, _OWN,
        metavar="NAME", parse=_image, in_file=True,
    )
    stop_signal: str = option(
        "--stop-signal", "", "Signal that stops it: TERM, INT, USR1, USR2, HUP, QUIT or none.",
        _TRIED, _OWN_RARE, parse=_stop_signal, in_file=True,
    )
    stop_file: str = option(
        "--stop-file", "", "File to create that asks it to stop.", _TRIED, _OWN_RARE,
        metavar="FILE", parse=_path_inside, in_file=True,
    )
    grace: float = option(
        "--grace", 60.0, "Seconds to save and exit; their cost is reserved.", _TRIED, _OWN_RARE,
        metavar="S", place="grace_s", parse=_seconds(86_400.0), in_file=True,
    )
    silent: float = option(
        "--silent", 1800.0, "Seconds without a line, step or file after which it counts as hung; "
        "six times as long while it computes.",
        _RUN, _OWN_RARE, place="silent_s", parse=_seconds(864_000.0), in_file=True,
    )
    resume: str = option(
        "--resume", "",
        "Command that continues from a checkpoint: 'python train.py --resume {checkpoint}'. "
        "Without {checkpoint} it must find the files where it wrote them.",
        _TRIED, _OWN, metavar="COMMAND", parse=_resume_words, in_file=True,
    )
    probe: int = option(
        "--probe", 0,
        "Run and measure this many steps, then stop: their pace and memory, and estimates for "
        "other hardware.", "rehearse run", _OWN, metavar="STEPS", place="probe_steps",
        parse=checked(
            lambda n: 0 <= n <= 1_000_000, "{flag} must be from 1 to 1000000 steps, not {value}"
        ),
    )
    unsent: bool = option(
        "--unsent", False,
        "Also run a script that is not among the files sent: the machine or image has it.",
        _TRIED, _OWN_RARE, place="",
    )
    no_observe: bool = option(
        "--no-observe", False,
        "Do not observe its Python processes: read metrics from its log and files.",
        _RUN, _OWN_RARE, place="unobserved",
    )
    no_check: bool = option(
        "--no-check", False,
        "Start it without the checks on the machine: driver, imports, files, variables, disk.",
        _RUN, _OWN_RARE, place="unchecked",
    )
    typed: tuple[str, ...] = ()
# fmt: on


def request_of(words: Sequence[str], wish: Mapping[str, Any]) -> CommandRequest:
    """Return the request of a command by its options' names; paths are text or ``Path``.

    Raises:
        UsageError: ``words`` are one text.
    """
    if isinstance(words, str):
        raise UsageError(
            "the words of a command must be a list", next_step=f"{shlex.split(words)!r:.200}"
        )
    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in wish.items()
    }
    texts = tuple(os.fspath(word) for word in words)
    return CommandRequest(**{**given, "words": texts}, typed=("words", *given))


def requests_of(
    words: Sequence[str], wish: Mapping[str, Any]
) -> tuple[LaunchRequest, CommandRequest]:
    """Return what ``run`` would get for ``words`` and the options of ``wish``, by their names.

    Raises:
        UsageError: one of them is no option of ``run``.
    """
    of_launch, of_command = rows_of(LaunchRequest, "run"), rows_of(CommandRequest, "run")
    known = {*of_launch, *of_command} - {"words"}
    for name in wish:
        if name not in known:
            raise UsageError(f"there is no option {name!r}", next_step=", ".join(sorted(known)))
    own = {name: value for name, value in wish.items() if name in of_command}
    rest = {name: value for name, value in wish.items() if name in of_launch}
    return request_from(rest), request_of(words, own)


def wish_of(planner: Planner, request: LaunchRequest, asked: CommandRequest, here: Path) -> RunSpec:
    """Return the checked wish of a command that is typed in ``here``, to which relative paths are
    relative.

    Raises:
        UsageError: naming the option at fault.
    """
    data = str(here / Path(request.data).expanduser()) if request.data else ""
    command = command_of(asked, data, here)
    return spec_to_run(planner, replace(request, data=data), command)


def command_of(request: CommandRequest, data: str, here: Path) -> Command:
    """The checked command; ``here`` is the folder it is typed in, ``data`` what ``--data`` said.

    Raises:
        UsageError: naming the option at fault.
    """
    if request.pip and not (here / request.pip.partition("[")[0]).is_file():
        raise UsageError(f"--pip {request.pip}: there is no such file here")
    folder = _folder_below(request.root, here) if request.root else ""
    made = Command(**placed(replace(request, root=folder)))
    made = replace(made, data=_name_in(root_of(made, here), data))
    if made.metric and not request.best:
        order = is_higher_better(made.metric_name)
        if order is None:
            raise UsageError(
                f"--metric {made.metric_name}: its name does not tell whether the lowest or the "
                "highest value is best",
                next_step="--best min, or --best max",
            )
        made = replace(made, higher_is_better=order)
    if not request.unsent:
        _check_script(made, root_of(made, here))
    return made


_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z)?sh")


def _check_script(command: Command, root: Path) -> None:
    """
    Raises:
        UsageError: an interpreter is the first word, and the script that follows it is not among
            the files that are sent.
    """
    script = command.words[1] if len(command.words) > 1 else ""
    is_script = script.endswith((".py", ".sh")) and not script.startswith(("/", "~", "-"))
    if not is_script or not _INTERPRETER.fullmatch(Path(command.words[0]).name):
        return
    name = os.path.normpath(os.path.join(command.folder, script))
    if command.data and name.startswith(f"{command.data}/") and (root / name).is_file():
        return  # it goes with the data
    try:
        names = look_at(root, [command.data] if command.data else [], command.folder).names
    except GitStopped:
        raise  # half a minute has passed; whoever sends them would wait as long
    except DataError:
        return  # what sends them says why it cannot
    if name in names:
        return
    why, step = "there is no such file", ""
    if (root / name).is_file():
        why = "git or .trmcloudignore excludes it" if is_inside(name) else "it is outside"
        step = f"a line !{name} in .trmcloudignore" if is_inside(name) else "--root .. sends it"
    else:
        beside = [os.path.relpath(each, command.folder or ".") for each in names]
        if near := nearest(script, [each for each in beside if each.endswith(script[-3:])]):
            step = f"-- {shlex.join([command.words[0], near, *command.words[2:]])}"
    raise UsageError(
        f"{one_line(script)[:80]} is not among the files that are sent: {why}",
        next_step=f"{one_line(step)}{'; or ' if step else ''}--unsent, if the machine has it",
    )


def misplaced(words: Sequence[str], here: Path) -> str:
    """Return a note about options of ``run`` that stand among a command's own, and that its script
    does not name; empty where there are none."""
    rows = [*rows_of(LaunchRequest, "run").values(), *rows_of(CommandRequest, "run").values()]
    ours = {flag for row in rows for flag in row.flags if flag.startswith("--")}
    typed = [word.partition("=")[0] for word in words]
    found = dict.fromkeys(flag for flag in typed if flag in (*ours, "--yes", "--dry-run"))
    if not found:
        return ""
    text = ""
    for word in (word for word in words if word.endswith((".py", ".sh"))):
        with contextlib.suppress(OSError):
            text += (here / word).read_text("utf-8", "replace").replace("-", "_")
    left = [flag for flag in found if flag.strip("-").replace("-", "_") not in text]
    if not left:
        return ""
    return f"{', '.join(left)} after -- goes to the command; trmcloud's own options stand before --"


def root_of(command: Command, here: Path) -> Path:
    """Return the folder that is sent, of a command that is typed in ``here``."""
    return here.resolve().parents[command.folder.count("/")] if command.folder else here


def spec_to_run(planner: Planner, request: LaunchRequest, command: Command) -> RunSpec:
    """The checked wish.

    Raises:
        UsageError: naming the option at fault.
    """
    if request.hardware == "":
        raise UsageError(
            "choose a machine: the needs of a command are not known",
            next_step="run local … -- COMMAND, or 1xH100, or any --memory 24",
        )
    word = request.hardware
    is_program = _INTERPRETER.fullmatch(Path(word).name) or shutil.which(word)
    if not (looks_like_hardware(word) or _ANY.fullmatch(word.strip().lower())) and (
        is_program or word.endswith((".py", ".sh"))
    ):
        typed_words = shlex.join([word, *command.words])
        raise UsageError(
            f"no hardware is named before --: {one_line(word)[:40]!r} is not hardware",
            next_step=f"trmcloud run local --budget 1 -- {one_line(typed_words)[:200]}",
        )
    check_hardware(word)
    if (any_of := _ANY.fullmatch(request.hardware.strip().lower())) is not None:
        if request.rate is not None:
            raise UsageError("--rate is the price of this machine: it cannot be used with any")
        typed = tuple(name for name in request.typed if name != "hardware")
        request = replace(request, hardware="", gpus=int(any_of[1] or 1), typed=typed)
    elif request.memory:
        raise UsageError(
            "--memory works only with any",
            next_step=f"any --memory {request.memory:g}",
        )
    unlimited = request.budget is None and request.hours is None and request.deadline is None
    is_free = request.hardware.strip().lower() == LOCAL and request.rate is None
    if unlimited and not is_free:
        probed = probe_of(planner.home, command.words) if request.steps else None
        if probed is None or not predicts(probed, word):
            told = ", and how long its steps take there was not measured" if request.steps else ""
            raise UsageError(
                f"the run needs a limit, because the machine costs money every hour{told}",
                next_step="--budget 5, or --hours 2",
            )
    data = str(Path(request.data).expanduser().absolute()) if request.data else ""
    if data and not Path(data).is_dir():
        raise UsageError(
            "--data takes a folder, which does not exist", where=data, next_step="--data data"
        )
    wished = replace(request, recipe=RECIPE, phase="train", data=data)
    spec = planner.spec_to_launch(wished)
    if data and spec.hardware != LOCAL:
        _check_data(Path(data), spec.bucket)
    if spec.idle_s:  # its pod sees to that without any process here
        command = replace(command, silent_s=min(command.silent_s, spec.idle_s))
    spec = replace(spec, command=command)
    if spec.bucket and (why := why_not_in_bucket(command.checkpoint_bytes, command.keep_best)):
        raise UsageError(
            f"--checkpoint-gb {command.checkpoint_bytes / 1e9:g} with --bucket: {why}",
            next_step="use a smaller --keep-best or --checkpoint-gb; or --volume; or neither, to "
            "pull checkpoints to this machine",
        )
    return spec


def predicts(probed: CommandProbe, hardware: str) -> bool:
    """Whether a probe gives an estimate for ``hardware``, as it is typed: for this machine only if
    it ran here, for GPUs only if it ran on as many."""
    text = check_hardware(hardware)
    if text == LOCAL:
        return probed.here
    any_of = _ANY.fullmatch(text)
    count = int(any_of[1] or 1) if any_of is not None else parse_hardware(text).count
    return probed.is_of_gpus and count == probed.gpus


def _check_data(data: Path, bucket: str) -> None:
    """
    Raises:
        DataError: a file of ``data`` cannot be sent to a rented machine, or not by ``bucket``.
    """
    names = data_files(data).names
    wrong, why = next((name for name in names if not is_sendable(name)), ""), SENDABLE
    if bucket and not wrong:
        halves = (name for name in names if os.fsencode(name) != name.encode("utf-8", "replace"))
        wrong, why = next(halves, ""), "a bucket takes names in UTF-8"
    what = f"{ascii(wrong)[1:-1]:.140} cannot be sent: {why}" if wrong else ""
    if bucket and len(names) > MOST_GRANTED_FILES:
        what = f"{len(names):,} files cannot be sent by a bucket: at most {MOST_GRANTED_FILES:,}"
    if what:
        raise DataError(
            f"--data: {what}",
            where=one_line(str(data)),
            next_step="rename it, or put the folder's files into one archive: tar -cf data.tar",
        )


def check_hardware(text: str) -> str:
    """Return the hardware as ``run`` takes it: ``local``, ``any`` or ``8xany``, or NxSKU.

    Raises:
        UsageError: it is none.
    """
    typed = text.strip().lower()
    return typed if not typed or _ANY.fullmatch(typed) else parse_hardware(text).text


def dry_run(planner: Planner, spec: RunSpec, here: Path) -> tuple[Plan, WorkingTree]:
    """Return the plan that would be launched, saved, and the files that would be sent.

    Raises:
        TrmcloudError: there can be no such plan, or no such files.
    """
    tree = tree_of(spec, here)
    return planner.save(planner.plan(spec)), tree


def prepare(
    context: Context,
    planner: Planner,
    request: LaunchRequest,
    spec: RunSpec,
    here: Path,
    more: Callable[[RunSpec], Mapping[str, bytes]] | None = None,
) -> tuple[PreparedLaunch, WorkingTree]:
    """All that can be found wanting before anybody is asked for money; then the code. ``more``
    gives further files that stand beside the code.

    Raises:
        TrmcloudError: whatever keeps this from being launched.
    """
    exposure = parse_money("--accept-exposure", request.accept_exposure)
    tree = tree_of(spec, here)
    beside = {**(commands_share() if spec.hardware != LOCAL else {}), **_packages_share(tree)}
    beside |= more(spec) if more is not None else {}
    code = pack(tree, context.home, beside)
    assert spec.command is not None
    source = _source_of(tree, code, spec.data)
    spec = replace(spec, command=replace(spec.command, source=source))
    plan = planner.plan(spec)
    check_launch(context, plan, request, exposure)
    check_command(plan, tree)
    planner.save(plan)
    check_disk(context.home, plan)
    return PreparedLaunch(plan, LaunchData(spec.data, code=str(code), here=str(here))), tree


def tree_of(spec: RunSpec, here: Path) -> WorkingTree:
    """Return the files to send, of ``here`` or of the root around it, without ``--data``, which is
    sent apart; and the packages of ``--pip``, of which an index is asked for at most some minutes.

    Raises:
        DataError: there is nothing, or more than is sent; the packages cannot be installed.
    """
    # They load the package that reads requirements: other commands start without it.
    from trmcloud.operations.sending.package_resolving import resolve
    from trmcloud.operations.sending.requirement_files import SentFiles, found_in, read_packages

    command = spec.command
    assert command is not None
    out = [command.data] if command.data else []
    tree = look_at(root_of(command, here), out, command.folder)
    if spec.data and spec.hardware != LOCAL:
        tree = replace(tree, data_left_out=tuple(data_files(Path(spec.data)).left_out))
    if not command.pip:
        return replace(tree, not_installed=found_in(here))
    sent = SentFiles(tree.root, tree.names, tree.folder, functools.partial(why_left_out, tree))
    packages = read_packages(sent, command.pip)
    python = _python_here(tree.root) if spec.hardware == LOCAL else ""
    resolved = resolve(packages, tree.root, python, command.env)
    return replace(tree, packages=packages, resolved=resolved)


def _source_of(tree: WorkingTree, code: Path, data: str) -> CommandSource:
    """Return where the files that are sent are from; to hash ``data`` takes seconds per GB.

    Raises:
        DataError: one of them cannot be read.
    """
    try:
        return CommandSource(
            code_sha256=file_sha256(code / CODE_NAME),
            git_commit=tree.git_commit,
            is_dirty=differs_from_commit(tree),
            data_sha256=_data_sha256(Path(data)) if data else "",
        )
    except OSError as error:
        raise unreadable(error, Path(data)) from None


def _data_sha256(folder: Path) -> str:
    """Return one hash of a folder's files by their names and contents; see ``CommandSource``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    by_content = sum(path.stat().st_size for path in files) <= MOST_HASHED_BYTES
    digest = hashlib.sha256()
    for path in files:
        about = file_sha256(path) if by_content else f"{path.stat().st_size} bytes"
        digest.update(os.fsencode(f"{about}  {path.relative_to(folder).as_posix()}\n"))
    return digest.hexdigest()


def _python_here(tree: Path) -> str:
    """Return the version of the Python that a command finds first on this machine, as ``3.12``;
    empty where it is not known. One in ``tree`` is not run: its own file says it."""
    found = find_program("python") or find_program("python3")
    if found is None:
        return ""
    if Path(os.path.realpath(Path(found).parent)).is_relative_to(os.path.realpath(tree)):
        with suppress(OSError, UnicodeDecodeError):
            text = (Path(found).parents[1] / "pyvenv.cfg").read_text(encoding="utf-8")
            said = re.search(r"(?m)^version(?:_info)?\s*=\s*(\d+\.\d+)", text)
            return said[1] if said is not None else ""
        return ""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    names = ("HOME", "PYENV_ROOT", "PYENV_VERSION", "ASDF_DATA_DIR")  # a shim's own Python
    own = {name: os.environ[name] for name in names if name in os.environ}
    try:
        ended = run_reader(
            [found, "-I", "-c", code], most_s=30, environment=reader_environment(also=own)
        )
    except (OSError, ReaderStopped):
        return ""
    return ended.out.decode("ascii", "replace").strip() if ended.code == 0 else ""


def _packages_share(tree: WorkingTree) -> dict[str, bytes]:
    """Return the files beside the code that say what is to be installed."""
    packages = tree.packages
    if packages is None:
        return {}
    files = {PACKAGES_NAME: packages.text(), FOLDERS_NAME: "\n".join(packages.folders)}
    if packages.constraints:
        files[CONSTRAINTS_NAME] = packages.constraints_text()
    if tree.resolved is not None and not packages.is_locked:
        files[PINS_NAME] = "\n".join(tree.resolved.versions)
    return {name: text.encode() for name, text in files.items()}


def _name_in(root: Path, data: str) -> str:
    """Return the name of ``--data`` in the working tree; empty where it is elsewhere."""
    if not data:
        return ""
    name = os.path.relpath(Path(data).expanduser().resolve(), root.resolve())
    return Path(name).as_posix() if is_inside(name) and name != "." else ""


def check_command(plan: Plan, tree: WorkingTree) -> None:
    """
    Raises:
        UsageError: this machine, on which it is to run, has no such command; or it is to run where
            no container is made of an image of the user's.
    """
    command = plan.spec.command
    if command is not None and plan.spec.hardware == LOCAL:
        check_first_word(command.words[0], tree)
    able = [name for name in rentable() if TRAITS[name].machines.takes_image]
    others = {plan.candidate(name).provider for name in plan.launchable}.difference(able)
    if command is not None and command.image and others:
        raise UsageError(
            f"--image works only at {' and '.join(able)}, but this plan may rent from "
            f"{', '.join(sorted(others))}",
            next_step=f"--provider {able[0]}, or leave --image out",
        )


def check_first_word(word: str, tree: WorkingTree) -> None:
    """
    Raises:
        UsageError: there is no such command on this machine, nor in ``tree``; or its first line,
            which names its interpreter, ends as on Windows.
    """
    name = os.path.normpath(os.path.join(tree.folder, word))
    there = name in tree.names or (os.path.isabs(word) and Path(word).is_file())
    if not there and ("/" in word or shutil.which(word) is None):
        raise UsageError(
            f"{word[:80]}: command not found on this machine",
            next_step="use a command on PATH, or a file that is sent: python train.py",
        )
    if name in tree.names:
        with suppress(OSError), open(tree.root / name, "rb") as file:
            first = file.readline(256)
            if first.startswith(b"#!") and first.endswith(b"\r\n"):
                raise UsageError(
                    f"{word[:80]}: its lines end as on Windows, and Linux finds no interpreter "
                    "of that name",
                    next_step=f"sed -i 's/\\r$//' {shlex.quote(word)}",
                )
