"""The program that reads a command's entry script before it starts: see ``first_checks``.

The command's own interpreter runs it (``python script_check.py < QUESTION``): it compiles the
script, follows it from its first line for as long as it is certain what runs, and looks for the
modules and files that it needs. Nothing of the user's is imported or run. Each finding is a line of
JSON. Standard library only; Python 3.9 and later.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import sys
import warnings
from collections.abc import Sequence
from typing import Any

try:  # a Python may have been built without it
    import ctypes
except ImportError:
    ctypes = None  # type: ignore[assignment]

# -- texts, which a crash has too ------------------------------------------------------------------

SEND = "send it with --data DIR, or add it to the files that git lists"


def no_module(names: Sequence[str], pip: str) -> str:
    told = ", ".join(f"No module named '{name}'" for name in names)
    where = pip or "requirements.txt"
    return f"{told}: add the package to {where}, and pass --pip {where}"


def no_variable(name: str) -> str:
    return f"the variable {name} is not set: pass --env {name}"


def old_driver(wanted: str, has: int) -> str:
    """``has``: as the driver says it, 12040 for 12.4."""
    major, minor = has // 1000, has % 1000 // 10
    return (
        f"{wanted} is newer than this machine's driver, which has {major}.{minor}: install a torch "
        f"for CUDA {major} with --pip, or choose such an --image"
    )


def hosts_in(texts: Sequence[str]) -> list[str]:
    """Host and port of those texts that are the whole address of a file."""
    found = (re.fullmatch(r"http(s?)://([\w.-]+)(:\d+)?/\S+", text) for text in texts)
    usual = {"": ":80", "s": ":443"}
    return sorted({match[2] + (match[3] or usual[match[1]]) for match in found if match})


# -- what the interpreter reads of the script ----------------------------------------------------

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
            self.others.append((node.lineno, no_variable(key)))
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
            told = f"No such file or directory: '{first}': {SEND}"
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
            _say(True, f"No such file or directory: '{script}': {SEND}")
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
        follower.others.append((follower.modules[0][0], no_module(list(names), pip)))
    if follower.others:
        line, told = min(follower.others)
        _say(True, f"{script}, line {line}: {told}")
        return
    _check_torch(parsed)
    _say(None, " ".join(_imports_of(parsed)))
    sys.path[:] = before
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        _check_hosts([*hosts, *hosts_in([_text(node) for node in ast.walk(parsed)])])


def _imports_of(tree: ast.Module) -> list[str]:
    """The top-level modules that its first level imports, whatever happens, in their order."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    tops = dict.fromkeys(name.partition(".")[0] for name in names)
    return [name for name in tops if _place_of(name) != "stdlib"]


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
        _say(False, old_driver(f"CUDA {built[1]}.{built[2]} of its torch", has))


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in list(dict.fromkeys(hosts))[:4]:
        name, _, port = host.partition(":")
        try:
            socket.create_connection((name, int(port)), timeout=3.0).close()
        except OSError as error:
            told = f"{host} cannot be reached from this machine ({error.strerror or error}): send"
            _say(False, f"{told} the data with --data DIR", name)


def _say(is_certain: bool | None, text: str, host: str = "") -> None:
    """``is_certain``: None where nothing is wrong: ``text`` has what the script imports."""
    print(json.dumps([is_certain, text, host]), flush=True)


if __name__ == "__main__":
    _answer(*json.load(sys.stdin))
