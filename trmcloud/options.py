"""The options of what is planned and launched: one row each, and the plan's wish made from them.

A row is a field of ``LaunchRequest`` made by ``option``. Its name is what the Python API takes, its
type and default are what a user types; the row holds the flag, the help, the commands that take it
and its place in ``RunSpec``. Typer's parameters (``cli.options``), the API's check of names and
``docs/commands.md`` are made from the rows.
"""

# Annotations are values here: a command's parameters are made from them.
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trmcloud.core.catalog.goals import Goal
from trmcloud.core.catalog.hardware import LOCAL, parse_hardware
from trmcloud.core.errors import UsageError
from trmcloud.core.money import Usd, parse_budget
from trmcloud.core.nearest import nearest
from trmcloud.core.spec.settings import CHAT, PHASE_NAMES, PHASES, PRECISIONS, SCALES, parse_setting
from trmcloud.core.spec.spec import (
    AT_BUDGET,
    BALANCE_POLICIES,
    CONTINUE,
    IGNORE,
    KEEP,
    OBJECTIVES,
    SLOW_POLICIES,
    THEN,
    TIGHT,
    WARN,
    RunSpec,
    parse_deadline,
    parse_idle,
    parse_wait,
)
from trmcloud.core.spec.stop_rules import checked_patience
from trmcloud.core.values import Value, replace
from trmcloud.io.redaction import find_token

Parser = Callable[[str, Any], Any]
"""(flag, what was typed) → the value in its place; raises UsageError, which names the flag."""

MOST_VOLUME_DAYS = 365
_WEEK_DAYS = 7.0


class Rare(str):
    """The heading of an option that only ``--help-all`` shows."""


class Option(Value):
    """A row: what a field of a request is for the command line, for the docs and in its place."""

    flags: tuple[str, ...]
    """As they are typed; without dashes, a positional argument of that name."""
    help: str
    on: tuple[str, ...]
    """The commands that take it."""
    group: str
    """The heading that it stands under in help and docs; ``Rare`` of an option that few need."""
    metavar: str | None = None
    envvar: str | None = None
    place: str | None = None
    """The field that it fills; None: that of its own name. Rows of one place are tuples, and are
    joined. Empty: it is about the launch, and no part of a plan."""
    parse: Parser | None = None
    """None: it stands in its place as it is typed."""
    beside_a_plan: bool = False
    """It may be typed beside the id of a plan that was made before, and does not change it."""
    but: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """By command, fields of this row that differ there."""
    is_required: bool = True
    """Of a positional argument: whether it must be typed."""
    in_file: bool = False
    """It may stand in ``trmcloud.toml``, which may be somebody else's, under ``key``."""
    not_beside: str = ""
    """An option that replaces the file's value of this one, too, where it is typed."""

    def place_of(self, name: str) -> str:
        return name if self.place is None else self.place

    @property
    def flag(self) -> str:
        """The one that messages name."""
        return self.flags[-1]

    @property
    def key(self) -> str:
        """Its name in ``trmcloud.toml``."""
        return self.flag.removeprefix("--")

    @property
    def is_positional(self) -> bool:
        return not self.flag.startswith("-")


def option(flags: str, default: Any, help: str, on: str, group: str, **more: Any) -> Any:
    """A field with its row; ``flags`` and ``on`` are words, ``more`` is as in ``Option``."""
    row = Option(tuple(flags.split()), help, tuple(on.split()), group, **more)
    return dataclasses.field(default=default, metadata={"option": row})


def rows_of(request: type[Any], command: str = "") -> dict[str, Option]:
    """By the names of its fields, the rows of a request: those that ``command`` takes, as they are
    there; all where it is empty."""
    rows = {
        field.name: field.metadata["option"]
        for field in dataclasses.fields(request)
        if "option" in field.metadata
    }
    if not command:
        return rows
    return {
        name: replace(row, **row.but.get(command, {}))
        for name, row in rows.items()
        if command in row.on
    }


def placed(request: Any) -> dict[str, Any]:
    """By its place, each value that was given, checked; what was not given is left out.

    Raises:
        UsageError: naming the option at fault.
    """
    refuse_tokens(request)
    made: dict[str, Any] = {}
    for name, row in rows_of(type(request)).items():
        value = getattr(request, name)
        place = row.place_of(name)
        if not place or (value in (None, "", ()) and name not in request.typed):
            continue
        found = row.parse(row.flag, value) if row.parse else value
        made[place] = (*made[place], *found) if place in made else found
    return made


def refuse_tokens(request: Any) -> None:
    """Refuse what would be stored with a plan, and shown, for whoever reads it then.

    Raises:
        UsageError: an option, or a word of the command, holds a token.
    """
    for name, row in rows_of(type(request)).items():
        value = getattr(request, name)
        for text in value if isinstance(value, tuple | list) else (value,):
            if kind := find_token(str(text)):
                what = "the command" if row.is_positional else row.flag
                raise UsageError(
                    f"{what} holds a token ({kind}…), which plans, records and reports would keep",
                    next_step="export it, pass its name, and read it in the script: --env HF_TOKEN",
                )


def parse_money(flag: str, text: str | Usd | None) -> Usd | None:
    """
    Raises:
        UsageError: ``text`` is no amount above zero; ``flag`` is what it was given to.
    """
    if text is None or isinstance(text, Usd):
        return text
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}", next_step=f"{flag} 1000") from None


def parse_cap(text: str, next_step: str, flag: str = "") -> Usd:
    """Return an amount that may be zero.

    Raises:
        UsageError: ``text`` is none; ``flag`` is what it was given to.
    """
    try:
        return Usd(0) if text.strip() in ("0", "$0") else parse_budget(text)
    except ValueError as error:
        what = f"{flag}: {error}" if flag else str(error)
        raise UsageError(what, next_step=next_step) from None


def checked(holds: Callable[[Any], bool], words: str, next_step: str = "") -> Parser:
    """Leaves a value as it is; ``words``, filled with flag and value, where it does not hold."""

    def parse(flag: str, value: Any) -> Any:
        if not holds(value):
            raise UsageError(words.format(flag=flag, value=value), next_step=next_step)
        return value

    return parse


def _one_of(*choices: str) -> Parser:
    def parse(flag: str, value: Any) -> Any:
        if value in choices:
            return value
        near = nearest(str(value), choices)
        raise UsageError(
            f"{flag} must be one of {', '.join(choices)}, not {value!r}",
            next_step=f"{flag} {near}" if near else "",
        )

    return parse


def _phases(flag: str, value: str) -> tuple[str, ...]:
    named = {_one_of(*PHASE_NAMES, "both")(flag, each) for each in value.split(",")}
    if named == {"both"}:
        return PHASES
    return tuple(name for name in PHASE_NAMES if name in named)


def _precision(flag: str, value: str) -> tuple[tuple[str, Any], ...]:
    _one_of(*PRECISIONS)(flag, value)
    return (("dtype", PRECISIONS[value]),)


def _scale_lr(flag: str, value: str) -> tuple[tuple[str, Any], ...]:
    return (("scale_lr", _one_of(*SCALES)(flag, value)),)


def _settings(flag: str, texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    return tuple(parse_setting(text) for text in texts)


def _hardware(flag: str, text: str) -> str:
    return parse_hardware(text).text


def _bucket(flag: str, text: str) -> str:
    from trmcloud.core.contract.bucket_layout import parse_place

    return str(parse_place(text))


parse_balance_policy = _one_of(*BALANCE_POLICIES)
_above_zero = checked(lambda value: 0 < value < 1e15, "{flag} must be above zero, not {value}")

_PLANNED = "plan launch rehearse export"
_SWEPT = _PLANNED + " sweep"
_ALL = _SWEPT + " run"
_LAUNCHED = "launch rehearse run sweep"
_TRAINED = "launch rehearse"
_RENTED = "plan launch rehearse run sweep"
_MODEL, _LENGTH, _CHOICE = "Model and data", "Budget and length", "Choice of hardware"
_KEPT, _RENTING, _LEAVING = "Checkpoints", "Renting", "Launch"
_MODEL_RARE, _LENGTH_RARE, _CHOICE_RARE = Rare(_MODEL), Rare(_LENGTH), Rare(_CHOICE)
_KEPT_RARE, _RENTING_RARE, _LEAVING_RARE = Rare(_KEPT), Rare(_RENTING), Rare(_LEAVING)


# fmt: off
class LaunchRequest(Value):
    """A user's request, by the names of the options: money is still text, and nothing is checked.
    ``spec_of`` checks it, once, into a RunSpec."""

    hardware: str = option(
        "hardware", "",
        "8xB200 8xH200 8xH100 8xA100 4xH100 4xA100, other NxSKU, 2x8xH100 (two machines), local, "
        "or the id of a plan.", _ALL + " try", _CHOICE, metavar="HARDWARE", parse=_hardware,
        beside_a_plan=True, in_file=True,
        but={
            "launch": {
                "is_required": False,
                "help": "8xH100, other NxSKU, 2x8xH100 (two machines), local, or the id of a plan; "
                        "for a command also any (8xany): the cheapest.",
            },
            "plan": {
                "flags": ("--hardware",), "metavar": None,
                "help": "8xA100, 2x8xA100 (two machines), local, … (default: all offers).",
            },
            "export": {"help": "8xA100, other NxSKU, local, or all (--as sky)."},
            "rehearse": {
                "help": "8xH100, other NxSKU, 2x8xH100 (two machines), local, or the id of a "
                        "plan; for a command also any (8xany).",
            },
            "run": {
                "help": "8xH100, 1xA100, other NxSKU, local, or any (8xany): the cheapest.",
            },
            "sweep": {
                "help": "8xH100, 1xA100, other NxSKU, local, or any (8xany): the cheapest.",
            },
            "try": {
                "flags": ("--hardware",), "metavar": None,
                "help": "Hardware in the printed command: 1xH100, local, …",
            },
        },
    )
    recipe: str = option(
        "--recipe", "",
        "Recipe: a name or a TOML file (default: trm-tiny on local, else speedrun; trm with a "
        "--phase of it).",
        _SWEPT, _MODEL,
    )
    phase: str = option(
        "--phase", "both",
        "fast, extreme, train or chat; both: those of the recipe; or several: train,chat.",
        _SWEPT, _MODEL,
        place="phases", parse=_phases,
    )
    budget: str | None = option(
        "--budget", None, "Most to spend, in USD.", _ALL + " resume try", _LENGTH,
        metavar="USD", parse=parse_money, in_file=True,
        but={
            "resume": {"help": "Budget of the whole run, the spent part included."},
            "try": {"help": "Budget in the printed command."},
            "sweep": {"help": "Most to spend on all trials, in USD."},
        },
    )
    rate: str | None = option(
        "--rate", None, "Cost of this machine in USD per hour (local).", _ALL + " try", _LENGTH,
        metavar="USD", parse=parse_money, in_file=True, not_beside="hardware",
    )
    data: str = option(
        "--data", "", "Text to train on: a file, a folder, or python-stdlib.", _ALL + " try",
        _MODEL, beside_a_plan=True, in_file=True,
        but={
            "launch": {
                "help": "Text to train on: a file, a folder, or python-stdlib; for a command, its "
                        "folder of data, sent separately from the code.",
            },
            "export": {"help": "Text or prepared data, on the machine that runs the script."},
            "run": {"help": "Folder of data, sent separately from the code.", "metavar": "DIR"},
            "try": {"help": "Folder of data, sent separately from the code.", "metavar": "DIR"},
        },
    )
    chat_data: str = option(
        "--chat-data", "",
        "Conversations for the chat phase: FILE.jsonl, each line {\"messages\": […]}.",
        "plan launch rehearse", _MODEL_RARE, metavar="FILE",
    )
    goal: str = option(
        "--goal", "", "A published result to reach: gpt2, other names, or a TOML file.",
        "plan launch rehearse", _MODEL, metavar="NAME", place="",
    )
    steps: int | None = option(
        "--steps", None, "Optimizer steps of each phase.", _ALL, _LENGTH, parse=_above_zero,
        in_file=True, not_beside="hours",
        but={
            "run": {
                "help": "Its number of steps, for the progress bar and for a plan from its probe; "
                        "not passed to the command.",
            },
            "sweep": {"help": "Optimizer steps of a whole training."},
        },
    )
    hours: float | None = option(
        "--hours", None, "Hours of training.", _ALL, _LENGTH, parse=_above_zero,
    )
    tokens: int | None = option(
        "--tokens", None, "Tokens of each phase.", "plan launch rehearse", _LENGTH_RARE,
        parse=_above_zero,
    )
    setting: Sequence[str] = option(
        "--set", (), "Set a recipe key, repeatable.", _SWEPT + " resume", _MODEL,
        metavar="KEY=VALUE", place="overrides", parse=_settings,
        but={"resume": {"help": "Change a recipe key from now on, repeatable."}},
    )
    precision: str = option(
        "--precision", "",
        "auto, fp8, bf16, fp16 or fp32; auto: the best that the machine supports, and fp8 only if "
        "it is faster in a test.",
        _SWEPT, _MODEL_RARE, metavar="FORMAT", place="overrides", parse=_precision,
    )
    scale_lr: str = option(
        "--scale-lr", "",
        "Scale the learning rates with the batch: sqrt, or table (the recipe's table).",
        _SWEPT, _MODEL_RARE, metavar="RULE", place="overrides", parse=_scale_lr,
    )
    processes: int = option(
        "--processes", 0, "Number of torchrun processes (local).", _ALL + " resume", _MODEL,
        parse=checked(lambda n: n >= 0, "{flag} must be above zero, not {value}"),
        but={"resume": {"help": "On this machine: processes that share the batch from now on."}},
    )
    initial_from: str = option(
        "--from", "", "Start from the weights of a run or checkpoint folder.", _TRAINED,
        _MODEL_RARE,
    )
    patience: int = option(
        "--patience", 0, "End a phase after this many evaluations in a row without a better one.",
        _TRAINED, _LENGTH_RARE, metavar="N", parse=lambda flag, count: checked_patience(count),
    )
    objective: str = option(
        "--objective", "value", f"{', '.join(OBJECTIVES[:-1])} or {OBJECTIVES[-1]}.",
        "plan", _CHOICE_RARE,
    )
    hour_value: str | None = option(
        "--hour-value", None, "Value of your time, in USD per hour.", "plan", _CHOICE_RARE,
        metavar="USD", parse=parse_money,
    )
    gpus: int = option(
        "--gpus", 0, "GPUs of the machine, 1 to 64 (0: any number).", "plan", _CHOICE,
        parse=checked(lambda n: 0 <= n <= 64, "{flag} must be from 1 to 64, not {value}"),
    )
    memory: float = option(
        "--memory", 0.0, "With any: least memory of one GPU.", "rehearse run sweep", _CHOICE_RARE,
        metavar="GB", place="gpu_memory_gb", in_file=True, not_beside="hardware",
        parse=checked(
            lambda gb: 0 <= gb < 1e4, "{flag} takes the GB of one GPU, not {value:g}", "--memory 24"
        ),
    )
    accept_exposure: str | None = option(
        "--accept-exposure", None,
        "Accept a loss of this many USD per hour: needed without two verified kill layers, or if "
        "the rent has no cap.", _LAUNCHED, _LEAVING_RARE,
        metavar="USD", place="", beside_a_plan=True,
    )
    balance: str = option(
        "--balance", WARN,
        "If the provider's balance ends before the run: stop (saves and ends in time), warn, or "
        "ignore (does not read it).", "plan launch run sweep resume", _LENGTH_RARE, metavar="WHAT",
        parse=parse_balance_policy, beside_a_plan=True,
    )
    fit_balance: bool = option(
        "--fit-balance", False, "Reduce the budget to the free part of the provider's balance.",
        "plan launch run sweep resume", _LENGTH_RARE,
        but={"resume": {"help": "Reserve at most the free part of the provider's balance."}},
    )
    volume: bool = option(
        "--volume", False, "Keep checkpoints on a network volume instead of pulling them here.",
        _LAUNCHED, _KEPT_RARE,
    )
    volume_days: float = option(
        "--volume-days", _WEEK_DAYS, "Days after the run for which the volume's cost is reserved.",
        _LAUNCHED, _KEPT_RARE,
        parse=checked(
            lambda days: 0 <= days <= MOST_VOLUME_DAYS,
            f"{{flag}} must be from 0 to {MOST_VOLUME_DAYS}, not {{value:g}}",
        ),
    )
    volume_then: str = option(
        "--volume-then", KEEP,
        "After these days: keep the volume; delete-fetched (only if best and latest were "
        "fetched); delete (with all files).",
        _LAUNCHED, _KEPT_RARE, metavar="WHAT", parse=_one_of(*THEN),
    )
    provider: Sequence[str] = option(
        "--provider", (), "Rent only from these providers, repeatable.", _RENTED, _RENTING,
        place="providers",
    )
    via: str = option(
        "--via", "", "skypilot: rent through SkyPilot, from any cloud that it can use.",
        _LAUNCHED, _RENTING_RARE, place="",
    )
    allow_key: bool = option(
        "--allow-account-key-on-pod", False,
        "Accept that SkyPilot copies the account's key to pods.",
        _LAUNCHED, _RENTING_RARE, place="", beside_a_plan=True,
    )
    bucket: str = option(
        "--bucket", "", "s3://BUCKET/PREFIX for checkpoints, which then survive pod and machine.",
        _RENTED, _KEPT, metavar="S3_URL", envvar="TRMCLOUD_BUCKET", parse=_bucket,
    )
    region: Sequence[str] = option(
        "--region", (), "Data centre to rent in, repeatable.", _RENTED, _RENTING_RARE,
        place="regions", parse=lambda flag, names: tuple(names),
    )
    community: bool = option(
        "--community", False, "Also rent from hosts of private sellers.", _RENTED, _RENTING_RARE,
    )
    spot: bool = option(
        "--spot", False, "Also spot machines, which the provider may take back (through SkyPilot).",
        _RENTED, _RENTING_RARE,
    )
    deadline: str | None = option(
        "--deadline", None, "Latest end of the run: 12h, 08:00, friday, 2026-11-27T18:00.",
        "plan rehearse run sweep", _LENGTH, metavar="TIME", place="deadline_at",
        but={"rehearse": {"help": "Latest end of a command: 12h, friday."}},
    )
    fill: bool = option(
        "--fill", False, "Train as many tokens as budget or deadline allow.", "plan", _LENGTH_RARE,
    )
    equal_work: bool = option(
        "--equal-work", False, "Train the same tokens on every hardware.", "plan", _LENGTH_RARE,
    )
    wait_for: str = option(
        "--wait-for", "",
        "If no machine is free, try again for this long: 6h, 90m, 2d. Then exit with code 75.",
        _RENTED + " resume", _RENTING, metavar="TIME", place="wait_s", parse=parse_wait,
    )
    max_price: str | None = option(
        "--max-price", None, "Highest price per hour, for all GPUs together.",
        _RENTED + " resume", _RENTING, metavar="USD", place="max_rate", parse=parse_money,
    )
    if_slow: str = option(
        "--if-slow", CONTINUE,
        "If a machine is slower than the plan's P90, or the work no longer fits: stop (saves a "
        "checkpoint; exit code 21; resume continues), continue (sends a notification).",
        "plan launch run", _RENTING_RARE, metavar="WHAT", parse=_one_of(*SLOW_POLICIES),
    )
    stop: str = option(
        "--stop", "",
        "Where its stop is: tight (about twice the planned time; moved if the work needs it and "
        "this command follows the run) or budget. With -d: budget.",
        "launch run", _RENTING_RARE, metavar="WHERE", place="", beside_a_plan=True,
        parse=_one_of("", TIGHT, AT_BUDGET),
    )
    idle: str = option(
        "--idle", "",
        "End a run that makes no step for this time (30m), or, if a command reports no steps, "
        "whose GPUs compute nothing. It saves first.",
        "plan launch run sweep", _LENGTH_RARE, metavar="TIME", place="idle_s", parse=parse_idle,
    )
    detach: bool = option(
        "-d --detach", False,
        "Exit when the machine works on its own, and say at which step; the run continues.",
        _LAUNCHED + " resume", _LEAVING, place="", beside_a_plan=True,
    )
    accept_loss: bool = option(
        "--accept-loss", False, "With -d, no --bucket and no --volume: accept losing checkpoints.",
        _LAUNCHED, _LEAVING, place="", beside_a_plan=True,
    )
    name: str = option(
        "--name", "", "Name of the run; commands take it instead of the id.", "launch run sweep",
        _LEAVING, place="", beside_a_plan=True,
    )
    tag: Sequence[str] = option(
        "--tag", (), "Tag to select the run by, repeatable.", "launch run sweep", _LEAVING_RARE,
        metavar="KEY=VALUE", place="", beside_a_plan=True,
    )
    idempotency_key: str = option(
        "--idempotency-key", "",
        "Launch only once: a second launch with this key returns the first run, and rents nothing.",
        "launch run sweep resume", _LEAVING_RARE, metavar="KEY", place="", beside_a_plan=True,
        but={"resume": {"help": "Resume only once: a second call with this key rents nothing."}},
    )
    typed: tuple[str, ...] = ()
    """Those of these names that stood on the command line itself."""
# fmt: on


def spec_of(
    request: LaunchRequest, providers: Sequence[str], now: float, *, pods_can_upload: bool
) -> RunSpec:
    """The checked wish; ``providers`` are those that ``request`` means, ``now`` is epoch s.

    Raises:
        UsageError: naming the option at fault.
    """
    given = placed(request)
    given.setdefault("recipe", default_recipe(request, given.get("hardware", "")))
    if not request.volume and (request.volume_days, request.volume_then) != (_WEEK_DAYS, KEEP):
        raise UsageError("--volume-days and --volume-then need --volume")
    require_fitting_policy(request.balance, fits=request.fit_balance)
    if sum(limit is not None for limit in (request.steps, request.hours, request.tokens)) > 1:
        raise UsageError("--steps, --hours and --tokens exclude one another")
    if given.get("hardware") == LOCAL and ("wait_s" in given or "max_rate" in given):
        raise UsageError("--wait-for and --max-price work only with rented hardware")
    if "rate" in given and given.get("hardware", LOCAL) != LOCAL:
        raise UsageError("--rate is the price of this machine; rented hardware has its own price")
    if (
        len([key for key, _ in given.get("overrides", ()) if key == "dtype"]) > 1
        and request.precision
    ):
        raise UsageError("--precision and --set dtype=… set the same: give only one")
    if request.deadline is not None:
        given["deadline_at"] = parse_deadline(request.deadline, now, None)
    if given.get("phases") == (CHAT,) and "data" in given:
        if "chat_data" in given:
            raise UsageError("a chat phase without a train phase has one source: leave out --data")
        given["chat_data"] = given.pop("data")
    given["providers"] = tuple(providers)
    return RunSpec(**given, bucket_relayed="bucket" in given and not pods_can_upload)


def default_recipe(request: LaunchRequest, hardware: str) -> str:
    """Return the recipe of a request that names none: the guides' where one of their phases is
    typed, the tiny one on this machine, else that of the goal ``gpt2``."""
    named = "phase" in request.typed or request.phase != LaunchRequest.phase
    if named and {*_phases("--phase", request.phase)} <= {*PHASES}:
        return "trm"
    return "trm-tiny" if hardware == LOCAL else "speedrun"


_OF_A_GOAL = (
    "recipe", "phase", "data", "steps", "hours", "tokens", "fill", "equal_work", "initial_from",
)  # fmt: skip


def with_goal(request: LaunchRequest, goal: Goal) -> LaunchRequest:
    """The request of the training that is known to reach ``goal``; ``--set`` may change it.

    Raises:
        UsageError: an option was typed that decides what the goal decides.
    """
    rows = rows_of(LaunchRequest)
    for name in _OF_A_GOAL:
        if name in request.typed:
            raise UsageError(
                f"{rows[name].flag} does not work with --goal: {goal.name} decides it",
                next_step=f"leave out {rows[name].flag}, or --goal",
            )
    own = tuple(f"{key}={str(v).lower() if isinstance(v, bool) else v}" for key, v in goal.settings)
    return replace(request, recipe=goal.recipe, setting=(*own, *request.setting))


def require_fitting_policy(policy: str, *, fits: bool) -> None:
    """
    Raises:
        UsageError: a budget is to fit a balance that is not to be read.
    """
    if fits and policy == IGNORE:
        raise UsageError("--fit-balance needs the balance, and --balance ignore does not read it")


def words_of(request: Any, command: str, names: Sequence[str]) -> list[str]:
    """The words that ``command`` takes for those of the options ``names`` that were typed, as they
    would be typed again; those that it does not take are left out."""
    words: list[str] = []
    for name, row in rows_of(type(request), command).items():
        if name not in names or name not in request.typed or row.is_positional:
            continue
        value = getattr(request, name)
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, bool):
                words += [row.flag] if each else []
            else:
                words += [row.flag, f"{each:.15g}" if isinstance(each, float) else str(each)]
    return words


def refuse_others(request: Any, command: str, why: str) -> None:
    """
    Raises:
        UsageError: an option was typed that ``command`` does not take; ``why`` explains it.
    """
    rows, taken = rows_of(type(request)), rows_of(type(request), command)
    for row in (rows[name] for name in request.typed if name not in taken):
        raise UsageError(f"{row.flag} {why}", next_step=f"leave {row.flag} out")


def refuse_changes(request: LaunchRequest) -> None:
    """A plan made before is carried out as it is: options that would make another one are not
    ignored.

    Raises:
        UsageError: naming the first that was typed.
    """
    rows = rows_of(LaunchRequest)
    for row in (rows[name] for name in request.typed if not rows[name].beside_a_plan):
        raise UsageError(
            f"{row.flag} cannot change plan {request.hardware}, which was made without it",
            next_step=f"leave out {row.flag}, or make another plan with it",
        )


def request_from(wish: Mapping[str, Any]) -> LaunchRequest:
    """The request of options by their names; money is text or ``Usd``.

    Raises:
        UsageError: one that is no option.
    """
    known = rows_of(LaunchRequest)
    for name in wish:
        if name not in known:
            raise UsageError(f"there is no option {name!r}", next_step=", ".join(sorted(known)))
    given: dict[str, Any] = {
        name: value.plain() if isinstance(value, Usd) else value for name, value in wish.items()
    }
    return LaunchRequest(**given, typed=tuple(given))
