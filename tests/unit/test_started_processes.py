"""The places of ``trmcloud`` that may start a process, by name, each with its reason.

A program that reads another party's files (git, uv) is started by ``io.children.run_reader`` alone:
apart from the user's keys, with limits, and with all that it starts in turn. Another place needs a
line here that says why it is none. Code that is sent to a machine as text is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "trmcloud"
MAY_START = {
    "io/children.py:run_reader": "the one for another party's files",
    # The user's own command, whose plan was accepted, and its trial in a copy of the tree.
    "operations/commands/trial.py:_observe": "the observer: our code, in a trial's environment",
    "pod/job/process.py:Job._start": "the command, on the machine that it was sent to",
    "pod/job/process.py:main": "a machine's Python, for the job that it was sent",
    # Our own commands and trainer, by this Python.
    "operations/sending/data.py:_run_prepare": "model.prepare and model.tasks, which read --data",
    "operations/plans/probe_local.py:probe_local": "the trainer, for fifty steps",
    "cli/commands/evaluate.py:run_trainer_command": "model.score, model.sample, model.serve",
    "cli/commands/sweep.py:_carry_out_parts": "the command sweep, for each of several machines",
    "mcp/launcher.py:begin": "the command launch, for an agent with a grant",
    "adapters/local/timer.py:ReaperTimer.try_out": "the command reap, as the timer starts it",
    # Tools that read what trmcloud or the user has written.
    "adapters/local/machine.py:_nvidia_gpus": "nvidia-smi",
    "adapters/local/timer.py:_ask": "systemctl and crontab",
    "adapters/ssh/checks.py:_first_line": "ssh -V",
    "adapters/ssh/connection.py:_run": "ssh, with an environment of its own",
    "adapters/ssh/connection.py:SshConnection._start_master": "ssh, likewise",
    "adapters/ssh/session.py:Session.__init__": "ssh, likewise",
    "cli/commands/logs.py:ssh": "ssh in the command's place, for the user",
    "adapters/ssh/keys.py:_keygen": "ssh-keygen, for keys that are made here",
    "providers/skypilot/command.py:Sky._done_in": "sky, which starts a server that outlives it: in "
    "an empty folder, with an allow-list of variables",
    # The agent, its guard and a sweep's trials, on the machine that was rented.
    "pod/agent/process.py:_FilesAndProcesses.start_trainer": "the trainer, or the command's job",
    "pod/agent/side_processes.py:DataPreparation._start": "preparation of data there",
    "pod/agent/side_processes.py:_start_beside": "uploader and notifier there",
    "pod/agent/terminate.py:_command": "how the machine ends itself",
    "pod/agent/watchdog.py:Watch._start_agent": "the agent",
    "pod/agent/watchdog.py:spawn_watchdog": "the watchdog",
    "pod/job/workspace.py:_run": "installation of --pip, after the guard has started",
    "pod/job/workspace.py:provenance_of": "the command's Python, about its packages",
    "pod/machine/processes.py:Command.__init__": "installation of the trainer's Python",
    "pod/machine/sshd.py:Sshd._start": "sshd",
    "pod/sweep/children.py:TrialProcesses.start": "a trial of a sweep",
    "pod/sweep/keeper.py:keep": "a trial of a sweep, under its limits",
    "pod/sweep/ray_tune.py:_kept": "a trial on the user's own Ray cluster",
}


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


_MODULES = ("subprocess", "pty", "multiprocessing", "concurrent.futures.process")
_HARMLESS = frozenset(
    f"subprocess.{name}"
    for name in ("DEVNULL", "PIPE", "STDOUT", "TimeoutExpired", "SubprocessError",
                 "CalledProcessError", "CompletedProcess")
)  # fmt: skip
_BY_NAME = ("import_module", "__import__")
_OF_OS = ("exec", "spawn", "posix_spawn", "popen", "system", "fork", "startfile")


def _starts(name: str) -> bool:
    """Whether a dotted name is that of something that starts a process."""
    module, _, last = name.rpartition(".")
    if module == "os":
        return last.startswith(_OF_OS)
    if module == "asyncio" or module.startswith("asyncio."):
        return last.startswith(("create_subprocess", "subprocess_"))
    if last == "ProcessPoolExecutor":
        return True
    return module.split(".")[0] in _MODULES and name not in _HARMLESS


def found_in(text: str) -> Iterator[str]:
    """The functions of a module that start a process, or hold what does, by their names."""
    tree = ast.parse(text)
    aliases: dict[str, str] = {}
    annotations: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        for place in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(place, ast.AST):
                annotations |= set(ast.walk(place))

    def walk(node: ast.AST, inside: tuple[str, ...]) -> Iterator[str]:
        if node in annotations:
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = (*inside, node.name)
        parts = _dotted(node).split(".") if isinstance(node, (ast.Attribute, ast.Name)) else [""]
        name = ".".join([aliases.get(parts[0], parts[0]), *parts[1:]])
        if _starts(name):
            yield ".".join(inside)
        elif isinstance(node, ast.Name) and name in (*_MODULES, "os"):
            yield ".".join(inside)  # handed on whole: what is taken of it is not seen
        elif isinstance(node, ast.Call) and _dotted(node.func).endswith(
            ("import_module", "__import__")
        ):
            words = {each.value for each in node.args if isinstance(each, ast.Constant)}
            if words & {*_MODULES, "os", "posix", "ctypes"}:
                yield ".".join(inside)
        elif isinstance(node, ast.Call) and _dotted(node.func) == "hasattr":
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return
        for child in ast.iter_child_nodes(node):
            yield from walk(child, inside)

    yield from walk(tree, ())


def test_no_other_place_starts_a_process() -> None:
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}:{name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in found_in(path.read_text(encoding="utf-8"))
    }
    others = sorted(found - MAY_START.keys())
    assert not others, f"start it by io.children.run_reader, or give a reason: {others}"
    assert not MAY_START.keys() - found, "they start nothing any more: take them out of the list"


@pytest.mark.parametrize(
    "line",
    ["subprocess.run(x)", "import subprocess as s; s.Popen(x)",
     "from subprocess import run; run(x)", "from subprocess import check_output as c; c(x)",
     "os.system(x)", "os.execvp(x, y)",
     "os.posix_spawnp(x, y, z)", "from os import popen; popen(x)", "os.fork()", "pty.spawn(x)",
     "asyncio.create_subprocess_exec(x)", "asyncio.subprocess.create_subprocess_shell(x)",
     "multiprocessing.Process()", "from multiprocessing import Pool; Pool()",
     "from concurrent.futures import ProcessPoolExecutor; ProcessPoolExecutor()",
     "getattr(os, x)(y)", "getattr(subprocess, x)", "starter = subprocess.Popen",
     "importlib.import_module('subprocess')", "__import__('os').system(x)"],
)  # fmt: skip
def test_each_way_to_start_one_is_seen(line: str) -> None:
    body = "\n".join(f"    {each.strip()}" for each in line.split(";"))
    assert "f" in set(found_in(f"def f(x, y, z):\n{body}\n"))


@pytest.mark.parametrize(
    "line",
    ["import subprocess", "x: subprocess.Popen[bytes] | None = None", "os.getpid()",
     "try: ...\n    except subprocess.TimeoutExpired: ...", "os.path.join(x)",
     "def g(p: subprocess.Popen[str]) -> subprocess.Popen[str]: ..."],
)  # fmt: skip
def test_a_type_or_a_constant_starts_none(line: str) -> None:
    assert not list(found_in(f"def f(x):\n    {line}\n"))
