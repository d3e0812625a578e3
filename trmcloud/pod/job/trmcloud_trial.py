"""Observes the Python processes of a tried command, which load it as ``sitecustomize``.

An audit hook notes each path that a process opens, each module that it imports and the interpreter
that runs it, as lines of JSON. A ``sitecustomize`` that stands later on the path still runs. Code
that opens files without Python's ``open``, as compiled readers do, raises no event. Run as a
program, ``python trmcloud_trial.py < QUESTION``, it says which installed distributions hold
modules. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import machinery
from importlib import util as importing
from typing import Any

ENV_SEEN = "TRMCLOUD_TRIAL_SEEN"
"""The file that lines are appended to; without it nothing is observed."""
MOST_LINES = 4000
"""Of one process; later paths and modules are not noted."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class _Observer:
    def __init__(self, target: str) -> None:
        self._target = target
        self._known: set[object] = set()
        self._left = MOST_LINES
        self._is_writing = False
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__)}
        system = {
            "/proc",
            "/sys",
            "/dev",
            "/usr",
            "/lib",
            "/lib64",
            "/etc",
            "/bin",
            "/sbin",
            "/run",
        }
        self._passed_over = tuple(
            path.rstrip("/") + "/" for path in prefixes | system if path.strip("/")
        )
        self._say({"python": sys.executable, "version": ".".join(map(str, sys.version_info[:2]))})

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._is_writing:
            return
        try:
            if event == "open":
                self._opened(*args[:3])
            elif event == "import":
                self._imported(args[0])
            elif event == "os.rename":
                self._opened(args[1], "w", 0)
        except Exception:  # the command must not end by what observes it
            return

    def _opened(self, path: Any, mode: str | None, flags: int | None) -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str):
            return
        writes = any(letter in mode for letter in "wax+") if mode else bool((flags or 0) & _WRITES)
        if (path, writes) in self._known:
            return
        self._known.add((path, writes))
        whole = os.path.abspath(path)
        if whole.startswith(self._passed_over) or "/site-packages/" in whole:
            return
        self._say({"path": whole, "writes": writes, "there": os.path.lexists(whole)})

    def _imported(self, name: str) -> None:
        top = name.partition(".")[0]
        if top not in self._known:
            self._known.add(top)
            if top not in getattr(sys, "stdlib_module_names", ()):
                self._say({"module": top})

    def _say(self, line: Mapping[str, object]) -> None:
        if self._left <= 0:
            return
        self._left -= 1
        # Opened for each line: a script may close every descriptor that it does not know.
        self._is_writing = True
        try:
            handle = os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(handle, json.dumps(line).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError:
            self._left = 0
        finally:
            self._is_writing = False


def observe() -> None:
    """Observe this process, if the environment says where to; then run the ``sitecustomize`` that
    this module stands in the place of."""
    target = os.environ.get(ENV_SEEN)
    if target:
        sys.addaudithook(_Observer(target))
    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != own]
    found = machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        module = importing.module_from_spec(found)
        sys.modules["sitecustomize"] = module
        found.loader.exec_module(module)


def distributions(modules: Sequence[str], named: Sequence[str]) -> dict[str, Any]:
    """Return ``{"of": {module: [distribution, …]}, "brought": [distribution, …]}``: which installed
    distributions hold each module, and all that the ``named`` ones require, themselves included.
    Names are normalised as PEP 503 says."""
    from importlib import metadata  # it costs each observed process more than all else here

    holders: Mapping[str, Sequence[str]] = getattr(metadata, "packages_distributions", dict)()
    of = {name: sorted({_plain(each) for each in holders.get(name, ())}) for name in modules}
    brought: set[str] = set()
    pending = [_plain(name) for name in named]
    while pending:
        name = pending.pop()
        if name in brought:
            continue
        brought.add(name)
        try:
            needs = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        pending += [_plain(need) for need in needs if "extra ==" not in need]
    return {"of": of, "brought": sorted(brought)}


def _plain(requirement: str) -> str:
    letters = ""
    for letter in requirement.strip():
        if not (letter.isalnum() or letter in "._-"):
            break
        letters += letter
    return "-".join(filter(None, letters.lower().replace("_", "-").replace(".", "-").split("-")))


if __name__ == "sitecustomize":
    observe()
elif __name__ == "__main__":
    question = json.load(sys.stdin)
    answer = distributions(question["modules"], question["named"])
    json.dump({"python": sys.executable, **answer}, sys.stdout)
