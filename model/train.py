"""One phase of training: ``torchrun --standalone --nproc_per_node N -m model.train``.

The job's path stands in TRMCLOUD_JOB, the deadline in TRMCLOUD_DEADLINE_AT, the attempt in
TRMCLOUD_ATTEMPT. However it ends, the heartbeat says how: its ``outcome`` is one of
``trainer_contract.OUTCOMES``. The exit code is 0 after finishing or landing, else 1.

torch is imported late: the first heartbeat, and the handlers of signals, must not wait for it.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Mapping, MutableMapping, Sequence

from model.command import error_json, run_command
from model.machine.compile_cache import CompileCache
from model.machine.signals import SignalFlag
from model.machine.telemetry import (
    Clock,
    HeartbeatWriter,
    Metrics,
    end_for_another,
    ended_by_another,
)
from trmcloud.core.contract.pod_contract import CHECKPOINTS_DIR
from trmcloud.core.contract.records import ContractError, parse
from trmcloud.core.contract.recovery import read_overrides
from trmcloud.core.contract.scoring import scoring_of
from trmcloud.core.contract.trainer_contract import (
    CLEAN,
    ENV_ACCEPT_CHANGE,
    ENV_ATTEMPT,
    ENV_JOB,
    ENV_OVERRIDES,
    PhaseJob,
    load_job,
)
from trmcloud.core.errors import CheckpointError, DataError, MissingExtra, TrmcloudError, UsageError
from trmcloud.core.spec.overrides import apply_overrides
from trmcloud.core.spec.settings import AUTO, CHAT, PhaseRecipe
from trmcloud.core.spec.trials import trial_settings
from trmcloud.core.sweep.job import ENV_TRIAL

if TYPE_CHECKING:
    from model.data.folder import PreparedData
    from model.families.protocol import LanguageModel
    from model.machine.distributed import World
    from trmcloud.core.catalog.eval_tasks import SuiteResult
    from trmcloud.core.contract.scoring import ScoringJob

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""Segments that grow: a training that climbs to a larger micro-batch leaves no holes behind. What
the user set stays."""
_DATA_POLL_S = 0.5
_NEXT = ". Next: "
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(
        prog="python -m model.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: TRMCLOUD_JOB=job.json torchrun --standalone --nproc_per_node 2 "
        "-m model.train",
    ).parse_args(arguments)
    flag = SignalFlag().install()
    outcome = ""

    def command() -> None:
        nonlocal outcome
        job, settings, attempt = _read(os.environ)
        os.environ.setdefault(_ALLOCATOR, "expandable_segments:True")
        outcome = run_attempt(job, settings, attempt, flag, os.environ, Clock())

    code = run_command(command)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not a normal exit: taking down the process groups' threads may abort a rank that has done
    # all its work, and hangs where a dead rank has left a collective open.
    os._exit(0 if outcome in CLEAN else code or 1)


def run_attempt(
    job: PhaseJob,
    settings: PhaseRecipe,
    attempt: int,
    flag: SignalFlag,
    environment: MutableMapping[str, str],
    clock: Clock,
) -> str:
    """Trains one attempt on this rank, and sees to it that its end is told.

    Returns:
        The outcome, one of ``trainer_contract.OUTCOMES``.
    """
    is_main = environment.get("RANK", "0") == "0"
    # Each machine's agent watches a trainer of its own.
    speaks = environment.get("LOCAL_RANK", environment.get("RANK", "0")) == "0"
    out_dir = Path(job.out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    pulse = HeartbeatWriter(job, attempt, settings.steps, clock, silent=not speaks)
    metrics = Metrics(out_dir, clock)
    message = ""
    try:
        pulse.enter("starting")
        outcome = _train(job, settings, attempt, flag, environment, clock, pulse, metrics)
        message = pulse.now.message
    except BaseException as error:
        outcome, message = _outcome_of(error)
        if pulse.now.step and pulse.now.saved_step == pulse.now.step:
            what, next_step, there = message.partition(_NEXT)
            message = f"{what}; the last saved step is {pulse.now.step}{next_step}{there}"
        _tell(error, outcome)
        if not speaks:
            end_for_another(job, attempt, outcome, message, clock.epoch())
            return outcome
        if outcome == "crashed" and ended_by_another(job, attempt):
            return outcome  # that rank's error is the cause, this one's only its echo
    if is_main:
        try:
            metrics.write("end", pulse.now.step, outcome=outcome, message=message)
            metrics.close()
        except OSError as error:
            print(f"the last line of the metrics is lost: {error}", file=sys.stderr)
    if speaks:
        pulse.end(outcome, message)
    return outcome


def _train(
    job: PhaseJob,
    settings: PhaseRecipe,
    attempt: int,
    flag: SignalFlag,
    environment: MutableMapping[str, str],
    clock: Clock,
    pulse: HeartbeatWriter,
    metrics: Metrics,
) -> str:
    from model.training.landing import Landing, Limits

    limits = Limits.from_environment(environment)
    cache = CompileCache(Path(job.out_dir), environment) if settings.compile else None
    if cache is not None:
        local_rank = int(environment.get("LOCAL_RANK", "0"))
        cache.fetch(attempt, local_rank, clock.sleep, clock.monotonic)

    import torch

    from model.data.feed import Arrival
    from model.data.folder import open_data
    from model.machine.distributed import join_world, parallel
    from model.machine.telemetry import peak_flops
    from model.training import resume, sharding, starting
    from model.training.checkpoint import CheckpointFolder
    from model.training.loop import Trainer, TrainingOutputs
    from model.training.number_format import Decision, NumberFormat
    from model.training.optim import Optimizer, Ranks, Rules
    from model.training.reporting import Reporter, say
    from model.training.stepping import compiled_graphs, lift_graph_limit, needs_warm_up, warm_up

    def pause() -> bool:
        if pulse.now.state != "waiting":
            pulse.enter("waiting")
        clock.sleep(_DATA_POLL_S)
        pulse.beat()
        late = limits.deadline_at is not None and clock.epoch() >= limits.deadline_at
        return not (late or flag.raised)

    world = join_world(environment)
    device = world.device
    asked = settings
    number_format = NumberFormat(asked, world)
    settings = number_format.settings
    torch.manual_seed(settings.seed + world.rank)
    model = sharding.build(settings, world)
    model.initialise(settings.seed)
    optimizer = Optimizer(model, Rules.of(settings), Ranks.of(world))
    if settings.compile:
        lift_graph_limit()
        model.compile_parts()
    attention = model.settle_attention()
    together = parallel(model, world)
    checkpoints = CheckpointFolder(Path(job.out_dir) / CHECKPOINTS_DIR)

    def prepare_passes() -> None:
        if needs_warm_up(settings, world):
            pulse.enter("compiling")
            warm_up(model, together, settings, world, optimizer)
            optimizer.zero_grad()
            if cache is not None and world.is_main:
                cache.keep()

    def settle_format() -> Decision:
        nonlocal settings, optimizer
        is_tried = asked.dtype == AUTO and bool(number_format.descent.float8)
        if is_tried:
            pulse.enter("compiling")
        decision = number_format.settle(
            model,
            together,
            optimizer,
            checkpoints.complete() if world.is_main else (),
            limits,
            clock,
        )
        settings = number_format.settings
        if is_tried:  # what its steps drew and averaged is none of the training's
            torch.manual_seed(settings.seed + world.rank)
            model.initialise(settings.seed)
            optimizer = Optimizer(model, Rules.of(settings), Ranks.of(world))
        return decision

    folder = Path(job.data_dir)
    if settings.phase == CHAT:
        job, folder = starting.begin_chat(job, checkpoints, world, pulse.beat)
    arrival = Arrival(
        folder, expected=job.data is not None, epoch=clock.epoch, monotonic=clock.monotonic
    )
    # While data are on their way there is time for that; else what may be refused comes first.
    is_late = arrival.is_late(world)
    decision = settle_format() if is_late else None
    if is_late:
        prepare_passes()
    if not arrival.wait(world, pause):
        return "landed_signal" if flag.raised else "landed_deadline"
    pulse.enter("starting")
    data = open_data(folder)
    _check_ids(settings, data.tokenizer.vocab_size)
    decision = decision or settle_format()
    landing = Landing(settings, limits, world, flag)
    trained = resume.begin(
        job,
        resume.make_fresh_state(model, optimizer, settings),
        settings,
        world,
        data,
        landing,
        checkpoints,
        metrics,
        now=clock.epoch(),
        accept_change=bool(environment.get(ENV_ACCEPT_CHANGE)),
    )
    trained.decision = decision
    if not is_late:
        prepare_passes()
    peak = None
    if device.type == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(device), settings.dtype)
    if world.is_main:
        step = trained.progress.step
        parameters = sum(each.numel() for each in model.parameters())
        metrics.open_board(step)
        metrics.write(
            "start",
            step,
            attempt=attempt,
            from_step=step,
            world_size=world.size,
            params=parameters,
            device=device.type,
            **({"graphs": compiled_graphs()} if settings.compile else {}),
            **({} if trained.went_back_to is None else {"weights_of": trained.went_back_to}),
        )
        say(f"{parameters:,} parameters on {world.size} × {device.type}, from step {step}")
    reporter = Reporter(settings, world, metrics, peak)
    reporter.takes(trained.progress.step, decision, number_format.descent.left)
    reporter.attends(trained.progress.step, attention)
    scoring = scoring_of(job.scoring)
    score = _scorer(scoring, settings, model, data, world) if scoring is not None else None
    outlets = TrainingOutputs(checkpoints, reporter, pulse, clock, scoring, score)
    trainer = Trainer(job, settings, world, data, trained, together, landing, outlets)
    outcome = trainer.run()
    if cache is not None and world.is_main:
        cache.keep()  # a larger micro-batch was compiled later
    world.part()
    if cache is not None and world.local_rank == 0:
        cache.drop()
    return outcome


def _scorer(
    scoring: ScoringJob,
    settings: PhaseRecipe,
    model: LanguageModel,
    data: PreparedData,
    world: World,
) -> Callable[[Callable[[], bool]], SuiteResult]:
    """Return a function that scores the model on the tasks that the job names."""
    from model.machine.precision import autocast
    from model.tasks.scoring import evaluate_suite
    from trmcloud.core.catalog.eval_tasks import suite_of

    def score(until: Callable[[], bool]) -> SuiteResult:
        return evaluate_suite(
            model,
            data.tokenizer,
            suite_of(scoring.suite),
            Path(scoring.folder),
            world=world,
            batch=settings.batch,
            until=until,
            autocast=autocast(settings.dtype, world.device),
        )

    return score


def _read(environment: Mapping[str, str]) -> tuple[PhaseJob, PhaseRecipe, int]:
    path = environment.get(ENV_JOB, "")
    if not path:
        raise UsageError(f"{ENV_JOB} is not set", next_step=f"{ENV_JOB}=…/job.json")
    try:
        job = load_job(Path(path).read_bytes())
        settings = PhaseRecipe.from_json(job.settings)
        if trial := environment.get(ENV_TRIAL):
            settings = trial_settings(settings, parse(trial))
        overrides = read_overrides(environment.get(ENV_OVERRIDES) or "{}")
        settings = apply_overrides(settings, overrides)
        return job, settings, int(environment.get(ENV_ATTEMPT, "1"))
    except (OSError, ContractError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"the job cannot be read: {error}", where=path) from None


def _check_ids(settings: PhaseRecipe, known_ids: int) -> None:
    if known_ids > settings.text_ids:
        needed = known_ids + settings.vocab_size - settings.text_ids
        raise UsageError(
            f"the data's tokenizer has {known_ids} ids, but vocab_size is {settings.text_ids}",
            next_step=f"--set vocab_size={needed}, or prepare the data again",
        )


def _outcome_of(error: BaseException) -> tuple[str, str]:
    """The contract's name for this error, and one line about it."""
    text = str(error) if isinstance(error, TrmcloudError) else f"{type(error).__name__}: {error}"
    if isinstance(error, TrmcloudError) and error.next_step:
        text += f"{_NEXT}{error.next_step}"
    if isinstance(error, FloatingPointError):
        return "non_finite", str(error)
    if type(error).__name__ == "TrainingDiverged":  # torch may not be there to ask
        return "diverged", str(error)
    if isinstance(error, DataError):
        return "bad_data", text
    if isinstance(error, CheckpointError):
        return "bad_checkpoint", text
    if isinstance(error, (TrmcloudError, ModuleNotFoundError)):
        if isinstance(error, ModuleNotFoundError):
            text = str(MissingExtra(f"the trainer ({error.name})", "train", ""))
        return "bad_config", text
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return "disk_full", text
    # torch's out-of-memory error is told by its name, as torch may not be there; a CPU's
    # allocator raises a plain RuntimeError.
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    ):
        return "out_of_memory", text
    return "crashed", text


def _tell(error: BaseException, outcome: str) -> None:
    if isinstance(error, TrmcloudError):
        print(f"error: {error}", file=sys.stderr)
        print(error_json(error), file=sys.stderr)
    elif outcome == "crashed":
        traceback.print_exception(error)
    else:
        print(f"error: {outcome}: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
