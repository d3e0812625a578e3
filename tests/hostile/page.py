"""The page of a soak of hostile contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.hostile.doors import DOORS
from tests.hostile.judge import ALLOWED

_MOST_SHOWN = 60


def page(kept: Mapping[str, Any], date: str, trees: int) -> str:
    """The page that docs/soak keeps; ``kept`` is a state, ``trees`` how many were asked for."""
    done = sum(len(doors) == 2 for doors in kept["done"].values())
    doors, findings = kept["doors"], kept["findings"]
    visits = sum(row["visits"] for row in doors.values())
    missing = "" if done >= trees else f" of {trees:,} so far"
    lines = [
        "# Hostile contents: what a repository's author may write, at every door",
        "",
        "Each tree holds one to four kinds of hostile contents among benign files, and is taken",
        "through two doors drawn at random, with keys in the environment and in files. strace",
        "records what was executed, opened, written and connected to. Whatever is not allowed by",
        "name is a finding.",
        "",
        f"- date: {date}",
        "- command: `make hostile-contents`",
        f"- commit: `{kept['code']}`",
        f"- trees: **{done:,}**{missing}; visits: {visits:,}, "
        f"{kept['cpu_s'] / max(1, visits):.2f} s"
        " of CPU time each",
        f"- findings: **{len(findings)}**",
        "",
        "| door | visits | findings | exit status, with how many visits |",
        "|---|---:|---:|---|",
    ]
    found = Counter(finding["door"] for finding in findings)
    for door in DOORS:
        row = doors.get(door, {"visits": 0, "codes": {}})
        codes = sorted(row["codes"].items(), key=lambda item: -item[1])
        told = ", ".join(f"{code}: {count}" for code, count in codes)
        lines.append(f"| {door} | {row['visits']:,} | {found[door]} | {told} |")
    lines += [
        "",
        "A status above 0 is a refusal with its reason: 2 usage, 9 data, 10 checkpoint, and others",
        "of the [table of exit codes](../commands.md).",
        "",
        "Allowed to be started, by absolute path:",
        "",
        *(f"- {words}" for words in ALLOWED),
        "",
        "| kind of contents | visits | " + " | ".join(DOORS) + " |",
        "|---|---:|" + "---:|" * len(DOORS),
    ]
    for kind in sorted(kept["kinds"]):
        counts = kept["kinds"][kind]
        cells = " | ".join(str(counts.get(door, 0)) for door in DOORS)
        lines.append(f"| {kind} | {sum(counts.values()):,} | {cells} |")
    if findings:
        lines += ["", "Findings; `python -m tests.hostile --only TREE` replays one:", ""]
        lines += [
            f"- tree {each['number']}, {each['door']}: {each['kind']}:"
            f" `{_below(each['detail'])[:160]}`"
            for each in findings[:_MOST_SHOWN]
        ]
        if len(findings) > _MOST_SHOWN:
            lines.append(f"- and {len(findings) - _MOST_SHOWN:,} more")
    return "\n".join([*lines, ""])


def _below(detail: str) -> str:
    """Without the place of the checkout."""
    return detail.replace(f"{Path(__file__).resolve().parents[2]}/", "")
