"""Writes docs/guide/questions.md: ten questions as a user types them, and what is printed.

.venv/bin/python scripts/questions.py

The day is fixed, the prices are those that ship, and a test holds the page to what this prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guide" / "questions.md"
sys.path[:0] = [str(ROOT)]

import tests.registered  # noqa: E402, F401
from trmcloud import wiring_plans  # noqa: E402
from trmcloud.cli.main import main as run_main  # noqa: E402
from trmcloud.operations.plans.planning import Planner  # noqa: E402

NOW = datetime(2026, 12, 1, 20, 0, tzinfo=timezone.utc).timestamp()
"""An evening."""
_LEFT_OUT = re.compile(r"^(shown |boot budget:)")


class Question(NamedTuple):
    asked: str
    typed: str
    why: str


QUESTIONS = (
    Question(
        "What does LoRA of Llama-3.1-8B on four L40S take, and how do I start it?",
        "plan --hf meta-llama/Llama-3.1-8B --method lora --hardware 4xL40S --write train_lora.py",
        "`--tokens` sets the length (10 million without it). The script is yours to change: it"
        " reads `train.jsonl`, with `text` or `messages` in each row, and saves into `out`.",
    ),
    Question(
        "All weights of it, with the trainer of Transformers?",
        "plan --hf meta-llama/Llama-3.1-8B --method full --tokens 100000000 --budget 100",
        "Stock Transformers is a family of its own speed, slower than compiled trainers; its"
        " sources scatter by × ÷ 2.1.",
    ),
    Question(
        "QLoRA of a 70B on one card?",
        "plan --hf meta-llama/Llama-3.3-70B-Instruct --method qlora --gpus 1",
        "",
    ),
    Question(
        "DPO on my pairs?",
        "plan --hf Qwen/Qwen2.5-7B-Instruct --method dpo --tokens 20000000",
        "A row is a prompt with its chosen or its rejected answer: a pair is two rows.",
    ),
    Question(
        "A model that is not in the table?",
        "plan --hf meta-llama/Llama-4-8B",
        "54 models ship; any other decoder or encoder is planned from its `config.json`.",
    ),
    Question(
        "A vision transformer on ImageNet, 90 epochs?",
        "plan --hf google/vit-base-patch16-224 --hf-set images=115305030 --hf-set batch=256",
        "`--hf-set image=384` is another resolution. Published trainings of ViTs of 6 million to a"
        " billion parameters are predicted within 13 % (median).",
    ),
    Question(
        "What can I do with $50 until eight tomorrow?",
        "plan --budget 50 --deadline 08:00",
        "Without a recipe, what fits is listed, fine-tunings too. The exit code is 4, as the usual"
        " recipe does not fit.",
    ),
    Question(
        "My own script, which was never measured?",
        "plan 1xH100 --budget 50 -- python train.py",
        "After the probe, the same line with `--steps` gives hours and dollars.",
    ),
    Question(
        "What would a spot machine save?",
        "plan --recipe gpt350m --budget 500 --hardware 8xH100",
        "The line `spot`: expected dollars (P90), and how much of them is for expected preemptions"
        " (lost work and restarts). `-v` names their rate, and who states it.",
    ),
    Question(
        "GRPO of a small model?",
        "plan --hf Qwen/Qwen2.5-0.5B --method grpo",
        "One published source: the time is known within × ÷ 2.5, and no closer.",
    ),
)


def page() -> str:
    """The page as it would be written now."""
    parts = [
        "# Ten questions",
        "",
        f"What `trmcloud plan` prints on {time.strftime('%Y-%m-%d', time.gmtime(NOW))} at "
        f"{time.strftime('%H:%M', time.gmtime(NOW))} UTC with the shipped prices, in an empty "
        "folder. `scripts/questions.py` writes this page.",
    ]
    with _empty_folder():
        for number, question in enumerate(QUESTIONS, 1):
            shown = "\n".join([f"$ trmcloud {question.typed}", *_printed(question.typed)])
            parts += ["", f"## {number}. {question.asked}", "", "```", shown, "```"]
            parts += ["", question.why] if question.why else []
    return "\n".join(parts) + "\n"


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "home").mkdir()
        (here / "train.py").touch()
        kept = {"TRMCLOUD_HOME": str(here / "home"), "HOME": folder, "COLUMNS": "80", "TZ": "UTC"}
        kept |= {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        with mock.patch.dict(os.environ, kept, clear=True):
            time.tzset()
            os.chdir(here)
            try:
                yield
            finally:
                os.chdir(before)
    time.tzset()


def _printed(typed: str) -> list[str]:
    """What the command prints, on stdout and stderr together."""
    made, out = wiring_plans.build_planner, io.StringIO()

    def at_the_time(**more: Any) -> Planner:
        return made(clock=lambda: NOW, **more)

    with (
        mock.patch.object(wiring_plans, "build_planner", at_the_time),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        run_main(shlex.split(typed))
    return [line for line in out.getvalue().splitlines() if not _LEFT_OUT.match(line)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
