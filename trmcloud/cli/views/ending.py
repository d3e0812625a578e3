"""Pods that a person named: those listed, and what came of their end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trmcloud.core.plain_text import one_line

if TYPE_CHECKING:
    from trmcloud.app.ending import EndedByName, Listed


def tell_listed(found: Listed) -> None:
    for each in found.pods:
        print(one_line(f"{each.pod.name} on {each.provider}, {each.pod.rate}/h"))
    _tell_unreachable(found)


def tell_ending(run: str, ended: EndedByName, why: str) -> None:
    """``why``: what is wrong with the ledger; empty where nothing is."""
    for provider, name in ended.asked:
        print(one_line(f"{run}: asked {provider} to end {name}" if run else f"ended {name}"))
    for provider, name, said in ended.failed:
        print(one_line(f"could not end {name} on {provider}: {said}"), file=sys.stderr)
    _tell_unreachable(ended.listed)
    if ended.recorded:
        return
    if why:
        print(one_line(f"the ledger was not used: {why}"), file=sys.stderr)
    if ended.kept_at:
        note = f"this is kept in {ended.kept_at} until a command can write the ledger"
        print(one_line(note), file=sys.stderr)
    else:
        print(
            "this could be kept nowhere: when the ledger can be written, "
            f"trmcloud stop --now {run or 'RUN'} puts it on record",
            file=sys.stderr,
        )


def ending_code(ended: EndedByName) -> int:
    """0 where every pod that is listed was asked to end, and every provider gave a list."""
    return 11 if ended.failed or ended.listed.unreachable else 0


def _tell_unreachable(found: Listed) -> None:
    for provider, why in found.unreachable:
        print(one_line(f"{provider} gave no list: {why}"), file=sys.stderr)
