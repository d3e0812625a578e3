"""Observes the Python processes of a command, which load this module as ``sitecustomize``.

It notes, as lines of JSON in a file, the metrics that a script gives to its trackers and frameworks
and the files that it saves. Both carry the *state* of the weights: how often an optimizer of
this process had stepped. A metric and a file of one state belong together. Marks between
the lines of the command's output carry the state too, for metrics that are only printed.

What a script computes does not change: functions are replaced by ones of the same name and module
that call them and then take notes, and no error of this module reaches the script. A
``sitecustomize`` that stands later on the path still runs. Standard library only. Run as a program,
``python trmcloud_observer.py < QUESTION``, it says which installed distributions hold modules.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from importlib import machinery
from importlib import util as importing
from typing import Any

ENV_OBSERVED = "TRMCLOUD_OBSERVED"
"""The file that metrics and saved files are noted in; without it none are."""
ENV_LOG = "TRMCLOUD_OBSERVED_LOG"
"""The inode of the pipe that takes the command's output: marks are written nowhere else."""
ENV_SEEN = "TRMCLOUD_TRIAL_SEEN"
"""The file that opened paths and imports are noted in, of a trial; without it none are."""
MARK_BEGIN, MARK_END = b"\x1e\x1etrmcloud ", b"\x1e"
"""Around a mark's numbers in the output: process id, and the states that the text since the mark
before may be of, the first and the last."""
MOST_LINES = 4000
"""Of one process of a trial; later paths and modules are not noted."""
_MARK_EVERY_S, _BLURRED_EVERY_S, _RESERVE_S = 0.02, 0.25, 10.0
"""A process marks a step each so many seconds on average, and one whose mark spans several states,
since there was none at the step before, each so many: a training of very short steps is not slowed
down. So many seconds of marks may come at once at the beginning, and as many more at steps after a
pause, in which an evaluation may have printed."""
_METRICS_EVERY_S = 0.25
"""Metrics of the same names that come sooner replace each other, unless a file is saved between."""
_SLOWED_BY = 20_000
"""A process that has told for so many seconds tells a second apart: its file stays small."""
_RANK_EVERY_S = 0.5
_MOST_SAVES = 4096
_MOST_NAMES = 64
_ORBAX = ".orbax-checkpoint-tmp"
"""In the name of a folder that orbax writes, until the checkpoint is whole."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_NO_WEIGHTS = frozenset(
    (
        *(".log", ".txt", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".md"),
        *(".py", ".pyc", ".html", ".png", ".jpg", ".svg", ".pdf", ".lock", ".out", ".err", ".pid"),
    )
)
"""Suffixes of files that are opened often, and hold no weights."""


def _write(path: str, line: Mapping[str, object]) -> None:
    """Append a line of JSON. The file is opened for each: a script may close every descriptor that
    it does not know."""
    import json  # many a short process has nothing to tell, and does not pay for it

    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, json.dumps(line).encode() + b"\n")
    finally:
        os.close(handle)


class _Opened:
    """Of a trial: the paths that a process opens, its imports and its interpreter.

    Code that opens files without Python's ``open``, as compiled readers do, raises no event."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._known: set[object] = set()
        self._left = MOST_LINES
        self._say({"python": sys.executable, "version": ".".join(map(str, sys.version_info[:2]))})

    def opened(self, path: str, *, writes: bool) -> None:
        if (path, writes) not in self._known:
            self._known.add((path, writes))
            self._say({"path": path, "writes": writes, "there": os.path.lexists(path)})

    def imported(self, name: str) -> None:
        top = name.partition(".")[0]
        if top not in self._known:
            self._known.add(top)
            if top not in getattr(sys, "stdlib_module_names", ()):
                self._say({"module": top})

    def _say(self, line: Mapping[str, object]) -> None:
        if self._left > 0:
            self._left -= 1
            try:
                _write(self._target, line)
            except OSError:
                self._left = 0


class _Told:
    """Of a run: the metrics and saved files of a process, with the state of its weights."""

    def __init__(self, target: str, log: int) -> None:
        self._target, self._log = target, log
        self._began = time.monotonic()
        self._stepped, self._took_s = self._began, 0.0
        self._mark_at = self._began - _RESERVE_S
        """From when on every step is marked, and those after a pause so long before."""
        self._state = self._since = self._imports = 0
        self._saved: dict[str, float] = {}
        self._copy = ""
        self._metrics: dict[tuple[str, ...], tuple[float, dict[str, object] | None]] = {}
        """By their names: when metrics were noted last, and newer ones that were not yet."""
        self._main = threading.get_ident()
        self._known_rank, self._asks_rank_at = 0, 0.0

    def forked(self) -> None:
        """In the child: the weights of the parent are not its own."""
        self._state = self._since = 0
        self._main = threading.get_ident()
        self._asks_rank_at = 0.0
        self._metrics.clear()

    def step(self, *_: object, **__: object) -> None:
        """An optimizer is about to step, or weights are about to be loaded."""
        now = time.monotonic()
        took_s = now - self._stepped
        if now >= self._mark_at or (
            took_s > 2 * self._took_s and now >= self._mark_at - _RESERVE_S
        ):
            every_s = _MARK_EVERY_S if self._since == self._state else _BLURRED_EVERY_S
            self._mark_at = max(now - _RESERVE_S, self._mark_at) + every_s
            self.mark()
            self._since = self._state + 1
        self._stepped, self._took_s = now, took_s
        self._state += 1

    def state(self) -> list[int] | None:
        """None where it is not known: no optimizer has stepped, or another thread asks."""
        known = self._state and threading.get_ident() == self._main
        return [os.getpid(), self._state] if known else None

    def mark(self) -> None:
        """Tell readers of the output the states that what was printed until now may be of."""
        if self._rank():
            return
        for handle in (1, 2):
            try:
                if os.fstat(handle).st_ino == self._log:
                    numbers = b"%d %d %d" % (os.getpid(), self._since, self._state)
                    os.write(handle, MARK_BEGIN + numbers + MARK_END)
                    self._since = self._state
                    return
            except OSError:
                continue

    def metrics(self, values: Any, step: Any = None) -> None:
        found: dict[str, float] = {}
        for name, value in list(values.items())[:_MOST_NAMES]:
            number = _number(value)
            if number is not None:
                found[str(name)[:80]] = number
        if not found:
            return
        names, now = tuple(found), time.monotonic()
        line = self._line(metrics=found, step=_whole(step))
        before = self._metrics.get(names)
        every_s = max(_METRICS_EVERY_S, (now - self._began) / _SLOWED_BY)
        if before is None or now - before[0] >= every_s:
            self._metrics[names] = now, None
            self._say(line)
        elif len(self._metrics) < _MOST_NAMES:
            self._metrics[names] = before[0], line

    def saved(self, path: Any, since: float | None = None) -> None:
        """``since``: when its writing began, where it has ended by now; None: it begins now."""
        is_path = isinstance(path, (str, bytes, os.PathLike))
        name = path if is_path else getattr(path, "name", None)
        if isinstance(name, (str, bytes, os.PathLike)):
            whole = os.path.abspath(os.fsdecode(name))
            if len(self._saved) < _MOST_SAVES:
                self._saved[whole] = time.monotonic()
            self.flush()
            now = time.time()
            ended = None if since is None else now
            self._say(self._line(saved=whole, since=now if since is None else since, until=ended))
            if self._state:
                self.mark()

    def opened(self, path: str) -> None:
        """A file is about to be written by Python's ``open``."""
        if path == self._copy or os.path.splitext(path)[1].lower() in _NO_WEIGHTS:
            return
        if f"{os.sep}__pycache__{os.sep}" in path:  # written under a name that ends with a number
            return
        if time.monotonic() - self._saved.get(path, 0.0) > 0.05:
            self.saved(path)

    def moved(self, source: str, target: str, *, copied: bool = False) -> None:
        """A saved file is about to be renamed or copied, or a folder of such files renamed."""
        if copied:
            self._copy = target
        if _ORBAX in os.path.basename(source):
            self.saved(target, time.time())  # all of it is written by other code than Python's
        elif any(path == source or path.startswith(source + os.sep) for path in self._saved):
            self._saved[target] = time.monotonic()
            self._say(self._line(moved=[source, target], copied=copied))

    def importing(self, name: str) -> None:
        """The import of a module begins. The first ones of a process tell how far it has come."""
        is_own = "." not in name and name not in getattr(sys, "stdlib_module_names", ())
        if is_own and self._imports < _MOST_NAMES:
            self._imports += 1
            self._say({"importing": name})

    def flush(self) -> None:
        """Note the metrics that wait."""
        for names, (at, line) in list(self._metrics.items()):
            if line is not None:
                self._metrics[names] = at, None
                self._say(line)

    def end(self) -> None:
        self.flush()
        if self._state:
            self.mark()

    def _line(self, **said: object) -> dict[str, object]:
        return {**said, "state": self.state(), "rank": self._rank(), "at": time.time()}

    def _rank(self) -> int:
        now = time.monotonic()
        if now >= self._asks_rank_at:
            self._asks_rank_at, self._known_rank = now + _RANK_EVERY_S, _rank()
        return self._known_rank

    def _say(self, line: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end a training
            _write(self._target, line)


def _rank() -> int:
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        return int(rank)
    distributed = sys.modules.get("torch.distributed")
    try:
        joined = distributed is not None and distributed.is_initialized()
        return int(distributed.get_rank()) if joined else 0  # type: ignore[union-attr]
    except Exception:
        return 0


def _number(value: Any) -> float | None:
    """Of a number, or of an array or tensor that holds one; None of anything else."""
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        if not isinstance(value, (int, float)):
            if getattr(value, "size", 1) not in (0, 1) and not callable(value.size):
                return None
            value = value.item()
        return float(value)
    except Exception:
        return None


def _whole(step: Any) -> int | None:
    number = _number(step)
    return int(number) if number is not None and number == int(number) else None


# The functions that are observed, by the module that holds them.


def _wrap(owner: Any, name: str, tell: Callable[..., None], *, before: bool = False) -> None:
    """Have ``tell(call, *args, **kwargs)`` called after ``owner.name``, or before it; ``call`` is
    the epoch second at which the call began. The function that is replaced stays as
    ``__wrapped__``."""
    inner = vars(owner).get(name)
    if not callable(inner):
        return

    @wraps(inner)
    def observed(*args: Any, **kwargs: Any) -> Any:
        began = time.time()
        if before:
            _quietly(tell, began, *args, **kwargs)
        result = inner(*args, **kwargs)
        if not before:
            _quietly(tell, began, *args, **kwargs)
        return result

    setattr(owner, name, observed)


def _quietly(tell: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    try:
        tell(*args, **kwargs)
    except Exception:  # the script must not end by what observes it
        return


_Given = Callable[..., tuple[Any, Any]]
"""The values and the step among the arguments of a call."""


def _of_lightning(connector: Any, metrics: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
    trainer = connector.trainer
    return {} if trainer.sanity_checking else metrics, trainer.global_step


_WRITER: Sequence[tuple[str, str, _Given]] = (
    ("SummaryWriter", "add_scalar", lambda _, tag, scalar_value, global_step=None, *__, **___: (
        {tag: scalar_value}, global_step)),
    ("SummaryWriter", "add_scalars",
     lambda _, main_tag, tag_scalar_dict, global_step=None, *__, **___: (
        {f"{main_tag}/{key}": value for key, value in tag_scalar_dict.items()}, global_step)),
)  # fmt: skip
_LIGHTNING = (("_LoggerConnector", "log_eval_end_metrics", _of_lightning),)
_REPORTED = (("", "report", lambda metrics, *_, **__: (metrics, None)),)
_KERAS = "keras.src.callbacks.callback_list"
_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"
_METRICS: Mapping[str, Sequence[tuple[str, str, _Given]]] = {
    "torch.utils.tensorboard.writer": _WRITER,
    "tensorboardX.writer": _WRITER,
    "wandb.sdk.wandb_run": (("Run", "log", lambda _, data, step=None, *__, **___: (data, step)),),
    "accelerate.accelerator": (("Accelerator", "log", lambda _, values, step=None, *__, **___: (
        values, step)),),
    "mlflow.tracking.fluent": (
        ("", "log_metric", lambda key, value, step=None, *_, **__: ({key: value}, step)),
        ("", "log_metrics", lambda metrics, step=None, *_, **__: (metrics, step)),
    ),
    "transformers.trainer": (("Trainer", "log", lambda trainer, logs, *_, **__: (
        logs, trainer.state.global_step)),),
    f"lightning.pytorch.{_CONNECTOR}": _LIGHTNING,
    f"pytorch_lightning.{_CONNECTOR}": _LIGHTNING,
    _KERAS: (("CallbackList", "on_epoch_end", lambda _, epoch, logs=None: (
        {**(logs or {}), "epoch": epoch}, None)),),
    "ray.train": _REPORTED,
    "ray.tune": _REPORTED,
    "optuna.trial._trial": (("Trial", "report", lambda _, value, step: (
        {"objective": value}, step)),),
}  # fmt: skip
"""By module: the class, or none, and the function that is given metrics."""


def _observe_metrics(told: _Told, rows: Sequence[tuple[str, str, _Given]], module: Any) -> None:
    def tell(given: _Given, _: float, *args: Any, **kwargs: Any) -> None:
        told.metrics(*given(*args, **kwargs))

    for owner, name, given in rows:
        _wrap(getattr(module, owner) if owner else module, name, partial(tell, given))


def _hooks(told: _Told) -> dict[str, Callable[[Any], None]]:
    """By module name, what to do once that module was imported."""

    def optimizer(module: Any) -> None:
        module.register_optimizer_step_pre_hook(told.step)

    def weights(module: Any) -> None:
        _wrap(module.Module, "load_state_dict", lambda *_, **__: told.step(), before=True)

    def torch_save(module: Any) -> None:
        def save(began: float, obj: Any, f: Any, *_: Any, **__: Any) -> None:
            told.saved(f, began)

        _wrap(module, "save", save)

    def save_second(*names: str) -> Callable[[Any], None]:
        """Functions whose second argument is the path."""

        def save(began: float, *args: Any, **kwargs: Any) -> None:
            path = kwargs.get("filename", kwargs.get("filepath"))
            told.saved(args[1] if len(args) > 1 else path, began)

        def wrap(module: Any) -> None:
            for name in names:
                _wrap(module, name, save)

        return wrap

    def keras(module: Any) -> None:
        _observe_metrics(told, _METRICS[_KERAS], module)
        _wrap(module.CallbackList, "on_train_batch_begin", told.step, before=True)

    return {
        "torch.optim.optimizer": optimizer,
        "torch.nn.modules.module": weights,
        "torch.serialization": torch_save,
        "safetensors.torch": save_second("save_file", "save_model"),
        "safetensors.numpy": save_second("save_file"),
        "safetensors.flax": save_second("save_file"),
        "joblib.numpy_pickle": save_second("dump"),
        "keras.src.saving.saving_api": save_second("save_model", "save_weights"),
        **{name: partial(_observe_metrics, told, rows) for name, rows in _METRICS.items()},
        _KERAS: keras,
    }


class _Finder:
    """Finds the modules of ``hooks`` as the other finders do, and calls the hook once one was
    executed. The module and its loader look as without it. ``begins`` is called with each name."""

    def __init__(
        self, hooks: Mapping[str, Callable[[Any], None]], begins: Callable[[str], None]
    ) -> None:
        self._hooks, self._begins = hooks, begins

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        _quietly(self._begins, name)
        hook = self._hooks.get(name)
        if hook is None:
            return None
        spec: Any = None
        for finder in sys.meta_path:
            if finder is not self and spec is None and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
        loader: Any = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module: Any) -> None:
            del loader.exec_module
            execute(module)
            _quietly(hook, module)

        with contextlib.suppress(AttributeError):  # a loader without a place for it
            loader.exec_module = exec_module
        return spec


class _Events:
    """Python's audit events, for whoever notes opened files."""

    def __init__(self, opened: _Opened | None, told: _Told | None) -> None:
        self._opened, self._told = opened, told
        self._is_noting = False
        prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__)}
        system = (
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
        )
        self._passed_over = tuple(
            path.rstrip("/") + "/" for path in prefixes | set(system) if path.strip("/")
        )
        self._own = {os.environ.get(ENV_SEEN), os.environ.get(ENV_OBSERVED)}

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _NOTED or self._is_noting:
            return
        self._is_noting = True
        try:
            if event == "open":
                path, mode, flags = args[:3]
                writes = any(c in mode for c in "wax+") if mode else bool((flags or 0) & _WRITES)
                if writes or self._opened is not None:
                    self._note(path, writes=writes, adds=bool(mode) and "a" in mode)
            elif event == "import":
                if self._opened is not None:
                    self._opened.imported(args[0])
            else:
                source, target = (os.path.abspath(os.fsdecode(each)) for each in args[:2])
                if self._opened is not None:
                    self._note(target, writes=True, adds=True)
                if self._told is not None:
                    self._told.moved(source, target, copied=event == "shutil.copyfile")
        except Exception:  # the command must not end by what observes it
            return
        finally:
            self._is_noting = False

    def _note(self, path: Any, *, writes: bool, adds: bool) -> None:
        if not isinstance(path, (str, bytes)):
            return
        whole = os.path.abspath(os.fsdecode(path))
        if whole in self._own or whole.startswith(self._passed_over) or "/site-packages/" in whole:
            return
        if self._opened is not None:
            self._opened.opened(whole, writes=writes)
        if self._told is not None and writes and not adds:
            self._told.opened(whole)


_NOTED = frozenset(("open", "import", "os.rename", "shutil.copyfile"))


def observe() -> None:
    """Observe this process, as the environment says; then run the ``sitecustomize`` that this
    module stands in the place of."""
    seen, observed = os.environ.get(ENV_SEEN), os.environ.get(ENV_OBSERVED)
    opened = _Opened(seen) if seen else None
    told = _Told(observed, int(os.environ.get(ENV_LOG) or 0)) if observed else None
    if told is not None:
        told._say({"python": sys.executable})
        sys.meta_path.insert(0, _Finder(_hooks(told), told.importing))
        os.register_at_fork(after_in_child=told.forked)
        atexit.register(told.end)
    if opened is not None or told is not None:
        sys.addaudithook(_Events(opened, told))
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
    import json

    question = json.load(sys.stdin)
    answer = distributions(question["modules"], question["named"])
    json.dump({"python": sys.executable, **answer}, sys.stdout)
