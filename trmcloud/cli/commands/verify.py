"""``trmcloud report --verify``: figures against the ledger, checkpoints against their hashes."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from trmcloud.cli.views.json_output import print_document
from trmcloud.cli.views.text import fields
from trmcloud.core.errors import ReceiptError
from trmcloud.core.money import Usd
from trmcloud.core.text import one_line
from trmcloud.operations import views
from trmcloud.operations.money.html_page import instant
from trmcloud.operations.money.receipts import Verdict, Verified, verify
from trmcloud.wiring import build_chain, build_context, chain_if_any


def check_figures(named: str, against: str, *, as_json: bool) -> int:
    """Check a receipt's file, a checkpoint's folder or a run (default: the newest), and show each
    check. Return the exit code."""
    folder = Path(against).expanduser() if against else None
    found = verify(
        named,
        folder,
        home=build_context,
        chain=build_chain,
        known_chain=chain_if_any,
        made_by=f"trmcloud {version('trmcloud')}",
    )
    broken = found.broken
    if as_json:
        rows = (views.VerifyCheck(code=c.what, verdict=c.verdict.value, message=c.detail)
                for c in found.checks)  # fmt: skip
        print_document(views.Verified(run=found.run_id, matches=not broken, checks=tuple(rows)))
    else:
        _show(found)
    return ReceiptError.exit_code if broken else 0


def _title(found: Verified) -> str:
    made = found.receipt
    if made is None:
        return found.run_id
    sums = made.account["money"]
    outcome = made.account["ended"]["outcome"] or made.account["state"]
    spent = f"{Usd(sums['settled_usd'])} of {Usd(sums['cap_usd'])}"
    return one_line(f"{made.run_id} · {outcome} · {spent} · made {instant(made.made_at)}")


def _show(found: Verified) -> None:
    marks = {Verdict.MATCHES: "✔", Verdict.BROKEN: "✘", Verdict.OPEN: "–"}
    print(_title(found))
    print("\n".join(fields([(f"{marks[c.verdict]} {c.what}", c.detail) for c in found.checks])))
    if found.broken:
        print(f"it does NOT match: {', '.join(dict.fromkeys(c.what for c in found.broken))}")
    elif any((c.what, c.verdict) == ("ledger", Verdict.MATCHES) for c in found.checks):
        print("it matches this home's ledger; parts marked – could not be checked here")
    else:
        print("it only matches itself: anyone could have made it")
