"""Completion in the shell: options and values of every command, without the commands' modules.

Typer's own completion asks the command that is typed for its options. Here it gets a command made
from ``completions.json``, which ``scripts/completions.py`` writes from the real ones: so that a
press of Tab costs what an empty Typer app's does. Values are read when they are asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from trmcloud.cli.as_typed import take_as_typed

TABLE = Path(__file__).with_name("completions.json")
_MOST = 200

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "phase": ("fast", "extreme"),
    "phases": ("fast", "extreme", "both"),
    "objective": ("value", "cheapest", "fastest", "most-training"),
    "balance": ("stop", "warn", "ignore"),
    "volume_then": ("keep", "delete-fetched", "delete"),
    "precision": ("auto", "fp8", "bf16", "fp16", "fp32"),
    "level": ("account", "month", "project", "project-month"),
    "form": ("bash", "sbatch", "sky"),
    "way": ("webhook", "email", "ntfy", "slack", "discord"),
    "best": ("min", "max"),
    "export": ("hf", "gguf"),
    "numbers": ("float32", "float16"),
    "board": ("tensorboard", "wandb"),
}


def light_command(name: str) -> Any:
    """Return a command that has the options of the one called ``name``, and does nothing."""
    described = json.loads(TABLE.read_text(encoding="utf-8"))[name]
    made = typer.main.get_command(_app(name, described))
    made.name = name
    take_as_typed(made)
    return made


def _app(name: str, described: Mapping[str, Any]) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    if "commands" not in described:
        app.command(name, help=described["help"])(_function(described["params"]))
        return app
    app.callback(invoke_without_command=True)(_function(described["params"]))
    for below, each in described["commands"].items():
        if "commands" in each:
            app.add_typer(_app(below, each), name=below, help=each["help"])
        else:
            app.command(below, help=each["help"])(_function(each["params"]))
    return app


def _function(params: Iterable[Mapping[str, Any]]) -> Callable[..., None]:
    """A function of these parameters, as Typer reads them."""

    def nothing(**given: Any) -> None:
        return None

    made = [_parameter(each) for each in params]
    nothing.__annotations__ = {each.name: each.annotation for each in made}
    vars(nothing)["__signature__"] = Signature(made)
    return nothing


def _parameter(said: Mapping[str, Any]) -> Parameter:
    kind: Any = bool if said["is_flag"] else list[str] | None if said["several"] else str | None
    values = _completer(said["kind"]) if said["kind"] else None
    if said["flags"]:
        about: Any = typer.Option(*said["flags"], help=said["help"], autocompletion=values)
    else:
        about = typer.Argument(help=said["help"], autocompletion=values)
    default: Any = False if said["is_flag"] else None
    return Parameter(
        said["name"],
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[kind, about],
        default=default,
    )


def _completer(kind: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        try:
            found = [each for each in values_of(kind) if each.startswith(incomplete)]
        except Exception:  # a press of Tab shows nothing rather than an error
            return []
        return list(dict.fromkeys(found))[:_MOST]

    return complete


def values_of(kind: str) -> Iterable[str]:
    """Return what may stand in the place of a value of this kind."""
    if kind in _CHOICES:
        return _CHOICES[kind]
    return _SOURCES[kind]()


def _runs() -> list[str]:
    from trmcloud.wiring_names import run_names

    return [name for row in run_names() for name in (row.run_id, row.name) if name]


def _live_runs() -> list[str]:
    from trmcloud.wiring_names import run_names

    rows = [row for row in run_names() if row.live]
    return [name for row in rows for name in (row.run_id, row.name) if name]


def _checkpoints() -> list[str]:
    """Folders here that hold a checkpoint, and runs, whose best one is meant."""
    here = [path.parent.name for path in Path().glob("*/manifest.json")]
    return [*sorted(here), *_runs()]


def _recipes() -> list[str]:
    from trmcloud.app.home import bundle_root

    return sorted(path.stem for path in (bundle_root() / "model" / "recipes").glob("*.toml"))


def _goals() -> list[str]:
    from trmcloud.wiring_plans import goals

    return [goal.name for goal in goals()]


def _data_sets() -> list[str]:
    from trmcloud.app.home import bundle_root

    return sorted(path.stem for path in (bundle_root() / "model" / "datasets").glob("*.toml"))


def _providers() -> list[str]:
    from trmcloud.wiring_names import provider_names

    return list(provider_names())


def _gpus() -> list[str]:
    from trmcloud.core.catalog.hardware import GPUS

    return list(GPUS)


def _hardware() -> list[str]:
    from trmcloud.core.catalog.hardware import GUIDE_HARDWARE

    counted = [f"{count}x{sku}" for count in (8, 4, 2, 1) for sku in _gpus()]
    return ["local", "any", "8xany", *_plans(), *GUIDE_HARDWARE, *counted]


def _machines() -> list[str]:
    return [each for each in _hardware() if not each.startswith("p-")]


def _plans() -> list[str]:
    from trmcloud.app.home import home_dir

    found = (home_dir(os.environ) / "plans").glob("p-*.json")
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.stem for path in newest[:20]]


def _steps() -> list[str]:
    """The steps of checkpoints that are on this machine."""
    from trmcloud.app.home import home_dir

    found = (home_dir(os.environ) / "runs").glob("*/*/checkpoints/step-*")
    return sorted({str(int(path.name.removeprefix("step-"))) for path in found})


_SOURCES: Mapping[str, Callable[[], Iterable[str]]] = {
    "run": _runs,
    "live_run": _live_runs,
    "checkpoint": _checkpoints,
    "recipe": _recipes,
    "goal": _goals,
    "data": _data_sets,
    "provider": _providers,
    "gpu": _gpus,
    "hardware": _hardware,
    "machine": _machines,
    "plan": _plans,
    "step": _steps,
}
KINDS = frozenset((*_CHOICES, *_SOURCES))

_KIND_OF: Mapping[str, str] = {
    "run": "run",
    "checkpoint": "checkpoint",
    "against": "checkpoint",
    "control": "checkpoint",
    "initial_from": "checkpoint",
    "recipe": "recipe",
    "goal": "goal",
    "provider": "provider",
    "hardware": "hardware",
    "explain": "machine",
    "own": "machine",
    "sku": "gpu",
    "data": "data",
    "source": "data",
    "step": "step",
    "plan": "plan",
    "phase": "phase",
    "objective": "objective",
    "balance": "balance",
    "volume_then": "volume_then",
    "precision": "precision",
    "level": "level",
    "form": "form",
    "way": "way",
    "best": "best",
    "to": "export",
    "numbers": "numbers",
}
_ALSO: Mapping[tuple[str, str], str] = {
    **{(command, "run"): "live_run" for command in ("save", "stop", "ssh")},
    **{(command, "phase"): "phases" for command in ("plan", "launch", "rehearse", "export")},
    **{(command, "hardware"): "machine" for command in ("plan", "try", "run", "export")},
    ("data show", "name"): "data",
    ("eval", "data"): "",
    ("report", "to"): "board",
}


def describe(words: str, command: Any) -> dict[str, Any]:
    """Return the row of a command in the table; ``words`` call it."""
    described: dict[str, Any] = {
        "help": _first_line(command.help),
        "params": [_described(words, each) for each in command.params if _is_shown(each)],
    }
    below = getattr(command, "commands", None)
    if below:
        described["commands"] = {
            name: describe(f"{words} {name}", each) for name, each in below.items()
        }
    return described


def _is_shown(param: Any) -> bool:
    return "--help" not in param.opts and not getattr(param, "hidden", False)


def _described(words: str, param: Any) -> dict[str, Any]:
    is_option = param.param_type_name == "option"
    is_flag = bool(getattr(param, "is_flag", False))
    named = _KIND_OF.get(param.name, "")
    return {
        "name": param.name,
        "flags": _flags(param) if is_option else [],
        "is_flag": is_flag,
        "several": bool(getattr(param, "multiple", False)) or param.nargs == -1,
        "kind": "" if is_flag else _ALSO.get((words, param.name), named),
        "help": _first_line(getattr(param, "help", "")),
    }


def _flags(param: Any) -> list[str]:
    """Return an option's flags as Typer takes them: ``--on/--off`` of a switch with two."""
    if not param.secondary_opts:
        return list(param.opts)
    return ["/".join(pair) for pair in zip(param.opts, param.secondary_opts, strict=True)]


def _first_line(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())
