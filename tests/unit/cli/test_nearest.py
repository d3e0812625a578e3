"""A command or option that does not exist: the error names the nearest one that does."""

from __future__ import annotations

import pytest

from trmcloud.cli.main import main


@pytest.mark.parametrize(
    ("typed", "says", "then"),
    [
        ("lunch 8xA100", "no command 'lunch'; did you mean 'launch'?", "trmcloud --help"),
        ("fetch", "no command 'fetch'; did you mean 'fetch-best'?", "trmcloud --help"),
        ("xyzzy", "no command 'xyzzy'", "trmcloud --help"),
        ("--verison", "no such option: --verison; did you mean '--version'?", "trmcloud --help"),
        (
            "plan --buget 5",
            "no such option: --buget; did you mean '--budget'?",
            "trmcloud plan --help",
        ),
        (
            "plan --buget=5",
            "no such option: --buget; did you mean '--budget'?",
            "trmcloud plan --help",
        ),
        (
            "launch local --accept-los",
            "no such option: --accept-los; did you mean '--accept-loss'?",
            "trmcloud launch --help",
        ),
        ("status --zzzz", "no such option: --zzzz", "trmcloud status --help"),
        ("status -x", "no such option: -x", "trmcloud status --help"),
        (
            "budget shwo",
            "no such command 'shwo'; did you mean 'show'?",
            "trmcloud budget --help",
        ),
        ("volumes delet", "no such command 'delet'; did you mean 'delete'?", "volumes --help"),
        ("prices xyzzy", "no such command 'xyzzy'", "trmcloud prices --help"),
    ],
)
def test_the_nearest_is_named(
    typed: str, says: str, then: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(typed.split())
    assert left.value.code == 2
    what, next_step = capsys.readouterr().err.splitlines()
    assert what == f"error: {says}"
    assert next_step.startswith("  try: ")
    assert next_step.endswith(then)
