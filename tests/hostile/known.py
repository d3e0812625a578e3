"""Trees whose findings are known: each hole that was found in commit 0464cda3, as small as it is.

    python -m tests.hostile --known --code CHECKOUT

prints what each one comes to there. On a checkout that still has a hole, its row has the finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tests.hostile.contents import WORDS, Tree, embed, forge
from tests.hostile.doors import OUT, RUN, Visit
from tests.hostile.world import PRIVATE, sdist


@dataclass(frozen=True)
class Known:
    """``kind`` and ``part`` are of the finding that commit 0464cda3 has; ``sky``: with SkyPilot."""

    write: Callable[[Tree], None]
    visit: Visit
    kind: str
    part: str


def _dist(t: Tree) -> None:
    line = f"try: open({t.world.trap('known-sdist')!r})\nexcept OSError: pass"
    t.write("dist/evil-1.0.tar.gz", sdist("evil", "1.0", line))


def _find_links(t: Tree) -> None:
    _dist(t)
    t.write("requirements.txt", "--find-links ./dist --no-index --no-binary :all:\nevil\n")


def _absolute_find_links(t: Tree) -> None:
    _dist(t)
    t.write("requirements.txt", f"--find-links {t.root}/dist --no-index --no-binary :all:\nevil\n")


def _constraint(t: Tree) -> None:
    _dist(t)
    t.write("constraints.txt", f"evil @ file://{t.root}/dist/evil-1.0.tar.gz\n")
    t.write("requirements.txt", "-c constraints.txt\nevil\n")


def _included(t: Tree) -> None:
    t.write("requirements.txt", f"-r {t.world.outside}/secret.txt\n")


def _included_above(t: Tree) -> None:
    t.write("requirements.txt", "-r ../outside/secret.txt\n")


def _token_asked(t: Tree) -> None:
    index = f"--index-url {t.world.tree_index}/simple/\n"
    t.write("requirements.txt", f"{index}-r {t.world.outside}/token.txt\n")


def _expanded(t: Tree) -> None:
    index = t.world.tree_index
    t.write("requirements.txt", f"--index-url {index}/${{RUNPOD_API_KEY}}/simple/\nalpha\n")


def _private(t: Tree) -> None:
    index = f"--index-url {t.world.tree_index}/simple/\n"
    t.write("requirements.txt", f"{index}{PRIVATE}==1.0\n")


def _sky(t: Tree) -> None:
    t.write(".sky.yaml", f"api_server:\n  endpoint: {t.world.stranger}\n")


def _fsmonitor(t: Tree) -> None:
    program = t.program("monitor", "known-fsmonitor")
    t.git(f"[core]\n\tfsmonitor = {program}\n")


def _filter(t: Tree) -> None:
    program = t.program("filter", "known-filter")
    t.git(f'[filter "x"]\n\tclean = {program}\n')
    t.write(".gitattributes", "*.py filter=x\n")
    t.write("src/lib.py", "LR = 2e-3\n")


def _slow(t: Tree) -> None:
    t.write(".trmcloudignore", "*a" * 12 + "b\n")
    for number in range(4):
        t.write("a" * 60 + str(number), "x")


def _partial(t: Tree) -> None:
    t.link(f"{OUT}.partial", t.world.outside)


def _fifo(t: Tree) -> None:
    [folder] = t.world.product_home.glob("runs/*/*/checkpoints/step-00000002")
    (folder / "file-0001.bin").unlink()
    os.mkfifo(folder / "file-0001.bin")


def _linked_refs(t: Tree) -> None:
    (t.git() / "packed-refs").symlink_to(t.world.outside / "token.txt")


def _nothing(t: Tree) -> None:
    """A benign tree."""


def _embedded(t: Tree) -> None:
    embed(t, "bare")


def _run(*more: str, start: str = "", hardware: str = "any") -> Visit:
    words = ("run", hardware, "--budget", "2", "--dry-run", *more, "--", *WORDS)
    return Visit("run --dry-run", words, start, has_sky=hardware != "any")


_PIP = _run("--pip", "requirements.txt")
KNOWN: Mapping[str, Known] = {
    "C1 find-links": Known(_find_links, _PIP, "ran", "known-sdist"),
    "C1 find-links, an absolute path": Known(_absolute_find_links, _PIP, "ran", "known-sdist"),
    "C1 a constraint": Known(_constraint, _PIP, "ran", "known-sdist"),
    "C1 a key in an index's address": Known(_expanded, _PIP, "asked", "runpod"),
    "C2 an absolute path": Known(_included, _PIP, "printed", "stderr"),
    "C2 a path above the tree": Known(_included_above, _PIP, "opened", "outside/secret.txt"),
    "C2 a token is asked for": Known(_token_asked, _PIP, "asked", "outsidetoken"),
    "P1 a private name": Known(_private, replace(_PIP, is_private=True), "asked", "user's index"),
    "H2 .sky.yaml": Known(
        _sky, _run("--via", "skypilot", hardware="1xA100"), "connected", "127.0.0.3"
    ),
    "M3 fsmonitor": Known(_fsmonitor, _run(), "ran", "known-fsmonitor"),
    "M3 an embedded bare repository": Known(_embedded, _run(start="bare"), "ran", "bare"),
    "M6 a filter": Known(_filter, _run(), "ran", "known-filter"),
    "low: an ignore rule": Known(_slow, _run(), "slow", ""),
    "a trial's report that its command wrote": Known(
        forge,
        Visit("try", ("try", "--for", "1", "--", *WORDS), runs_command=True),
        "ran",
        "forged",
    ),
    "a link in the place of fetch-best's folder": Known(
        _partial,
        Visit("fetch-best", ("fetch-best", RUN, "--into", OUT), outputs=(OUT, f"{OUT}.partial")),
        "wrote",
        "outside",
    ),
    "a FIFO in the place of a checkpoint's file": Known(
        _fifo,
        Visit("fetch-best", ("fetch-best", RUN, "--into", OUT), outputs=(OUT, f"{OUT}.partial")),
        "slow",
        "",
    ),
    "git: a link in .git": Known(_linked_refs, _run(), "opened", "outside/token.txt"),
    "a benign tree": Known(_nothing, _run(), "environment", "git"),
}
