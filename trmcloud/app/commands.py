"""``run``: a command of the user's own under the same plan, reservation and guards as a recipe."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from trmcloud.app.context import Context
from trmcloud.app.launch_checks import check_disk
from trmcloud.app.launch_request import LaunchRequest, parse_money
from trmcloud.app.planning import Planner
from trmcloud.app.pod_request import LaunchData
from trmcloud.app.preparing import Prepared, check_launch
from trmcloud.app.staging.packing import commands_share
from trmcloud.app.staging.working_tree import WorkingTree, look_at, pack
from trmcloud.core.catalog.hardware import LOCAL, parse_hardware
from trmcloud.core.catalog.providers import TRAITS, rentable
from trmcloud.core.contract.command import NO_SIGNAL, RECIPE, STOP_SIGNALS, Command
from trmcloud.core.contract.command_terms import is_inside
from trmcloud.core.errors import UsageError
from trmcloud.core.spec.plan import Plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import dataclass, replace

_MOST_WORDS = 1000
_ANY = re.compile(r"(?:([1-9][0-9]?)x)?any")
"""What is cheapest, of that many GPUs."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_MOST_GB = 4000.0
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,237}")


@dataclass(frozen=True)
class CommandRequest:
    """By the names of the options of ``run``, as they were typed: nothing is checked."""

    words: Sequence[str] = ()
    checkpoints: str = ""
    metric: str = ""
    best: str = "min"
    env: Sequence[str] = ()
    stop_signal: str = ""
    stop_file: str = ""
    grace: float = 60.0
    silent: float = 1800.0
    resume: str = ""
    keep_best: int = 2
    checkpoint_gb: float = 2.0
    pip: str = ""
    image: str = ""
    probe: int = 0


def request_of(options: Mapping[str, Any]) -> CommandRequest:
    """From a command line's options, by name: those that are no part of it are passed over."""
    known = {field.name for field in fields(CommandRequest)}
    given = {k: v for k, v in options.items() if k in known and v is not None}
    return CommandRequest(**given)


def command_of(request: CommandRequest, data: str, root: Path) -> Command:
    """The checked command; ``root`` is the working tree, ``data`` what ``--data`` said.

    Raises:
        UsageError: naming the option at fault.
    """
    r = request
    if not r.words:
        raise UsageError(
            "there is no command to run",
            next_step="it stands behind --: run local --budget 1 -- python train.py",
        )
    if len(r.words) > _MOST_WORDS or any("\0" in word or len(word) > 1 << 14 for word in r.words):
        raise UsageError("the command is longer than any that is run")
    _check_metric(r)
    if r.best not in ("min", "max"):
        raise UsageError(f"--best is min or max, not {r.best!r}", next_step="--best min")
    stop_signal = r.stop_signal.upper().removeprefix("SIG") if r.stop_signal else "TERM"
    if r.stop_signal and stop_signal not in (*STOP_SIGNALS, NO_SIGNAL.upper()):
        raise UsageError(
            f"--stop-signal is one of {', '.join(STOP_SIGNALS)} or {NO_SIGNAL}, "
            f"not {r.stop_signal[:20]!r}",
            next_step="--stop-signal TERM",
        )
    if stop_signal == NO_SIGNAL.upper():
        stop_signal = NO_SIGNAL
    for option, path in (
        ("--checkpoints", r.checkpoints),
        ("--stop-file", r.stop_file),
        ("--pip", r.pip),
    ):
        if path and not is_inside(_relative(path)):
            raise UsageError(
                f"{option} is a name inside the working tree, not {path[:80]!r}",
                next_step=f"{option} {Path(path).name or 'out'}",
            )
    if r.image and not _IMAGE.fullmatch(r.image):
        raise UsageError(
            f"--image is the name of a container image, not {r.image[:80]!r}",
            next_step="--image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime",
        )
    if r.pip and not (root / r.pip).is_file():
        raise UsageError(f"--pip {r.pip}: no such file here")
    for option, seconds, most in (
        ("--grace", r.grace, 86_400.0),
        ("--silent", r.silent, 864_000.0),
    ):
        if not (math.isfinite(seconds) and 0 < seconds <= most):
            raise UsageError(f"{option} takes seconds up to {most:,.0f}, not {seconds:g}")
    if not 0 < r.checkpoint_gb <= _MOST_GB:
        raise UsageError(f"--checkpoint-gb is from 0 to {_MOST_GB:g}, not {r.checkpoint_gb:g}")
    if not 0 <= r.probe <= 1_000_000:
        raise UsageError(f"--probe is from 1 to 1000000 steps, not {r.probe}")
    if not 1 <= r.keep_best <= 1000:
        raise UsageError(f"--keep-best is from 1 to 1000, not {r.keep_best}")
    for name in r.env:
        if not _VARIABLE.fullmatch(name):
            raise UsageError(
                f"--env names a variable, and not its value: {name.partition('=')[0][:40]!r}",
                next_step="--env WANDB_API_KEY, whose value is read from this shell",
            )
        if name.startswith("TRMCLOUD_"):
            raise UsageError(f"--env {name[:60]}: that is trmcloud's own")
        if name not in os.environ:
            raise UsageError(f"--env {name}: this shell has no such variable")
    return Command(
        words=tuple(r.words),
        checkpoints=_relative(r.checkpoints) if r.checkpoints else "",
        metric=r.metric,
        higher_is_better=r.best == "max",
        env=tuple(r.env),
        stop_signal=stop_signal,
        stop_file=_relative(r.stop_file) if r.stop_file else "",
        grace_s=r.grace,
        silent_s=r.silent,
        resume=_resume_words(r.resume),
        keep_best=r.keep_best,
        checkpoint_bytes=round(r.checkpoint_gb * 1e9),
        data=_name_in(root, data),
        image=r.image,
        probe_steps=r.probe,
        pip=_relative(r.pip) if r.pip else "",
    )


def spec_to_run(planner: Planner, request: LaunchRequest, command: Command) -> RunSpec:
    """The checked wish.

    Raises:
        UsageError: naming the option at fault.
    """
    if request.hardware == "":
        raise UsageError(
            "which machine? Nothing is known of what a command needs",
            next_step="run local … -- COMMAND, or 1xH100, or any --memory 24",
        )
    if (any_of := _ANY.fullmatch(request.hardware.strip().lower())) is not None:
        if request.rate is not None:
            raise UsageError("--rate is the price of this machine, which any does not mean")
        request = replace(request, hardware="", gpus=int(any_of[1] or 1))
    elif request.memory:
        raise UsageError(
            "--memory is for a machine that is to be chosen",
            next_step=f"any --memory {request.memory:g}",
        )
    elif parse_hardware(request.hardware).nodes > 1:
        raise UsageError(
            "a command runs on one machine: how several would meet is its own matter",
            next_step=f"run {parse_hardware(request.hardware).text.partition('x')[2]} … -- COMMAND",
        )
    data = str(Path(request.data).expanduser().absolute()) if request.data else ""
    if data and not Path(data).is_dir():
        raise UsageError(
            "--data takes a folder, and there is none", where=data, next_step="--data data"
        )
    wished = replace(request, recipe=RECIPE, phase="train", data=data)
    return replace(planner.spec_to_launch(wished), command=command)


def prepare(
    context: Context, planner: Planner, request: LaunchRequest, spec: RunSpec, root: Path
) -> tuple[Prepared, WorkingTree]:
    """All that can be found wanting before anybody is asked for money; then the code.

    Raises:
        TrmcloudError: whatever keeps this from being launched.
    """
    exposure = parse_money("--accept-exposure", request.accept_exposure)
    tree = tree_of(spec, root)
    plan = planner.plan(spec)
    check_launch(context, plan, request, exposure)
    _check_first_word(plan, tree)
    _check_image(plan)
    planner.save(plan)
    rented = any(plan.candidate(name).provider != LOCAL for name in plan.launchable)
    code = pack(tree, context.home, commands_share() if rented else None)
    check_disk(context.home, plan)
    return Prepared(plan, LaunchData(spec.data, code=str(code))), tree


def tree_of(spec: RunSpec, root: Path) -> WorkingTree:
    """What is sent of ``root``: ``--data`` goes another way.

    Raises:
        DataError: there is nothing, or more than is sent.
    """
    assert spec.command is not None
    return look_at(root, [spec.command.data] if spec.command.data else [])


def _check_metric(r: CommandRequest) -> None:
    if len(r.metric) > 500:
        raise UsageError("--metric is longer than any pattern that is looked for")
    if "(" not in r.metric:
        return
    try:
        groups = re.compile(r.metric).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(
            f"--metric is no pattern: {error}", next_step="--metric 'val_loss=([0-9.]+)'"
        ) from None
    if groups != 1:
        raise UsageError(
            f"--metric has {groups} groups, and one is the value",
            next_step="--metric 'val_loss=([0-9.]+)'; (?:…) for other brackets",
        )


def _resume_words(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--resume: {error}") from None
    if not any("{checkpoint}" in word for word in words):
        raise UsageError(
            "--resume does not say where the checkpoint goes",
            next_step="--resume 'python train.py --resume {checkpoint}'",
        )
    return words


def _relative(path: str) -> str:
    return os.path.normpath(path) if path else ""


def _name_in(root: Path, data: str) -> str:
    """What ``--data`` is called in the working tree; empty where it lies elsewhere."""
    if not data:
        return ""
    name = os.path.relpath(Path(data).expanduser().absolute(), root.absolute())
    return Path(name).as_posix() if is_inside(name) and name != "." else ""


def _check_image(plan: Plan) -> None:
    """
    Raises:
        UsageError: it is to run where no container is made of an image of the user's.
    """
    able = [name for name in rentable() if TRAITS[name].takes_image]
    others = {plan.candidate(name).provider for name in plan.launchable}.difference(able)
    if plan.spec.command is not None and plan.spec.command.image and others:
        raise UsageError(
            f"--image is for {' and '.join(able)}, which starts a container of it, and this plan "
            f"may rent from {', '.join(sorted(others))}",
            next_step=f"--provider {able[0]}, or leave --image out",
        )


def _check_first_word(plan: Plan, tree: WorkingTree) -> None:
    """
    Raises:
        UsageError: it is to run here, and there is no such command.
    """
    command = plan.spec.command
    if command is None or plan.spec.hardware != LOCAL:
        return
    word = command.words[0]
    there = os.path.normpath(word) in tree.names or (os.path.isabs(word) and Path(word).is_file())
    if not there and ("/" in word or shutil.which(word) is None):
        raise UsageError(
            f"{word[:80]}: there is no such command here",
            next_step="its name on PATH, or of a file that is sent: python train.py",
        )
