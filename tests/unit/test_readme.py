"""README shows what the commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from trmcloud.cli.main import COMMANDS
from trmcloud.core.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)\n```\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None, name
    return found.group(1)


def test_the_table_of_commands_is_the_one_that_is_printed() -> None:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert shown("help") == module.help_table()
    assert all(f"│ {name} " in shown("help") for name in COMMANDS)


def test_every_outcome_stands_with_its_exit_code() -> None:
    for outcome in Outcome:
        assert f"| {outcome.exit_code} | {outcome.value} |" in README


def test_the_demo_shown_is_a_whole_one() -> None:
    """Every command of the demo stands in the transcript, in order, ending in money and hash."""
    commands = re.findall(r"^\$ trmcloud (\S+)", shown("demo"), re.MULTILINE)
    wanted = ["plan", "launch", "gate", "fetch-best", "eval", "sample", "report", "status"]
    assert commands == wanted
    last = shown("demo").rpartition("$ trmcloud status")[2]
    for word in ("spent", "reserved", "best", "fetched"):
        assert re.search(rf"^{word}\b|· .* {word}", last, re.MULTILINE), word
    assert re.search(r"\b[0-9a-f]{64}\b", last)
