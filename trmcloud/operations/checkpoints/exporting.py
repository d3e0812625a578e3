"""Exporting a checkpoint: where it is, and what a model card says of its run beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trmcloud.core.catalog.datasets import DataSet
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.manifest import CheckpointManifest
from trmcloud.core.control.report import spent_so_far
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import ConflictError, NotSupported, TrmcloudError
from trmcloud.operations.checkpoints import fetching
from trmcloud.operations.checkpoints.fetching import BestCheckpoint
from trmcloud.operations.checkpoints.sources import wanted_names
from trmcloud.operations.context import Context
from trmcloud.operations.pod_request import LaunchData
from trmcloud.operations.sending.data import prepared_from
from trmcloud.ports.machine import Progress

HF, GGUF = "hf", "gguf"
FORMATS = (HF, GGUF)
NUMBERS = ("float32", "float16")
_BESIDE = ".{}.checkpoint"

Rows = list[tuple[str, str]]
NamedData = Callable[[str], DataSet | None]
"""The data set of a name; None: it is none."""


def check_exportable(manifest: CheckpointManifest) -> None:
    """
    Raises:
        NotSupported: its files are a command's own.
    """
    if manifest.recipe == RECIPE:
        raise NotSupported(
            f"{manifest.run_id} is a command: its checkpoint is already in the format of its own "
            "script",
            next_step=f"trmcloud fetch-best {manifest.run_id}",
        )


def default_target(manifest: CheckpointManifest, form: str, cwd: Path) -> Path:
    """The folder of an export where none is named."""
    folder = fetching.default_folder(manifest, cwd)
    return folder.with_name(f"{folder.name}-{form}")


@contextmanager
def at_hand(
    context: Context, run: RunState, best: BestCheckpoint, target: Path, progress: Progress
) -> Iterator[Path]:
    """A folder with the checkpoint's weights: that of this home, or a copy beside ``target`` that
    goes at the end. A download that was interrupted continues at the next try.

    Raises:
        ConflictError: ``target`` holds something. CheckpointError, LinkError, DoesNotFit: see
            ``fetching.copy``.
    """
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise ConflictError(
            "the folder for the export is not empty",
            where=str(target),
            next_step="name another folder: --into FOLDER",
        )
    manifest = best.manifest
    wanted = wanted_names(manifest, weights_only=True)
    for here in context.files.manifests(run.run_id):
        names = {file.name for file in here.files}
        if (here.label, here.sha256) == (manifest.label, manifest.sha256) and wanted <= names:
            yield Path(context.files.folder_of(here))
            return
    folder = target.with_name(_BESIDE.format(target.name))
    fetching.copy(best.source.fetch, manifest, folder, weights_only=True, progress=progress)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def facts(
    context: Context, run: RunState | None, manifest: CheckpointManifest, named: NamedData
) -> Rows:
    """Rows of a model card that a checkpoint does not say itself: its data's licence, and of its
    run the plan, the machine and the bill so far."""
    rows = _data_rows(context, run, manifest, named)
    if run is None:
        return rows
    if run.recorded_plan is not None:
        rows.append(("plan", f"{run.plan.id}, at most {run.cap}"))
    found = (run.candidate(each.candidate_id) for each in run.generations)
    machines = dict.fromkeys(
        ", ".join(dict.fromkeys((c.hardware, c.provider))) for c in found if c is not None
    )
    if machines:
        rows.append(("machine", "; ".join(machines)))
    bill = run.billed if not run.live else None
    if bill is not None:
        rows.append(("bill", f"{bill}, final"))
    else:
        rows.append(("bill so far", f"{spent_so_far(run, context.wall())}, not final"))
    rows.append(("receipt", f"trmcloud report {run.run_id} --html FILE"))
    return rows


def _data_rows(
    context: Context, run: RunState | None, manifest: CheckpointManifest, named: NamedData
) -> Rows:
    """The name and licence of what it was trained on; where this home does not know, nothing is
    taken from the recipe, since another text may have been given in its place."""
    name, data_set = run.spec.data if run is not None else "", None
    with suppress(TrmcloudError):  # a note that is missing or damaged
        own = LaunchData.of_note(context.notes.launch(manifest.run_id))
        if own.source is not None:
            name, data_set = own.source.name, own.source.data_set
        elif own.folder:
            name = prepared_from(Path(own.folder)) or name
    data_set = data_set or named(name)
    if data_set is None:
        shown = Path(name).name if name else "not known here"
        return [("data", f"{shown}, licence not known")]
    page = f", {data_set.page}" if data_set.page else ""
    return [("data", f"{data_set.name}, licence {data_set.licence or 'not known'}{page}")]
