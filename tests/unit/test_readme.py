"""README and docs show what the commands print."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from trmcloud.cli.main import COMMANDS
from trmcloud.core.outcome import Outcome

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return _script("pages")


def test_the_table_of_commands_is_the_one_that_is_printed(pages: ModuleType) -> None:
    shown = pages.block(pages.COMMANDS, "help").strip()
    assert shown == pages.help_table()
    assert all(f"│ {name} " in shown for name in COMMANDS)


def test_the_tables_of_options_are_made_from_their_definitions(pages: ModuleType) -> None:
    assert pages.block(pages.COMMANDS, "options") == pages.option_tables(), "scripts/pages.py"


def test_a_runs_life_is_drawn_from_its_transitions(pages: ModuleType) -> None:
    assert pages.block(pages.ARCHITECTURE, "states") == pages.state_diagram()


def test_the_ways_through_the_house_lead_to_files_that_are_there(pages: ModuleType) -> None:
    tables = [line for line in pages.ARCHITECTURE.read_text("utf-8").splitlines() if "|" in line]
    named = set(re.findall(r"`((?:\w+/)[\w./]*)`", "\n".join(tables)))
    assert len(named) > 20
    for name in named:
        assert any((root / name).exists() for root in (ROOT / "trmcloud", ROOT)), name


def test_every_outcome_stands_with_its_exit_code() -> None:
    commands = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for outcome in Outcome:
        assert f"| {outcome.exit_code} | {outcome.value} |" in commands


def test_the_demo_shown_is_a_whole_one(pages: ModuleType) -> None:
    """Every command of the demo stands in the transcript, in order, ending in money and hash."""
    shown = pages.block(pages.DEMO, "demo")
    commands = re.findall(r"^\$ trmcloud (\S+)", shown, re.MULTILINE)
    wanted = ["plan", "launch", "gate", "fetch-best", "eval", "sample", "report", "status"]
    assert commands == wanted
    last = shown.rpartition("$ trmcloud status")[2]
    for word in ("spent", "reserved", "best", "fetched"):
        assert re.search(rf"^{word}\b|· .* {word}", last, re.MULTILINE), word
    assert re.search(r"\b[0-9a-f]{64}\b", last)


def test_the_walk_shows_every_picture_that_was_made_for_it() -> None:
    """``scripts/screens.py`` makes them; what it walks through is what stands there."""
    walk = _script("screens")
    index = walk.FOLDER / "README.md"
    assert index.read_text(encoding="utf-8") == walk.page()
    shown = set(re.findall(r"\]\((walk-[\w-]+\.svg)\)", walk.page()))
    assert shown == {path.name for path in walk.FOLDER.glob("walk-*.svg")}
    for path in walk.FOLDER.glob("walk-*.svg"):
        told = path.read_text(encoding="utf-8")
        assert str(ROOT) not in told
        assert "/tmp/" not in told


def test_the_front_page_is_short_and_shows_that_demo(pages: ModuleType) -> None:
    assert len(README.splitlines()) <= 90
    shown = pages.block(pages.DEMO, "demo")
    assert pages.block(pages.README, "plan").strip() == pages.plan_of(shown)
    assert pages.PICTURE.read_text(encoding="utf-8") == pages.picture_of(shown)
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link
