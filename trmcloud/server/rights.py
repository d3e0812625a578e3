"""Who may do what on a server: one table of commands, one of endpoints, one of options.

``judge`` is the one place that decides about a command line, ``require_role`` about an endpoint.
What is not in a table is refused. A client looks here, too, for what it runs by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from trmcloud.core.errors import AccessDenied, NotFoundError, UsageError
from trmcloud.core.money import ZERO, Usd, parse_budget
from trmcloud.core.values import dataclass, replace
from trmcloud.ports.team import Person, Role


class Where(Enum):
    LOCAL = "local"
    """The client runs it by itself: it is about the client's own files."""
    REMOTE = "remote"
    REFUSED = "refused"


class Whose(Enum):
    """Of a command about one run, whose runs it may name."""

    SEEN = auto()
    """Any run of the person's projects."""
    OWN = auto()
    """A lead's: any run of the person's projects; anyone else's: its own."""


@dataclass(frozen=True)
class Rule:
    """Of a command: where it is run, and the least role for it. ``spends``: its reservations are
    made under the person's grant. ``instead``: of a refused one, what to do."""

    where: Where
    role: Role = Role.VIEWER
    whose: Whose = Whose.SEEN
    spends: bool = False
    usd: tuple[str, ...] = ()
    """The parameters that hold dollars which a second person may have to agree to."""
    instead: str = ""
    spans_projects: bool = False
    """Whether it shows money of all projects: for those who see all of them alone."""


_LOCAL = Rule(Where.LOCAL)
_SEES = Rule(Where.REMOTE)
_SPANS = Rule(Where.REMOTE, spans_projects=True)
_LEADS = Rule(Where.REMOTE, Role.LEAD)
_RUNS = Rule(Where.REMOTE, Role.MEMBER, spends=True)
_STEERS = Rule(Where.REMOTE, Role.MEMBER, Whose.OWN)


def _refused(instead: str) -> Rule:
    return Rule(Where.REFUSED, instead=instead)


_TERMS = ("total", "per_run", "per_day", "per_month")
_AT_SERVER = _refused("run it on the server's own machine")
_PAGE = "open the server's page, or trmcloud logs -f RUN"

COMMANDS: Mapping[str, Rule] = {
    "plan": _SEES,
    "prices list": _SEES,
    "prices show": _SEES,
    "prices diff": _SEES,
    "prices refresh": _LEADS,
    "data list": _SEES,
    "data show": _SEES,
    "data check": _SEES,
    "data get": _AT_SERVER,
    "budget show": _SEES,
    "budget history": _SPANS,
    "budget set": replace(_LEADS, usd=("amount",)),
    "budget raise": replace(_LEADS, usd=("amount",)),
    "ledger check": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "ledger backups": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "ledger restore": _AT_SERVER,
    "ledger settle": _AT_SERVER,
    "ledger move": _AT_SERVER,
    "ledger migrate": _AT_SERVER,
    "doctor": _LOCAL,
    "smoke": _AT_SERVER,
    "guard install": _refused("the server looks for forgotten pods itself"),
    "guard status": _refused("the server looks for forgotten pods itself"),
    "guard remove": _AT_SERVER,
    "notify add": _AT_SERVER,
    "notify list": _AT_SERVER,
    "notify remove": _AT_SERVER,
    "notify test": _AT_SERVER,
    "rehearse": Rule(Where.REMOTE, Role.MEMBER),
    "try": _LOCAL,
    "launch": _RUNS,
    "run": _RUNS,
    "sweep": _RUNS,
    "export": _LOCAL,
    "status": _SEES,
    "ui": _refused(_PAGE),
    "attach": _STEERS,
    "logs": _SEES,
    "ssh": _AT_SERVER,
    "save": _STEERS,
    "stop": _STEERS,
    "resume": replace(_STEERS, spends=True),
    "reap": _LEADS,
    "volumes": _SPANS,
    "volumes delete": _LEADS,
    "tensorboard": _refused(_PAGE),
    "wandb": _AT_SERVER,
    "gate": _SEES,
    "eval": _LOCAL,
    "sample": _LOCAL,
    "serve": _LOCAL,
    "fetch-best": _SEES,
    "adopt": _LOCAL,
    "prune": _STEERS,
    "report": _SEES,
    "verify": _LOCAL,
    "grant give": replace(_LEADS, usd=_TERMS),
    "grant raise": replace(_LEADS, usd=_TERMS),
    "grant revoke": _LEADS,
    "grant list": _SPANS,
    "grant history": _SPANS,
    "approve": replace(_LEADS, usd=("request",)),
    "deny": _LEADS,
    "mcp": _refused("agents connect to /mcp at the server's address, with a token of theirs"),
    "login": _LOCAL,
    "logout": _LOCAL,
    "server run": _LOCAL,
    "server add": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "server remove": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "server people": Rule(Where.REMOTE, Role.LEAD),
    "server token": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "server revoke": Rule(Where.REMOTE, Role.ADMINISTRATOR),
    "server key": _AT_SERVER,
    "server secret": _AT_SERVER,
    "server secrets": _AT_SERVER,
    "server audit": Rule(Where.REMOTE, Role.LEAD),
    "server raises": Rule(Where.REMOTE, Role.LEAD),
    "server approve": Rule(Where.REMOTE, Role.LEAD),
    "server deny": Rule(Where.REMOTE, Role.LEAD),
}
"""By the words that call a command. What is missing here is refused."""


# -- options ---------------------------------------------------------------------------------------


class Kind(Enum):
    """The kinds of values that an option takes. None of them can name a file of the server."""

    FLAG = auto()
    NUMBER = auto()
    WORD = auto()
    """Letters, digits and some signs, none of which leads into another folder."""
    SETTING = auto()
    """KEY=VALUE without a slash."""
    TEXT = auto()
    """Text that is handed to a rented machine, or kept as text: no command opens it as a file."""
    INSIDE = auto()
    """A relative path inside the files that the client has sent."""
    REPOSITORY = auto()
    """owner/name of a model."""
    BUDGET = auto()
    """A month, a project, or a project and a month."""
    GAIN = auto()
    IMAGE = auto()
    BUCKET = auto()
    RUN = auto()
    OUTPUT = auto()
    """A file or folder of the client: what the command writes there is downloaded."""
    INPUT = auto()
    """A small text file of the client: its content is sent with the command."""
    HARDWARE = auto()
    LEADS = auto()
    """As TEXT, for a lead."""
    REFUSED = auto()


PARAMETERS: Mapping[str, Kind] = {
    **dict.fromkeys(
        (
            "as_json",
            "verbose",
            "everything",
            "watch",
            "live",
            "detach",
            "yes",
            "now",
            "follow",
            "dry_run",
            "fit_balance",
            "community",
            "spot",
            "fill",
            "equal_work",
            "strict_guide",
            "volume",
            "accept_loss",
            "accept_change",
            "weights_only",
            "custom_code",
            "guides",
            "recipes",
            "month",
            "as_csv",
            "make",
            "cron",
            "is_service",
            "no_earlier",
        ),
        Kind.FLAG,
    ),
    **dict.fromkeys(
        (
            "budget",
            "rate",
            "steps",
            "hours",
            "tokens",
            "processes",
            "hour_value",
            "gpus",
            "memory",
            "max_price",
            "kwh",
            "volume_days",
            "keep_best",
            "checkpoint_gb",
            "grace",
            "silent",
            "probe",
            "lines",
            "wait",
            "step",
            "runs",
            "faults",
            "seed",
            "patience",
            "amount",
            "total",
            "after",
            "per_run",
            "per_day",
            "per_month",
            "more",
            "idle",
            "runs_at_once",
            "slots",
            "eta",
            "rungs",
        ),
        Kind.NUMBER,
    ),
    **dict.fromkeys(
        (
            "recipe",
            "phase",
            "goal",
            "precision",
            "scale_lr",
            "objective",
            "balance",
            "provider",
            "region",
            "deadline",
            "wait_for",
            "move_if",
            "if_slow",
            "explain",
            "own",
            "method",
            "last_rungs",
            "volume_then",
            "via",
            "name",
            "idempotency_key",
            "best",
            "stop_signal",
            "sku",
            "level",
            "key",
            "to",
            "numbers",
            "principal",
            "approval",
            "request",
            "expires",
            "people",
            "raise_id",
            "role",
            "project",
            "token",
            "about",
            "days",
            "for_s",
            "source",
            "data",
            "hf",
            "sampler",
        ),
        Kind.WORD,
    ),
    "setting": Kind.SETTING,
    "hf_set": Kind.SETTING,
    "tag": Kind.SETTING,
    "default": Kind.SETTING,
    "stop_at_gain": Kind.GAIN,
    "checkpoints": Kind.TEXT,
    "metric": Kind.TEXT,
    "resume": Kind.TEXT,
    "words": Kind.TEXT,
    "why": Kind.TEXT,
    "pip": Kind.INSIDE,
    "stop_file": Kind.INSIDE,
    "image": Kind.IMAGE,
    "bucket": Kind.BUCKET,
    "run": Kind.RUN,
    "initial_from": Kind.RUN,
    "into": Kind.OUTPUT,
    "html": Kind.OUTPUT,
    "focus": Kind.OUTPUT,
    "plot": Kind.OUTPUT,
    "space": Kind.INPUT,
    "hardware": Kind.HARDWARE,
    "accept_exposure": Kind.LEADS,
}
"""By the names of parameters; one that is missing here is refused."""

BESIDE: Mapping[tuple[str, str], Kind] = {
    ("plan", "hf"): Kind.REPOSITORY,
    ("plan", "words"): Kind.REFUSED,  # the files of a command are the client's
    ("plan", "probe"): Kind.WORD,
    **{
        ("rehearse", name): Kind.REFUSED
        for name in ("words", "checkpoints", "metric", "resume", "pip", "stop_file", "data")
    },
    ("run", "data"): Kind.REFUSED,
    ("budget set", "key"): Kind.BUDGET,
    ("budget raise", "key"): Kind.BUDGET,
    ("reap", "yes"): Kind.FLAG,
    ("ledger backups", "make"): Kind.FLAG,
    ("volumes delete", "volume"): Kind.WORD,
    ("server people", "everything"): Kind.FLAG,
}
"""Parameters that are another kind at one command."""

_INSTEAD: Mapping[str, str] = {
    "env": "its value would be the server's own; put it into a file that the script reads",
    "data": "--data names a data set here; a command's data goes with its files, or in a bucket",
    "chat_data": "leave it out: the server has no such file",
    "root": "type the command in the folder to send",
    "words": "plan hardware and budget first; --dry-run of run shows a command's plan",
    "allow_key": "ask who runs the server",
}

_NUMBER = re.compile(r"[$]?[0-9.,eE+-]{1,40}|[0-9.]{1,20}[a-zA-Z%]{1,3}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,+=@%*<>-]{0,199}")
_BUDGET = re.compile(_WORD.pattern + r"( [0-9]{4}-[0-9]{2})?")
_SETTING = re.compile(r"[A-Za-z0-9_.:-]{1,64}(=[^/\\~\x00-\x1f]{0,256})?")
_INSIDE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./\[\],@+ -]{0,254}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_GAIN = re.compile(r"[0-9.eE-]{1,20}/usd", re.IGNORECASE)
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/@-]{0,237}")
_BUCKET = re.compile(r"s3://[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(:[0-9]{1,12})?")
OUTPUT = re.compile(r"download-[0-9]{1,3}")
"""The name that a client sends in place of a path of its own."""
INPUT = re.compile(r"input-[0-9]{1,3}")
"""Likewise, for a file whose content it sends."""
MOST_INPUT_BYTES = 1 << 16
_MOST_TEXT = 1 << 14
_PATTERNS: Mapping[Kind, re.Pattern[str]] = {
    Kind.NUMBER: _NUMBER,
    Kind.WORD: _WORD,
    Kind.SETTING: _SETTING,
    Kind.INSIDE: _INSIDE,
    Kind.REPOSITORY: _REPOSITORY,
    Kind.BUDGET: _BUDGET,
    Kind.GAIN: _GAIN,
    Kind.IMAGE: _IMAGE,
    Kind.BUCKET: _BUCKET,
    Kind.RUN: _RUN,
    Kind.OUTPUT: OUTPUT,
    Kind.INPUT: INPUT,
    Kind.HARDWARE: _WORD,
    Kind.LEADS: _NUMBER,
}


@dataclass(frozen=True)
class Given:
    """A parameter that was typed: its name, how messages name it, and its values as text."""

    name: str
    shown: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Parsed:
    """A command line, read as the command itself reads it."""

    command: str
    given: tuple[Given, ...]
    takes_run: bool = False
    """Whether it takes a run as an argument: the newest where none is typed."""
    wants_live: bool = False
    """Whether that is a live one."""
    is_help: bool = False

    def values(self, name: str) -> tuple[str, ...]:
        return next((each.values for each in self.given if each.name == name), ())


@dataclass(frozen=True)
class KnownRun:
    """The facts of a run that decide who may touch it."""

    run_id: str
    name: str
    project: str
    owners: tuple[str, ...]
    live: bool
    created_at: float
    cap: Usd = ZERO
    settled: Usd = ZERO


@dataclass(frozen=True)
class Allowed:
    """A command line that may be run: ``words`` are what was typed, a run's id filled in where the
    newest was meant. ``principal``: under whose grant it spends; empty: it reserves nothing."""

    words: tuple[str, ...]
    rule: Rule
    principal: str
    writes_files: bool = False
    takes_tree: bool = False
    """Whether the files of a working tree go with it."""
    inputs: tuple[Given, ...] = ()
    """Its options whose value is a file that the client sends with it."""
    second_person: Usd | None = None
    """The sum that a second person has to agree to first."""


def rule_of(command: str) -> Rule:
    return COMMANDS.get(command) or _refused("it is not offered by servers")


def kind_of(command: str, parameter: str) -> Kind:
    known = BESIDE.get((command, parameter))
    return known or PARAMETERS.get(parameter, Kind.REFUSED)


def judge(
    person: Person,
    words: Sequence[str],
    parsed: Parsed,
    runs: Callable[[], Sequence[KnownRun]],
    *,
    four_eyes: Usd | None = None,
    local_commands: bool = False,
    request_usd: Callable[[str], Usd | None] = lambda request: None,
) -> Allowed:
    """Decide whether ``person`` may run a command line here.

    Args:
        runs: asked where the command names a run, or means the newest one.
        four_eyes: the sum above which a second person has to agree.
        local_commands: whether commands of users may be run on the server's own machine.
        request_usd: the largest sum that a principal's grant would allow with a request of that id;
            None where there is none.

    Raises:
        AccessDenied: the role is too low, or the command is not for servers. UsageError: an option
            that is not for servers. NotFoundError: a run that is not there, or is not to be seen.
    """
    rule = rule_of(parsed.command)
    _require_served(parsed.command, rule)
    _require_rank(person, rule.role, parsed.command)
    _require_projects(person, parsed, rule)
    for given in parsed.given:
        _check(person, parsed.command, given)
    takes_tree = sends_tree(parsed)
    if parsed.command == "sweep":
        _check_sweep(parsed, takes_tree=takes_tree)
    hardware = [value.strip().lower() for value in parsed.values("hardware")]
    if not local_commands and takes_tree and "local" in hardware:
        raise AccessDenied(
            "a command of yours is not run on the server's own machine, beside its keys",
            next_step=f"name hardware to rent: trmcloud {parsed.command} any --budget 1 -- COMMAND",
        )
    made = tuple(words)
    if parsed.takes_run or parsed.values("initial_from"):
        made = _with_run(person, made, parsed, rule, runs)
    writes = any(kind_of(parsed.command, given.name) is Kind.OUTPUT for given in parsed.given) or (
        parsed.command == "fetch-best"
    )
    return Allowed(
        made,
        rule,
        person.name if rule.spends else "",
        writes,
        takes_tree,
        tuple(each for each in parsed.given if kind_of(parsed.command, each.name) is Kind.INPUT),
        _sum_above(parsed, rule, four_eyes, request_usd),
    )


def sends_tree(parsed: Parsed) -> bool:
    """Whether it is about a command of the person's, whose files are sent: ``run``, and a ``sweep``
    of a command."""
    if parsed.command != "sweep":
        return parsed.command == "run"
    from trmcloud.app.sweeping import divide_words

    return bool(divide_words(parsed.values("words"))[1])


def _check_sweep(parsed: Parsed, *, takes_tree: bool) -> None:
    """
    Raises:
        UsageError: a recipe's space that could name a path, or data beside a command.
    """
    if takes_tree:
        if parsed.values("data"):
            raise UsageError(
                "--data does not work through a server with a command", next_step=_INSTEAD["data"]
            )
        return
    for word in parsed.values("words"):
        if not _SETTING.fullmatch(word):
            raise UsageError(
                f"{word[:60]!r}: a server takes names and numbers here, no path",
                next_step="lr=log:1e-4,1e-2",
            )


def check_input(allowed: Allowed, content: str) -> None:
    """
    Raises:
        UsageError: a file that a client has sent is too large, or names a path of the server.
    """
    if len(content.encode()) > MOST_INPUT_BYTES:
        raise UsageError(f"a file with more than {MOST_INPUT_BYTES:,} bytes is not sent")
    if allowed.takes_tree:
        return  # its values are words of the rented machine's command
    import tomllib

    with suppress(ValueError):  # the command says what is wrong
        for text in _texts(tomllib.loads(content)):
            _check_text_of_space(text)


def _check_text_of_space(text: str) -> None:
    if not _SETTING.fullmatch(f"x={text}"):
        raise UsageError(
            f"{text[:60]!r} in the space: a server takes names and numbers there, no path",
            next_step="lr = {log = [1e-4, 1e-2]}",
        )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def with_value(words: Sequence[str], flag: str, value: str, new: str) -> list[str]:
    """The words with ``new`` as the value of an option, where ``value`` was typed: that once, and
    not in a command behind ``--``."""
    made = list(words)
    end = made.index("--") if "--" in made else len(made)
    for n, word in enumerate(made[:end]):
        if word == f"{flag}={value}":
            made[n] = f"{flag}={new}"
            return made
        if word == flag and n + 1 < end and made[n + 1] == value:
            made[n + 1] = new
            return made
    return made


def _require_served(command: str, rule: Rule) -> None:
    if rule.where is Where.REFUSED:
        raise AccessDenied(f"{command[:60]} does not work through a server", next_step=rule.instead)
    if rule.where is Where.LOCAL:
        raise AccessDenied(
            f"{command} is about files of its own machine: a server does not run it",
            next_step="run it where the files are",
        )


def _require_rank(person: Person, role: Role, what: str) -> None:
    if person.disabled_at is not None or not person.role.includes(role):
        raise AccessDenied(
            f"{what} needs the role {role.value}; {person.name} is {person.role.value}",
            next_step="ask an administrator of the server",
        )


def _require_projects(person: Person, parsed: Parsed, rule: Rule) -> None:
    if not person.projects:
        return
    mine = ", ".join(person.projects)
    if rule.spans_projects or (parsed.command == "report" and _is_of_a_month(parsed)):
        raise AccessDenied(
            f"{parsed.command} shows all projects; {person.name} sees only {mine}",
            next_step="trmcloud report",
        )
    # What a lead or an administrator decides is about all projects, but for a project's own cap.
    if rule.role.includes(Role.LEAD) and not _is_cap_of(person, parsed):
        raise AccessDenied(
            f"{parsed.command} is about all projects; {person.name} has only {mine}",
            next_step=f"trmcloud budget set project USD --for {person.projects[0]}",
        )


def _is_cap_of(person: Person, parsed: Parsed) -> bool:
    """Whether it changes the cap of one of the person's projects."""
    if parsed.command not in ("budget set", "budget raise"):
        return False
    named = [key.partition(" ")[0] for key in parsed.values("key")]
    of_projects = set(parsed.values("level")) <= {"project", "project-month"}
    return of_projects and bool(parsed.values("level")) and set(named) <= set(person.projects)


def _check(person: Person, command: str, given: Given) -> None:
    kind = kind_of(command, given.name)
    if kind is Kind.LEADS and not person.role.includes(Role.LEAD):
        raise AccessDenied(
            f"{given.shown} needs the role lead; {person.name} is {person.role.value}",
            next_step=f"leave out {given.shown}, or ask a lead",
        )
    check_value(command, given)


def check_value(command: str, given: Given) -> None:
    """
    Raises:
        UsageError: a parameter, or a value of it, that no server takes.
    """
    kind = kind_of(command, given.name)
    if kind is Kind.REFUSED:
        raise UsageError(
            f"{given.shown} does not work through a server",
            next_step=_INSTEAD.get(given.name, f"leave out {given.shown}"),
        )
    if kind is Kind.FLAG:
        return
    for value in given.values:
        if not _fits(kind, value):
            raise UsageError(
                f"{given.shown} {value[:60]!r}: a server takes names and numbers here, no path",
                next_step=f"{given.shown} with a name that the server knows",
            )


def _fits(kind: Kind, value: str) -> bool:
    if kind is Kind.TEXT:
        return len(value) <= _MOST_TEXT and "\0" not in value
    if ".." in value.replace("/", " ").split() or "\0" in value:
        return False
    if kind is Kind.INSIDE and any(part in ("", "..") for part in value.split("/")):
        return False
    if kind is Kind.IMAGE and "//" in value:
        return False
    return value == "" or _PATTERNS[kind].fullmatch(value) is not None


def _with_run(
    person: Person,
    words: tuple[str, ...],
    parsed: Parsed,
    rule: Rule,
    runs: Callable[[], Sequence[KnownRun]],
) -> tuple[str, ...]:
    """The words, with a run that may be named; its id is added where none is typed."""
    known = sorted(runs(), key=lambda run: run.created_at)
    seen = [run for run in known if sees(person, run.project)]
    mine = [run for run in seen if may_touch(person, run)] if rule.whose is Whose.OWN else seen
    for named in (*parsed.values("run"), *parsed.values("initial_from")):
        name = named.partition(":")[0]
        if parsed.command == "report" and _is_of_a_month(parsed):
            continue
        if not any(name in (run.run_id, run.name) for run in seen):
            raise _unknown(named)
        if not any(name in (run.run_id, run.name) for run in mine):
            raise AccessDenied(
                f"{named} is another person's run: {parsed.command} needs the role lead",
                next_step="trmcloud status --all",
            )
    if rule.whose is not Whose.OWN or parsed.values("run") or not parsed.takes_run:
        return words
    meant = [run for run in mine if run.live or not parsed.wants_live]
    if not meant:
        raise NotFoundError(f"{person.name} has no run to {parsed.command}")
    return (*words, meant[-1].run_id)


def _is_of_a_month(parsed: Parsed) -> bool:
    return not {"month", "focus"}.isdisjoint(each.name for each in parsed.given)


def _unknown(named: str) -> NotFoundError:
    return NotFoundError(f"no run {named[:60]!r}", next_step="trmcloud status --all")


def sees(person: Person, project: str) -> bool:
    return not person.projects or project in person.projects


def may_touch(person: Person, run: KnownRun) -> bool:
    """Whether the person may steer a run that it sees."""
    return person.role.includes(Role.LEAD) or person.name in run.owners


def _sum_above(
    parsed: Parsed,
    rule: Rule,
    four_eyes: Usd | None,
    request_usd: Callable[[str], Usd | None],
) -> Usd | None:
    """The largest sum of a command line, where that is above ``four_eyes``."""
    if four_eyes is None:
        return None
    most = ZERO
    for name in rule.usd:
        for text in parsed.values(name):
            if name == "request":
                most = max(most, request_usd(text) or ZERO)
                continue
            try:
                most = max(most, parse_budget(text))
            except ValueError:
                continue  # the command says what is wrong
    return most if most > four_eyes else None


# -- tools of agents -------------------------------------------------------------------------------

TOOLS: Mapping[str, Rule] = {
    "grant": _SEES,
    "prices": _SEES,
    "plan": _SEES,
    "plan_sweep": _SEES,
    "try": _refused("type trmcloud try where the files are"),
    "launch": _RUNS,
    "sweep": _RUNS,
    "status": _SEES,
    "logs": _SEES,
    "metrics": _SEES,
    "report": _SEES,
    "save": _STEERS,
    "land": _STEERS,
    "stop": _STEERS,
    "fetch": _refused("type trmcloud fetch-best RUN where the files are to be"),
    "ask_approval": replace(_STEERS, whose=Whose.SEEN),
}
"""Of the tools at ``/mcp``: each acts under the grant of the token's person, on that person's runs.
What is missing here is refused."""
_OF_FILES = frozenset({"command", "folder", "words", "root", "pip"})
_OF_CALLS = frozenset({"quote", "idempotency_key", "most_bytes"})


def judge_tool(person: Person, tool: str, given: Mapping[str, Any]) -> Rule:
    """Decide whether ``person`` may call a tool at ``/mcp``.

    Raises:
        AccessDenied: the role is too low, or the tool is about files of its own machine.
            UsageError: an argument that names a file of the client, or a path of the server.
    """
    rule = TOOLS.get(tool) or _refused("it is not offered by servers")
    if rule.where is Where.REFUSED:
        raise AccessDenied(f"{tool[:60]} does not work through a server", next_step=rule.instead)
    _require_rank(person, rule.role, tool)
    if tool not in ("plan", "plan_sweep"):
        return rule  # its arguments are ids, numbers and text that is kept
    for name, value in given.items():
        if not value or name in _OF_CALLS:
            continue
        if name in _OF_FILES:
            raise UsageError(
                f"{name}: a server has no files of yours",
                next_step="type trmcloud run, or trmcloud sweep, where they are",
            )
        if name == "space":
            for text in _texts(value):
                _check_text_of_space(text)
            continue
        values = value if isinstance(value, (list, tuple)) else (value,)
        _check(person, "plan", Given(name, name, tuple(map(str, values))))
    return rule


# -- endpoints -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Endpoint:
    """A path of the HTTP API. ``command``: the command line that answers it, ``{}`` in it filled
    from path and body; empty: it is answered by code of its own, for ``role``."""

    method: str
    path: str
    role: Role = Role.VIEWER
    command: str = ""
    streams: bool = False
    is_open: bool = False
    """Whether it needs no token."""


V1 = "/api/v1"
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", f"{V1}/health", is_open=True),
    Endpoint("POST", f"{V1}/login", is_open=True),
    Endpoint("GET", f"{V1}/oidc", is_open=True),
    Endpoint("GET", f"{V1}/oidc/start", is_open=True),
    Endpoint("GET", f"{V1}/oidc/callback", is_open=True),
    Endpoint("POST", f"{V1}/oidc/device", is_open=True),
    Endpoint("POST", f"{V1}/oidc/device/token", is_open=True),
    Endpoint("POST", f"{V1}/oidc/confirm", is_open=True),  # it asks for the browser's session
    Endpoint("GET", f"{V1}/me"),
    Endpoint("DELETE", f"{V1}/me/token"),
    Endpoint("POST", f"{V1}/uploads", Role.MEMBER),
    Endpoint("POST", f"{V1}/commands", streams=True),
    Endpoint("GET", f"{V1}/commands/{{id}}/files/{{name:path}}"),
    Endpoint("GET", f"{V1}/runs", command="status --all --json"),
    Endpoint("GET", f"{V1}/runs/{{run}}", command="status {run} --json"),
    Endpoint("POST", f"{V1}/runs/{{run}}/land", Role.MEMBER, "stop {run} -d -y --json"),
    Endpoint("POST", f"{V1}/runs/{{run}}/stop", Role.MEMBER, "stop {run} --now -d -y --json"),
    Endpoint("POST", f"{V1}/runs/{{run}}/save", Role.MEMBER, "save {run} -d --json"),
    Endpoint("GET", f"{V1}/runs/{{run}}/report", command="report {run} --json"),
    Endpoint("GET", f"{V1}/budgets", command="budget show --json"),
    Endpoint("POST", f"{V1}/budgets/{{level}}", Role.LEAD, "budget raise {level} {amount} --json"),
    Endpoint("GET", f"{V1}/spend"),
    Endpoint("GET", f"{V1}/spend/{{month}}", command="report {month} --month --json"),
    Endpoint("POST", f"{V1}/plans", command="plan {options} --json"),
    Endpoint("POST", f"{V1}/launches", Role.MEMBER, "launch {plan} -d -y --json"),
    Endpoint("GET", f"{V1}/audit", Role.LEAD, "server audit --json"),
    Endpoint("GET", f"{V1}/raises", Role.LEAD, "server raises --json"),
    Endpoint("POST", f"{V1}/raises/{{id}}/approve", Role.LEAD, "server approve {id} --json"),
    Endpoint("POST", f"{V1}/raises/{{id}}/deny", Role.LEAD, "server deny {id} --json"),
)

PAGE_ENDPOINTS: Mapping[tuple[str, str], Role] = {
    ("GET", "/api/runs"): Role.VIEWER,
    ("GET", "/api/runs/{run}"): Role.VIEWER,
    ("GET", "/api/runs/{run}/curves"): Role.VIEWER,
    ("GET", "/api/runs/{run}/log"): Role.VIEWER,
    ("GET", "/api/runs/{run}/machine"): Role.VIEWER,
    ("GET", "/api/runs/{run}/launched"): Role.VIEWER,
    ("GET", "/api/runs/{run}/foreseen"): Role.VIEWER,
    ("POST", "/api/runs/{run}/do"): Role.LEAD,
    ("GET", "/api/spend"): Role.VIEWER,
    ("GET", "/api/audit"): Role.LEAD,
    ("GET", "/api/compare"): Role.VIEWER,
    ("GET", "/api/plans"): Role.VIEWER,
    ("GET", "/api/plans/{plan}/foreseen"): Role.VIEWER,
    ("GET", "/api/stream"): Role.VIEWER,
}
"""Of the page's own requests. What is missing here (launching, raising a cap) is refused: it would
be done as the ledger's owner, and is typed as a command."""
PAGE_OF_PROJECTS = ("/api/runs", "/api/spend")
"""Those that show a person with projects these alone; of a run's, each is asked for its project.
All others show all projects, and are refused to such a person."""
_OF_A_RUN = re.compile(r"/api/runs/([^/]+)(/.*)?")


def require_role(person: Person, role: Role, what: str) -> None:
    """
    Raises:
        AccessDenied: the person's role is a lesser one, or it may do nothing any more.
    """
    _require_rank(person, role, what)


def require_page(
    person: Person, method: str, path: str, runs: Callable[[], Sequence[KnownRun]]
) -> None:
    """
    Raises:
        AccessDenied: the page does not do it, the role is too low, or it shows other projects.
        NotFoundError: there is no such run, or it is of another project.
    """
    role = page_role(method, path)
    if role is None:
        raise AccessDenied("this is not done on a server's page", next_step="type it as a command")
    require_role(person, role, f"{method} {path}")
    if not person.projects or path in PAGE_OF_PROJECTS:
        return
    if (of_run := _OF_A_RUN.fullmatch(path)) is not None:
        named = of_run[1]
        if not any(named == run.run_id and sees(person, run.project) for run in runs()):
            raise _unknown(named)
        return
    raise AccessDenied(
        f"this view shows all projects; {person.name} sees only {', '.join(person.projects)}",
        next_step="trmcloud status",
    )


def page_role(method: str, path: str) -> Role | None:
    """The least role for a request of the page; None where it is refused to all."""
    for (known, pattern), role in PAGE_ENDPOINTS.items():
        regex = re.sub(r"\{[a-z]+\}", r"[^/]+", pattern)
        if known == method and re.fullmatch(regex, path):
            return role
    return None
