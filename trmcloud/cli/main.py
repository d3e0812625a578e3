"""The ``trmcloud`` command: its table of commands, and the one place that catches errors.

A command's module is imported when it is used; ``--help`` needs none of them.
"""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Collection, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from trmcloud.cli.as_typed import take_as_typed, values_as_typed
from trmcloud.core import errors
from trmcloud.core.errors import TrmcloudError, UsageError
from trmcloud.operations.table import ENDS, OPERATIONS, SPENDS, by_command

# Newer Typers carry their own click: their parser's error is the base of typer.BadParameter.
USAGE_ERROR: Any = typer.BadParameter.__bases__[0]

COMMANDS: Mapping[str, str] = {name: row.summary for name, row in by_command().items()}
"""Name → one line for the table; ``--help`` shows the first ones alone."""
_FIRST = 9

#: command → its module in ``commands``, where that has another name
_MODULES = {
    "doctor": "guard",
    "eval": "evaluate",
    "fetch-best": "checkpoints",
    "prune": "checkpoints",
    "resume": "launch",
    "run": "launch",
    "sample": "evaluate",
    "save": "stop",
    "serve": "evaluate",
    "ssh": "logs",
    "try": "try_command",
    "ui": "curves",
}


_MEANT = {
    "stop": "cancel kill down delete rm remove terminate abort halt destroy end shutdown teardown",
    "status": "ls ps list runs jobs show queue history stat gate",
    "launch": "train start up create submit exec execute python",
    "prices": "gpus gpu price offers cost costs pricing",
    "fetch-best": "download get pull fetch best adopt",
    "logs": "log tail output",
    "logs -f": "attach follow",
    "ssh": "shell connect",
    "report --verify": "verify",
    "report --to tensorboard": "tensorboard",
    "report --to wandb": "wandb",
    "ui": "dashboard web",
    "admin ledger": "ledger db database",
    "admin reap": "reap",
    "admin volumes": "volumes",
    "admin guard": "guard",
    "admin notify": "notify",
    "grant approve": "approve",
    "grant deny": "deny",
    "--help": "help man usage",
    "--version": "version",
    # of groups
    "list": "ls status",
    "remove": "rm delete",
    "revoke": "rm delete remove",
    "show": "get info",
    # options
    "--budget": "--cost --max-cost --max-usd --usd --dollars --limit --price --spend",
    "--hours": "--time --timeout --duration --max-hours --walltime",
    "--hardware": "--gpu --gpus --gpu-type --accelerator --accelerators --machine --instance",
    "--env": "-e --environment",
    "--image": "--docker --container",
    "--detach": "--background --no-wait --bg",
}
"""Name, or line to type → what people type for it, from other tools and earlier versions."""
_LIKENESS = 0.75
"""Below this, a guess is more often wrong than right."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called, not when they are listed."""

    _listing = False
    _shows_all = False

    def get_params(self, ctx: Any) -> Any:
        return values_as_typed(super().get_params(ctx))

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """In one order: the parser's own set has another in each process."""
        return list(_HELP["help_option_names"])

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)[: None if self._shows_all or not self._listing else _FIRST]

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        self._shows_all = args[:1] == ["--help-all"]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        summary = COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=summary)
        return load_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and name[0] != "-" and name not in COMMANDS and not ctx.resilient_parsing:
            near = _nearest(name, COMMANDS)
            line = shlex.join(["trmcloud", *near.split(), *args[1:]])
            raise UsageError(
                f"no command {name!r}{_question(near)}",
                next_step=line if near and name.lower() in _MEANT.get(near, "").split() else "",
            )
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what the shell offers for a command's name: all of them, none imported."""
        self._listing = self._shows_all = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._listing = self._shows_all = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        others = len(COMMANDS) - _FIRST
        self.epilog = "" if self._shows_all else f"trmcloud --help-all lists {others} others."
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False


def load_command(name: str) -> Any:
    """The command of that name: in its module the function so called, else the group ``app``."""
    own = "try_command" if name == "try" else name.replace("-", "_")
    from trmcloud.cli.options import in_groups

    module: Any = importlib.import_module(f"trmcloud.cli.commands.{_MODULES.get(name, own)}")
    if not hasattr(module, own):
        made = typer.main.get_command(module.app)
    else:
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(name)(getattr(module, own))
        made = typer.main.get_command(app)
    made.name = name
    _take_short_help(made)
    take_as_typed(made)
    in_groups(made)
    _keep_documents_apart(made)
    return made


_HELP = {"help_option_names": ["-h", "--help", "--help-all"]}


def _take_short_help(command: Any) -> None:
    """Have ``-h`` mean ``--help`` for ``command``, and for each command of a group."""
    command.context_settings.update(_HELP)
    for each in getattr(command, "commands", {}).values():
        _take_short_help(each)


def _keep_documents_apart(command: Any) -> None:
    """Have stdout hold nothing but documents while ``command`` runs with ``--json``."""
    invoke = command.invoke

    def invoked(context: Any) -> Any:
        if not context.params.get("as_json"):
            return invoke(context)
        from trmcloud.cli.views.streams import only_documents

        with only_documents():
            return invoke(context)

    command.invoke = invoked
    for each in getattr(command, "commands", {}).values():
        _keep_documents_apart(each)


app = typer.Typer(
    cls=LazyGroup,
    context_settings=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turn a budget and a recipe into a trained, verified checkpoint on your own disk.\n\n"
    "Example: trmcloud plan --budget 1000",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"trmcloud {version('trmcloud')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and leave."
    ),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; every error becomes one line and an exit code of its own, and with
    ``--json`` a document, too."""
    from trmcloud.cli.views.streams import drop_stdout, forgive_streams

    forgive_streams()
    typed = sys.argv[1:] if arguments is None else arguments
    if typed[:1] == ["reap"] and "--guard-every" in typed:
        # The timer that an earlier version installed: it is a kill layer, and goes on.
        typed = arguments = ["admin", *typed]
    as_json = "--json" in (typed[: typed.index("--")] if "--" in typed else typed)
    if as_json:
        from trmcloud.cli.views import json_output

        json_output.begin()
    try:
        try:
            code = app(args=arguments, prog_name="trmcloud", standalone_mode=False)
        finally:
            if sender := sys.modules.get("trmcloud.cli.catch_up"):
                sender.finish()
            sys.stdout.flush()  # here, where a failure can still be reported
        sys.exit(code if isinstance(code, int) else 0)
    except TrmcloudError as error:
        error.next_step = error.next_step or _next_step(error, arguments)
        sys.exit(_failed(error, as_json=as_json))
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            # Bare `trmcloud` has shown its help already; a bare group's help is the message.
            if error.format_message():
                print(error.format_message().rstrip(), file=sys.stderr)
            sys.exit(UsageError.exit_code)
        sys.exit(_failed(as_ours(error), as_json=as_json))
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        if as_json:
            _print_failure("interrupted", 130, "interrupted", "")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe left: not an error of ours, and no one reads a message.
        drop_stdout()
        sys.exit(141)
    except OSError as error:
        drop_stdout()
        sys.exit(_failed(_system_error(error), as_json=as_json))
    except Exception as error:  # the last net: nothing is shown that a user cannot use
        sys.exit(_failed(_unexpected(error), as_json=as_json))


def _failed(error: TrmcloudError, *, as_json: bool) -> int:
    """Print an error, with ``--json`` as a document, too; return its exit code."""
    print_error(error)
    if as_json:
        _print_failure(errors.code_of(error), error.exit_code, str(error), error.next_step)
    return error.exit_code


def _print_failure(code: str, exit_code: int, message: str, next_step: str) -> None:
    from trmcloud.cli.views.json_output import print_failure
    from trmcloud.cli.views.streams import drop_stdout

    try:
        print_failure(code, exit_code, message, next_step)
    except OSError:  # the reader has left, or the disk is full: the exit code says it
        drop_stdout()


def _system_error(error: OSError) -> TrmcloudError:
    """Return an error of the system that no caller explained as one of ours."""
    try:
        os.getcwd()
    except OSError:
        return UsageError("the folder you are in is gone", next_step="cd to one that exists")
    advice = {
        errno.ENOSPC: "free some disk space",
        errno.EDQUOT: "free some disk space: your quota is used up",
        errno.EROFS: "use a folder that can be written; TRMCLOUD_HOME names trmcloud's own",
        errno.EACCES: "use a folder of yours, or change its permissions",
        errno.EPERM: "use a folder of yours, or change its permissions",
        errno.ENOTDIR: "move the file that is where a folder should be",
        errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
        errno.ENOMEM: "free some memory",
    }.get(error.errno or 0)
    if advice is None:
        return _unexpected(error)
    where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    what = (error.strerror or "the system refused").lower()
    return TrmcloudError(what, where=where, next_step=advice)


def _unexpected(error: Exception) -> TrmcloudError:
    """Keep the traceback in a file (code and lines, never values); the error names its path."""
    import tempfile

    text = "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__ + "\n"
    handle, path = tempfile.mkstemp(prefix="trmcloud-crash-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    kind = type(error).__name__
    return TrmcloudError(f"unexpected {kind}: {error}", next_step=f"please report {path}")


def _next_step(error: TrmcloudError, arguments: list[str] | None) -> str:
    """Return the next step for an error that names none."""
    typed = sys.argv[1:] if arguments is None else arguments
    named = typed[: 2 if typed[:1] == ["admin"] else 1] if typed and typed[0] in COMMANDS else []
    usual = {
        errors.UsageError: " ".join(("trmcloud", *named, "--help")),
        errors.NotFoundError: "trmcloud status --all",
        errors.ConflictError: "trmcloud status --all",
        errors.DataError: "--data with another file or folder",
        errors.CheckpointError: "use another checkpoint: trmcloud fetch-best RUN --step N",
        errors.DoesNotFit: "trmcloud plan",
    }
    return next(
        (text for kind, text in usual.items() if isinstance(error, kind)), "trmcloud doctor"
    )


def as_ours(error: Any) -> UsageError:
    """Return the parser's error as one line of ours."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "trmcloud"
    what = str(error.format_message())
    command = getattr(context, "command", None)
    if option := getattr(error, "option_name", ""):
        params = getattr(command, "params", ())
        known = [flag for param in params for flag in getattr(param, "opts", ())]
        what = f"{error.message}{_question(_nearest(option, known))}"
        if option in _MEANT["--hardware"].split() and "hardware" in known:
            what += "; the hardware is the first word: 1xH100"
    elif ". Did you mean " in what:  # a group's own command
        words, _, _ = what.partition(". Did you mean ")
        typed = words.split()[-1].strip("'")
        what = words + _question(_nearest(typed, getattr(command, "commands", ())))
    what = what.rstrip(".").replace("\n", " ")
    return UsageError(what[:1].lower() + what[1:], next_step=f"{path} --help")


def _nearest(typed: str, known: Collection[str]) -> str:
    """Return the one of ``known``, or the line to type, that is meant by, or near, what was typed;
    '' for none. Between a command that spends and one that ends there is none."""
    import difflib  # for an error alone

    lines = (line for line in _MEANT if line.split()[0] in known and " " in line)
    names = [*known, "--help", "--version", *lines]
    meant = {word: name for name in reversed(names) for word in _MEANT.get(name, "").split()}
    meant |= {name: name for name in names if " " not in name}
    word = typed.lower()
    near = difflib.get_close_matches(word, meant, n=5, cutoff=_LIKENESS)
    found = [meant[word]] if word in meant else [meant[each] for each in near]
    effects = {row.command: row.effect for row in OPERATIONS} | {"admin reap": ENDS}
    kinds = {effects.get(name) for name in found} & {SPENDS, ENDS}
    return found[0] if found and len(kinds) < 2 else ""


def _question(near: str) -> str:
    return f"; did you mean {near!r}?" if near else ""


def print_error(error: TrmcloudError) -> None:
    """``error: what (where)`` on one line, the next step below it."""
    from trmcloud.core.text import one_line

    print(one_line(f"error: {error}"), file=sys.stderr)
    if error.next_step:
        print(one_line(f"  try: {error.next_step}"), file=sys.stderr)


if __name__ == "__main__":
    main()
