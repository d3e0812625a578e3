"""``trmcloud plan``: what a budget buys, on which hardware, and when it would be done."""

# Annotations are values here: Typer reads them twice, and would compile each of their texts.
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from trmcloud.cli import options
from trmcloud.core.values import replace
from trmcloud.operations.home import find_project_file
from trmcloud.options import LaunchRequest, words_of

if TYPE_CHECKING:
    from trmcloud.core.spec.plan import Plan
    from trmcloud.core.spec.spec import RunSpec
    from trmcloud.operations.plans.finetune_plans import FinetunePlan
    from trmcloud.operations.plans.planning import FundsSeen, OwnHardware, Planner
    from trmcloud.operations.plans.train_script import Script


_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[HARDWARE] [-- COMMAND]",
        help="8xH100, local, …, as --hardware; and your own command, from its probe.",
    ),
]
_Hf = Annotated[
    str,
    typer.Option("--hf", metavar="MODEL", help="Hugging Face model: its name, or a config.json."),
]
_Method = Annotated[
    str,
    options.rare(help="With --hf: full, lora, qlora, dpo or grpo (default: lora; images: full)."),
]
_Write = Annotated[
    str, options.rare("--write", metavar="FILE.py", help="With --hf: write a script of TRL for it.")
]
_HfSet = Annotated[
    list[str] | None,
    options.rare(
        "--hf-set",
        metavar="KEY=N",
        help="With --hf: sequence, batch, rank, bits=4, completion; image, images; repeatable.",
    ),
]
_Plot = Annotated[
    str | None,
    options.rare(help="Plot cost against time: FILE.svg, .html or .png.", metavar="FILE"),
]
_Own = Annotated[
    str, options.rare(help="Your own GPUs, to compare with renting: RTX3090, 2xRTX4090, …")
]
_Kwh = Annotated[
    str | None, options.rare(help="Price of your electricity in USD, for --own.", metavar="USD")
]
_Unsent = Annotated[
    bool, options.rare("--unsent", help="Also plan a script that is not among the files sent.")
]
_Save = Annotated[
    bool, options.rare("--save", help="Keep this plan's file; else the latest 20 are kept.")
]
_Explain = Annotated[
    str | None, typer.Option(help="Show the calculation for one hardware.", metavar="HARDWARE")
]


@options.with_options("plan")
def plan(
    request: LaunchRequest,
    words: _Words = None,
    hf: _Hf = "",
    method: _Method = "",
    hf_set: _HfSet = None,
    write: _Write = "",
    all_recipes: Annotated[
        bool, typer.Option("--recipes", help="What the budget buys, for every recipe.")
    ] = False,
    explain: _Explain = None,
    plot: _Plot = None,
    probe: Annotated[
        str, typer.Option(help="local: measure 50 real steps first.", metavar="local")
    ] = "",
    own: _Own = "",
    kwh: _Kwh = None,
    unsent: _Unsent = False,
    save: _Save = False,
    as_json: options.Json = False,
    everything: Annotated[bool, typer.Option("--all", help="Show all candidates.")] = False,
    verbose: options.Verbose = False,
) -> None:
    """Plan a run: hours, dollars and memory on each hardware, and a recommendation.

    Example: trmcloud plan --budget 1000
    """
    from trmcloud.wiring_plans import build_planner

    planner = build_planner(funds=_funds)
    request, words = _with_hardware(request, words or [])
    model = HfRequest(hf, method, tuple(hf_set or ()), write)
    _refuse_hf_with(words, model)
    if hf:
        _show_finetuning(planner, request, model, as_json=as_json)
        return
    if all_recipes:
        _show_recipes(planner, planner.spec(request), as_json=as_json)
        return
    rests_on: list[str] = []
    here, from_file = Path.cwd(), []
    typed = words_of(request, "run", request.typed) + ["--unsent"] * unsent
    asked = None
    if words or (not probe and find_project_file(here) is not None):
        from trmcloud.operations.commands.command_plans import plan_command
        from trmcloud.operations.commands.commands import CommandRequest
        from trmcloud.operations.commands.project_file import fill_in

        asked = CommandRequest(tuple(words), unsent=unsent)
        if (filled := fill_in(request, asked, here)) is not None:
            request, asked, here = filled.request, filled.asked, filled.here
            from_file = [filled.line]
    if asked is not None and asked.words:
        spec, rests_on = plan_command(planner, request, asked, here)
    else:
        spec = planner.spec(request)
    if probe:
        _probe(planner, spec, probe)
    made, instead = _planned(planner, request, spec)
    planner.save(made, for_good=save)
    if plot is not None:
        from trmcloud.cli.views.plan_plot import write_plot

        write_plot(made, Path(plot))
    if explain is not None and not as_json:
        _explain(planner, made, explain)
        return
    compared = _own(planner, spec, made, own, kwh) if own or kwh is not None else None
    rests_on = from_file + rests_on + _probe_lines(planner, made)
    if as_json:
        _print_plan(planner, made, compared, rests_on, instead)
    else:
        shown = _beside(planner, request, made, typed, rests_on, compared, verbose=verbose)
        shown |= {"from_file": bool(from_file), "instead": instead}
        _show(planner, made, shown, everything=everything, verbose=verbose)
    _leave_if_nothing_fits(made)


class HfRequest(NamedTuple):
    """The options of ``plan --hf``."""

    model: str
    method: str
    settings: tuple[str, ...]
    write: str

    def words(self) -> list[str]:
        """As they would be typed again, without the file to write."""
        words = ["--hf", self.model, *["--method", self.method] * bool(self.method)]
        return words + [word for each in self.settings for word in ("--hf-set", each)]


def _refuse_hf_with(words: list[str], asked: HfRequest) -> None:
    """
    Raises:
        UsageError: a model and a command, or settings of a model without one.
    """
    from trmcloud.core.errors import UsageError

    if words and asked.model:
        raise UsageError(
            "--hf plans a model, and -- COMMAND a command", next_step="leave out one of them"
        )
    if any(asked[1:]) and not asked.model:
        raise UsageError(
            "--method, --hf-set and --write are for --hf", next_step="--hf meta-llama/Llama-3.1-8B"
        )


def _show_finetuning(
    planner: "Planner", request: LaunchRequest, asked: HfRequest, *, as_json: bool
) -> None:
    from trmcloud.operations.plans.finetune_plans import finetune_plan

    tuned = finetune_plan(planner, planner.spec(request), asked.model, asked.method, asked.settings)
    words = ["trmcloud", "plan", *asked.words(), *words_of(request, "plan", request.typed)]
    typed = shlex.join(words)
    written = _write(tuned, Path(asked.write), typed) if asked.write else None
    if as_json:
        from trmcloud.cli.views.json_output import print_document
        from trmcloud.operations.plans.plan_views import finetune_document

        print_document(finetune_document(tuned))
        return
    from trmcloud.cli.views import finetuning

    finetuning.show(tuned, typed, written)


def _write(tuned: "FinetunePlan", path: Path, typed: str) -> "Script":
    from trmcloud.cli.confirm import is_confirmed
    from trmcloud.operations.plans.train_script import train_script, write_script

    script = train_script(tuned, path, typed)
    there = [each.name for each in script.files if each.exists()]
    question = f"Replace {' and '.join(there)}?"
    if there and not is_confirmed(question, before=f"{path} exists", line="--write NAME.py"):
        raise typer.Abort
    write_script(script)
    return script


def _probe_lines(planner: "Planner", made: "Plan") -> list[str]:
    if made.spec.command is None:
        return []
    from trmcloud.operations.commands.command_plans import probe_lines

    return probe_lines(planner.home, made)


def _explain(planner: "Planner", made: "Plan", hardware: str) -> None:
    from trmcloud.cli.views.plan_explain import batch_lines
    from trmcloud.cli.views.plan_explain import explain as explained

    print("\n".join(explained(made, hardware)))
    guide = made.candidates[0].phases[0].settings.guide
    if guide is not None and guide.batches:
        recipe = planner.recipe(made.spec.recipe)
        settings = recipe.resolve(made.spec.phases[0], hardware="1xH200", gpus=1)
        print("\n".join(batch_lines(settings, guide.batches, recipe.rates)))


def _planned(planner: "Planner", request: LaunchRequest, spec: "RunSpec") -> tuple["Plan", str]:
    """(the plan, what to type instead where it recommends nothing)

    Raises:
        BudgetRefused: there is none, with what to type instead.
    """
    from trmcloud.core.errors import BudgetRefused

    try:
        made = planner.plan(spec)
    except BudgetRefused as error:
        next_step = planner.next_wish(request, spec) or error.next_step
        raise BudgetRefused(error.what, where=error.where, next_step=next_step) from None
    if made.recommended is not None or spec.is_open_ended:
        return made, ""
    return made, planner.next_wish(request, spec)


def _print_plan(
    planner: "Planner",
    made: "Plan",
    compared: "OwnHardware | None",
    rests_on: list[str],
    instead: str,
) -> None:
    from trmcloud.cli.views.json_output import print_document
    from trmcloud.operations.plans.plan_views import plan_document

    funds, unread = planner.funds(made)
    print_document(
        plan_document(
            made, funds=funds, unread=unread, own=compared, rests_on=rests_on, next_step=instead
        )
    )


def _beside(
    planner: "Planner",
    request: LaunchRequest,
    made: "Plan",
    typed: list[str],
    rests_on: list[str],
    compared: "OwnHardware | None",
    *,
    verbose: bool,
) -> dict[str, Any]:
    """Return what is shown beside a plan: how a command is run, other recipes, own hardware."""
    from trmcloud.cli.views import plan as plan_view

    shown: dict[str, Any] = {}
    if made.spec.command is not None:
        shown = {"typed": typed, "more": rests_on}
    elif made.spec.budget is not None and _leaves_recipe_open(request):
        from trmcloud.operations.plans.planning import OTHERS, OTHERS_SHOWN

        names = [name for name in OTHERS if name != made.spec.recipe]
        others = planner.others(made.spec, names, most=OTHERS_SHOWN)
        shown["others"] = plan_view.other_lines(others, made.spec.budget)
        if made.recommended is None:
            shown["others"] = shown["others"][1:] + _usual_finetunings(planner, request, made.spec)
    if made.spec.command is None:
        from trmcloud.operations.plans.spot_beside import spot_beside

        shown["spot"] = plan_view.spot_lines(spot_beside(planner, made), verbose=verbose)
    if compared is not None:
        shown["more"] = ["", *plan_view.own_lines(compared)]
    return shown


def _usual_finetunings(planner: "Planner", request: LaunchRequest, spec: "RunSpec") -> list[str]:
    """Return lines of the fine-tunings that the limits buy, and how one is planned; none where
    more is set than limits."""
    if spec.fills or spec.hours or spec.overrides:
        return []
    from trmcloud.cli.views.finetuning import usual_lines
    from trmcloud.operations.plans.finetune_plans import usual_within

    limits = words_of(request, "plan", request.typed)
    return usual_lines(usual_within(planner, spec), shlex.join(["trmcloud", "plan", *limits]))


def _show(
    planner: "Planner", made: "Plan", shown: dict[str, Any], *, everything: bool, verbose: bool
) -> None:
    from trmcloud.cli.views import plan as plan_view

    funds, unread = planner.funds(made)
    paid_from = None
    if funds is not None:
        from trmcloud.operations.plans.plan_views import plan_balance

        paid_from = plan_balance(made, funds)
    balance = plan_view.balance_text(paid_from, unread)
    plan_view.show(made, everything=everything, verbose=verbose, balance=balance, **shown)


def _with_hardware(request: LaunchRequest, words: list[str]) -> tuple[LaunchRequest, list[str]]:
    """The request, and the command's own words: a first word that names hardware is ``--hardware``.

    Raises:
        UsageError: both name hardware.
    """
    from trmcloud.core.catalog.hardware import looks_like_hardware

    if not words or not looks_like_hardware(words[0]):
        return request, words
    if request.hardware:
        from trmcloud.core.errors import UsageError

        raise UsageError(
            f"{words[0]!r} and --hardware {request.hardware} both name hardware",
            next_step="leave out one of them",
        )
    typed = (*request.typed, "hardware")
    return replace(request, hardware=words[0], typed=typed), words[1:]


def _leave_if_nothing_fits(plan: "Plan") -> None:
    """End with the code of the error that a launch of ``plan`` would be."""
    from trmcloud.core.errors import BudgetRefused, DoesNotFit

    if plan.recommended is None:
        fits = any(candidate.fits_memory for candidate in plan.candidates)
        raise typer.Exit((BudgetRefused if fits else DoesNotFit).exit_code)


def _leaves_recipe_open(request: LaunchRequest) -> bool:
    """Whether nothing that was typed is of one recipe, or of one machine."""
    own = ("recipe", "goal", "phase", "data", "setting", "precision", "hardware", "tokens", "steps")
    return not any(name in request.typed for name in own)


def _show_recipes(planner: "Planner", spec: "RunSpec", *, as_json: bool) -> None:
    from trmcloud.cli.views import plan as plan_view
    from trmcloud.core.errors import BudgetRefused
    from trmcloud.wiring_plans import recipes

    names = [recipe.name for recipe in recipes() if not recipe.name.endswith("-tiny")]
    found = planner.others(spec, names)
    if as_json:
        from trmcloud.cli.views.json_output import print_document
        from trmcloud.operations.plans.plan_views import recipe_offers

        print_document(recipe_offers(found))
    else:
        plan_view.show_recipes(found, len(names))
    if not found:
        raise typer.Exit(BudgetRefused.exit_code)


def _funds(provider: str) -> "FundsSeen":
    from trmcloud.wiring_plans import has_account

    if not has_account(provider):
        return None, ""  # and the ledger's modules are not read to say so
    from trmcloud.wiring import funds_at

    return funds_at(provider)


def _own(
    planner: "Planner", spec: "RunSpec", plan: "Plan", hardware: str, kwh: str | None
) -> "OwnHardware":
    from trmcloud.core.errors import UsageError
    from trmcloud.operations.plans.planning import own_hardware
    from trmcloud.options import parse_money

    if not hardware:
        raise UsageError("--kwh needs --own", next_step="--own RTX3090")
    return own_hardware(planner, spec, plan, hardware, parse_money("--kwh", kwh))


def _probe(planner: "Planner", spec: "RunSpec", where: str) -> None:
    import os
    import sys

    from trmcloud.cli.views.text import DataProgress
    from trmcloud.operations.plans.probe_local import Probe
    from trmcloud.wiring import build_context

    probe = Probe(build_context(), planner, spec, where)
    data = probe.prepare(DataProgress())
    print(f"probing {probe.about} …", file=sys.stderr)
    found = probe.measure(data, os.environ)
    print(
        f"{found.steps} steps: {found.step_s:.3f} s per step, expected {probe.expected_s:.3f} s",
        file=sys.stderr,
    )
