"""README and docs show what the commands print; what a release goes by."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from trmcloud.cli.main import COMMANDS
from trmcloud.core.errors import Outcome

# -- README and docs show what the commands print -----------------------------------------------


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


def test_every_decision_is_headed_by_its_number_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in sorted(folder.glob("0*.md")):
        number = page.name[:4]
        title, _, date, *_ = page.read_text(encoding="utf-8").splitlines()
        assert title.startswith(f"# {number}. "), page.name
        assert re.match(r"Date: 2\d{3}-\d\d-\d\d · Status: ", date), page.name
        assert f"| [{number}]({page.name}) | {title[8:]} |" in index


def test_guides_stay_short() -> None:
    pages = {page.stem: page for page in (ROOT / "docs" / "guide").glob("*.md")}
    words = {name: len(page.read_text(encoding="utf-8").split()) for name, page in pages.items()}
    assert words.pop("huggingface") <= 800, "a provider's guide has room of its own"
    assert words.pop("vast") <= 500, "likewise"
    assert words.pop("questions") <= 1_700, "ten answers as printed"
    for room in ("sweep", "agents", "team"):
        assert words.pop(room) <= 1_200, f"{room}: a room that was added has room of its own"
    assert sum(words.values()) <= 25_000


def test_the_glossarys_names_stand_in_the_code() -> None:
    files = [path for room in ("trmcloud", "model") for path in (ROOT / room).rglob("*.py")]
    known = set(re.findall(r"\w+", "\n".join(path.read_text("utf-8") for path in files)))
    rows = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    named = {
        name for row in rows if "|" in row for name in re.findall("`(.*?)`", row.split("|")[3])
    }
    assert len(named) > 40
    assert named - known == set()


def test_the_demo_shown_is_a_whole_one(pages: ModuleType) -> None:
    """Every command of the demo stands in the transcript, in order, ending in money and hash."""
    shown = pages.block(pages.DEMO, "demo")
    commands = re.findall(r"^\$ trmcloud (\S+)", shown, re.MULTILINE)
    wanted = ["plan", "launch", "fetch-best", "eval", "sample", "report", "status"]
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


# -- release ------------------------------------------------------------------------------------
# What a release goes by: the version that a tree has, and the changelog's section for it.


NEEDED = ("pyproject.toml", "README.md", "LICENSE", ".gitattributes", ".git_archival.txt")


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def version_of(tree: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"],
        cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


def git(tree: Path, *words: str) -> None:
    who = {
        f"GIT_{role}_{part}": "a@b"
        for role in ("AUTHOR", "COMMITTER")
        for part in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["git", *words], cwd=tree, check=True, capture_output=True,
        env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull},
    )  # fmt: skip


def test_every_tree_has_a_version(tmp_path: Path) -> None:
    """Without .git, without a tag, at a tag, past it, and in an archive that git made."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in NEEDED:
        shutil.copy(ROOT / name, tree)
    assert version_of(tree) == "0.1.dev0"
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "one")
    assert re.fullmatch(r"0\.1\.dev1\+g[0-9a-f]+", version_of(tree))
    git(tree, "tag", "v0.2.0")
    assert version_of(tree) == "0.2.0"
    archive = tmp_path / "archive"
    git(tree, "archive", f"--output={archive}.tar", "HEAD")
    archive.mkdir()
    shutil.unpack_archive(f"{archive}.tar", archive)
    assert version_of(archive) == "0.2.0"
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    assert re.fullmatch(r"0\.2\.1\.dev1\+g[0-9a-f]+", version_of(tree))


def test_the_changelog_is_sorted(release: ModuleType) -> None:
    assert "### Added" in release.section((ROOT / "CHANGELOG.md").read_text(), "Unreleased")


def test_a_versions_section_is_its_own(release: ModuleType) -> None:
    log = "# C\n\n## Unreleased\n\n## 0.2.0, 2026-12-01\n\n### Fixed\n\n- A.\n\n## 0.1.0\n\n- B.\n"
    assert release.section(log, "0.2.0").strip() == "### Fixed\n\n- A."
    for version, says in (("Unreleased", "nothing"), ("0.3.0", "nothing"), ("0.1.0", "not sorted")):
        with pytest.raises(SystemExit, match=says):
            release.section(log, version)
    with pytest.raises(SystemExit, match="not sorted"):
        release.section(log.replace("Fixed", "Mended"), "0.2.0")


def test_what_a_wheel_lacks_and_what_it_has_beyond_is_named(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = ["trmcloud/a.py", "model/recipes/b.toml", "sky/c.yaml"]
    monkeypatch.setattr(release, "git", lambda *words: "\n".join(tracked))
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        for name in ("trmcloud/a.py", "trmcloud/bundle/sky/c.yaml", "trmcloud/left.py"):
            made.writestr(name, "")
        made.writestr("trmcloud-1.dist-info/METADATA", "")
    assert list(release.lacking_in_wheel(wheel)) == [
        "the wheel lacks trmcloud/bundle/model/recipes/b.toml",
        "the wheel has trmcloud/left.py",
    ]
