"""``trmcloud eval``, ``sample`` and ``serve``: score and use a checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Annotated, Any

import typer

from trmcloud.cli import options
from trmcloud.cli.views.json_output import print_document, print_line
from trmcloud.cli.views.text import DataProgress
from trmcloud.core.contract.pod_contract import DATA_CACHE_DIR
from trmcloud.core.errors import UsageError
from trmcloud.core.text import strip_control
from trmcloud.operations import views
from trmcloud.operations.context import Context
from trmcloud.operations.runs.scoring import GSM8K, checkpoint_folder, prepared_text, require_suite
from trmcloud.operations.sending.data import FOR_TRAINING, TASK_FILES, error_of, need_training_extra
from trmcloud.wiring import build_context, python_path
from trmcloud.wiring_plans import build_planner

# Running one of the trainer's own commands on a checkpoint: what ``sample``, ``eval`` and
# ``serve`` share.


def run_trainer_command(
    module: str,
    arguments: Sequence[str],
    *,
    until_interrupted: bool = False,
    take: Callable[[str], None] | None = None,
) -> None:
    """``python -m MODULE ARGUMENTS``, its output ours; its error becomes one of ours.

    Args:
        take: gets each line of its output, in a thread, in place of stdout.
        until_interrupted: it runs until Ctrl-C or SIGTERM, which are passed to it and are no
            failure of its or ours. Its standard input is a pipe that nothing is written to, and
            that ends with us, even where we are killed.

    Raises:
        MissingExtra, DataError, CheckpointError
    """
    need_training_extra("using a checkpoint here")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path())}
    # What a model writes may hold any character; the terminal may not.
    environment["PYTHONIOENCODING"] = f"{sys.stdout.encoding or 'utf-8'}:replace"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE if until_interrupted else None,
        stdout=subprocess.PIPE if take is not None else None,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    with _passed_on(process, until_interrupted) as told_to_end:
        reader = threading.Thread(target=lambda: _read_lines(process, take))
        reader.start()
        errors = _read_errors(process.stderr)
        code = process.wait()
        reader.join()
    if code != 0 and not told_to_end:
        raise error_of(errors, code, module)


def _read_errors(stream: IO[str]) -> str:
    """Everything it brings, but for warnings: those are shown at once."""
    kept = []
    for line in stream:
        if line.startswith("warning: "):
            print(strip_control(line).rstrip("\n"), file=sys.stderr, flush=True)
        else:
            kept.append(line)
    return "".join(kept)


def _read_lines(process: subprocess.Popen[str], take: Callable[[str], None] | None) -> None:
    if take is not None and process.stdout is not None:
        for line in process.stdout:
            take(line.removesuffix("\n"))


def print_measured(module: str, arguments: Sequence[str]) -> None:
    """Print what a command of the trainer measures as a document."""
    values = _measured(module, arguments)
    print_document(views.Measured(of=module.removeprefix("model."), values=values))


def _measured(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    lines: list[str] = []
    run_trainer_command(module, [*arguments, "--json"], take=lines.append)
    values: dict[str, Any] = json.loads("".join(lines))
    return values


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[str], wanted: bool) -> Iterator[list[int]]:
    """Ends ``process`` by SIGTERM where we are told to end, if ``wanted``. Gives the signals that
    came. Ctrl-C reaches it from the terminal, too: a second SIGINT would be taken for
    impatience."""
    came: list[int] = []
    if not wanted:
        yield came
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        came.append(number)
        process.terminate()

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, pass_on) for each in signals]
    try:
        yield came
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def eval(
    checkpoint: options.Checkpoint = "",
    data: Annotated[
        str,
        typer.Option(
            help="Text to score on (default: the checkpoint's validation text). With --task: the "
            "folder of the task files (default: downloaded once), or gsm8k's questions (JSONL)."
        ),
    ] = "",
    control: Annotated[
        str,
        options.rare(
            help="Model trained with supervision_steps=1, to compare the first step with."
        ),
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            help="Answer questions instead: core (DCLM's 22 tasks), one of them (arc-easy), or "
            "gsm8k, scored by the number after ####."
        ),
    ] = "",
    limit: Annotated[
        int, options.rare(help="With --task: only the first N questions of each (0: all).", min=0)
    ] = 0,
    as_json: options.Json = False,
) -> None:
    """Show bits per byte and the loss of each supervision step, compared with byte statistics; or
    the score on tasks, such as DCLM's CORE.

    Example: trmcloud eval r-1f3a9c
    """
    _check(data, control, task, limit)
    context = build_context()
    need_training_extra("scoring a checkpoint here")
    folder = checkpoint_folder(context, checkpoint)
    if task and task != GSM8K:
        _score_tasks(context, folder, task, data, limit, as_json)
        return
    if task:
        items = str(Path(data).expanduser().absolute())
        arguments = ["--checkpoint", folder, "--items", items, "--limit", str(limit)]
        (print_measured if as_json else run_trainer_command)("model.solve", arguments)
        return
    inputs, progress = build_planner().inputs, DataProgress()
    prepared = prepared_text(context, inputs, Path(folder), data, progress)
    arguments = ["--checkpoint", folder, "--data", prepared]
    if control:
        arguments += ["--control", checkpoint_folder(context, control)]
    (print_measured if as_json else run_trainer_command)("model.score", arguments)


def _check(data: str, control: str, task: str, limit: int) -> None:
    """
    Raises:
        UsageError: options that do not go together, or a task that is not known.
    """
    if task and control:
        raise UsageError("--control does not work with --task")
    if limit and not task:
        raise UsageError("--limit needs --task", next_step="--task core")
    if task and task != GSM8K:
        require_suite(task, data)
    elif task and not Path(data).expanduser().is_file():
        what = f"no file {data!r}" if data else "a task needs questions"
        raise UsageError(
            what, next_step="--data FILE.jsonl, with a question and an answer on each line"
        )


def _score_tasks(
    context: Context, folder: str, task: str, data: str, limit: int, as_json: bool
) -> None:
    """Score a checkpoint on a suite of tasks or on one of them."""
    place = ["--data", str(Path(data).expanduser().absolute())]
    if not data:
        place = ["--cache", str(context.home / DATA_CACHE_DIR / TASK_FILES)]
    arguments = ["--checkpoint", folder, "--suite", task, *place, "--limit", str(limit)]
    if not as_json:
        run_trainer_command("model.tasks", arguments)
        return
    values = _measured("model.tasks", arguments)
    values["run"] = values.pop("run_id")
    values["tasks"] = tuple(views.ScoredTask(**each) for each in values["tasks"])
    values["left_out"] = tuple(
        views.UnscoredTask(name=each["name"], message=each["why"]) for each in values["left_out"]
    )
    published = values["reference"]
    values["reference"] = views.PublishedScore(**published) if published else None
    print_document(views.SuiteScore(**values))


def sample(
    checkpoint: options.Checkpoint = "",
    prompt: Annotated[
        str, typer.Option(help="Text to continue (default: the beginning of a document).")
    ] = "",
    max_tokens: Annotated[int, typer.Option(help="Number of tokens to generate.")] = 120,
    temperature: Annotated[float, typer.Option(help="0: always the most likely token.")] = 0.8,
    top_k: Annotated[int, options.rare(help="Choose among the K most likely tokens.")] = 50,
    top_p: Annotated[
        float, options.rare(help="Choose among the most likely tokens with total probability P.")
    ] = 1.0,
    seed: Annotated[int, options.rare(help="Random seed.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Generate text with a checkpoint, with as many refinement steps as in training.

    Example: trmcloud sample r-1f3a9c --prompt "import "
    """
    if not 1 <= max_tokens <= 4096 or not 0 <= temperature <= 10 or top_k < 1:
        raise UsageError("--max-tokens must be 1–4096, --temperature 0–10, --top-k at least 1")
    if not 0 < top_p <= 1:
        raise UsageError("--top-p must be above 0 and at most 1")
    folder = checkpoint_folder(build_context(), checkpoint)
    arguments = [
        *("--checkpoint", folder, "--prompt", prompt, "--max-tokens", str(max_tokens)),
        *("--temperature", str(temperature), "--top-k", str(top_k)),
        *("--top-p", str(top_p), "--seed", str(seed)),
    ]
    if not as_json:
        run_trainer_command("model.sample", arguments)
        return
    lines: list[str] = []
    run_trainer_command("model.sample", arguments, take=lines.append)
    print_document(views.Sampled(checkpoint=folder, text="\n".join(lines)))


def serve(
    checkpoint: options.Checkpoint = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; all except loopback need a token.")
    ] = options.LOOPBACK[0],
    port: Annotated[int, typer.Option(help="Port; 0: any free port.", min=0, max=65535)] = 8000,
    batch: Annotated[
        int, options.rare(help="Requests that are generated at the same time.", min=1, max=256)
    ] = 8,
    queue: Annotated[
        int, options.rare(help="Requests that may wait in the queue.", min=0, max=100_000)
    ] = 64,
    as_json: options.Json = False,
) -> None:
    """Serve a checkpoint on this machine only, until Ctrl-C: chat page, OpenAI's API.

    Example: trmcloud serve r-1f3a9c
    """
    packages = (*FOR_TRAINING, "pydantic", "starlette", "uvicorn")
    options.require_packages(packages, "serving a checkpoint", "serve", "train")
    folder = checkpoint_folder(build_context(), checkpoint)
    options.warn_if_exposed(host, "anyone who reads the token on the network can use the model")
    arguments = ["--checkpoint", folder, "--host", host, "--port", str(port)]
    arguments += ["--batch", str(batch), "--queue", str(queue), "--with-stdin"]
    take = _Announced(checkpoint, has_token=host not in options.LOOPBACK) if as_json else None
    run_trainer_command("model.serve", arguments, until_interrupted=True, take=take)


class _Announced:
    """Prints a document once a server has said where it answers; what else it says, on stderr."""

    def __init__(self, checkpoint: str, *, has_token: bool) -> None:
        self._checkpoint, self._has_token = checkpoint, has_token
        self._url = self._token = ""
        self._said = False

    def __call__(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        first, _, rest = line.partition(" ")
        if first.startswith("http"):
            self._url = first
        if first == "Authorization:":
            self._token = rest.removeprefix("Bearer ").partition(" ")[0]
        if self._url and (self._token or not self._has_token) and not self._said:
            self._said = True
            of, token = "checkpoint", self._token or None
            print_line(
                views.Serving(of=of, run=self._checkpoint or None, url=self._url, token=token)
            )
