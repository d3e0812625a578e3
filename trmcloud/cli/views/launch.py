"""A launch before it starts: its plan, credentials, files that are sent, files of the user."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from trmcloud.cli.views.metrics import score_words
from trmcloud.cli.views.plan import age_days, balance_text, limit_rows, reasons_to_show
from trmcloud.cli.views.text import CHECKPOINTS, duration, fields
from trmcloud.core.catalog.hardware import LOCAL
from trmcloud.core.catalog.providers import is_brokered
from trmcloud.core.contract.command import NO_SIGNAL, Command
from trmcloud.core.spec.plan import Candidate, PhasePlan, Plan
from trmcloud.core.spec.settings import CommandSettings
from trmcloud.core.text import first_of, one_line, size_text
from trmcloud.io.redaction import mask_tokens
from trmcloud.operations.checkpoints.fetching import OwnNames
from trmcloud.operations.checkpoints.opening import Effect, worst
from trmcloud.operations.context import Context
from trmcloud.operations.driving.balances import plan_funds
from trmcloud.operations.launch.launching import Continuation
from trmcloud.operations.plans.plan_views import plan_balance
from trmcloud.operations.run_queries import mark_reported
from trmcloud.operations.runs.run_facts import report_run
from trmcloud.operations.runs.run_views import resumed_rows
from trmcloud.operations.sending.ignore_rules import IGNORE_NAME
from trmcloud.operations.sending.working_tree import WorkingTree
from trmcloud.operations.words import count


def plan_credential_rows(context: Context, plan: Plan) -> list[tuple[str, str]]:
    """(name, text): which credential will be on each provider's machine, and for how long it is
    valid."""
    providers = dict.fromkeys(plan.candidate(name).provider for name in plan.launchable)
    return [
        ("on the machine", f"{provider}: {one_line(told)}")
        for provider in providers
        if is_brokered(provider)
        and provider in context.machines.computes
        and (told := context.machines.computes[provider].on_machine())
    ]


def show_plan(context: Context, plan: Plan, *, verbose: bool = False) -> None:
    """Print the plan that will run; with ``verbose`` every limit and switch, "off" included."""
    funds, unread = plan_funds(context, plan)
    rows = plan_rows(context, plan, verbose=verbose)
    if text := balance_text(plan_balance(plan, funds), unread):
        rows.append(("balance", text))
    chosen = plan.recommended
    reasons = reasons_to_show(chosen.reasons, verbose=verbose) if chosen is not None else ()
    lines = [*fields(rows, indent="  "), *(f"  · {reason}" for reason in reasons)]
    print("\n".join(lines))


def show_resume(context: Context, found: Continuation, *, verbose: bool = False) -> None:
    """Print the hardware, the checkpoint and the money with which an ended run would continue."""
    run, plan = found.after, found.after.plan
    report = report_run(context, run)
    latest = report.latest if plan.spec.command is None else found.begins_at
    begins = ("continues from", "the checkpoint on its network volume")
    if found.starts_again:
        why = "no checkpoint of it is known"
        if plan.spec.command is not None and not plan.spec.command.resume:
            why = "it was launched without --resume"
        begins = ("starts again", f"from its beginning: {why}; what it has saved is kept")
    elif latest is not None:
        score = "not evaluated"
        if latest.val_bpb is not None:
            score = score_words(run.spec.command, mark_reported(run, latest))
        begins = ("continues from", f"{latest.label} · {score}")
    elif not report.on_volume:
        begins = ("continues from", "the beginning: no checkpoint of it is known")
    told = dict(plan_rows(context, plan, verbose=verbose))
    rows = [("hardware", told.pop("hardware", report.hardware)), begins]
    if latest is not None and report.before_cooldown is not None:
        before = report.before_cooldown
        told_of = (
            f"the cooldown began after step {before.step:,}: a longer run continues from "
            f"{before.label} at the full learning rate, and from step {latest.step + 1:,} reads "
            f"the data of steps {before.step + 1:,} to {latest.step:,} again"
        )
        rows.append(("has cooled", told_of))
    rows += resumed_rows(run)
    if "rate" in told:
        rows.append(("rate", told.pop("rate")))
    rows.append(("spends", f"at most {found.time.at_most} more"))
    rows.append(("cap", f"{run.cap}, of which {run.reserved} is left and will be reserved"))
    rows.append((CHECKPOINTS, told.pop(CHECKPOINTS)))
    for name in ("plan", "cap", "stops", *plan.spec.phases):
        told.pop(name, None)  # of the launch; a resume has another length
    print("\n".join(fields([*rows, *told.items()], indent="  ")))


def plan_rows(context: Context, plan: Plan, *, verbose: bool) -> list[tuple[str, str]]:
    """(name, text) of each row, in the user's order: hardware, work, money, checkpoints, limits."""
    rows = frozen_rows(plan, plan.recommended, verbose=verbose)
    rows += plan_credential_rows(context, plan)
    lines = context.ledger.read().lines_for(context.caller.project, context.wall())
    for line in lines:
        if line.cap is not None:
            rows.append((f"{line.level} {line.key}", f"{line.remaining} of {line.cap} left"))
    uncapped = [line.level for line in lines if line.cap is None]
    if uncapped and verbose:
        rows.append(("no cap on", " · ".join(uncapped)))
    return rows + limit_rows(plan, verbose=verbose)


def frozen_rows(
    plan: Plan, chosen: Candidate | None, *, verbose: bool = False
) -> list[tuple[str, str]]:
    """Return those rows that are the plan's own, whatever has happened since: its id, hardware,
    work, money, stops, and where checkpoints are stored.

    Args:
        chosen: the candidate that it was, or is to be, carried out with.
    """
    rows: list[tuple[str, str]] = [("plan", plan.id)]
    if chosen is not None:
        more = len(plan.launchable) - 1 if chosen is plan.recommended else 0
        others = f", then {more} more candidate{'s' if more > 1 else ''}" if more > 0 else ""
        rows.append(("hardware", _hardware(plan, chosen) + others))
        rows += [(phase.name, _work(chosen, phase, verbose)) for phase in chosen.phases]
    if plan.spec.command is not None:
        rows += command_rows(plan.spec.command)
    if plan.spec.nodes > 1 and plan.spec.command is not None:
        rows += _ON_SEVERAL
    if plan.spec.overrides:
        put = ", ".join(f"{key} = {value}" for key, value in plan.spec.overrides)
        rows.append(("set by hand", put))
    if chosen is not None:
        rows += [("rate", _rate(plan, chosen)), ("cap", _cap(plan))]
        rows.append(
            (
                "stops",
                f"after {duration(chosen.soft_stop_s)}, then saves within "
                f"{duration(chosen.landing_s)}; killed at {duration(chosen.hard_stop_s)}",
            )
        )
        if chosen.limit_s:
            rows.append(
                (
                    "later stop",
                    f"only if its measured pace needs it: up to {duration(chosen.limit_s)}, "
                    f"{chosen.limit}",
                )
            )
    rows.append((CHECKPOINTS, plan.survives))
    return rows


def command_rows(command: Command) -> list[tuple[str, str]]:
    """Return rows about a command: its words, its stop signal, its metric."""
    rows = [("command", mask_tokens(one_line(shlex.join(command.words))))]
    ways = [f"the file {command.stop_file}"] if command.stop_file else []
    if command.stop_signal != NO_SIGNAL:
        ways.append(f"SIG{command.stop_signal}")
    ways.append(f"killed {duration(command.grace_s)} later")
    rows.append(("stop", ", then ".join(ways)))
    watched = one_line(command.checkpoints.replace(os.pathsep, ", "))
    rows.append(("watched", watched or "the working tree, for checkpoints of known layouts"))
    if command.metric_name:
        which = "highest" if command.higher_is_better else "lowest"
        rows.append(("best", f"{which} {command.metric_name}, and {command.keep_best} are kept"))
    if command.env:
        rows.append(("environment", ", ".join(command.env)))
    return rows


def _hardware(plan: Plan, chosen: Candidate) -> str:
    if chosen.provider != LOCAL:
        several = f"{chosen.nodes} × " if chosen.nodes > 1 else ""
        what = f"{several}{chosen.gpus} × {chosen.sku}{', spot' if chosen.spot else ''}"
        return f"{what}, {chosen.provider} {chosen.region}".removesuffix(" any")
    if plan.spec.command is not None and "CPU" in chosen.sku:
        return f"{chosen.sku}, this machine"
    if "CPU" in chosen.sku:
        plural = "es" if chosen.gpus > 1 else ""
        return f"{chosen.gpus} process{plural} on {chosen.sku}, this machine"
    return f"{chosen.gpus} × {chosen.sku}, this machine"


def _work(chosen: Candidate, phase: PhasePlan, verbose: bool) -> str:
    s = phase.settings
    if isinstance(s, CommandSettings):
        takes = phase.seconds
        if takes.p10 < takes.p90:
            whole = f"{duration(takes.p10)} to {duration(takes.p90)}"
            stop = duration(chosen.soft_stop_s)
            return f"{s.steps:,} steps in {whole}; stopped after {stop} unless it ends earlier"
        return f"stopped after {duration(takes.p50)} unless it ends earlier"
    about = f"about {duration(phase.seconds.p50)}"
    if not verbose:
        return f"{s.steps:,} steps, {count(phase.tokens)} tokens; {about}"
    return (
        f"{s.steps:,} steps of {s.batch}×{s.accumulation}×{chosen.world_size} sequences of"
        f" {s.sequence}, depth {s.depth}, width {s.width}, {s.dtype}; {about}"
    )


def _rate(plan: Plan, chosen: Candidate) -> str:
    words = [f"{chosen.rate}/h"]
    if chosen.reserved_rate != chosen.rate:
        words.append(f"reserved at {chosen.reserved_rate}/h")
    if chosen.provider != LOCAL:
        days = age_days(plan, chosen)
        words.append(f"price {days} day{'s' * (days > 1)} old" if days else "price of today")
    return " · ".join(words)


def _cap(plan: Plan) -> str:
    if not plan.launchable:
        return "none: plan only"
    whose = "" if plan.spec.budget is not None else ", the plan's worst case"
    return f"{plan.cap}{whose} · reserves {plan.reservation}"


_ON_SEVERAL = (
    ("machines", "the command starts on each; torchrun connects them"),
    ("kept", "what the first machine saves; from the others, their files of a DCP checkpoint"),
)
_NAMED = 5


def tree_lines(tree: WorkingTree, *, verbose: bool = False) -> list[str]:
    """``code sent  12 files, 34.5 kB, by git's list``, and what was left out, a line each; with
    ``verbose`` every file."""
    source = "by git's list" if tree.by_git else "every file that is not hidden (no git here)"
    files = f"{len(tree.names):,} file{'s' * (len(tree.names) != 1)}"
    lines = [f"  code sent       {files}, {size_text(tree.size_bytes)}, {source}"]
    if tree.folder:
        told = f"the whole of {one_line(tree.root.name)}; the command starts in"
        lines.append(f"  · {told} {one_line(tree.folder)}")
    if tree.above:
        told = f"only the folder {one_line(tree.root.name)} of the repository is sent"
        lines.append(f"  · {told}; --root {tree.above} sends all of it")
    lines += _package_lines(tree, verbose=verbose)
    if tree.fetched:
        lines.append(f"  · not sent, fetched checkpoints: {first_of(tree.fetched, _NAMED)}")
    if tree.outputs:
        lines.append(f"  · not sent, written by trmcloud: {first_of(tree.outputs, _NAMED)}")
    lines += [
        f"  ! {IGNORE_NAME}: this rule takes too long and is not used: {one_line(rule)[:60]}"
        for rule in tree.skipped_rules
    ]
    if tree.keys:
        lines.append(f"  · not sent, keys: {first_of(tree.keys, _NAMED)}")
        lines.append(f"    to send one anyway: a line !{one_line(tree.keys[0])} in {IGNORE_NAME}")
    if tree.links:
        lines.append(f"  · not sent, links: {first_of(tree.links, _NAMED)}")
    if tree.unread:
        lines.append(f"  ! not sent, cannot be read: {first_of(tree.unread, _NAMED)}")
    for name, why in tree.unlisted.items():
        lines.append(f"  ! not sent, the repository {one_line(name)}: {one_line(why)}")
    if tree.data_left_out:
        lines.append(f"  · not sent of --data: {first_of(tree.data_left_out, _NAMED)}")
    if verbose:
        lines += [f"    {one_line(name)}" for name in tree.names]
        lines.append(f"  · {IGNORE_NAME} excludes more")
    return lines


def _package_lines(tree: WorkingTree, *, verbose: bool) -> list[str]:
    """Return the lines about the packages that the machine is to install."""
    packages, resolved = tree.packages, tree.resolved
    if packages is None or resolved is None:
        if not tree.not_installed:
            return []
        name = tree.not_installed[0]
        return [f"  · not installed: {', '.join(tree.not_installed)}; --pip {name} installs it"]
    if resolved.unknown:
        told = f"{len(packages.lines)}, not pinned: {one_line(resolved.unknown)}"
    else:
        told = f"{len(resolved.versions)}, resolved here"
    lines = [f"  packages        {told}, by {one_line(packages.file)}"]
    by_reason: dict[str, list[str]] = {}
    for place, why in resolved.unpinned:
        by_reason.setdefault(why, []).append(place)
    for why, places in by_reason.items():
        lines.append(f"  · not pinned: {first_of(places, _NAMED)}: {one_line(why)}")
    if resolved.own_index:
        told = f"its image's index, not yours ({one_line(resolved.own_index)})"
        lines.append(f"  · the machine asks {told}: TRMCLOUD_INSTALL_PIP_INDEX_URL names one")
    if any(version.startswith("torch==") for version in resolved.versions):
        lines.append("  · the image keeps its own torch unless the list asks for another version")
    if packages.left_out:
        lines.append(
            f"  · not installed, the image has its own: {first_of(packages.left_out, _NAMED)}"
        )
    return lines + ([f"    {version}" for version in resolved.versions] if verbose else [])


_WIDEST_NAME = 40


def own_files(own: OwnNames, sha256: str, metric: Sequence[str]) -> list[str]:
    """Its metric, its files and where they are, a line each."""
    return [
        *metric,
        f"  largest file    sha256 {sha256}",
        f"  folder          {one_line(str(own.path.absolute()))}",
        *(f"  {name:<14}  {text}" for name, text in _rows(own)),
    ]


def _rows(own: OwnNames) -> list[tuple[str, str]]:
    """By the bytes that were fetched: a pod's opinion of them is not asked."""
    effect = worst(opening for _, opening in own.files)
    if effect is Effect.DATA:
        formats = ", ".join(sorted({opening.format for _, opening in own.files}))
        return [("opening it", f"safe: only data, checked by its bytes ({formats})")]
    name, found = next(each for each in own.files if each[1].effect is effect)
    shown = name if len(name) <= _WIDEST_NAME else f"…{name[1 - _WIDEST_NAME :]}"
    if effect is Effect.UNKNOWN:
        told = f"unknown: treat it as code ({found.format})"
        return [("opening it", told), ("", one_line(shown))]
    return [("opening it", f"unsafe: {found.format} can run code"), ("", one_line(shown))]
