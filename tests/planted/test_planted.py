"""Every planted bug applies, and two are caught within seconds; ``make planted`` hunts them all."""

from __future__ import annotations

import pytest

from tests.planted.bugs import BUGS, Bug
from tests.planted.plant import PACKAGE, ROOT, Verdict, hunt, planted


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_it_applies_once_and_changes_what_is_compiled(bug: Bug) -> None:
    text = (PACKAGE / bug.path).read_text(encoding="utf-8")
    changed = planted(bug, text)
    assert changed != text
    compile(changed, bug.path, "exec")


def test_there_are_enough_of_each_kind() -> None:
    assert len(BUGS) >= 130
    assert sum(bug.timing for bug in BUGS) >= 30
    assert len({bug.name for bug in BUGS}) == len(BUGS)


@pytest.mark.more
def test_a_copy_that_breaks_nothing_is_not_caught() -> None:
    same = Bug("changes a comment", "core/money.py", "from __future__", "from  __future__")
    verdict = hunt(same, 5)
    assert (verdict.seed, verdict.by) == (None, "")


@pytest.mark.more
def test_a_seed_that_is_left_out_catches_nothing() -> None:
    bug = next(bug for bug in BUGS if bug.name == "an ambiguous create counts as refused")
    first = hunt(bug, 500).seed
    assert first is not None
    assert hunt(bug, first + 1, [first]).seed != first


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["hard stop is never enforced", "settling forgets earlier generations"]
)
def test_the_simulator_catches_it(name: str) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    assert hunt(bug, 500).seed is not None


@pytest.mark.parametrize("test", sorted({bug.test for bug in BUGS if bug.test}))
def test_a_test_that_is_to_catch_one_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.more
def test_where_no_world_shows_it_its_test_does() -> None:
    bug = next(bug for bug in BUGS if bug.name == "a dead controller still drives")
    assert hunt(bug) == Verdict(bug, None, bug.test)
    same = Bug(bug.name, bug.path, "    return alive\n", "    return alive  # x\n", test=bug.test)
    assert hunt(same) == Verdict(same, None, "")
