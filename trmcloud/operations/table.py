"""What trmcloud does: one row for each operation, with its effect and the doors that have it.

A door translates: it makes a request of what was typed, clicked or sent, calls the function that
the row names, and encodes the view that comes back. What may be done is judged there, not in doors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

READS, WRITES, SPENDS, ENDS = "reads", "writes", "spends", "ends"
"""Effects: it looks; it changes files or settings and costs nothing; it may cost money; it ends a
machine or deletes what cannot be had back, or both."""


class Operation(NamedTuple):
    """``function`` is ``module:name`` below ``trmcloud``; ``views`` are the documents that say what
    came of it. ``command``, ``tool`` and ``button`` are its names at the command line, for agents
    and on the page, ``home`` the methods of ``trmcloud.api.Home``; empty where a door lacks it."""

    name: str
    summary: str
    effect: str
    function: str
    views: tuple[str, ...] = ()
    command: str = ""
    home: tuple[str, ...] = ()
    tool: str = ""
    button: str = ""


def _row(
    name: str,
    summary: str,
    effect: str,
    function: str,
    *views: str,
    home: str = "",
    tool: str = "",
    button: str = "",
    command: str | None = None,
) -> Operation:
    typed = name if command is None else command
    return Operation(
        name, summary, effect, function, views, typed, tuple(home.split()), tool, button
    )


OPERATIONS = (
    _row(
        "plan", "Show what a budget buys: hardware, hours, dollars.", WRITES,
        "operations.plans.planning:Planner", "plan/1", "finetune-plan/1",
        home="plan plan_command check_launch", tool="plan",
    ),
    _row(
        "launch", "Launch a plan, a recipe or your own command under a hard budget.", SPENDS,
        "operations.launch.launch:Launch", "launch/1", "event/1", "run/1",
        home="launch run_command run_of_key", tool="launch",
    ),
    _row(
        "status", "Show runs, their money and their kill layers.", READS,
        "operations.runs.run_facts:facts_of", "status/1", "run/1",
        home="run runs states checkpoints health events wait catch_up", tool="status",
    ),
    _row(
        "logs", "Show a run's training log; -f follows log and run.", READS,
        "operations.runs.run_logs:read_log", "log/1", home="log curves", tool="logs",
    ),
    _row(
        "stop", "Stop a run: save, evaluate, end.", ENDS,
        "operations.driving.stopping:land", "stop/1", home="land foresee", tool="land",
        button="land",
    ),
    _row(
        "stop --now", "End a run's machine at once.", ENDS,
        "operations.driving.stopping:end_now", "stop/1", "reap/1", home="stop", tool="stop",
        button="stop",
    ),
    _row(
        "resume", "Continue a run that was stopped, landed or lost.", SPENDS,
        "operations.launch.launching:resume", "launch/1", home="resume", button="raise",
    ),
    _row(
        "fetch-best", "Fetch the best checkpoint, verified; also an exported script's.", SPENDS,
        "operations.launch.checkpoint_requests:fetch_best", "fetched/1", "adopted/1", "exported/1",
        home="fetch_best", tool="fetch", button="fetch",
    ),
    _row(
        "report", "Report cost and time; receipts; --verify; --to tensorboard|wandb.", READS,
        "operations.runs.run_facts:report_run", "report/1", "month/1", "receipt/1",
        "focus-written/1",
        "verify/1", "serving/1", "metrics-sent/1", home="report sweep_trials", tool="report",
    ),
    _row(
        "doctor", "Diagnose problems of this machine and its accounts, with fixes.", READS,
        "operations.checks.doctor:examine", "doctor/1", "bundle-written/1",
    ),
    _row(
        "try", "Run a command here for a minute, free, to see what a run needs.", WRITES,
        "operations.commands.trial:try_command", "trial/1", home="try_command", tool="try",
    ),
    _row(
        "quote a sweep", "Plan a sweep: its trials, hours and dollars.", WRITES,
        "operations.launch.launch:Launch", "plan/1", command="", home="plan_sweep",
        tool="plan_sweep",
    ),
    _row(
        "sweep", "Search settings under one budget; keep the best checkpoint.", SPENDS,
        "operations.launch.launch:Launch", "launch/1", home="sweep", tool="sweep",
    ),
    _row(
        "prices", "Prices of offers: list, refresh, diff, show.", READS,
        "wiring_plans:offers_of_home", "prices/1", home="prices", tool="prices",
    ),
    _row(
        "data", "Data sets by name: list, show, get, check.", WRITES,
        "operations.sending.data:prepare_data", "data-sets/1", "data/1", "data-check/1",
    ),
    _row(
        "budget", "Spending caps of account, month and project: set, show, raise, history.", WRITES,
        "operations.money.ledger_care:raise_cap", "budget/1", home="budgets raise_cap",
        button="budgets",
    ),
    _row(
        "grant", "Let an agent or a CI job spend: give, list, raise, approve, deny.", WRITES,
        "operations.money.grants:grants", "grant/1",
        home="grants give_grant raise_grant revoke_grant approvals approve deny",
        button="approvals",
    ),
    _row(
        "show a grant", "Show what a grant allows, and what is left of it.", READS,
        "operations.money.grants:account_of", command="", home="grant", tool="grant",
    ),
    _row(
        "ask for approval", "Ask the owner of a grant for more.", WRITES,
        "operations.money.grants:ask", command="", home="ask_approval", tool="ask_approval",
    ),
    _row(
        "save", "Save a checkpoint of a run now; the run continues.", WRITES,
        "operations.launch.checkpoint_requests:save", "save/1", home="save", tool="save",
        button="save",
    ),
    _row("ssh", "Open a shell on a run's pod.", WRITES, "operations.context:find_run", "ssh/1"),
    _row(
        "ui", "Open a page with runs, curves and buttons, on this machine only.", READS,
        "cli.page.server:serve", "serving/1",
    ),
    _row(
        "eval", "Score a checkpoint on validation text.", READS,
        "operations.checkpoints.fetching:read_manifest", "measured/1", "suite-score/1",
    ),
    _row(
        "sample", "Generate text from a checkpoint.", READS,
        "operations.checkpoints.fetching:read_manifest", "sample/1",
    ),
    _row(
        "serve", "Serve a checkpoint over HTTP, with the OpenAI API and a chat page.", READS,
        "operations.checkpoints.fetching:read_manifest", "serving/1",
    ),
    _row(
        "prune", "Delete all checkpoints but the best and the latest.", ENDS,
        "operations.checkpoints.inventory:prune", "prune/1",
    ),
    _row(
        "export", "Write a launch as a standalone script.", WRITES,
        "export.writing:write", "export/1",
    ),
    _row(
        "smoke", "Check on rented pods that each stop works; --train: the trainer.", SPENDS,
        "operations.checks.smoke:Smoke", "smoke-step/1", "smoke/1", "smoke-train/1",
    ),
    _row(
        "rehearse", "Simulate a planned run, with faults.", READS,
        "sim.rehearsal:rehearse", "rehearsal/1",
    ),
    _row(
        "mcp", "Serve agents, each under a grant in dollars, by the MCP protocol.", WRITES,
        "mcp.server:make_server", "grant/1",
    ),
    _row(
        "admin", "Keep order: ledger, reap, volumes, guard, notify.", WRITES,
        "operations.driving.reap:sweep",
    ),
    _row(
        "metrics", "Read a run's curves.", READS,
        "operations.curves.curves:draw_curves", command="", tool="metrics",
    ),
    _row(
        "run", "Another name of launch, for a command of your own.", SPENDS,
        "operations.launch.launch:Launch", "launch/1", "event/1", "run/1",
    ),
)  # fmt: skip
"""In the order of ``trmcloud --help-all``."""


def by_command() -> Mapping[str, Operation]:
    """Return the operations that a command of their own has, by its name."""
    return {row.command: row for row in OPERATIONS if row.command and " " not in row.command}


def by_tool() -> Mapping[str, Operation]:
    """Return the operations that agents have, by their tool's name."""
    return {row.tool: row for row in OPERATIONS if row.tool}
