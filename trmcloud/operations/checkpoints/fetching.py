"""Fetching the best checkpoint: verified, gathered from shards, under its script's own names."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract import shards
from trmcloud.core.contract.command import RECIPE
from trmcloud.core.contract.command_terms import OWN_DIR, TREE_NAME
from trmcloud.core.contract.manifest import (
    CheckpointFile,
    CheckpointManifest,
    Pruning,
    of_last_phase,
    parse_shard_name,
    whole_name,
)
from trmcloud.core.control import events as ev
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import CheckpointError, ConflictError, DoesNotFit, NotFoundError
from trmcloud.core.spec.settings import PhaseRecipe
from trmcloud.core.values import Value, replace
from trmcloud.io.files import sync_folder, write_atomic
from trmcloud.io.hashing import file_sha256
from trmcloud.io.transfer import LOCK_NAME
from trmcloud.operations.checkpoints.opening import Opening, opening_of
from trmcloud.operations.checkpoints.sources import (
    CheckpointSource,
    live_pod,
    missing_here,
    sources_of,
    wanted_names,
)
from trmcloud.operations.context import Context
from trmcloud.operations.run_queries import is_rented
from trmcloud.pod.job.shelf import on_disk, restore, tree_of
from trmcloud.ports.machine import Progress

# A command's checkpoint under the names that its script knows, beside the verified copy.


class OwnNames(Value):
    """``path``: the file or folder as the script had it; ``files``: its files' names, each with the
    effect of opening it, by the bytes that are here."""

    path: Path
    files: tuple[tuple[str, Opening], ...]


def under_own_names(manifest: CheckpointManifest, folder: Path) -> OwnNames:
    """Every hash is checked again; what an earlier call has made is made anew. Control characters
    of a name are written as ``on_disk`` does.

    Raises:
        CheckpointError: a file is it does not match its manifest, or a name is none.
        ConflictError: it cannot be written.
    """
    final, making = folder / OWN_DIR, folder / f".{OWN_DIR}.{os.getpid()}"
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        made = restore(folder, manifest, making)
        names = [on_disk(file.path) for file in tree_of(folder).files]
        root = made.parent if made.is_file() else made
        found = tuple((name, opening_of(root / name, name)) for name in names)
        if final.is_symlink():
            raise CheckpointError("there is a link in the place of its files", where=str(final))
        shutil.rmtree(final, ignore_errors=True)
        os.rename(making, final)
    except OSError as error:
        raise ConflictError(
            f"its files cannot be written: {error.strerror}", where=str(folder)
        ) from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return OwnNames(final / made.relative_to(making), found)


# A checkpoint that came in shards becomes one of single files, read and written piece by piece.
#
# Nothing of it is ever whole in memory, and the shards stay until everything else is in place.

_CHUNK_BYTES = 4 << 20
_MAKING = ".gathering-"


def gather_shards(folder: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Writes one file of each kind that ``folder`` has in shards, which were verified before.

    Returns:
        The manifest of what is there then; the same one where nothing was in shards.

    Raises:
        CheckpointError: the shards do not make up whole tensors.
        OSError: it could not be written; the shards are as they were.
    """
    files: list[CheckpointFile] = []
    for kind in mf.KINDS:
        of_kind = [file for file in manifest.files if file.kind == kind]
        if any(parse_shard_name(file.name) for file in of_kind):
            names = sorted(file.name for file in of_kind)
            files.append(_gathered(folder, kind, names))
        else:
            files += of_kind
    if tuple(files) == manifest.files:
        return manifest
    return replace(
        manifest, files=tuple(files), extra={**manifest.extra, mf.GATHERED: manifest.sha256}
    )


def _gathered(folder: Path, kind: str, names: list[str]) -> CheckpointFile:
    name = whole_name(kind)
    making = folder / f"{_MAKING}{name}"
    digest, size = hashlib.sha256(), 0
    with ExitStack() as stack:
        readers = [stack.enter_context(open(folder / each, "rb")) for each in names]
        try:
            with open(making, "wb") as into:
                for chunk in _chunks(readers):
                    into.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                into.flush()
                os.fsync(into.fileno())
        except BaseException:
            making.unlink(missing_ok=True)
            raise
    os.replace(making, folder / name)
    return CheckpointFile(name, kind, size, digest.hexdigest())


def _chunks(readers: Sequence[BinaryIO]) -> Iterator[bytes]:
    headers = [
        shards.read_header(each.read, os.fstat(each.fileno()).st_size, each.name)
        for each in readers
    ]
    header, copies = shards.one_file(headers, where=os.path.dirname(readers[0].name))
    yield header
    for index, offset, length in copies:
        readers[index].seek(offset)
        while length:
            chunk = readers[index].read(min(length, _CHUNK_BYTES))
            if not chunk:
                raise CheckpointError("it ends too early", where=readers[index].name)
            yield chunk
            length -= len(chunk)


# The best checkpoint: found, verified and copied.

_PARTIAL_SUFFIX = ".partial"

Source = Callable[[CheckpointManifest, Sequence[str], str, Progress], None]
"""Brings files of a checkpoint into a folder, verified: see ``RunFiles.fetch``."""


class FetchedCheckpoint(Value):
    """A checkpoint on the user's disk, every hash verified."""

    manifest: CheckpointManifest
    folder: Path
    already_there: bool
    own: OwnNames | None = None
    """Of a command: under the names of its script."""
    rivals: tuple[FetchedCheckpoint, ...] = ()
    """Those that may be better, where that is not known."""


def choose(
    context: Context,
    run: RunState,
    *,
    phase: str | None = None,
    step: int | None = None,
    also: Sequence[CheckpointManifest] | None = None,
    told: Sequence[CheckpointManifest] = (),
    half: Sequence[tuple[str, str]] = (),
) -> CheckpointManifest:
    """The checkpoint asked for: the best of the last phase that has any, unless told otherwise.

    Phases are not compared with one another: extreme starts from fresh weights, and is what the
    run was for. ``also`` are checkpoints that only its pod or its bucket has; None where neither
    was asked; ``told`` is all that these have, whose metrics may be newer than those here.
    ``half``: (where, why) of what is no whole checkpoint there.

    Raises:
        NotFoundError: no such checkpoint. CheckpointError: only damaged ones.
    """
    best = best_of(_known(context, run, also, told), phase=phase, step=step)
    if best is not None:
        return best
    damaged = [*context.files.damaged(run.run_id), *half]
    if damaged:
        label, why = damaged[0]
        raise CheckpointError(
            f"{run.run_id} has no complete checkpoint; {label}: {why}",
            next_step=f"trmcloud resume {run.run_id} saves new ones",
        )
    raise NotFoundError(
        f"{run.run_id} has no checkpoint{f' at step {step}' if step is not None else ''}"
        f"{_where_it_could_be(run, asked=also is not None)}",
        next_step=f"trmcloud status {run.run_id}",
    )


def _known(
    context: Context,
    run: RunState,
    also: Sequence[CheckpointManifest] | None,
    told: Sequence[CheckpointManifest],
) -> tuple[CheckpointManifest, ...]:
    """Every checkpoint that can be had, with the newest metrics: see ``choose``."""
    can_be_had = {(m.label, m.sha256) for m in also or ()}
    here = [m for m in context.files.manifests(run.run_id) if (m.label, m.sha256) not in can_be_had]
    return with_metrics([*here, *(also or ())], [*here, *told])


def with_metrics(
    manifests: Iterable[CheckpointManifest], others: Iterable[CheckpointManifest]
) -> tuple[CheckpointManifest, ...]:
    """``manifests``, each with the metric that a copy of the very same weights has among
    ``others`` where its own was made before that was known."""
    known = {(m.label, m.sha256): m for m in others if m.val_bpb is not None}
    return tuple(
        m
        if (scored := known.get((m.label, m.sha256))) is None
        else replace(
            mf.with_metric(m, scored.val_bpb or 0.0, scored.step_losses),
            extra={mf.METRIC: scored.extra[mf.METRIC], **m.extra}
            if mf.METRIC in scored.extra
            else m.extra,
        )
        for m in manifests
    )


def best_of(
    every: Sequence[mf.Known], *, phase: str | None = None, step: int | None = None
) -> mf.Known | None:
    """The best of the last phase that has any, or of the phase and step that are asked for: by its
    metric; where none has one, a command's own best; else the latest."""
    if phase is not None:
        every = [m for m in every if m.phase == phase]
    if step is not None:
        every = [m for m in every if m.step == step]
    if phase is None:
        every = of_last_phase(every)
    own = mf.own_bests(every)
    return mf.pick_best(every) or next(iter(own), None) or mf.pick_latest(every)


def _where_it_could_be(run: RunState, *, asked: bool) -> str:
    if run.bucket:
        return f" here or in {run.bucket}"
    if live_pod(run) is not None:
        return " yet, here or on its pod" if asked else " here; fetch-best looks for one on its pod"
    if is_rented(run) and run.generation is not None and run.generation.pod_id is not None:
        return " here: its pod is gone, and no checkpoint was pulled"
    return " yet"


class BestCheckpoint(Value):
    """A checkpoint, and who brings it; ``missed``: who else could not be asked, a line each;
    ``rivals``: those that may be better, where that is not known, each with its source."""

    manifest: CheckpointManifest
    source: CheckpointSource
    missed: tuple[str, ...] = ()
    rivals: tuple[BestCheckpoint, ...] = ()


def find_best(
    context: Context,
    run: RunState,
    *,
    phase: str | None = None,
    step: int | None = None,
    weights_only: bool = False,
) -> BestCheckpoint:
    """The checkpoint asked for, and the first of the run's sources that has all that is wanted of
    it.

    Raises:
        NotFoundError, CheckpointError: see ``choose``. ProviderError: nothing is to be had without
            the bucket, which cannot be asked.
    """
    here, *elsewhere = sources_of(context, run)
    told: list[CheckpointManifest] = []
    half: list[tuple[str, str]] = []
    lacking: dict[tuple[str, str], CheckpointSource] = {}
    also: list[CheckpointManifest] = []
    for source in elsewhere:
        listing, known = source.list(), {(m.label, m.sha256) for m in told}
        new = [m for m in listing.whole if (m.label, m.sha256) not in known]
        for manifest in missing_here(context, run, new, weights_only=weights_only):
            lacking[manifest.label, manifest.sha256] = source
            also.append(manifest)
        told += new
        half += listing.half
    missed = []
    kept_elsewhere = any(source.durable for source in elsewhere)
    for source in elsewhere:
        listing = source.list()
        if listing.trouble is None or (kept_elsewhere and not source.durable):
            continue  # what only the pod has comes to where it is kept
        if source.durable and not (also or here.list().whole):
            raise listing.trouble
        missed.append(listing.missed)
    best = choose(context, run, phase=phase, step=step, also=also, told=told, half=half)
    if best.run_id != run.run_id:
        raise CheckpointError(f"{best.label}: its manifest is of {best.run_id}, not {run.run_id}")
    every = _known(context, run, also, told) if step is None else ()
    found, *others = (
        BestCheckpoint(each, lacking.get((each.label, each.sha256), here), tuple(missed))
        for each in (best, *mf.rivals(best, every))
    )
    return replace(found, rivals=tuple(others))


def fetch(
    context: Context,
    run: RunState,
    best: BestCheckpoint,
    into: Path,
    *,
    weights_only: bool,
    progress: Progress,
) -> FetchedCheckpoint:
    """``copy`` from its source, noted down in the ledger."""
    manifest = best.manifest
    fetched = copy(best.source.fetch, manifest, into, weights_only=weights_only, progress=progress)
    path = str(into.absolute())
    if all((f.sha256, f.path) != (manifest.sha256, path) for f in run.fetched):
        event = ev.Fetched(manifest.phase, manifest.step, manifest.sha256, path)
        context.ledger.request(run.run_id, event, context.wall())
    return fetched


def copy(
    source: Source,
    manifest: CheckpointManifest,
    into: Path,
    *,
    weights_only: bool,
    progress: Progress,
) -> FetchedCheckpoint:
    """Copy a checkpoint to ``into``, verify every hash, then rename it into place.

    Interrupted, it goes on where it stopped: verified files in ``into.partial`` are kept. One that
    lies in shards comes as single files.

    Raises:
        ConflictError: ``into`` holds something else. CheckpointError: a file is not what its hash
            says. DoesNotFit: too little room.
    """
    names = sorted(wanted_names(manifest, weights_only=weights_only))
    partial = into.with_name(into.name + _PARTIAL_SUFFIX)
    _require_names(manifest)
    for folder in (into, partial):
        _require_no_links(folder)
    _require_ours(partial, names)
    if into.exists() and (there := _held(into, manifest, names, source, progress)) is not None:
        return FetchedCheckpoint(there, into, already_there=True)
    needed = sum(file.size_bytes for file in manifest.files if file.name in names)
    if manifest.is_sharded:
        needed *= 2  # the shards go when the single files stand
    parent = next(folder for folder in into.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise DoesNotFit(
            f"{manifest.label} needs {needed / 1e6:.1f} MB, but {free / 1e6:.1f} MB are free",
            where=str(parent),
            next_step="--into a larger disk, or --for-inference",
        )
    source(manifest, names, str(partial), progress)
    kept = tuple(file for file in manifest.files if file.name in names)
    try:
        made = gather_shards(partial, replace(manifest, files=kept))
        write_atomic(partial / mf.MANIFEST_NAME, mf.to_json(made))
        for entry in partial.iterdir():
            if entry.name not in {*(file.name for file in made.files), mf.MANIFEST_NAME}:
                entry.unlink()
        if into.exists():
            into.rmdir()
        partial.rename(into)
    except (OSError, CheckpointError):
        # Another fetch of the same may have been quicker, and given the folder its name.
        if not into.exists() or not (there := _held(into, manifest, names, source, progress)):
            raise
        shutil.rmtree(partial, ignore_errors=True)
        return FetchedCheckpoint(there, into, already_there=True)
    sync_folder(into.parent)
    return FetchedCheckpoint(made, into, already_there=False)


def _require_names(manifest: CheckpointManifest) -> None:
    """
    Raises:
        CheckpointError: a file has a name that no checkpoint of its kind has: in the folder it
            could be taken for another program's.
    """
    for file in manifest.files:
        if manifest.recipe == RECIPE:
            is_known = file.name == TREE_NAME or _COMMAND_FILE.fullmatch(file.name) is not None
        else:
            is_known = file.name.startswith((f"{file.kind}.", f"{file.kind}-"))
        if not is_known:
            raise CheckpointError(f"its manifest calls a file of kind {file.kind} {file.name}")


def _require_no_links(folder: Path) -> None:
    """
    Raises:
        ConflictError: the folder, or what stands in it, is a link: what is written would be
            elsewhere.
    """
    entries = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
    for path in (folder, *entries):
        if path.is_symlink():
            raise ConflictError(
                "there is a link in the place of the checkpoint",
                where=str(path),
                next_step="remove the link, or use another folder: --into FOLDER",
            )


def _require_ours(partial: Path, names: Sequence[str]) -> None:
    """
    Raises:
        ConflictError: it holds what no interrupted fetch has left, and would be removed.
    """
    for entry in partial.iterdir() if partial.exists() else ():
        known = (*names, mf.MANIFEST_NAME, LOCK_NAME, _MAKING, *mf.KINDS)
        ours = any(name in entry.name for name in known)
        if not ours or not entry.is_file():
            raise ConflictError(
                "the folder for what is being fetched holds other files, which were not changed",
                where=str(entry),
                next_step="use another folder: --into FOLDER",
            )


_COMMAND_FILE = re.compile(r"file-[0-9]{4}\.bin")


def default_folder(manifest: CheckpointManifest, cwd: Path) -> Path:
    return cwd / f"{manifest.run_id}-{manifest.phase}-{mf.step_dir_name(manifest.step)}"


def what_to_prune(
    manifests: Sequence[CheckpointManifest], keep_best: int | None, *, week_over: bool = False
) -> Pruning:
    """Return the checkpoints to delete: all but the best of each phase and its latest.
    ``keep_best`` None: as many as their recipes keep. ``week_over``: nothing is reserved
    any more for what was saved before a cooldown, and it goes too."""
    if week_over:
        manifests = [replace(manifest, cooldown_from=None) for manifest in manifests]
    if keep_best is None:
        wished = (m.settings.get("keep_best") for m in manifests)
        keep_best = max((count for count in wished if type(count) is int), default=1)
    return mf.to_prune(manifests, keep_best)


def _held(
    into: Path,
    manifest: CheckpointManifest,
    names: list[str],
    source: Source,
    progress: Progress,
) -> CheckpointManifest | None:
    """This very checkpoint as ``into`` holds it, whole; an empty folder is free to be used."""
    if not into.is_dir():
        raise ConflictError(
            "there is another file in the place of the checkpoint",
            where=str(into),
            next_step="use another folder: --into FOLDER",
        )
    entries = {entry.name for entry in into.iterdir()}
    if not entries:
        return None
    try:
        text = (into / mf.MANIFEST_NAME).read_text(encoding="utf-8")
        there = mf.from_json(text, str(into))
    except (OSError, CheckpointError):
        there = None
    same = (
        there is not None
        and (there.run_id, there.label) == (manifest.run_id, manifest.label)
        and manifest.sha256 in there.sha256s
    )
    is_gathered = manifest.is_sharded and there is not None and not there.is_sharded
    files = there.files if there is not None and is_gathered else manifest.files
    known = {*(f.name for f in files), mf.MANIFEST_NAME}
    if manifest.recipe == RECIPE:
        known.add(OWN_DIR)
    if there is None or not same or not entries <= known:
        raise ConflictError(
            "the folder holds other files, which were not changed",
            where=str(into),
            next_step="use another folder: --into FOLDER",
        )
    if is_gathered:
        _check_gathered(into, there, {f.kind for f in manifest.files if f.name in names})
        return there
    source(manifest, names, str(into), progress)
    kept = tuple(f for f in manifest.files if f.name in {*names, *entries})
    there = replace(manifest, files=kept)
    write_atomic(into / mf.MANIFEST_NAME, mf.to_json(there))
    return there


def _check_gathered(into: Path, there: CheckpointManifest, kinds: set[str]) -> None:
    """
    Raises:
        ConflictError: it lacks what is wanted now, or has been changed.
    """
    for kind in sorted(kinds):
        try:
            sound = sound_file(into, kind)
        except CheckpointError:
            sound = None
        if sound is None:
            raise ConflictError(
                f"the assembled checkpoint has no complete {kind}",
                where=str(into),
                next_step="use another folder: --into FOLDER",
            )


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint folder anywhere on this disk.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    path = folder / mf.MANIFEST_NAME
    try:
        return mf.from_json(path.read_bytes()[: mf.MAX_MANIFEST_BYTES + 1], str(path))
    except OSError:
        raise CheckpointError(
            "there is no checkpoint here: the manifest is missing",
            where=str(folder.absolute()),
            next_step="trmcloud fetch-best makes a folder with a checkpoint",
        ) from None


def check_same_shape(folder: Path, settings: PhaseRecipe) -> None:
    """Check that a training with ``settings`` can start from the weights in ``folder``.

    Raises:
        CheckpointError: they have another shape.
    """
    try:
        before = PhaseRecipe.from_json(read_manifest(folder).settings)
    except (TypeError, ValueError):
        raise CheckpointError("its manifest does not name the model", where=str(folder)) from None
    for name in ("family", *settings.fixed_keys()):
        was, wanted = getattr(before, name, None), getattr(settings, name)
        if was != wanted:
            raise CheckpointError(
                f"these weights were trained with {name} {was}, not {wanted}",
                where=str(folder),
                next_step=f"--set {name}={was}",
            )


def sound_file(folder: Path, kind: str) -> Path | None:
    """The checkpoint's file of this kind (``weights``, ``tokenizer``, …), or the first of its
    shards, all hashes verified; None where it has none.

    Raises:
        CheckpointError: it is missing, damaged or a link.
    """
    entries = [file for file in read_manifest(folder).files if file.kind == kind]
    for entry in entries:
        path = folder / entry.name
        try:
            digest = file_sha256(path)
        except OSError:
            digest = ""
        if digest != entry.sha256 or path.is_symlink():
            raise CheckpointError(
                f"{entry.name} is {'it does not match its manifest' if digest else 'missing'}",
                where=str(folder),
                next_step="fetch another checkpoint: trmcloud fetch-best RUN --step N",
            )
    return folder / entries[0].name if entries else None
