"""``trmcloud doctor``: check this machine and say what to mend."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check what trmcloud needs here, each with its fix.

    Example: trmcloud doctor
    """
    from trmcloud.app.doctor import examine
    from trmcloud.wiring import build_world, local_machine, python_path

    findings = examine(build_world, local_machine, python_path)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    else:
        for finding in findings:
            mark = {"ok": "✔", "warn": "!", "bad": "✘"}[finding.state]
            print(f"{mark} {finding.name:<10} {finding.detail}")
            if finding.fix:
                print(f"    fix: {finding.fix}")
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)
