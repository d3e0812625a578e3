"""``trmcloud report --verify``: figures against the ledger, checkpoints against their hashes."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from trmcloud.app import views
from trmcloud.app.checkpoints.fetching import read_manifest
from trmcloud.app.context import Context, find_run, run_by_id
from trmcloud.app.receipts import (
    Check,
    Verdict,
    check_checkpoint,
    check_contents,
    check_files,
    check_ledger,
    receipt_of,
    unchecked,
)
from trmcloud.cli.views.html_page import instant, parts_of
from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.text import fields
from trmcloud.core.contract.records import ContractError
from trmcloud.core.control.receipt import MOST_BYTES, Receipt, canonical, read_receipt
from trmcloud.core.control.receipt_page import (
    PAGE_VERSION,
    changed_part,
    is_page,
    json_is_exact,
    open_page,
)
from trmcloud.core.errors import NotFoundError, ReceiptError
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.wiring import build_chain, build_context, chain_if_any


def check_figures(named: str, against: str, *, as_json: bool) -> int:
    """Check a receipt's file, a checkpoint's folder or a run (default: the newest): that a receipt
    was not changed and its figures follow from the ledger's records, that files of checkpoints
    have their manifests' hashes. Parts that cannot be checked here are listed. Return the exit
    code."""
    path = Path(named).expanduser()
    folder = Path(against).expanduser() if against else None
    run_id, made = "", None
    if path.is_dir() and named:
        folder, checks = path, []
        run_id = read_manifest(path).run_id
        if (context := build_context()).ledger.read().runs.get(run_id) is not None:
            made = _receipt_now(context, run_id)
        else:
            checks = [*check_files(path), Check("ledger", Verdict.OPEN, f"it has no run {run_id}")]
    elif path.is_file() or path.suffix in (".html", ".json"):
        made, checks = _read(path)
    else:
        context = build_context()
        made = _receipt_now(context, find_run(context, named or None).run_id)
        checks = [
            check
            for manifest in context.files.manifests(made.run_id)
            for check in check_files(Path(context.files.folder_of(manifest)))
        ]
    if made is not None:
        run_id = made.run_id
        checks += check_contents(made)
        checks += check_checkpoint(made, folder) if folder is not None else []
        checks += [check_ledger(made, chain_if_any()), *unchecked(made, folder)]
    broken = [check for check in checks if check.verdict is Verdict.BROKEN]
    if as_json:
        rows = (views.VerifyCheck(code=c.what, verdict=c.verdict.value, message=c.detail)
                for c in checks)  # fmt: skip
        print_document(views.Verified(run=run_id, matches=not broken, checks=tuple(rows)))
    else:
        _show(_title(made) if made is not None else run_id, checks)
    return ReceiptError.exit_code if broken else 0


def _receipt_now(context: Context, run_id: str) -> Receipt:
    run = run_by_id(context, run_id)
    return receipt_of(context, build_chain(), run, f"trmcloud {version('trmcloud')}")


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
    held = data.get("receipt") if data.get("schema") == views.ReceiptWritten.schema else None
    return f"{canonical(held)}\n".encode() if isinstance(held, dict) else content


def _title(made: Receipt) -> str:
    sums = made.account["money"]
    outcome = made.account["ended"]["outcome"] or made.account["state"]
    spent = f"{Usd(sums['settled_usd'])} of {Usd(sums['cap_usd'])}"
    return one_line(f"{made.run_id} · {outcome} · {spent} · made {instant(made.made_at)}")


def _show(title: str, checks: list[Check]) -> None:
    marks = {Verdict.MATCHES: "✔", Verdict.BROKEN: "✘", Verdict.OPEN: "–"}
    print(title)
    print("\n".join(fields([(f"{marks[c.verdict]} {c.what}", c.detail) for c in checks])))
    broken = [check.what for check in checks if check.verdict is Verdict.BROKEN]
    if broken:
        print(f"it does NOT match: {', '.join(dict.fromkeys(broken))}")
    elif any((c.what, c.verdict) == ("ledger", Verdict.MATCHES) for c in checks):
        print("it matches this home's ledger; parts marked – could not be checked here")
    else:
        print("it only matches itself: anyone could have made it")
