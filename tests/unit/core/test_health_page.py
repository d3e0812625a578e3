"""The reference shows what ``status`` prints for each rule, on the logs that the rules are tried
on. ``python -m tests.unit.core.test_health_page`` prints it anew."""

from __future__ import annotations

from pathlib import Path

from tests.unit.core.test_gpu_counters import EXPECTED, WELL, of
from tests.unit.core.test_health import FIRES, recorded, rules
from trmcloud.cli.views.health import helps, seen
from trmcloud.core.health import Finding, Rule, gpu_findings

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "health.md"
_RUN = "r-8b2864"
_LAST_STEP = 520
_GPUS = (
    of(WELL, WELL._replace(busy_percent=61.0)),
    of(WELL, WELL, WELL._replace(clock_mhz=1200.0)),
    of(WELL, WELL._replace(used_mib=78_000.0)),
    of(WELL._replace(used_mib=40_000.0)),
)


def screens() -> dict[Rule, str]:
    """What two rows of ``status`` say of each rule."""
    found: dict[Rule, Finding] = {}
    for rule, (name, change, _) in FIRES.items():
        lines = recorded(name)
        change(lines)
        found |= {rule: rules(lines)[rule]}
    for window in _GPUS:
        found |= {each.rule: each for each in gpu_findings(window, _LAST_STEP, EXPECTED)}
    return {
        rule: f"unwell    train step {each.step:,}: {seen(each)}\n  try     {helps(each, _RUN)}\n"
        for rule, each in found.items()
    }


def test_the_page_shows_every_rule_as_status_does() -> None:
    made, page = screens(), _PAGE.read_text(encoding="utf-8")
    assert set(made) == set(Rule)
    for rule, shown in made.items():
        assert f"| `{rule.value}` |" in page
        assert shown in page, f"{rule.value} is not shown as it is printed:\n{shown}"


if __name__ == "__main__":
    print("".join(made for _, made in sorted(screens().items(), key=lambda row: row[0].value)))
