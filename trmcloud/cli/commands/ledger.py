"""``admin ledger``: the one record of runs and money, checked, backed up, restored, moved."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from trmcloud.cli import options
from trmcloud.cli.confirm import is_confirmed
from trmcloud.cli.views.json_output import print_answer, print_document
from trmcloud.cli.views.text import table
from trmcloud.cli.views.troubles import hurt_line
from trmcloud.core.errors import LedgerDamaged, LedgerError, NotFoundError, UsageError
from trmcloud.operations import views
from trmcloud.operations.money.ledger_care import forgotten_runs, restored_lines, settle_damage
from trmcloud.operations.runs.run_views import damaged_run
from trmcloud.operations.views import note
from trmcloud.options import parse_cap
from trmcloud.ports.ledger import Restoration
from trmcloud.wiring import build_context, build_ledger, migrate_ledger, move_ledger

app = options.make_group(
    "Check the record of runs and money, list its backups, restore one, move it to a database.",
    "trmcloud admin ledger check",
)


@app.command("check")
def check(as_json: options.Json = False) -> None:
    """Read all records again and check their hashes. Nothing is changed.

    Exit code 7 if a record is damaged.

    Example: trmcloud admin ledger check
    """
    ledger, _ = build_ledger()
    lost = ledger.check()
    state, trouble = ledger.read(), ledger.backup_trouble()
    count = len(ledger.records()) + len(lost)
    damaged_runs = tuple(map(damaged_run, state.quarantined.values()))
    if as_json:
        damaged = (
            views.DamagedRecord(seq=each.seq, kind=each.kind or None, run=each.run_id or None)
            for each in lost
        )
        checked = views.LedgerChecked(
            ledger=state.ledger_id,
            records=count,
            damaged=tuple(damaged),
            quarantined=damaged_runs,
            backup=note("backup", trouble) if trouble else None,
        )
        print_document(checked)
        sys.exit(7 if lost else 0)
    print(f"{state.ledger_id}: {count} records")
    for each in lost:
        whose = f"of {each.run_id}" if each.run_id else "of the whole ledger"
        print(f"record {each.seq} {whose} is damaged ({each.kind or 'kind unknown'})")
    for hurt in damaged_runs:
        print(hurt_line(hurt))
    print("next: trmcloud admin ledger restore" if lost else "no record is damaged")
    if trouble:
        print(trouble)
    sys.exit(7 if lost else 0)


@app.command("backups")
def backups(
    make: Annotated[bool, typer.Option("--make", help="Make a backup now.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the ledger's backups, the newest first, after reading each completely.

    A backup is made for each rented pod and at the end of each run; five are kept.

    Example: trmcloud admin ledger backups
    """
    ledger, _ = build_ledger()
    if make and ledger.back_up() is None:
        ledger.check()
        raise LedgerError(
            "no backup could be made: the folder cannot be written, or records are damaged",
            next_step="free some disk space, or see trmcloud admin ledger check",
        )
    found = ledger.backups()
    if as_json:
        rows = tuple(
            views.BackupRow(
                number=each.number,
                path=str(each.path),
                up_to_seq=each.seq,
                made_at=each.at,
                trouble=note("damaged", each.why) if each.why else None,
            )
            for each in found
        )
        print_document(views.Backups(backups=rows))
    elif not found:
        print("no backups yet: one is made for each pod and at the end of each run")
    else:
        header = ("backup", "last record", "of (UTC)", "state")
        rows_shown = [(str(b.number), str(b.seq), _when(b.at), b.why or "whole") for b in found]
        print("\n".join(table(header, rows_shown)))


@app.command("restore")
def restore(
    backup: Annotated[int, typer.Argument(help="Number of a backup (default: the newest).")] = 0,
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Restore damaged records from backups, or replace the ledger by a backup.

    A record is restored if its hash proves that a backup has the same one: nothing is lost. With
    a number, or if records cannot be restored, the backup replaces the ledger. The old file is
    kept. Records after the backup are lost: their pods are found and charged, and no run can be
    launched until trmcloud admin reap --yes reports that the ledger is reconciled.

    Example: trmcloud admin ledger restore
    """
    ledger, home = build_ledger()
    why = "restored by command"
    if not backup:
        try:
            lost = ledger.check()
        except LedgerDamaged as error:
            why = error.what
        else:
            if not lost:
                raise UsageError(
                    "the ledger is not damaged: there is nothing to restore",
                    next_step="to restore a backup anyway, give its number: trmcloud admin ledger "
                    "restore NUMBER (trmcloud admin ledger backups)",
                )
            mended, left = ledger.mend(), ledger.check()
            for each in mended if not as_json else ():
                print(f"record {each.seq} was restored: its hash is correct")
            if not left:
                if as_json:
                    print_document(_restored([each.seq for each in mended]))
                return
            why = f"no backup has record {', '.join(str(each.seq) for each in left)}"
    usable = [each for each in ledger.backups() if not each.why and backup in (0, each.number)]
    if not usable:
        raise NotFoundError(
            f"there is no undamaged backup {backup}" if backup else "there is no undamaged backup",
            next_step="trmcloud admin ledger backups; or enter a run's cost: trmcloud admin "
            "ledger settle RUN USD",
        )
    chosen = usable[0]
    before = f"backup {chosen.number} ends with record {chosen.seq}, of {_when(chosen.at)} UTC"
    if not yes and not is_confirmed(f"{before}: replace the ledger by it?", before=before):
        sys.exit(1)
    done = ledger.restore(time.time(), why, chosen.number)
    if done is None:
        raise NotFoundError(
            "there is no undamaged backup", next_step="trmcloud admin ledger backups"
        )
    state = ledger.read()
    shown = _restored([], done, forgotten_runs(home, state))
    print_answer(shown, restored_lines(home, state, done), as_json=as_json)


@app.command("settle")
def settle(
    name: Annotated[str, typer.Argument(help="Id of a run, or #12 for record 12.")],
    amount: Annotated[str, typer.Argument(help="Its cost, in USD.", metavar="USD")],
    as_json: options.Json = False,
) -> None:
    """Enter what a run with damaged records cost, from its provider's bill. It counts as spent.

    Example: trmcloud admin ledger settle r-1f3a9c 7.25
    """
    cost = parse_cap(amount, f"trmcloud admin ledger settle {name} 7.25")
    settle_damage(build_context(), name, cost)
    counted = views.DamageCounted(name=name, cost_usd=cost)
    print_answer(counted, [f"{name}: counted as {cost}"], as_json=as_json)


@app.command("move")
def move(
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="URL",
            help="postgresql://HOST/DATABASE, or sqlite for this home's file "
            "(default: $TRMCLOUD_LEDGER).",
        ),
    ] = "",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Move the ledger to a PostgreSQL database that a team shares, or back to this home's file.

    Every record, hash and driver is copied, read back and compared before the old place is marked
    as moved. A home without records uses what is there. An interrupted move is finished by the
    same command. Nothing else may use the ledger meanwhile. A password is best kept in ~/.pgpass.

    Example: trmcloud admin ledger move --to postgresql://db.example.org/trmcloud
    """
    if target not in ("", "sqlite") and not target.startswith(("postgresql://", "postgres://")):
        raise UsageError(  # the value may hold a password: it is not quoted
            "--to takes sqlite, or the URL of a PostgreSQL database",
            next_step="--to postgresql://HOST/DATABASE",
        )
    before = "commands that use the ledger where it is now are refused after the move"
    if not yes and not is_confirmed(f"{before}: move it?", before=before):
        sys.exit(1)
    done = move_ledger(target)
    if as_json:
        print_document(
            views.LedgerMoved(
                ledger=done.ledger_id,
                records=done.records,
                source=done.source or None,
                target=done.target,
            )
        )
        return
    if not done.source:
        print(f"{done.ledger_id}: this home had no records, and uses the ledger at {done.target}")
        return
    print(f"{done.ledger_id}: {done.records} records moved and compared")
    print(f"from {done.source}")
    print(f"to   {done.target}")


@app.command("migrate")
def migrate(as_json: options.Json = False) -> None:
    """Bring the tables of a PostgreSQL ledger to this version of trmcloud.

    Clients of earlier versions are refused from then on.

    Example: trmcloud admin ledger migrate
    """
    before, now = migrate_ledger()
    line = f"the tables are of version {now}" + (f", and were of {before}" if before < now else "")
    migrated = views.LedgerMigrated(version_before=before, version_now=now)
    print_answer(migrated, [line], as_json=as_json)


def _restored(
    mended: Sequence[int], done: Restoration | None = None, forgotten: Sequence[str] = ()
) -> views.LedgerRestored:
    return views.LedgerRestored(
        mended=tuple(mended),
        backup=done.backup.number if done is not None else None,
        up_to_seq=done.backup.seq if done is not None else None,
        newest_known_seq=done.newest_seq if done is not None else None,
        complete=done is None or done.is_complete,
        aside=str(done.aside) if done is not None and done.aside is not None else None,
        forgotten_runs=tuple(forgotten),
    )


def _when(at: float) -> str:
    return f"{dt.datetime.fromtimestamp(at, dt.timezone.utc):%Y-%m-%d %H:%M:%S}"
