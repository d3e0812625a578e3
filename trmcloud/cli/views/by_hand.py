"""What a person can do about a pod by its provider's own client, and what of their account it
holds."""

from __future__ import annotations

from trmcloud.app.context import Context
from trmcloud.core.catalog.providers import is_brokered
from trmcloud.core.control.run_state import RunState
from trmcloud.core.plain_text import one_line
from trmcloud.core.spec.plan import Plan


def plan_credential_rows(context: Context, plan: Plan) -> list[tuple[str, str]]:
    """(name, text): which credential will be on each provider's machine, and for how long it is
    valid."""
    providers = dict.fromkeys(plan.candidate(name).provider for name in plan.launchable)
    return [
        ("on the machine", f"{provider}: {one_line(told)}")
        for provider in providers
        if is_brokered(provider)
        and provider in context.computes
        and (told := context.computes[provider].on_machine())
    ]


def run_credential_rows(context: Context, run: RunState) -> list[tuple[str, str]]:
    """(name, text): likewise of a run's present pod, and how to see and end it by hand."""
    generation = run.generation
    if not run.live or generation is None or not is_brokered(generation.provider):
        return []
    told = context.computes[generation.provider].on_machine(generation.pod_name)
    rows = [("on the machine", one_line(told))] if told else []
    return rows + [("by hand", one_line(line)) for line in lines_of(context, run)]


def lines_of(context: Context, run: RunState) -> list[str]:
    """What can be typed about its present pod, which may be there or be on its way."""
    generation = run.generation
    if generation is None or not generation.open or not is_brokered(generation.provider):
        return []
    return list(context.computes[generation.provider].by_hand(generation.pod_name))
