"""Puts real output into README.md: the demo's transcript, and the table of commands.

make demo > demo.log && .venv/bin/python scripts/readme.py demo.log
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BEAT = re.compile(r"(fast|extreme)( \w+)? step [\d,]+/")
_EVERY_NTH_BEAT = 5


def main() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    text = _between(text, "help", help_table())
    if len(sys.argv) > 1:
        text = _between(text, "demo", transcript(Path(sys.argv[1]).read_text(encoding="utf-8")))
    readme.write_text(text, encoding="utf-8")


def help_table() -> str:
    """What ``trmcloud --help`` lists, as it prints it at 80 columns."""
    answer = subprocess.run(
        [str(Path(sys.executable).parent / "trmcloud"), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    lines = [line.rstrip() for line in _ANSI.sub("", answer.stdout).splitlines()]
    first = next(n for n, line in enumerate(lines) if "─ Before" in line)
    return "\n".join(lines[first:]).strip()


def transcript(log: str) -> str:
    """The demo as printed, without colours and this machine's paths; of the progress lines, which
    come every ten seconds, each fifth."""
    clean = _ANSI.sub("", log).replace(str(ROOT) + "/", "").replace("\r", "")
    lines = clean[clean.index("$ trmcloud plan") :].splitlines()
    kept, beats = [], 0
    for line in lines:
        if _BEAT.match(line):
            beats += 1
            if beats % _EVERY_NTH_BEAT != 1:
                continue
        kept.append(line.rstrip())
    return "\n".join(kept).strip()


def _between(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n```\n{content}\n```\n{end}{after}"


if __name__ == "__main__":
    main()
