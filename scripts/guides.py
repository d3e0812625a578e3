"""Runs commands of the guides anew, and puts what they print in the place of what stands there:
each block below ``<!-- run -->`` of the pages named here, and each below ``<!-- run WORLD -->`` in
a world of its own.

.venv/bin/python scripts/guides.py [PAGE | PAGE:WORLD …]       # s3, budget:volume, budget:

``post-training`` needs TRL and PEFT: make .venv-own/.all-ready
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from guide_readers import Reader, World  # noqa: E402
from guide_worlds import WORLDS  # noqa: E402

import tests.registered  # noqa: E402, F401 - a guide's world writes into ledgers of its own

_BLOCK = re.compile(r"<!-- run(?: (?P<world>[a-z-]+))? -->\n```\n(?P<shown>.*?)```\n", re.DOTALL)
_TYPED = re.compile(r"^\$ ((?:trmcloud|python) (?:.*\\\n)*.*)$", re.MULTILINE)
_PLAN, _RUN = re.compile(r"launch (p-\w+)"), re.compile(r"\br-[0-9a-f]{6}\b")
_APPROVAL = re.compile(r"\ba-[0-9a-f]{8}\b")
_FETCHED = re.compile(r"([\w-]+/own)/[\w.-]+")
_COMMENT = re.compile(r"\s+# (.*)$")
_WITHIN_S = 500
_WAITING = r"  Making sure it is gone · .*\n"
_SHORT = (
    (r"(test settings.*?depth = 1), .*", r"\1, …"),
    (rf"(?m)^((?:{_WAITING}){{2}})(?:{_WAITING})+", r"\1  …\n"),
    (rf"(?m)( UTC  .*  ){re.escape(pwd.getpwuid(os.getuid()).pw_name)}$", r"\1you"),
)


def main() -> None:
    for named in sys.argv[1:] or WORLDS:
        page, is_one, only = named.partition(":")
        path = ROOT / "docs" / "guide" / f"{page}.md"
        blocks = list(_BLOCK.finditer(path.read_text("utf-8")))
        for world in dict.fromkeys(block["world"] or "" for block in blocks):
            if is_one and only != world:
                continue
            these = [block for block in blocks if (block["world"] or "") == world]
            shown = _in(WORLDS[page][world], these)
            text = path.read_text("utf-8")  # which may have been edited meanwhile
            for block, anew in zip(these, shown, strict=True):
                text = text.replace(block[0], anew, 1)
            path.write_text(text, encoding="utf-8")


def _in(world: World, blocks: Sequence[re.Match[str]]) -> list[str]:
    """Blocks that were run one after another in such a world."""
    with tempfile.TemporaryDirectory() as folder, world(Path(folder)) as reader:
        try:
            return [_again(reader, block) for block in blocks]
        finally:
            reader.user.end_everything()


def _again(reader: Reader, block: re.Match[str]) -> str:
    """A block whose commands are run now; what stands before the first one stays."""
    shown = block["shown"]
    first = _TYPED.search(shown)
    assert first is not None, shown
    kept = shown[: first.start()]
    printed = "\n".join(_run(reader, *words.split(" ", 1)) for words in _TYPED.findall(shown))
    return f"{block[0].partition('```')[0]}```\n{kept}{printed}```\n"


def _run(reader: Reader, program: str, typed: str) -> str:
    """One command, of trmcloud or of a program that the page shows, and what it prints: plan and
    run that it names are those made last, and a fetched checkpoint is the one that is there."""
    user = reader.user
    home = Path(user.env()["TRMCLOUD_HOME"])
    for pattern, made in ((_PLAN, home.glob("plans/p-*.json")), (_RUN, home.glob("runs/r-*"))):
        names = [path.stem for path in sorted(made, key=lambda path: path.stat().st_mtime)]
        if names:
            newest = names[-1] if pattern is _RUN else f"launch {names[-1]}"
            typed = pattern.sub(newest, typed)
    if _APPROVAL.search(typed):
        typed = _APPROVAL.sub(list(user.ledger().approvals)[-1], typed)
    typed = _FETCHED.sub(lambda named: _only_in(user.folder, named[1]), typed)
    print(f"$ {program} {typed}", flush=True)
    comment = _COMMENT.search(typed)
    told = comment[1] if comment is not None else ""
    reader.before.get(told, lambda: None)()
    meanwhile = threading.Thread(target=reader.during.get(told, lambda: None))
    meanwhile.start()
    words = shlex.split(_COMMENT.sub("", typed).replace("\\\n", " "))
    is_ours = program == "trmcloud"
    done = subprocess.run(
        [*((sys.executable, "-u", *user.program) if is_ours else (reader.python, "-u")), *words],
        cwd=user.folder,
        env=user.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    meanwhile.join()
    print(f"  code {done.returncode}", flush=True)
    out = done.stdout
    assert "Traceback" not in out, out
    for here, name in ((f"{user.home}", "~/.trmcloud"), (str(user.folder), "~")):
        out = out.replace(here, name)
    out = out.replace(str(ROOT), "~/trmcloud")
    for pattern_, short in _SHORT:
        out = re.sub(pattern_, short, out)
    lines = _excerpt(reader, typed, out.rstrip().splitlines())
    return "\n".join([f"$ {program} {typed}", *lines, ""])


def _only_in(folder: Path, below: str) -> str:
    """The one entry of that folder, by its path below ``folder``."""
    [entry] = (folder / below).iterdir()
    return f"{below}/{entry.name}"


def _excerpt(reader: Reader, typed: str, lines: list[str]) -> list[str]:
    """What the page shows of it, ``…`` for the rest."""
    wanted = next((what for start, what in reader.only.items() if typed.startswith(start)), None)
    if wanted is None:
        return lines
    made: list[str] = []
    for line in lines:
        if re.search(wanted, line):
            made.append(line)
        elif line.strip() and made[-1:] != ["…"]:
            made.append("…")
    return made


if __name__ == "__main__":
    main()
