"""``trmcloud fetch-best``, ``prune`` and ``volumes``: copies of checkpoints, and their removal."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from trmcloud.cli import options
from trmcloud.cli.catch_up import caught_up
from trmcloud.cli.commands.evaluate import run_trainer_command
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.launch import own_files
from trmcloud.cli.views.metrics import score_rows
from trmcloud.cli.views.run_bar import RunBar
from trmcloud.cli.views.streams import as_is
from trmcloud.cli.views.text import Progress, duration, not_evaluated, table
from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.contract.manifest import LAYOUT, CheckpointManifest
from trmcloud.core.errors import NotFoundError, UsageError
from trmcloud.core.money import total
from trmcloud.core.nearest import suggest_name
from trmcloud.core.reported import ReportedValue
from trmcloud.core.spec.plan import Candidate
from trmcloud.core.values import Value
from trmcloud.export.adopt import find_folder, read_adopted_run
from trmcloud.operations import views
from trmcloud.operations.checkpoints import exporting, fetching, inventory
from trmcloud.operations.checkpoints.fetching import BestCheckpoint
from trmcloud.operations.checkpoints.loading import lines_to_open
from trmcloud.operations.context import Context, find_run, run_by_id
from trmcloud.operations.launch import checkpoint_requests
from trmcloud.operations.money import grants, volumes
from trmcloud.operations.run_queries import mark_reported
from trmcloud.operations.runs.run_views import fetched_fields, volume_notes, why_unsure
from trmcloud.operations.sending.data import data_set_names, need_training_extra
from trmcloud.operations.views import filled
from trmcloud.wiring import build_context, offers_for_errand, run_files
from trmcloud.wiring_plans import build_planner


@contextmanager
def _bar(context: Context) -> Iterator[checkpoint_requests.Watch]:
    with RunBar(context) as bar:
        yield bar.watch


def _waits(run_id: str) -> None:
    print(
        f"{run_id}: waiting until its pod is proven gone; you may press Ctrl-C, nothing is lost",
        file=sys.stderr,
    )


def _agree(run_id: str, candidate: Candidate, *, yes: bool) -> None:
    """
    Raises:
        UsageError: it costs money, and no user is there to agree.
    """
    print(
        f"the checkpoints of {run_id} are on a network volume in {candidate.region}: "
        f"fetching them needs a {candidate.hardware} at {candidate.rate}/h, at most "
        f"{candidate.worst_case} ({duration(candidate.hard_stop_s)})",
        file=sys.stderr,
    )
    if not yes and not is_confirmed("  Proceed?", before="this rents a machine"):
        raise UsageError("nothing was rented or fetched")


def _brought(context: Context, run: str, *, yes: bool) -> checkpoint_requests.Brought:
    """``bring_from_volume``, for a user who sees it and is asked."""
    brought = checkpoint_requests.bring_from_volume(
        context,
        find_run(context, run or None),
        offers=offers_for_errand,
        waits=_waits,
        agree=partial(_agree, yes=yes),
        watching=partial(_bar, context),
    )
    if brought.cost:
        print(f"  the machine cost {brought.cost}", file=sys.stderr)
    return brought


def fetch_best(
    run: Annotated[
        str,
        typer.Argument(
            help="Id or name of a run (default: the newest), or the folder of an exported script.",
            autocompletion=options.complete_run,
        ),
    ] = "",
    into: options.Into = "",
    weights_only: Annotated[
        bool,
        typer.Option(
            "--for-inference", "--weights-only", help="Fetch without the optimizer's state."
        ),
    ] = False,
    phase: Annotated[str, typer.Option(help="fast or extreme (default: the last one).")] = "",
    step: Annotated[int | None, typer.Option(help="This step (default: the best one).")] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Write it in another format: hf (a folder of transformers) or gguf (llama.cpp).",
        ),
    ] = "",
    numbers: Annotated[
        str,
        options.rare(
            "--numbers", metavar="FORMAT", help="With --to gguf: float32 (default) or float16."
        ),
    ] = "",
    custom_code: Annotated[
        bool,
        options.rare(
            "--custom-code",
            help="With --to hf: for models that transformers does not know, write their code, too.",
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Rent a machine for this without asking.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Download and verify the best checkpoint (lowest validation bits per byte; if none was
    evaluated, the latest).

    Checkpoints in the run's bucket are downloaded from there, with or without a pod. Checkpoints
    that are only on a rented pod are downloaded from the pod. From the folder in which an exported
    script has run, its best checkpoint is copied, and what it spent by its own clock is shown. With
    --to, RUN may be a fetched folder, too.

    Example: trmcloud fetch-best r-1f3a9c --for-inference
    """
    export = _checked_export(to, numbers, custom_code=custom_code)
    if run and (there := Path(run).expanduser()).is_dir():
        if export is not None:
            return _export_folder(there, into, export, as_json=as_json)
        if phase or step is not None:
            raise UsageError("--phase and --step choose among the checkpoints of a run's id")
        return _fetch_from_script(there, into, weights_only, as_json=as_json)
    context = caught_up()
    brought = _brought(context, run, yes=yes)
    state = brought.run

    def begin(found: BestCheckpoint) -> Progress:
        for missed in found.missed:
            print(f"{state.run_id}: {missed}", file=sys.stderr)
        if found.manifest.val_bpb is None and step is None:
            print(not_evaluated(found.manifest), file=sys.stderr)
        return Progress("" if found.source.durable else "from its pod")

    wanted: dict[str, Any] = {"phase": phase or None, "step": step}
    if export is not None:
        found = fetching.find_best(context, state, **wanted, weights_only=True)
        return _export_run(context, found, into, export, begin(found), as_json=as_json)
    folder = Path(into).expanduser() if into else None
    fetched = checkpoint_requests.fetch_best(
        context, state, folder, weights_only=weights_only, **wanted, begin=begin
    )
    _show_all(fetched, brought, as_json=as_json)


def _show_all(
    fetched: fetching.FetchedCheckpoint, brought: checkpoint_requests.Brought, *, as_json: bool
) -> None:
    """The best; where that is not known, all that may be, and the way to know it."""
    if as_json:
        print_document(views.Fetched(**fetched_fields(fetched)))
        return
    if (why := why_unsure(fetched)) is not None:
        many, run_id = len(fetched.rivals) + 1, fetched.manifest.run_id
        print(f"{run_id}: unsure which checkpoint is the best: {why}; fetched {many}")
    for each in (fetched, *fetched.rivals):
        told = mark_reported(brought.run, each.manifest)
        _show_best(each, score_rows(brought.run.spec.command, told))
    if why is not None:
        print(f"  to be sure      {SURE_NEXT_TIME}")


SURE_NEXT_TIME = "trmcloud_job.report(step, METRIC=value, checkpoint=PATH) after each save"


def _show_best(fetched: fetching.FetchedCheckpoint, metric: Sequence[str]) -> None:
    best = fetched.manifest
    final = "" if best.final_at is None else f", the final model of step {best.final_at:,}"
    named = f"{best.run_id} {best.label}{final}"
    if fetched.own is None:
        _show_fetched(named, fetched, metric)
        return
    print(f"{named}: {_fetched_word(fetched)}")
    print("\n".join(own_files(fetched.own, best.sha256, metric)))
    names = [name for name, _ in fetched.own.files]
    if lines := lines_to_open(str(best.extra.get(LAYOUT)), fetched.own.path, names):
        print("  in Python, these lines open it:")
        print("\n".join(lines), file=as_is())  # to be copied: whole, however wide the terminal is


def _fetched_word(fetched: fetching.FetchedCheckpoint) -> str:
    return "already here, verified" if fetched.already_there else "fetched and verified"


def _show_fetched(named: str, fetched: fetching.FetchedCheckpoint, metric: Sequence[str]) -> None:
    print("\n".join([f"{named}: {_fetched_word(fetched)}", *metric]))
    print(f"  weights         sha256 {fetched.manifest.sha256}")
    print(f"  folder          {fetched.folder.absolute()}")


def _fetch_from_script(folder: Path, into: str, weights_only: bool, *, as_json: bool) -> None:
    """Copy the best checkpoint of an exported script's run, with the script's own account."""
    root = find_folder(folder)
    files = run_files(root)
    found = read_adopted_run(root, files)
    best = found.best
    if best.val_bpb is None:
        print(not_evaluated(best), file=sys.stderr)
    target = Path(into).expanduser() if into else fetching.default_folder(best, Path.cwd())
    fetched = fetching.copy(
        files.fetch, best, target, weights_only=weights_only, progress=Progress()
    )
    if as_json:
        print_document(
            filled(
                views.Adopted,
                found,
                **fetched_fields(fetched),
                outcome=found.outcome.value if found.outcome is not None else None,
                accounted_usd=found.cost,
            )
        )
        return
    ended = found.outcome.value if found.outcome is not None else "still running"
    why = f": {found.why}" if found.why else ""
    _show_fetched(f"{found.run_id} {best.label}", fetched, score_rows(None, ReportedValue(best)))
    print(f"  run             {ended}{why}; {found.starts} start{'s' * (found.starts > 1)}")
    account = f"{duration(found.used_s)} at {found.rate}/h by its own clock"
    print(f"  cost            {found.cost}: {account}; not billed yet")
    print(f"  planned         {found.planned}, at most {found.worst_case}")


class _Export(Value):
    """A checked wish for another format; ``numbers``: empty for the format's own."""

    form: str
    numbers: str
    custom_code: bool

    @property
    def words(self) -> list[str]:
        numbers = ["--numbers", self.numbers] if self.numbers else []
        return ["--to", self.form, *numbers, *(["--custom-code"] if self.custom_code else [])]


def _checked_export(to: str, numbers: str, *, custom_code: bool) -> _Export | None:
    """
    Raises:
        UsageError: an unknown format, or options that do not go together.
    """
    for flag, value, known in (
        ("--to", to, exporting.FORMATS),
        ("--numbers", numbers, exporting.NUMBERS),
    ):
        if value and value not in known:
            raise UsageError(
                f"{flag}: unknown value {value!r}", next_step=suggest_name(value, known)
            )
    if numbers and to != exporting.GGUF:
        raise UsageError("--numbers needs --to gguf", next_step="--to gguf")
    if custom_code and to != exporting.HF:
        raise UsageError("--custom-code needs --to hf", next_step="--to hf")
    return _Export(to, numbers, custom_code) if to else None


def _export_run(
    context: Context,
    best: BestCheckpoint,
    into: str,
    export: _Export,
    progress: Progress,
    *,
    as_json: bool,
) -> None:
    manifest, run = best.manifest, run_by_id(context, best.manifest.run_id)
    exporting.check_exportable(manifest)
    need_training_extra("exporting a checkpoint here")
    target = _target(manifest, into, export)
    rows = exporting.facts(context, run, manifest, _data_set)
    with exporting.at_hand(context, run, best, target, progress) as folder:
        _write_export(folder, target, rows, export, as_json=as_json)


def _export_folder(folder: Path, into: str, export: _Export, *, as_json: bool) -> None:
    manifest = fetching.read_manifest(folder)
    exporting.check_exportable(manifest)
    context = build_context()
    run = context.ledger.read().runs.get(manifest.run_id)
    rows = exporting.facts(context, run, manifest, _data_set)
    _write_export(folder, _target(manifest, into, export), rows, export, as_json=as_json)


def _target(manifest: CheckpointManifest, into: str, export: _Export) -> Path:
    if into:
        return Path(into).expanduser().absolute()
    return exporting.default_target(manifest, export.form, Path.cwd())


def _data_set(name: str) -> DataSet | None:
    return build_planner().inputs.data_source(name).data_set if name in data_set_names() else None


def _write_export(
    folder: Path, target: Path, rows: exporting.Rows, export: _Export, *, as_json: bool
) -> None:
    """``model.export`` of a checkpoint's folder, with rows for its card.

    Raises:
        NotSupported, CheckpointError, ConflictError, DoesNotFit, MissingExtra
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as about:
        json.dump({"rows": rows}, about)
        about.flush()
        words = ["--checkpoint", str(folder.absolute()), "--into", str(target), *export.words]
        lines: list[str] = []
        words += ["--about", about.name, *(["--json"] if as_json else [])]
        run_trainer_command("model.export", words, take=lines.append if as_json else None)
    if as_json:
        print_document(views.Exported(**json.loads("".join(lines))))


def prune(
    run: options.RunName = "",
    keep_best: Annotated[
        int | None,
        typer.Option(help="Best checkpoints to keep of each phase (default: the recipe's)."),
    ] = None,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Delete old checkpoints, here and on the rented pod or in the bucket of the run.

    The best and the latest checkpoint of a phase are never deleted. For a week after the run the
    last one before its cooldown is kept, too. In a bucket, first the optimizer states go from
    which no run resumes.

    Example: trmcloud prune r-1f3a9c --keep-best 1 -y
    """
    if keep_best is not None and keep_best < 1:
        raise UsageError("--keep-best must be at least 1: the best checkpoint is never deleted")
    context = caught_up()
    state = grants.require_paying(context, find_run(context, run or None))
    if not run and not sys.stdin.isatty():
        command = f"trmcloud prune {state.run_id} -y"
        raise UsageError("not a terminal; name the run", next_step=command)
    planned = inventory.plan_pruning(context, state, keep_best)
    if as_json:
        if yes:
            inventory.prune(planned)
        print_document(inventory.pruned_view(state.run_id, planned, deleted=yes))
        return
    for each in planned:
        _show(each)
    if any(not each.empty for each in planned) and (yes or is_confirmed("  Delete?")):
        inventory.prune(planned)
        print(f"freed {sum(each.freed_bytes for each in planned) / 1e6:,.1f} MB")


def _show(each: inventory.SourcePruning) -> None:
    rows = (("delete", each.pruning.checkpoints), ("keep  ", each.pruning.kept))
    for word, manifests in rows:
        for manifest in manifests:
            print(
                f"  {word} {manifest.label}  {manifest.size_bytes / 1e6:,.1f} MB{each.source.place}"
            )
    for manifest in each.dropped:
        print(f"  drop   the optimizer state of {manifest.label}: no run can resume from it")
    if cost := each.source.daily_cost(each.pruning):
        print(f"  {cost}")


app = options.make_group(
    "List the network volumes of this ledger, with their cost until they are deleted.",
    "trmcloud admin volumes",
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.callback()
def show(
    typed: typer.Context,
    as_json: options.Json = False,
) -> None:
    if typed.invoked_subcommand is not None:
        if as_json:
            raise UsageError("put --json after the command", next_step="volumes delete --json")
        return

    context = build_context()
    rows = tuple(volumes.volume_row(*each) for each in volumes.kept_volumes(context))
    if as_json:
        print_document(views.Volumes(volumes=rows))
        return
    if not rows:
        print("this ledger has no network volumes: no cost")
        return
    header = ("volume", "data centre", "size", "a day", "a month")
    lines = [
        (row.id, row.data_centre, f"{row.size_gb} GB", str(row.per_day_usd), str(row.per_month_usd))
        for row in rows
    ]
    print("\n".join(table(header, lines)))
    month = total(row.per_month_usd for row in rows)
    print(f"{month} a month until deleted · trmcloud admin volumes delete ID")
    for note in volume_notes(context.ledger.read(), context.wall()):
        print(note.message)


@app.command("delete")
def delete(
    volume: Annotated[
        str, typer.Argument(help="Its id or data centre, as shown by trmcloud admin volumes.")
    ],
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Delete a network volume and everything on it.

    Example: trmcloud admin volumes delete 3k2j1h9g8f
    """
    context = build_context()
    grants.require_owner(context)  # runs of others may have their checkpoints there
    there = volumes.kept_volumes(context)
    found = next((row for row in there if volume in (row[1].volume_id, row[1].place)), None)
    if found is None:
        raise NotFoundError(
            f"this ledger has no network volume {volume}", next_step="trmcloud admin volumes"
        )
    provider, own = found
    if not yes:
        what = f"{own.size_gb} GB in {own.place}, with all its checkpoints"
        if not is_confirmed(f"  Delete {own.volume_id} ({what})?"):
            print("nothing was deleted")
            return
    volumes.delete(context, provider, own)
    shown = volumes.volume_row(provider, own)
    line = f"deleted {own.volume_id}: saves {shown.per_month_usd} a month"
    print_answer(views.Volumes(volumes=(shown,), deleted=True), [line], as_json=as_json)
