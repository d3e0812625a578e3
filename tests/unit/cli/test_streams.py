"""Who may draw on a terminal."""

from __future__ import annotations

from pathlib import Path


def test_what_is_drawn_is_cleaned_by_whoever_draws() -> None:
    """Cursor movements pass by the one way of printing: only these may use that."""
    package = Path(__file__).resolve().parents[3] / "trmcloud"

    def uses(word: str) -> list[str]:
        found = (p.name for p in (package / "cli").rglob("*.py") if word in p.read_text())
        return sorted(found)

    assert uses("drawn_on(") == ["run_bar.py", "streams.py"]
    assert uses(" draw(") == ["streams.py", "text.py", "trial.py"]
    assert uses("__stdout__") == uses("stdout.buffer") == uses("__stderr__") == []
