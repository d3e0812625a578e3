"""Checks of a command on its own machine before it starts, and of a crash in its first minutes.

``fails`` ends a run only for what must fail, whatever the rest of the script does: the entry script
is followed from its first line for as long as it is certain what runs. What is not certain is a
warning, or not checked. Nothing of the user's is imported or run: the command's own interpreter
runs this file as a program (``python first_checks.py < QUESTION``), reads the script and looks for
modules. Standard library only; the program runs on Python 3.9 and later.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Any

try:  # a Python may have been built without it
    import ctypes
except ImportError:
    ctypes = None  # type: ignore[assignment]

if TYPE_CHECKING:  # as a program, this file stands alone
    from trmcloud.core.contract.command import Command

FIRST_S = 600.0
"""From its start, the time in which a crash is judged by its last lines."""
_ASK_S = 20.0
_HANG_S = 60.0
_BUSY_S = 1.0
"""Seconds of a processor in ``_HANG_S``; a command that used more of it is no hang."""
_LAST = 80
_WIDEST = 500
_PROBE_BYTES = 1 << 16


class FirstChecks:
    """The checks of one attempt of one command. ``command.unchecked`` turns all of them off."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.warnings: list[str] = []
        self._lost: dict[str, str] = {}
        """By host, the one of these that it cannot be reached."""
        self._lines: deque[str] = deque(maxlen=_LAST)
        self._looked: tuple[float, float] | None = None
        """When the command last printed or computed (epoch seconds), and its processor time (s)."""
        self._hangs = ""

    def fails(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> str:
        """Return why ``words`` must fail in ``folder``, and what to change; empty where that is not
        certain. Takes a fraction of a second, 20 s at most."""
        if self._command.unchecked:
            return ""
        try:
            wrong = self._of_script(words, folder, environment)
            return wrong or self._of_places(folder, environment)
        except (OSError, ValueError):
            return ""  # a check that fails is no reason to end a run

    def saw(self, line: bytes) -> None:
        """Note a line of the command's log."""
        self._lines.append(line[:_WIDEST].decode("utf-8", "replace").rstrip())

    def notes(self, now: float, *, printed: bool, pids: Sequence[int]) -> list[str]:
        """Return the warnings of now.

        Args:
            now: epoch seconds.
            printed: whether the command has shown any sign of life since its start.
            pids: its processes.
        """
        if not printed and not self._command.unchecked:
            used_s = sum(map(cpu_s, pids))
            if self._looked is None or abs(used_s - self._looked[1]) >= _BUSY_S:
                self._looked, self._hangs = (now, used_s), ""
            elif now - self._looked[0] >= _HANG_S:
                self._hangs = (
                    "it has printed and computed nothing for 60 s and may hang, at an import or a "
                    "download: trmcloud stop, or --silent 120 to end such a run by itself"
                )
        told = [each for each in self.warnings if each not in self._lost.values()]
        return [*told, self._hangs] if self._hangs and not printed else told

    def crash(self) -> tuple[str, str] | None:
        """Return the outcome and the reason of a crash that another start would only repeat, by the
        last exception in the log; None for any other crash."""
        raised = [match for line in self._lines if (match := _RAISED.match(line))]
        if self._command.unchecked or not raised:
            return None
        last = raised[-1][1]
        text = "\n".join(self._lines)
        if re.search(r"CUDA out of memory|RESOURCE_EXHAUSTED: Out of memory", last):
            total = re.search(r"total capacity of (\d+)", last)
            more = 2 * int(total[1]) if total else 48
            return "out_of_memory", (
                "the GPU's memory was full before the first checkpoint: use a smaller batch, or a "
                f"larger GPU: run any --memory {more}"
            )
        if found := re.search(r"No module named '([\w.]+)'", last):
            return "bad_config", _no_module([found[1].partition(".")[0]], self._command.pip)
        if found := re.search(r"driver on your system is too old \(found version (\d+)\)", last):
            return "bad_config", _old_driver("the CUDA of its torch", int(found[1]))
        if _OF_ENVIRON.search(text) and (found := re.search(r"KeyError: '(\w+)'$", last)):
            return "bad_config", _no_variable(found[1])
        if found := re.search(r"\[Errno 2\] (No such file or directory: '[^/'].*[./].*')", last):
            return "bad_config", f"{found[1]}: {_SEND}"
        lost = (told for host, told in self._lost.items() if host in text)
        return next((("bad_config", told) for told in lost), None)

    def _of_script(self, words: Sequence[str], folder: str, environment: Mapping[str, str]) -> str:
        entry = entry_of(words, folder, environment)
        if entry is None:
            return ""
        python, script, variables, is_direct = entry
        hosts = _hosts([word.rpartition("=")[2] for word in words])
        tree = folder[: len(folder) - len(self._command.folder)]
        question = [script, is_direct, tree, self._command.pip, hosts]
        try:
            said = subprocess.run(
                [*python, os.path.abspath(__file__)],
                input=json.dumps(question).encode(), cwd=folder, env=variables,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_ASK_S,
            ).stdout  # fmt: skip
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
        wrong = ""
        for line in said.splitlines():
            try:  # a sitecustomize may print anything
                is_certain, text, host = json.loads(line)
            except (ValueError, TypeError):
                continue
            if is_certain is True:
                wrong = wrong or str(text)
            elif is_certain is False:
                self.warnings.append(str(text))
                self._lost.update({str(host): str(text)} if host else {})
        return wrong

    def _of_places(self, folder: str, environment: Mapping[str, str]) -> str:
        """Whether checkpoints can be written, read back, and kept."""
        home = environment.get("HOME") or os.path.expanduser("~")
        named = self._command.checkpoints
        places = [_place(name, folder, home) for name in named.split(os.pathsep)]
        closed = {place: told for place in places if (told := _why_closed(place))}
        if named and len(closed) == len({*places}):
            told = next(iter(closed.values()))
            return f"--checkpoints {named}: {told}: name a folder that can be written"
        most = self._command.checkpoint_bytes
        able = [place for place in places if place not in closed and os.path.isdir(place)]
        free = max((shutil.disk_usage(place).free for place in able), default=2 * most)
        if free >= 2 * most:
            return ""
        told = (
            f"{free / 1e9:.3g} GB are free, too few for two checkpoints of {most / 1e9:.3g} GB: "
            f"use a larger disk, or --checkpoint-gb {max(1e-3, free / 2.5e9):.2g}"
        )
        if most != type(self._command).checkpoint_bytes:
            return told
        self.warnings.append(told)  # the default size was not chosen for this command
        return ""


def _place(name: str, folder: str, home: str) -> str:
    """The folder on the disk that is nearest above a place, whose name may be a pattern."""
    plain = "/".join(takewhile(lambda part: not set(part) & set("*?["), name.split("/")))
    path = os.path.join(folder, home + plain[1:] if plain.startswith("~") else plain)
    return path if os.path.isdir(path) else os.path.dirname(path)


def _why_closed(folder: str) -> str:
    """Why a file cannot be written into ``folder`` and read back; empty where it can, or where that
    is not known."""
    data = os.urandom(_PROBE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(data)
            file.seek(0)
            return "" if file.read() == data else "what is written there reads back otherwise"
    except OSError as error:
        known = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC)
        return f"{error.strerror}: '{folder}'" if error.errno in known else ""


def cpu_s(pid: int) -> float:
    """Processor time of a process, s; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


# -- words ---------------------------------------------------------------------------------------

_RAISED = re.compile(
    r"(?:\[rank\d+\]: ?)?((?!torch\.distributed\.elastic|subprocess\.Called)"
    r"[\w.]*(?:Error|Exception)\b.*)"
)
"""The line of an exception, also of one rank. The one of a launcher (torchrun) follows it."""
_OF_ENVIRON = re.compile(r"""(?:os\.py|<frozen os>)", line \d+, in __getitem__(?:\n.*){0,4}\Z""")
"""The last call of a traceback whose key is that of ``os.environ``."""
_SEND = "send it with --data DIR, or add it to the files that git lists"


def _no_module(names: Sequence[str], pip: str) -> str:
    told = ", ".join(f"No module named '{name}'" for name in names)
    where = pip or "requirements.txt"
    return f"{told}: add the package to {where}, and pass --pip {where}"


def _no_variable(name: str) -> str:
    return f"the variable {name} is not set: pass --env {name}"


def _old_driver(wanted: str, has: int) -> str:
    """``has``: as the driver says it, 12040 for 12.4."""
    major, minor = has // 1000, has % 1000 // 10
    return (
        f"{wanted} is newer than this machine's driver, which has {major}.{minor}: install a torch "
        f"for CUDA {major} with --pip, or choose such an --image"
    )


def _hosts(texts: Sequence[str]) -> list[str]:
    """Host and port of those texts that are the whole address of a file."""
    found = (re.fullmatch(r"http(s?)://([\w.-]+)(:\d+)?/\S+", text) for text in texts)
    usual = {"": ":80", "s": ":443"}
    return sorted({match[2] + (match[3] or usual[match[1]]) for match in found if match})


# -- the entry script and its interpreter --------------------------------------------------------

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*")
_SETS = re.compile(r"\w+=")
_FLAGS = ("-u", "-O", "-OO", "-B", "-q")
_LAUNCHERS = ("torchrun", "accelerate")
_OTHER_ENTRY = ("-m", "--mod", "--no-p", "--no_p", "--run", "--py")
"""Beginnings of launchers' options by which the first script is not what they run."""


Entry = tuple[list[str], str, Mapping[str, str], bool]
"""The interpreter with its options, the script that it runs, the environment, and whether no
launcher stands before it, which may set variables."""


def entry_of(words: Sequence[str], folder: str, environment: Mapping[str, str]) -> Entry | None:
    """Return what ``words`` start in ``folder``; None where that is not certain."""
    rest, variables = list(words), dict(environment)
    if os.path.basename(rest[0]) == "env":
        rest = list(dropwhile(_SETS.match, rest[1:]))
        variables.update(word.partition("=")[::2] for word in takewhile(_SETS.match, words[1:]))
    name = os.path.basename(rest[0]) if rest else ""
    word = os.path.join(folder, rest[0]) if "/" in "".join(rest[:1]) else name
    program = shutil.which(word, path=variables.get("PATH")) if word else None
    is_direct = bool(_PYTHON.fullmatch(name))
    python, rest = [program or "", *takewhile(_FLAGS.__contains__, rest[1:])], rest[1:]
    if is_direct:
        rest = rest[len(python) - 1 : len(python)]
    elif name not in _LAUNCHERS or any(word.startswith(_OTHER_ENTRY) for word in rest):
        return None
    elif program:
        with open(program, "rb") as file:
            first = re.match(rb"#!(/\S+/python[0-9.]*)\n", file.readline(_WIDEST))
            python = [first[1].decode() if first else ""]
    script = next((word for word in rest if word.endswith(".py")), "")
    return (python, script, variables, is_direct) if python[0] and script else None


# -- the program: what the command's own interpreter reads of the script -------------------------

_HARMLESS = re.compile(
    r"numpy|scipy|pandas|torch|torchvision|torchaudio|transformers|datasets|tokenizers|safetensors"
    r"|accelerate|peft|sklearn|matplotlib|tqdm|yaml|einops|PIL|jax|flax|optax|requests"
    r"|huggingface_hub|trmcloud_job"
)
"""Packages whose import ends no program and makes no other module importable. Of others that is not
known."""
_QUIET = re.compile(
    r"print|int|float|str|bool|len|dict|list|tuple|set|range|min|max|re\.compile|time\.time"
    r"|os\.(path\.\w+|getcwd|getenv|environ\.(get|setdefault))|random\.seed"
    r"|pathlib\.Path(\(\)(\.parent)*\.(resolve|absolute|expanduser|exists|is_file|is_dir))?"
    r"|open\(\)\.(read|readlines|close)|json\.load|yaml\.safe_load|logging\.getLogger"
    r"|warnings\.(filterwarnings|simplefilter)|torch\.(device|manual_seed)|numpy\.random\.seed"
    r"|collections\.namedtuple|dataclasses\.(dataclass|field)"
)
"""Calls that end no program, set no variable, write no file and change no path of imports."""
_MAYBE = (
    ast.IfExp, ast.BoolOp, ast.Compare, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp
)  # fmt: skip
"""Expressions of which a part may not run."""


class _Follower:
    """Follows a script from its first line for as long as it is certain what runs. Methods return
    False where that ends."""

    def __init__(self, tree: str, is_direct: bool) -> None:
        self._tree, self._is_direct = os.path.join(os.path.realpath(tree), ""), is_direct
        self._names: dict[str, str] = {}
        """By a name of the script: what it was imported as; empty for one of the script's own."""
        self._set: set[str] = set()
        self.modules: list[tuple[int, str]] = []
        self.others: list[tuple[int, str]] = []
        """By line: what is missing."""

    def block(self, body: Sequence[ast.stmt], certain: bool) -> bool:
        return all(self._statement(each, certain) for each in body)

    def _statement(self, node: Any, certain: bool) -> bool:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self._import(node, certain)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._names[node.name] = ""
            defaults = [each for each in node.args.kw_defaults if each is not None]
            made = [*node.decorator_list, *node.args.defaults, *defaults]
            return self._all(made, certain) and all(map(self._dotted, node.decorator_list))
        if isinstance(node, ast.ClassDef):
            self._names[node.name] = ""
            made = [*node.decorator_list, *node.bases, *(each.value for each in node.keywords)]
            known = all(map(self._dotted, node.decorator_list))
            return known and self._all(made, certain) and self.block(node.body, certain)
        if isinstance(node, ast.If):
            if self._dotted(node.test) == "typing.TYPE_CHECKING":
                return self.block(node.orelse, certain)
            rest = [*node.body, *node.orelse]
            return self._expression(node.test, certain) and self.block(rest, False)
        if isinstance(node, ast.Try):
            caught = [each for handler in node.handlers for each in handler.body]
            return self.block([*node.body, *caught, *node.orelse, *node.finalbody], False)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values = [node.value] if node.value is not None else []
            return self._all(values, certain) and all(map(self._bind, targets))
        if isinstance(node, ast.Expr):
            return self._expression(node.value, certain)
        return isinstance(node, ast.Pass)

    def _bind(self, target: Any) -> bool:
        if isinstance(target, ast.Tuple):
            return all(map(self._bind, target.elts))
        if isinstance(target, ast.Name):
            self._names[target.id] = ""
            return True
        key = self._variable(target)
        self._set.add(key)
        return bool(key)

    def _all(self, nodes: Sequence[Any], certain: bool) -> bool:
        return all(self._expression(each, certain) for each in nodes)

    def _expression(self, node: Any, certain: bool) -> bool:
        if isinstance(node, ast.Lambda):
            return True
        if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return False
        certain = certain and not isinstance(node, _MAYBE)
        if not self._all(list(ast.iter_child_nodes(node)), certain):
            return False
        if isinstance(node, ast.Call):
            return self._call(node, certain)
        key = self._variable(node)
        if key and certain and self._is_direct and key not in {*os.environ, *self._set}:
            self.others.append((node.lineno, _no_variable(key)))
        return True

    def _call(self, node: ast.Call, certain: bool) -> bool:
        name, first = self._dotted(node.func), _text(node.args[0] if node.args else None)
        if name == "os.environ.setdefault":
            self._set.add(first)
        if name != "open":
            return _QUIET.fullmatch(name) is not None
        modes = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "mode")]
        others = {each.arg for each in node.keywords} - {"mode", "encoding", "errors", "newline"}
        if not first or others or any(_text(mode) not in ("r", "rb", "rt") for mode in modes):
            return False
        if certain and not os.path.exists(first):
            told = f"No such file or directory: '{first}': {_SEND}"
            self.others.append((node.lineno, told))
        return True

    def _import(self, node: Any, certain: bool) -> bool:
        of = "" if isinstance(node, ast.Import) else f"{node.module or ''}."
        if getattr(node, "level", 0) or any(each.name == "*" for each in node.names):
            return False
        for each in node.names:
            whole = f"{of}{each.name}"
            bound = each.asname or each.name if of else each.asname or each.name.partition(".")[0]
            self._names[bound] = whole if of or each.asname else bound
            top = whole.partition(".")[0]
            place = _place_of(top)
            if place is None:
                if certain:
                    self.modules.append((node.lineno, top))
            elif place != "stdlib":
                is_own = not place or os.path.realpath(place).startswith(self._tree)
                if is_own or not _HARMLESS.fullmatch(top):
                    return False
        return True

    def _variable(self, node: Any) -> str:
        """``X`` of ``os.environ["X"]``; empty for anything else."""
        is_of = isinstance(node, ast.Subscript) and self._dotted(node.value) == "os.environ"
        key: Any = node.slice if is_of else None
        return _text(key)

    def _dotted(self, node: Any) -> str:
        """``os.path.join`` of such an expression, by what its first name was imported as, with
        ``()`` for a call in it; empty where that is not known."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        before = node.func if isinstance(node, ast.Call) else getattr(node, "value", None)
        if not isinstance(node, (ast.Attribute, ast.Call)) or not (name := self._dotted(before)):
            return ""
        return f"{name}()" if isinstance(node, ast.Call) else f"{name}.{node.attr}"


def _text(node: Any) -> str:
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def _place_of(name: str) -> str | None:
    """Where a top-level module would be imported from: ``stdlib``, a path, or empty where that is
    not known; None where there is none."""
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, None)) is not None:
            own = os.path.dirname(os.__file__) + os.sep
            where = spec.origin or ""
            is_own = where.startswith(own) and "-packages" not in where
            return "stdlib" if is_own or where in ("built-in", "frozen") else where
    return "" if name in sys.modules else None


def _driver() -> int | None:
    """The CUDA that this machine's driver has, as 12040 for 12.4, by the library that a process
    with this environment would load; None without one."""
    try:
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value or None


def _answer(script: str, is_direct: bool, tree: str, pip: str, hosts: Sequence[str]) -> None:
    """Print a line of JSON for each thing that is wrong.

    From here on the script's folder is on the path: nothing is imported any more."""
    warnings.simplefilter("ignore")  # to show one of the compiler's imports modules
    before = sys.path[1:]
    if not getattr(sys.flags, "safe_path", False):  # in the place of this file's folder
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    if not is_direct:
        sys.path.append(os.getcwd())  # as accelerate does for DeepSpeed
    if not os.path.exists(script):
        if is_direct:
            _say(True, f"No such file or directory: '{script}': {_SEND}")
        return
    with open(script, "rb") as file:
        source = file.read()
    if b"\0" in source:
        return  # a zip or compiled code, which Python runs under any name
    try:
        compile(source, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        has = ".".join(map(str, sys.version_info[:3]))
        told = f"{script}, line {error.lineno or 1}: {error.msg} (Python {has}): correct it, or"
        _say(True, f"{told} choose an --image with the Python that it needs")
        return
    parsed = ast.parse(source)
    follower = _Follower(tree, is_direct)
    follower.block(parsed.body, True)
    if follower.modules:
        names = dict.fromkeys(name for _, name in follower.modules)
        follower.others.append((follower.modules[0][0], _no_module(list(names), pip)))
    if follower.others:
        line, told = min(follower.others)
        _say(True, f"{script}, line {line}: {told}")
        return
    _check_torch(parsed)
    sys.path[:] = before
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        _check_hosts([*hosts, *_hosts([_text(node) for node in ast.walk(parsed)])])


def _check_torch(tree: ast.Module) -> None:
    """Whether the installed torch was built for a CUDA that the driver has. A driver runs any minor
    release of its own major one; whether the script needs a GPU is its own business."""
    named = [getattr(node, "module", None) for node in ast.walk(tree)]
    named += [node.name for node in ast.walk(tree) if isinstance(node, ast.alias)]
    place = _place_of("torch") if any(f"{name}.".startswith("torch.") for name in named) else None
    has = _driver() if place else None
    if not place or has is None:
        return
    try:
        with open(os.path.join(os.path.dirname(place), "version.py"), encoding="utf-8") as file:
            built = re.search(r"(?m)^cuda\b.*= *'(\d+)\.(\d+)", file.read())
    except (OSError, ValueError):
        return
    if built and int(built[1]) > has // 1000:
        _say(False, _old_driver(f"CUDA {built[1]}.{built[2]} of its torch", has))


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in list(dict.fromkeys(hosts))[:4]:
        name, _, port = host.partition(":")
        try:
            socket.create_connection((name, int(port)), timeout=3.0).close()
        except OSError as error:
            told = f"{host} cannot be reached from this machine ({error.strerror or error}): send"
            _say(False, f"{told} the data with --data DIR", name)


def _say(is_certain: bool, text: str, host: str = "") -> None:
    print(json.dumps([is_certain, text, host]), flush=True)


if __name__ == "__main__":
    _answer(*json.load(sys.stdin))
