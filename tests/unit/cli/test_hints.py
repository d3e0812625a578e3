"""What errors, screens and helps tell people to type is a command line that is understood."""

from __future__ import annotations

from collections import defaultdict

from tests.e2e.hinted import Hint, command, hints, options_in_next_steps
from trmcloud.cli.main import COMMANDS

#: Options of other people's commands, and of the trainer's own.
_OTHERS = {"--upgrade", "--force-reinstall", "--column", "--data-set", "--tokenizer", "--workers"}


class _Anything(dict[str, str]):
    """Each placeholder stands for something that any argument takes."""

    def __missing__(self, name: str) -> str:
        return "month" if name in ("level", "line.level") else "1"


def test_every_hint_is_understood() -> None:
    found = hints()
    wrong = {hint: why for hint in found if (why := _why_not(hint))}
    assert len({hint.text for hint in found}) > 60
    assert wrong == {}, "\n".join(
        f"{hint.place}: {hint.text}: {why}" for hint, why in wrong.items()
    )


def test_what_is_no_command_is_told() -> None:
    for text in (
        "lunch local",
        "status --al",
        "data fetch gsm8k",
        "eval --nope",
        "prices list extra",
    ):
        assert _why_not(Hint("here", text, ())), text
    assert _why_not(Hint("here", "resume r-1f3a9c --budget USD", ())) == ""


def test_every_option_in_a_next_step_is_one() -> None:
    known = {"--help", "--version"} | _OTHERS
    for name in COMMANDS:
        made = command(name)
        for each in (made, *getattr(made, "commands", {}).values()):
            known |= {word for option in each.params for word in option.opts}
    unknown = defaultdict(list)
    for place, option in options_in_next_steps():
        if option not in known:
            unknown[option].append(place)
    assert unknown == {}


def _why_not(hint: Hint) -> str:
    """What is wrong with the words; nothing of them is carried out."""
    name, *words = hint.words(_Anything())
    if name not in COMMANDS:
        return "no such command"
    made = command(name)
    if not words and hint.is_named_only:
        return ""
    while hasattr(made, "commands") and words and not words[0].startswith("-"):
        if words[0] not in made.commands:
            return f"no subcommand {words[0]}"
        made = made.commands[words.pop(0)]
    try:
        made.make_context(name, words)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
