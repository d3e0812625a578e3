"""Trainers that begin sooner: what an interpreter does before its first line, when this folder is
on its path.

A rank spends most of its first three seconds of a core on importing torch, which its launcher has
imported already; dozens of tests start ranks, eight at a time. With this folder on PYTHONPATH the
real torchrun forks them after one import for all: processes of their own (pid, session,
environment, streams, signals, exit status) that run the same module from its first line. What
differs: they share a hash seed, ``/proc/PID/cmdline`` and ``environ`` are the launcher's, and their
``comm`` is ``rank0`` and so on. ``TRMCLOUD_TEST_COLD=1`` switches it off. One training of
``tests/model/test_torchrun.py`` has ranks that nobody forked, and the others are compared with it
bit by bit.

``TRMCLOUD_TEST_FAULT`` is Python that each forked rank runs first, where a test wants one to fail.

A file ``step_s`` beside this one has the seconds that a trainer waits before each step, as cores do
while GPUs compute: a test that trains until its budget ends needs time, not steps.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
_LOOP = "model.training.loop"
_RANKS_IMPORT = ("torch.nn.parallel", "torch._dynamo", "safetensors.torch")
try:
    with open(os.path.join(os.path.dirname(__file__), "step_s")) as _file:
        _STEP_S = float(_file.read())
except FileNotFoundError:
    _STEP_S = 0.0


class _Changed:
    """Finds one module as always, and changes it once it is loaded."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            self._change(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def _fork_ranks(module: Any) -> None:
    """Of torchrun's module that starts ranks."""
    module.Popen = _Forked


def _pace(module: Any) -> None:
    """Of the trainer's loop."""
    module.Trainer._step = _paced(module.Trainer._step)


def _pace_others(module: Any) -> None:
    """Of the optimizer of scripts that are not ours."""
    module.AdamW.step = _paced(module.AdamW.step)


def _paced(step: Callable[..., Any]) -> Callable[..., Any]:
    def paced(*arguments: Any, **named: Any) -> Any:
        time.sleep(_STEP_S)
        return step(*arguments, **named)

    return paced


class _Forked(subprocess.Popen):
    """``python -u -m module …`` of this same interpreter, forked from this process."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        words = [os.fspath(word) for word in args]
        cwd, env, ends = given[4], given[5], given[9:15]
        if words[:3] != [sys.executable, "-u", "-m"] or cwd is not None or ends[0] != -1:
            super()._execute_child(args, *given)  # type: ignore[misc, unused-ignore]
            return
        for name in _RANKS_IMPORT:
            importlib.import_module(name)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become(words, dict(env), out=ends[3], err=ends[5])
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _become(words: Sequence[str], env: dict[str, str], *, out: int, err: int) -> NoReturn:
    """In the child: what ``exec`` would have left of the launcher is left, and no more."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for each in signal.valid_signals():
            if callable(signal.getsignal(each)):
                signal.signal(each, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for end, number in ((out, 1), (err, 2)):
            if end != -1:
                os.dup2(end, number)
        # Not closed: what the launcher's objects hold must not become the number of a file here.
        nothing = os.open(os.devnull, os.O_RDWR)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != nothing:
                os.dup2(nothing, int(name), inheritable=False)
        os.environ.clear()
        os.environ.update(env)
        with open("/proc/self/comm", "w") as comm:
            comm.write(f"rank{env.get('RANK', '')}")
        sys.orig_argv = list(words)
        sys.argv = [words[3], *words[4:]]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        exec(env.get("TRMCLOUD_TEST_FAULT", ""), {})
        code = _run(words[3])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(module: str) -> int:
    import runpy

    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return left.code or 0
        print(left.code, file=sys.stderr)
        return 1
    return 0


if "torch.distributed.run" in sys.orig_argv and not os.environ.get("TRMCLOUD_TEST_COLD"):
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # the trainer's, which torch reads as it loads
    sys.meta_path.insert(0, _Changed(_HANDLER, _fork_ranks))
if _STEP_S:
    sys.meta_path.insert(0, _Changed(_LOOP, _pace))
    if "-m" not in sys.orig_argv:
        sys.meta_path.insert(0, _Changed("torch.optim.adamw", _pace_others))
