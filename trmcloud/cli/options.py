"""Typer's parameters, made from the rows of ``trmcloud.options``; other shared parameters."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trmcloud.core.errors import MissingExtra, TrmcloudError
from trmcloud.io.installation import install_command

if TYPE_CHECKING:
    from trmcloud.options import Option

RARE = "rare"


def rare(*flags: str, **more: Any) -> Any:
    """An option that only ``--help-all`` shows."""
    return typer.Option(*flags, rich_help_panel=RARE, **more)


Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show defaults and details, too.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON to stdout.")]
Live = Annotated[bool, typer.Option("--live", help="Query SkyPilot (slow; starts its server).")]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="Only runs with this tag, repeatable."),
]


# What the shell offers for a value when Tab is pressed; where it cannot be read, nothing.


def complete_run(incomplete: str) -> list[str]:
    """Return ids and names of runs, the newest first."""
    return _names_of_runs(incomplete, only_live=False)


def complete_live_run(incomplete: str) -> list[str]:
    """Likewise, of those that have not ended."""
    return _names_of_runs(incomplete, only_live=True)


def _names_of_runs(incomplete: str, *, only_live: bool) -> list[str]:
    from trmcloud.wiring_names import run_names

    try:
        rows = [row for row in run_names() if row.live or not only_live]
    except (TrmcloudError, OSError):
        return []
    names = [name for row in rows for name in (row.run_id, row.name) if name]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return names of the recipes that come with the program."""
    from trmcloud.operations.home import bundle_root

    found = (bundle_root() / "model" / "recipes").glob("*.toml")
    return sorted(path.stem for path in found if path.stem.startswith(incomplete))


RunName = Annotated[
    str,
    typer.Argument(help="Id or name of a run (default: the newest).", autocompletion=complete_run),
]
LiveRunName = Annotated[
    str,
    typer.Argument(
        help="Id or name of a run (default: the newest).", autocompletion=complete_live_run
    ),
]
Checkpoint = Annotated[
    str,
    typer.Argument(
        help="A fetched folder, or a run (its best checkpoint).", autocompletion=complete_run
    ),
]
Into = Annotated[
    str, typer.Option("--into", help="Folder to create (default: RUN-PHASE-STEP here).")
]

Against = Annotated[
    str, rare(help="With --verify: also this checkpoint's folder.", metavar="CHECKPOINT")
]
BoardPort = Annotated[int, rare(help="With --to tensorboard: port on 127.0.0.1.", min=1, max=65535)]
WandbProject = Annotated[
    str,
    rare(
        "--project", help="With --to wandb: project (default: the run's).", envvar="WANDB_PROJECT"
    ),
]
WandbEntity = Annotated[
    str,
    rare("--entity", help="With --to wandb: team or user (default: yours).", envvar="WANDB_ENTITY"),
]
SweepPlot = Annotated[
    str,
    rare(
        help="Write a sweep's best result against what was spent as a picture.", metavar="FILE.svg"
    ),
]
Focus = Annotated[
    str,
    rare(
        help="Write a month's charges as CSV of FOCUS 1.0, the FinOps specification.",
        metavar="FILE.csv",
    ),
]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def make_group(
    help: str, example: str, *, no_args_is_help: bool = True, **more: Any
) -> typer.Typer:
    """Make the Typer app of a command that has commands of its own."""
    return typer.Typer(
        rich_markup_mode=None,
        add_completion=False,
        no_args_is_help=no_args_is_help,
        help=f"{help}\n\nExample: {example}",
        **more,
    )


def warn_if_exposed(host: str, risk: str) -> None:
    """Warn on stderr where a server listens at more than this machine alone."""
    if host not in LOOPBACK:
        told = f"warning: {host} can be reached from other machines, without encryption: {risk}"
        print(told, file=sys.stderr, flush=True)


def require_packages(names: Sequence[str], purpose: str, *extras: str) -> None:
    """
    Raises:
        MissingExtra: one of the packages is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in names):
        raise MissingExtra(purpose, ",".join(extras), install_command(*extras))


_Command = Callable[..., None]


def with_options(*names: str) -> Callable[[_Command], _Command]:
    """Give a command its options of each request among its parameters: the rows of one of its
    ``names``, as they are at the first that has them.

    Typer calls the result by the options' names; the command itself gets each request as one
    object, without what was not given.
    """

    from trmcloud.options import rows_of  # ``status`` takes none of them, and starts without

    def decorated(command: _Command) -> _Command:
        parameters = [_parameter("context", typer.Context)]
        requests: dict[str, tuple[type[Any], frozenset[str]]] = {}
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            request: type[Any] = parameter.annotation
            rows: dict[str, Option] = {}
            for name in reversed(names) if is_dataclass(parameter.annotation) else ():
                rows |= rows_of(request, name)
            if not rows:
                parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
                continue
            requests[parameter.name] = request, frozenset(rows)
            for field in fields(request):
                if field.name in rows:
                    parameters.append(
                        _of_row(rows[field.name], field.name, field.type, field.default)
                    )

        def run(context: typer.Context, **given: Any) -> None:
            # Its values come as arguments; the context says alone which of them were typed.
            typed = tuple(
                option
                for option in given
                if getattr(context.get_parameter_source(option), "name", "") == "COMMANDLINE"
            )
            for parameter, (request, options) in requests.items():
                values = {option: given.pop(option) for option in options}
                given[parameter] = request(
                    **{option: value for option, value in values.items() if value is not None},
                    typed=tuple(option for option in typed if option in options),
                )
            command(**given)

        run.__doc__ = command.__doc__
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(run)["__signature__"] = inspect.Signature(parameters)
        return run

    return decorated


def _of_row(row: Option, name: str, kind: Any, default: Any) -> inspect.Parameter:
    """A row as Typer's parameter."""
    if kind == Sequence[str]:
        kind, default = (list[str], default) if row.is_positional else (list[str] | None, None)
    if row.is_positional:
        argument = typer.Argument(help=row.help, metavar=row.metavar)
        if not row.is_required:
            return _parameter(name, Annotated[kind | None, argument], None)
        return _parameter(name, Annotated[kind, argument])
    made = typer.Option(
        *row.flags,
        help=row.help,
        metavar=row.metavar,
        envvar=row.envvar,
        rich_help_panel=row.group,
        autocompletion=_COMPLETED.get(name),
    )
    return _parameter(name, Annotated[kind, made], default)


_COMPLETED = {"recipe": complete_recipe, "initial_from": complete_run}
"""Rows whose values the shell completes."""


_TYPES = {"str": "TEXT", "int": "N", "float": "N", "list[str]": "TEXT", "path": "PATH"}
_TYPED = re.compile(r" <(str|int|float|path|list\[str\])(?: [^>]*)?>$")


_SHOWS_ALL = "trmcloud.shows_all"


def hear_help_all(command: Any) -> None:
    """Have ``--help-all`` mean the help of ``command`` with all its options."""
    parse_args = command.parse_args

    def parse(context: Any, args: list[str]) -> Any:
        context.meta[_SHOWS_ALL] = "--help-all" in (
            args[: args.index("--")] if "--" in args else args
        )
        return parse_args(context, args)

    command.parse_args = parse


def shows_all(context: Any) -> bool:
    """Return whether ``--help-all`` was typed."""
    return bool(context.meta.get(_SHOWS_ALL))


def in_groups(command: Any) -> None:
    """Have the help of ``command``, and of each command of a group, list options by their groups,
    in the order of their rows; those without a group last, and rare ones with ``--help-all``. Types
    are the words a user knows."""

    def format_options(context: Any, formatter: Any) -> None:
        arguments, groups, left_out = _records(command, context)
        rest = groups.pop("")
        name = "Other options" if groups else "Options"
        for title, records in (("Arguments", arguments), *groups.items(), (name, rest)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if list_commands := getattr(command, "format_commands", None):
            list_commands(context, formatter)
        if left_out:
            formatter.write_paragraph()
            formatter.write_text(f"{left_out} more options: {context.command_path} --help-all")

    command.format_options = format_options
    hear_help_all(command)
    for each in getattr(command, "commands", {}).values():
        in_groups(each)


_Records = list[tuple[str, str]]


def _records(command: Any, context: Any) -> tuple[_Records, dict[str, _Records], int]:
    """Return what help says of arguments, of options by group, and how many rare ones it lacks."""
    from trmcloud.options import Rare

    arguments: _Records = []
    groups: dict[str, _Records] = {"": []}
    left_out = 0
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        name, text = record
        name = "-h, --help, --help-all" if "--help" in parameter.opts else name
        if parameter.param_type_name == "argument":
            arguments.append((_TYPED.sub("", name), text))
            continue
        group = getattr(parameter, "rich_help_panel", None) or ""
        is_rare, group = group == RARE or isinstance(group, Rare), "" if group == RARE else group
        if is_rare and not shows_all(context):
            left_out += 1
            continue
        name = _TYPED.sub(lambda found: f" {_TYPES[found.group(1)]}", name)
        groups.setdefault(group, []).append((name, text))
    return arguments, groups, left_out


def _parameter(name: str, kind: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
