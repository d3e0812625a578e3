"""A worked answer as a question, a plan and an execution.

The plan is the solution's own sentences without what they come to: every numeral, and every
calculator span with the numeral that repeats it, is ``BLANK``. The execution is the answer as it
is, so it ends in its mark and the final number.
"""

from __future__ import annotations

import re

PARTS = 3
QUESTION = 0
"""Which of the parts it is."""
VERSION = 1
"""Of the plans: a change of what is made of the same answer is a new one."""
BLANK = "_"

_NUMERAL = r"(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
_HIDDEN = re.compile(rf"<<[^<>\n]*>>(?:{_NUMERAL})?|{_NUMERAL}", re.ASCII)


def parts_of(question: str, answer: str, mark: str) -> tuple[str, str, str]:
    """Question, plan and execution.

    Args:
        mark: what stands in the answer before its final number.
    """
    solution = answer.rpartition(mark)[0]
    return question, plan_of(solution), answer


def plan_of(solution: str) -> str:
    """The sentences of a solution, numerals and calculator spans blanked out."""
    return _HIDDEN.sub(BLANK, solution).strip()
