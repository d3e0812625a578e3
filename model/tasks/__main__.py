"""The score of a checkpoint on tasks: ``python -m model.tasks --checkpoint DIR --suite core``.

Also under torchrun: the processes share the examples.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Sequence

from model.command import run_command
from trmcloud.core.catalog.eval_tasks import LeftOut, Suite, SuiteResult, TaskScore, suite_of
from trmcloud.core.errors import UsageError

BATCH = 8
_NAME_WIDTH = 34


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m model.tasks",
        description=__doc__.partition("\n")[0],
        epilog="example: python -m model.tasks --checkpoint step-00000120 --suite core "
        "--cache data/",
    )
    parser.add_argument("--checkpoint", default="", help="a checkpoint folder")
    parser.add_argument("--suite", required=True, help="core, chat, or the name of one task")
    parser.add_argument("--data", default="", help="the folder that has the tasks' files")
    parser.add_argument(
        "--cache", default="", help="without --data: the folder to which files are downloaded"
    )
    parser.add_argument("--fetch", action="store_true", help="download the files, and no more")
    parser.add_argument("--limit", type=int, default=0, help="only the first N examples; 0: all")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="rows of the model's whole sequence in one pass"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)

    def command() -> None:
        if chosen.limit < 0 or chosen.batch < 1:
            raise UsageError("--limit cannot be negative, --batch must be at least 1")
        if bool(chosen.data) == bool(chosen.cache):
            raise UsageError("give --data or --cache")
        if chosen.fetch:
            from model.tasks.files import fetch_files

            def stage(why: str) -> None:
                print(json.dumps({"stage": f"{chosen.suite}: {why}"}), flush=True)

            fetch_files(suite_of(chosen.suite), Path(chosen.cache), waits=stage)
            return
        if not chosen.checkpoint:
            raise UsageError("give --checkpoint")
        result = evaluate_checkpoint(
            Path(chosen.checkpoint),
            suite_of(chosen.suite),
            data=Path(chosen.data) if chosen.data else None,
            cache=Path(chosen.cache),
            limit=chosen.limit,
            batch=chosen.batch,
            shown=not chosen.json,
        )
        if chosen.json and result:
            print(json.dumps(result))
        if "RANK" in os.environ:
            sys.stdout.flush()
            # Taking down the process groups' threads may abort a rank that has done its work.
            os._exit(0)

    return run_command(command)


def evaluate_checkpoint(
    checkpoint: Path,
    suite: Suite,
    *,
    data: Path | None,
    cache: Path,
    limit: int = 0,
    batch: int = BATCH,
    shown: bool = False,
) -> dict[str, Any]:
    """The scores of a checkpoint on a suite; empty on every rank but the first.

    Raises:
        CheckpointError: the checkpoint is damaged or incomplete.
        UsageError, DataError: see ``evaluate_suite`` and ``fetch_files``.
    """
    from model.machine.distributed import join_world
    from model.machine.precision import autocast
    from model.tasks.files import fetch_files, find_files
    from model.tasks.scoring import check_model, evaluate_suite
    from model.training.load import load_model

    if data is not None:
        find_files(suite, data)
    world = join_world()
    loaded = load_model(checkpoint, as_trained=True)
    check_model(loaded.model, loaded.tokenizer, suite)
    if data is None:
        if world.local_rank == 0:
            fetch_files(suite, cache, waits=_tell)
        world.part()
    on_gpu = loaded.device.type == "cuda"
    printed = _Printed(suite, shown and world.is_main)
    result = evaluate_suite(
        loaded.model,
        loaded.tokenizer,
        suite,
        data or cache,
        limit=limit,
        world=world,
        batch=batch,
        autocast=autocast(loaded.settings.dtype if on_gpu else "float32", loaded.device),
        told=printed.task,
    )
    world.part()
    if not world.is_main:
        return {}
    manifest = loaded.manifest
    printed.total(result, f"{manifest.phase}/step {manifest.step}")
    return {
        "checkpoint": str(checkpoint),
        "run_id": manifest.run_id,
        "phase": manifest.phase,
        "step": manifest.step,
        "sha256": manifest.sha256,
        **result.to_json(),
    }


def _tell(why: str) -> None:
    print(f"warning: {why}", file=sys.stderr)


class _Printed:
    """Prints each task's line once it is scored, then the total."""

    def __init__(self, suite: Suite, wanted: bool) -> None:
        self._suite, self._wanted = suite, wanted
        self._width = max(len("task"), *(len(task.name) for task in suite.tasks))
        self._began = False

    def task(self, score: TaskScore | LeftOut) -> None:
        if isinstance(score, LeftOut):
            return
        if not self._began:
            self._line("task", "shots", "accuracy", "centred", "examples")
            self._began = True
        self._line(
            score.name,
            str(score.shots),
            f"{score.accuracy:.4f}",
            f"{score.centred:.4f}",
            f"{score.examples:,}",
        )

    def total(self, result: SuiteResult, of: str) -> None:
        if not self._wanted:
            return
        print("\n".join(as_text(result, of)), flush=True)

    def _line(self, name: str, *cells: str) -> None:
        if self._wanted:
            padded = "".join(f"{cell:>10}" for cell in cells)
            print(f"{name:<{self._width}}{padded}", flush=True)


def as_text(result: SuiteResult, of: str) -> list[str]:
    """The lines below the table: the score by its name, and what it does not count."""
    if result.score is None:
        return [f"{result.title}: no task was scored"]
    lines = [f"{result.label}: {result.score:.4f} ({of})"]
    reference = result.reference
    if reference is not None:
        published = f"{reference.model} has {reference.score:.4f}, by {reference.source}"
        if result.is_whole:
            off = result.score - reference.score
            lines.append(f"{published}: {abs(off):.4f} {'above' if off >= 0 else 'below'} it")
        else:
            lines.append(f"not to be compared with {result.title}: {published}")
    lines += [f"left out: {each.name}: {each.why}" for each in result.left_out]
    cropped = sum(task.cropped for task in result.tasks)
    not_asked = sum(task.not_asked for task in result.tasks)
    if cropped:
        lines.append(f"{cropped:,} examples are longer than the model's sequence: cut at the left")
    if not_asked:
        lines.append(
            f"{not_asked:,} examples were not asked and count as wrong: their answer does not fit "
            "in the sequence, or a character has no id"
        )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    sys.exit(main())
