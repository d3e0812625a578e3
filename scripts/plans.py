"""Writes docs/bench/plans.md: twenty plans as the command printed them, and why an expert would do
the same.

.venv/bin/python scripts/plans.py

Each plan is held to what the line about it says: the page is not written where one differs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "bench" / "plans.md"
sys.path[:0] = [str(ROOT)]

import tests.registered  # noqa: E402, F401
from trmcloud.core.contract.command_terms import MeasuredSteps  # noqa: E402
from trmcloud.core.contract.records import finite  # noqa: E402
from trmcloud.core.planner.command_outlook import CommandProbe  # noqa: E402
from trmcloud.operations.plans.measurements import KEPT_NAME, KeptProbe  # noqa: E402

_LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip
_MODELS = {
    "llama-8b.json": _LLAMA,
    "llama-70b.json": {
        **_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_hidden_layers": 80,
    },
    "qwen-0.5b.json": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
        "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
        "vocab_size": 151936, "tie_word_embeddings": True,
    },
}  # fmt: skip
_LEFT_OUT = re.compile(r"^(shown |boot budget:|$)")


class Case(NamedTuple):
    """A plan, what its recommendation or its refusal must match, and the reason."""

    words: str
    matches: str
    why: str


CASES = (
    Case("--budget 5", "within .*does not fit; closest:.*finishing needs",
         "The usual recipe cannot be finished for $5 on any offer; what can is listed first."),
    Case("--budget 5 --recipe shakespeare", "1xL4",
         "800,000 parameters need only the cheapest card, for seven cents."),
    Case("--budget 10 --recipe gpt350m", "No plan .*finishing needs .*--budget 18",
         "The whole recipe costs $18 at P90 on the cheapest card; the last line is what to type."),
    Case("--budget 50 --recipe gpt350m --deadline 2h", "8xH100",
         "Eight cards are the fewest that surely finish within two hours."),
    Case("--budget 20 --recipe d24", "1xRTX3090",
         "An H100 needs $27 at P90; the RTX 4090 is sold where trmcloud cannot rent."),
    Case("--budget 100 --recipe speedrun", "8xH100",
         "Eight cards just keep $100 at P90; four would save $3 and cost two hours."),
    Case("--budget 95 --recipe speedrun --deadline 4h", r"No plan .*8xH100.*\$1",
         "An expert asks for the missing $2 and rejects a card that is days too slow."),
    Case("--budget 200 --recipe speedrun --objective fastest", "8xB200",
         "If only time counts, the newest board is best, for 40 % more."),
    Case("--budget 1000", "8xH100",
         "Two hours for $67; B200s save half an hour for $43. The plan warns about the control."),
    Case("--budget 1000 --deadline 1h", "does not fit; closest:.*8xB200",
         "No offered machine finishes in an hour; the nearest plan shows what it lacks."),
    Case("--budget 1000 --recipe d64 --fill", "8xH100",
         "Most tokens per dollar; a board at twice the price is not twice as fast."),
    Case("--budget 5000 --recipe d64", "8xB200",
         "30 hours at $18 are worth more than $126; the price is 274 days old, and says so."),
    Case("--budget 5000 --recipe d64 --deadline 2d", "No plan .*8xB200",
         "P50 is within two days and P90 is not: no promise, but the number of possible steps."),
    Case("--budget 25 --recipe bd3lm", "No plan ",
         "At the planned speed $29 are enough; at its authors' speed $77: no promise."),
    Case("--budget 50 --recipe hdp", "1xH100",
         "With an hour at $18, ten hours for $24 beat 35 for $19, and P90 is within $50."),
    Case("--hf llama-8b.json --budget 5", "4xH100-NVL",
         "LoRA on 10M tokens takes minutes, and start-up weighs more than rent."),
    Case("--hf llama-8b.json --method full --tokens 500000000 --budget 400 --deadline 1d", "8xB200",
         "All weights and their states need several cards; 1.4 hours less for $7 more."),
    Case("--hf qwen-0.5b.json --method grpo --budget 50", "4xH100-NVL",
         "Minutes on any of them: the soonest of the cheap ones; the plan calls it a guess."),
    Case("--hf llama-70b.json --hf-set bits=4 --tokens 20000000 --budget 100", "8xB200",
         "Frozen at 4 bits, 70B fit on one card: more cards add rows per step, no sharding."),
    Case("--budget 20 --steps 36000 -- python train.py", "1xH100",
         "A probe measured 0.5 s per step on an A100; the next card needs half of that."),
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _furnish(place)
        shown = [_shown(case, place) for case in CASES]
    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = (
        "# Twenty plans\n\n"
        f"The output of `trmcloud plan` on {day} with the shipped prices, made by"
        " `scripts/plans.py`, without the lines about shown offers and boots. Below each: the"
        " reason, as an expert would give it.\n"
    )
    for number, (case, lines) in enumerate(zip(CASES, shown, strict=True), 1):
        text += f"\n## {number}\n\n```\n$ trmcloud plan {case.words}\n{lines}\n```\n\n{case.why}\n"
    PAGE.write_text(text, encoding="utf-8")


def _furnish(place: Path) -> None:
    for name, config in _MODELS.items():
        (place / name).write_text(json.dumps(config), encoding="utf-8")
    measured = MeasuredSteps(30, 0.45, 0.5, 0.6, 20_000_000_000, 4.0)
    probed = CommandProbe("r-5a1f20", "A100-80GB-SXM", 1, False, measured, 0.9, 30.0)
    kept = finite([KeptProbe(("python", "train.py"), 1.0, probed)])
    (place / "train.py").touch()
    (place / "home").mkdir()
    (place / "home" / KEPT_NAME).write_text(json.dumps(kept), encoding="utf-8")


def _shown(case: Case, place: Path) -> str:
    """
    Raises:
        SystemExit: the plan is another than the line about it says.
    """
    command = [str(Path(sys.executable).parent / "trmcloud"), "plan", *shlex.split(case.words)]
    environment = {
        "TRMCLOUD_HOME": str(place / "home"), "HOME": str(place), "COLUMNS": "80",
        "PATH": os.environ["PATH"], "LANG": "C.UTF-8",
    }  # fmt: skip
    made = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=place, timeout=60
    )
    lines = [line for line in made.stdout.splitlines() if not _LEFT_OUT.match(line)]
    text = "\n".join(lines)
    chosen = next((line for line in lines if line.startswith("▸")), "")
    told = chosen or text.replace("\n", " ")
    if not re.search(case.matches, told):
        raise SystemExit(f"plan {case.words}: not {case.matches!r} but\n{text}{made.stderr}")
    return text if made.returncode == 0 else f"{text}\n(exit code {made.returncode})"


if __name__ == "__main__":
    main()
