"""The share of questions that a checkpoint answers: ``python -m model.solve --checkpoint DIR
--items FILE``.

Each question is gone on from as training has it, a line feed behind it, by the likeliest ids.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from model.command import run_command
from model.training.exact_match import (
    MARK,
    final_number,
    is_final_number_complete,
    read_items,
    wilson,
)
from trmcloud.core.errors import DataError, UsageError

if TYPE_CHECKING:
    from model.training.load import LoadedModel

MAX_TOKENS = 512
BATCH = 16
_BAD_SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.solve",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.solve --checkpoint step-00000120 --items test.jsonl",
    )
    parser.add_argument("--checkpoint", required=True, help="a checkpoint folder")
    parser.add_argument("--items", required=True, help="JSONL of question and answer")
    parser.add_argument("--limit", type=int, default=0, help="only the first N; 0: all")
    parser.add_argument(
        "--max-tokens", type=int, default=MAX_TOKENS, help="most tokens of an answer"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        if chosen.limit < 0 or chosen.max_tokens < 1:
            raise UsageError("--limit cannot be negative, --max-tokens must be at least 1")
        result = solve(
            Path(chosen.checkpoint),
            Path(chosen.items),
            limit=chosen.limit,
            max_tokens=chosen.max_tokens,
        )
        print(json.dumps(result) if chosen.json else _as_text(result))

    return run_command(command)


def solve(
    checkpoint: Path, path: Path, *, limit: int = 0, max_tokens: int = MAX_TOKENS
) -> dict[str, Any]:
    """Count the items of the file that are answered exactly, and those left out or unanswered.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        DataError: the file cannot be read, or holds no item.
    """
    from model.training.load import load_model

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            items, bad = read_items(file, limit)
    except OSError as error:
        raise DataError((error.strerror or "unreadable").lower(), where=str(path)) from None
    if not items:
        why = f"line {bad[0].line}: {bad[0].why}" if bad else "it is empty"
        raise DataError(
            f"it has no line with a question and an answer after {MARK}: {why}", where=str(path)
        )
    loaded = load_model(checkpoint)
    answers = answer(loaded, [item.question for item in items], max_tokens)
    numbers = [None if text is None else final_number(text) for text in answers]
    correct = sum(number == item.number for number, item in zip(numbers, items, strict=True))
    low, high = wilson(correct, len(items))
    manifest = loaded.manifest
    return {
        "task": "gsm8k",
        "checkpoint": str(checkpoint),
        "run_id": manifest.run_id,
        "phase": manifest.phase,
        "step": manifest.step,
        "sha256": manifest.sha256,
        "items": len(items),
        "correct": correct,
        "exact_match": correct / len(items),
        "low": low,
        "high": high,
        "without_number": sum(
            text is not None and number is None
            for text, number in zip(answers, numbers, strict=True)
        ),
        "not_asked": answers.count(None),
        "bad_lines": len(bad),
        "bad": [{"line": each.line, "why": each.why} for each in bad],
        "max_tokens": max_tokens,
        "parts": list(loaded.model.parts),
    }


def answer(loaded: LoadedModel, questions: Sequence[str], max_tokens: int) -> list[str | None]:
    """Return the model's answer to each question; None where it is not asked: the question fills
    its sequence, or holds a character without an id."""
    from model.families.drawing import Text, make_sampler
    from model.families.protocol import Sampling
    from model.serving.text import TextStream

    tokenizer = loaded.tokenizer
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        seed=0,
        known_ids=tokenizer.vocab_size,
        stop=tokenizer.bos,
    )
    waiting = [
        (number, start)
        for number, question in enumerate(questions)
        if (start := _start(loaded, question)) is not None
    ]
    said: list[str | None] = [None] * len(questions)
    for number, _ in waiting:
        said[number] = ""
    waiting.reverse()
    # Of several parts the last one answers: a plan that speaks of a number says none.
    begun = set() if loaded.model.parts else set(range(len(questions)))
    drawn = make_sampler(loaded.model, BATCH, loaded.device)
    going: dict[Text, tuple[int, TextStream]] = {}
    while waiting or going:
        while waiting and len(going) < BATCH:
            number, start = waiting.pop()
            going[drawn.add(start, sampling)] = number, TextStream(tokenizer)
        for text, token in drawn.step():
            number, stream = going[text]
            if token == tokenizer.bos:
                begun.add(number)
                said[number] = ""
                stream.end()
            else:
                said[number] = (said[number] or "") + stream.add(token)
        for text, (number, stream) in list(going.items()):
            said[number] = so_far = (said[number] or "") + (stream.end() if text.ended else "")
            if text.ended or (number in begun and is_final_number_complete(so_far)):
                drawn.remove(text)
                del going[text]
    return [text if number in begun else text and "" for number, text in enumerate(said)]


def _start(loaded: LoadedModel, question: str) -> list[int] | None:
    tokenizer = loaded.tokenizer
    asked = question if loaded.model.parts else f"{question}\n"
    try:
        [ids] = tokenizer.encode([asked], ["question"])
    except DataError:
        return None
    start = [tokenizer.bos, *(int(each) for each in ids)]
    return start if len(start) <= loaded.model.most_given else None


def _as_text(result: dict[str, Any]) -> str:
    items = result["items"]
    lines = [
        f"{result['phase']}/step {result['step']} on {items:,} questions of {result['task']}",
        f"  exact match:   {result['correct']:,} of {items:,}, {result['exact_match']:.1%} "
        f"(95 % interval {result['low']:.1%} to {result['high']:.1%})",
        f"  no number:     {result['without_number']:,} answers have no number after {MARK}",
    ]
    if result["parts"]:
        lines.append(f"  all generated: {', '.join(result['parts'])}; the last number is judged")
    if result["not_asked"]:
        lines.append(
            f"  not asked:     {result['not_asked']:,}, counted as wrong: too long for the model, "
            "or with an unknown character"
        )
    if result["bad_lines"]:
        shown = [f"line {each['line']}: {each['why']}" for each in result["bad"][:_BAD_SHOWN]]
        more = [f"{result['bad_lines'] - _BAD_SHOWN} more"] * (result["bad_lines"] > _BAD_SHOWN)
        lines.append(f"  left out:      {result['bad_lines']:,} lines: {'; '.join(shown + more)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
