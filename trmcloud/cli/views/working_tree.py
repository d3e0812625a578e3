"""What of the working tree is sent, before anybody is asked to proceed."""

from __future__ import annotations

from trmcloud.app.staging.working_tree import IGNORE_NAME, WorkingTree
from trmcloud.core.plain_text import one_line

_NAMED = 5


def tree_lines(tree: WorkingTree, *, verbose: bool = False) -> list[str]:
    """``code sent  12 files, 34.5 kB, by git's list``, and what was left out, a line each; with
    ``verbose`` every file."""
    source = "by git's list" if tree.by_git else "all that is not hidden: git keeps no list here"
    files = f"{len(tree.names):,} file{'s' * (len(tree.names) != 1)}"
    lines = [f"  code sent       {files}, {size_text(tree.size_bytes)}, {source}"]
    if tree.keys:
        lines.append(f"  · left out, as keys: {_some(tree.keys)}")
        lines.append(
            f"    to send one all the same: a line !{one_line(tree.keys[0])} in {IGNORE_NAME}"
        )
    if tree.links:
        lines.append(f"  · left out, as links: {_some(tree.links)}")
    if verbose:
        lines += [f"    {one_line(name)}" for name in tree.names]
        lines.append(f"  · {IGNORE_NAME} leaves out more")
    return lines


def size_text(size: int) -> str:
    for unit, each in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= each:
            return f"{size / each:.1f} {unit}"
    return f"{size} bytes"


def _some(names: tuple[str, ...]) -> str:
    told = ", ".join(one_line(name) for name in names[:_NAMED])
    more = len(names) - _NAMED
    return f"{told} and {more} more" if more > 0 else told
