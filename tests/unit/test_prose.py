"""``scripts/prose.py`` finds planted phrases in each kind of text, and nothing in code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts import prose

GLOSSARY = (prose.ROOT / "docs/glossary.md").read_text(encoding="utf-8")
TWO_PARTS = """
def plan(name: str) -> str:
    return (
        f"the run {name} "
        "goes on"
    )
"""
COMMAND = '''
def launch() -> None:
    """Launch a plan; nobody has to wait."""


def _helper() -> None:
    """Whoever calls this must wait."""
'''


def found(
    texts: Iterator[prose.Text], terms: Mapping[str, str] | None = None
) -> list[tuple[int, str]]:
    """(line, what was found) of each finding."""
    return [(each.line, each.what) for each in prose.findings(texts, dict(terms or {}))]


def on_page(text: str, terms: Mapping[str, str] | None = None) -> list[tuple[int, str]]:
    return found(prose.page_texts("page.md", text), terms)


def in_module(source: str, *, help_in_docstrings: bool = False) -> list[tuple[int, str]]:
    return found(prose.message_texts("module.py", source, help_in_docstrings=help_in_docstrings))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# Runs\n\nThe training goes on.\n", 3),
        ("- one\n- the training goes\n  on\n", 2),
        ("| a | b |\n|---|---|\n| run | goes on |\n", 3),
        ("> A note: it *goes on*.\n", 1),
    ],
)
def test_a_planted_phrase_is_found_on_a_page(text: str, line: int) -> None:
    assert on_page(text) == [(line, "'goes on'")]


@pytest.mark.parametrize(
    "text",
    [
        "```\nthe run goes on\n```\n",
        "~~~console\n$ the run goes on\n~~~\n",
        "Write `goes on` or ``goes on``.\n",
        "See [the run](goes-on.md#goes on).\n",
        "<!-- goes on -->\n",
    ],
)
def test_code_addresses_and_comments_of_a_page_are_not_read(text: str) -> None:
    assert on_page(text) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('TEXT = "the run goes on"\n', 1),
        ('\nTEXT = f"the run {name} goes on"\n', 2),
        ('TEXT = "the run" " goes on"\n', 1),
        (TWO_PARTS, 4),
    ],
)
def test_a_planted_phrase_is_found_in_a_message(source: str, line: int) -> None:
    assert in_module(source) == [(line, "'goes on'")]


def test_docstrings_are_help_of_commands_alone() -> None:
    assert in_module(COMMAND) == []
    assert in_module(COMMAND, help_in_docstrings=True) == [(3, "'nobody'")]


@pytest.mark.parametrize(
    "source",
    [
        'PATTERN = r"nobody (?:goes|went) on"\n',
        'PROGRAM = "import nobody; all goes on"\n',
        'PAGE = "<p>nobody goes on</p>"\n',
        'QUERY = "SELECT nobody FROM events"\n',
        'WORD = "nobody"\n',
    ],
)
def test_patterns_programs_markup_and_queries_are_not_read(source: str) -> None:
    assert in_module(source) == []


def test_a_planted_phrase_is_found_in_a_file_of_the_page() -> None:
    source = '<p>nobody is here</p>\n// nobody reads a comment\nsay("the run goes on");\n'
    assert found(prose.static_texts("page.js", source)) == [(1, "'nobody'"), (3, "'goes on'")]


@pytest.mark.parametrize(("kind", "most"), sorted(prose.MOST_WORDS.items()))
def test_a_sentence_has_so_many_words_at_most(kind: str, most: int) -> None:
    def sentence(words: int) -> Iterator[prose.Text]:
        yield prose.Text(
            "where", 1, kind, " ".join(["Runs", *["run"] * (words - 1)]) + ". It ends."
        )

    assert found(sentence(most)) == []
    assert found(sentence(most + 1)) == [(1, f"a sentence of {most + 1} words")]


def test_words_that_the_glossary_replaces_are_found() -> None:
    page = (
        "| term | meaning | in the code | instead of |\n|---|---|---|---|\n"
        "| watchdog | a process | `watchdog` | guardian |\n"
        "| checkpoint | weights | `Manifest` | what it saved, loot |\n"
        "| budget | an amount | `budget` | |\n"
    )
    terms = prose.glossary_terms(page)
    assert list(terms.values()) == ["watchdog", "checkpoint"], "one word may be right elsewhere"
    assert on_page("The guardian keeps what it saved. The loot is gone.\n", terms) == [
        (1, "'guardian'"),
        (1, "'what it saved'"),
    ]
    assert "watchdog" in prose.glossary_terms(GLOSSARY).values()


def test_a_word_within_another_is_not_a_phrase() -> None:
    assert on_page("Recommend amended dust-nobody plans.\n") == []


def test_one_planted_message_makes_the_check_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text(GLOSSARY)
    (tmp_path / "trmcloud").mkdir()
    module = tmp_path / "trmcloud/one.py"
    module.write_text('TEXT = "the run continues"\n')
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    assert prose.main([]) == 0
    module.write_text('TEXT = "the run goes on"\n')
    assert prose.main([]) == 1
    assert "trmcloud/one.py:1: 'goes on'" in capsys.readouterr().out
    assert prose.main(["model"]) == 0, "findings below other paths are left out"
