"""Receipts: made from what a home knows of a run, and held against what can be checked of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

from trmcloud.core import codec
from trmcloud.core.contract import manifest as mf
from trmcloud.core.contract.manifest import CheckpointManifest, KnownCheckpoint
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control import events as ev
from trmcloud.core.control.ledger_records import Link, genesis
from trmcloud.core.control.receipt import (
    MOST_BYTES,
    ChainedRecord,
    LedgerPart,
    Receipt,
    RecoveredTrouble,
    Sources,
    account_of,
    broken_link,
    canonical,
    changed_parts,
    make_receipt,
    manifests_of,
    others_between,
    points_of,
    read_receipt,
)
from trmcloud.core.control.receipt_page import (
    PAGE_VERSION,
    changed_part,
    is_page,
    json_is_exact,
    open_page,
)
from trmcloud.core.control.run_state import RunState
from trmcloud.core.errors import CheckpointError, ConflictError, NotFoundError, ReceiptError
from trmcloud.core.spec.spec import RunSpec
from trmcloud.core.values import Value, replace
from trmcloud.io.files import read_small
from trmcloud.io.hashing import matches_hash
from trmcloud.io.redaction import MASK, masked
from trmcloud.operations.checkpoints.fetching import read_manifest
from trmcloud.operations.checkpoints.sources import known_in_bucket
from trmcloud.operations.context import Context, find_run, run_by_id
from trmcloud.operations.curves.trainings import recoveries_of
from trmcloud.operations.money.html_page import parts_of
from trmcloud.operations.views import ReceiptWritten
from trmcloud.ports.ledger import ChainedLedger


def receipt_of(context: Context, chain: ChainedLedger, run: RunState, made_by: str) -> Receipt:
    """The run's receipt as things stand now.

    Raises:
        ConflictError: the run went on while it was made.
    """
    links = chain.links()
    head = links[-1] if links else None
    if head is None:
        raise NotFoundError("there are no runs yet")
    wanted = _wanted(context.ledger.records(), run.run_id)
    manifests = list(context.files.manifests(run.run_id))
    here = {manifest.bits for manifest in manifests}
    there = known_in_bucket(context, run) if run.bucket else ()
    metric = run.spec.goal.metric if run.spec.goal is not None else ""
    sources = Sources(
        LedgerPart(
            chain.ledger_id,
            head.seq,
            head.sha256,
            tuple(_chained(link) for link in links if link.seq in wanted),
        ),
        tuple(masked(json.loads(mf.to_json(manifest))) for manifest in manifests),
        tuple(
            point
            for phase in context.files.phases(run.run_id)
            for point in points_of(phase, context.files.metrics(run.run_id, phase), metric)
        ),
        tuple(_mended(context, run)),
        tuple(ref for ref in there if ref.bits not in here),
    )
    return make_receipt(run.run_id, sources, context.wall(), made_by)


def records_of(context: Context, chain: ChainedLedger, run_id: str) -> list[Link]:
    """The run's records, and those about pods and volumes that its account hangs on."""
    wanted = _wanted(context.ledger.records(), run_id)
    return [link for link in chain.links() if link.seq in wanted]


def _wanted(records: Iterable[ev.Record], run_id: str) -> set[int]:
    """The run's own records, and those about pods and volumes that its account hangs on."""
    wanted, pods = set(), set()
    for record in records:
        event = record.event
        if isinstance(event, ev.StrayCharged) and event.run_id == run_id:
            pods.add((event.provider, event.pod_id))
            wanted.add(record.seq)
        elif isinstance(event, ev.StrayBilled):
            if (event.provider, event.pod_id) in pods:
                wanted.add(record.seq)
        elif record.run_id == run_id or isinstance(event, ev.VolumeDeleted | ev.DataPinned):
            wanted.add(record.seq)
    return wanted


def _chained(link: Link) -> ChainedRecord:
    made = ChainedRecord(**{**asdict(link), "body": json.loads(link.body)})
    if made.link != link:
        raise ConflictError(f"record {link.seq} of the ledger has an unknown form")
    return replace(made, body=masked(made.body))


def _mended(context: Context, run: RunState) -> Iterable[RecoveredTrouble]:
    for each in recoveries_of(context, run):
        told = {**vars(each.recovery), "changed": dict(each.recovery.changed)}
        yield RecoveredTrouble(each.generation, each.phase, **told)


# -- checking -----------------------------------------------------------------------------------
class Verdict(str, Enum):
    """``MATCHES``: two things that were compared agree, and so could two that a forger made;
    ``OPEN``: it cannot be checked here."""

    MATCHES = "matches"
    BROKEN = "broken"
    OPEN = "open"


class Check(Value):
    """One thing that was looked at: ``what`` it is, and what was found."""

    what: str
    verdict: Verdict
    detail: str


class Verified(Value):
    """``receipt`` is what was checked, or the run's own of now; None where only files were."""

    run_id: str
    receipt: Receipt | None
    checks: tuple[Check, ...]

    @property
    def broken(self) -> list[Check]:
        return [check for check in self.checks if check.verdict is Verdict.BROKEN]


def verify(
    named: str,
    against: Path | None,
    *,
    home: Callable[[], Context],
    chain: Callable[[], ChainedLedger],
    known_chain: Callable[[], ChainedLedger | None],
    made_by: str,
) -> Verified:
    """Check that a receipt was not changed and its figures follow from the ledger's records, and
    that files of checkpoints have their manifests' hashes. Parts that cannot be checked here are
    listed.

    Args:
        named: a receipt's file, a checkpoint's folder, or a run (default: the newest).
        against: a checkpoint's folder, to compare with the receipt.
        home, chain: open this home, where it is needed.
        known_chain: its ledger; None where it has none.
        made_by: who makes the receipt of a run.

    Raises:
        NotFoundError, CheckpointError, ReceiptError: there is nothing to check.
    """
    path, receipt = Path(named).expanduser(), None
    if path.is_dir() and named:
        against, checks = path, []
        run_id = read_manifest(path).run_id
        if run_id in (context := home()).ledger.read().runs:
            receipt = receipt_of(context, chain(), run_by_id(context, run_id), made_by)
        else:
            checks = [*check_files(path), Check("ledger", Verdict.OPEN, f"it has no run {run_id}")]
    elif path.is_file() or path.suffix in (".html", ".json"):
        receipt, checks = _read(path)
    else:
        context = home()
        receipt = receipt_of(context, chain(), find_run(context, named or None), made_by)
        checks = [
            check
            for manifest in context.files.manifests(receipt.run_id)
            for check in check_files(Path(context.files.folder_of(manifest)))
        ]
    if receipt is None:
        return Verified(run_id, None, tuple(checks))
    checks += check_contents(receipt)
    checks += check_checkpoint(receipt, against) if against is not None else []
    checks += [check_ledger(receipt, known_chain()), *unchecked(receipt, against)]
    return Verified(receipt.run_id, receipt, tuple(checks))


def _read(path: Path) -> tuple[Receipt, list[Check]]:
    """The receipt in a file, and whether the file is as it was written."""
    try:
        with open(path, "rb") as file:
            content = file.read(2 * MOST_BYTES + 1)
    except OSError as error:
        raise NotFoundError(
            f"the receipt cannot be read: {(error.strerror or str(error)).lower()}",
            where=str(path),
            next_step="trmcloud report RUN --html FILE makes one",
        ) from None
    if not is_page(content):
        content = _receipt_in(content)
        made = read_receipt(content)
        try:
            at = json_is_exact(content)
        except ContractError as error:
            raise ReceiptError(f"this is not a receipt: {error}") from None
        if at is None:
            return made, [Check("file", Verdict.MATCHES, "the form of the file is correct")]
        why = f"the file was changed: it differs from byte {at:,} on"
        return made, [Check("file", Verdict.BROKEN, why)]
    page = open_page(content)
    made = read_receipt(page.data)
    if page.version != PAGE_VERSION:
        why = "the page has the format of another version: only its data is checked"
        return made, [Check("page", Verdict.OPEN, why)]
    try:
        off = changed_part(content, parts_of(made), made)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"its data cannot be rendered: {error!r:.80}"
        return made, [Check("page", Verdict.BROKEN, why)]
    if off:
        return made, [Check("page", Verdict.BROKEN, f"the page does not match its data: {off}")]
    why = "drawn again from its data, it is the same to the byte"
    return made, [Check("page", Verdict.MATCHES, why)]


def _receipt_in(content: bytes) -> bytes:
    """Return the receipt in a document of ``report --html FILE --json``; ``content`` itself where
    it is none."""
    if content.lstrip()[:1] != b"{" or b'"receipt/1"' not in content[:200]:
        return content
    try:
        data = json.loads(content)
    except ValueError:
        return content
    held = data.get("receipt") if data.get("schema") == ReceiptWritten.schema else None
    return f"{canonical(held)}\n".encode() if isinstance(held, dict) else content


def check_contents(receipt: Receipt) -> list[Check]:
    """Check that its hashes match its parts, and its account its sources: all from the file
    itself."""
    changed = ", ".join(changed_parts(receipt))
    names = ", ".join(receipt.data["sha256"])
    hashes = _check("hashes", changed and f"changed since: {changed}", f"as written: {names}")
    ledger_id = receipt.sources.ledger.ledger_id
    rows = receipt.sources.ledger.records
    hidden = [row.seq for row in rows if MASK in json.dumps(row.body) and not row.link.is_whole]
    broken = broken_link(receipt.sources, genesis(ledger_id), hidden)
    others = others_between(receipt.sources)
    between = f"; {others} records of other runs between them were not checked" if others else ""
    told = f"{len(rows)} records, each with its own hash and that of the one before it{between}"
    chain = _check("chain", broken, told)
    if hidden and not broken:
        numbers = ", ".join(map(str, hidden))
        what = f"a token was removed from record {numbers}: its hash cannot be checked here"
        chain = Check("chain", Verdict.OPEN, what)
    checks = [hashes, chain, _check_account(receipt)]
    if receipt.is_sealed:
        told = "an earlier version sealed it: a seal is no longer checked, its hashes are"
        checks.append(Check("seal", Verdict.OPEN, told))
    return checks


def _check(what: str, broken: str, matches: str) -> Check:
    return Check(what, Verdict.BROKEN, broken) if broken else Check(what, Verdict.MATCHES, matches)


def _check_account(receipt: Receipt) -> Check:
    try:
        again = account_of(receipt.run_id, receipt.sources, receipt.made_at)
    except Exception as error:  # a damaged record, or an event that cannot follow those before it
        return Check("account", Verdict.BROKEN, f"its records contradict each other: {error}")
    account = dict(receipt.account)
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        # A wish written by an earlier version lacks what has been added to wishes since.
        account["asked"] = codec.to_json(codec.from_json(RunSpec, account["asked"]))
    off = _first_difference(json.loads(canonical(again)), json.loads(canonical(account)))
    points, manifests = len(receipt.sources.curves), len(receipt.sources.checkpoints)
    return _check(
        "account",
        off and f"it does not follow from its records: {off}",
        f"every figure follows from its records, {points} points and {manifests} manifests",
    )


def _first_difference(ours: Any, theirs: Any, at: str = "") -> str:
    """``money.settled_usd: '0.4', where it follows that it is '0.1'``; '' where all is the same."""
    if isinstance(ours, dict) and isinstance(theirs, Mapping):
        for key in sorted({*ours, *theirs}):
            if off := _first_difference(ours.get(key), theirs.get(key), f"{at}.{key}"):
                return off
        return ""
    if isinstance(ours, list) and isinstance(theirs, Sequence) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if off := _first_difference(one, other, f"{at}[{number}]"):
                return off
        return ""
    if ours == theirs and type(ours) is type(theirs):
        return ""
    return f"{at.lstrip('.')} is {theirs!r:.60}, but its records give {ours!r:.60}"


def check_ledger(receipt: Receipt, chain: ChainedLedger | None) -> Check:
    """Check that the ledger, where this home has it, holds the same records."""
    part = receipt.sources.ledger
    if chain is None or chain.ledger_id != part.ledger_id:
        return Check(
            "ledger", Verdict.OPEN, f"the ledger itself, {part.ledger_id}, is not in this home"
        )
    known = {link.seq: link.sha256 for link in chain.links()}
    for row in part.records:
        if known.get(row.seq) != row.sha256:
            what = f"record {row.seq} ({row.kind}) differs from this home's ledger"
            return Check("ledger", Verdict.BROKEN, what)
    if known.get(part.head_seq) != part.head_sha256:
        return Check(
            "ledger",
            Verdict.BROKEN,
            "the newest record in this home's ledger was a different one then",
        )
    return Check(
        "ledger", Verdict.MATCHES, f"this home's ledger has all {len(part.records)} records"
    )


def check_checkpoint(receipt: Receipt, folder: Path) -> list[Check]:
    """Check that the receipt names a checkpoint, and that the hashes of its files match.

    Raises:
        NotFoundError: there is no checkpoint. CheckpointError: its manifest is none.
    """
    path = folder / mf.MANIFEST_NAME
    try:
        text = read_small(path, mf.MAX_MANIFEST_BYTES)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    if text is None:
        raise NotFoundError(
            "there is no manifest, so there is no checkpoint",
            where=str(folder),
            next_step="use --against with a folder made by fetch-best",
        )
    here = mf.from_json(text, str(path))
    every: tuple[KnownCheckpoint, ...] = (*manifests_of(receipt.sources), *receipt.sources.reported)
    named = [m for m in every if m.label == here.label]
    told = next((m for m in named if m.sha256 == here.sha256), None)
    if told is None:
        why = f"the receipt has no {here.label} with weights {here.sha256[:16]}…"
        if named:
            theirs = named[0].sha256[:16]
            why = f"its weights are {here.sha256[:16]}…, but the receipt says {theirs}…"
        return [Check("checkpoint", Verdict.BROKEN, why)]
    if not isinstance(told, CheckpointManifest):  # its manifest was not read then
        weights = _check("checkpoint", "", f"{here.label}, whose weights the receipt names")
        return [weights, *_check_files(folder, here)]
    return [_check_manifest(here, told), *_check_files(folder, told)]


def _check_manifest(here: CheckpointManifest, told: CheckpointManifest) -> Check:
    ours, theirs = json.loads(mf.to_json(told)), json.loads(mf.to_json(here))
    off = next((key for key in sorted(ours) if ours[key] != theirs.get(key)), "")
    why = off and f"{off} in the manifest differs from the receipt"
    return _check("checkpoint", why, f"{here.label}, according to its manifest")


def check_files(folder: Path) -> list[Check]:
    """Check that the files of a checkpoint have the hashes in its manifest.

    Raises:
        NotFoundError, CheckpointError: as in ``read_manifest``.
    """
    manifest = read_manifest(folder)
    return [
        replace(each, what=f"{manifest.label} {each.what}")
        for each in _check_files(folder, manifest)
    ]


def _check_files(folder: Path, told: CheckpointManifest) -> Iterable[Check]:
    for file in told.files:
        path = folder / file.name
        if not path.exists():
            yield Check(file.name, Verdict.OPEN, "it is not in this folder")
        elif matches_hash(path, file.size_bytes, file.sha256):
            yield Check(file.name, Verdict.MATCHES, f"sha256 {file.sha256}")
        else:
            why = f"its hash differs from the one that is named: {file.sha256[:16]}…"
            yield Check(file.name, Verdict.BROKEN, why)


def unchecked(receipt: Receipt, checkpoint: Path | None) -> list[Check]:
    """Return the facts that no receipt proves by itself."""
    told = {}
    if checkpoint is None:
        told["checkpoint"] = "no checkpoint was given: --against FOLDER"
    told["bill"] = "only the provider can prove its own bill"
    if receipt.account["money"]["billed_usd"] is None:
        told["bill"] = "it was made before the provider's final bill"
    told["machine"] = "losses, code and packages were reported by the machine that trained"
    return [Check(what, Verdict.OPEN, words) for what, words in told.items()]
