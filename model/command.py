"""The failure of the trainer's small commands: one line, then one JSON object, and an exit code."""

from __future__ import annotations

import json
import os
import sys
from typing import Callable

from model.families.registry import provide_families
from trmcloud.core.errors import MissingExtra, TrmcloudError
from trmcloud.io.installation import install_command

#: Packages of the ``train`` extra, by the name they are imported under.
_TRAIN_PACKAGES = frozenset(
    ("torch", "numpy", "safetensors", "tokenizers", "tensorboard", "pyarrow")
)

_SERVE_PACKAGES = frozenset(("starlette", "uvicorn", "pydantic"))


def run_command(command: Callable[[], None]) -> int:
    """Runs ``command``; what it raises for the user becomes lines on stderr and an exit code.

    The last line on stderr is then ``{"what", "where", "next_step"}``.
    """
    wait_asleep()
    provide_families()
    try:
        command()
    except TrmcloudError as error:
        return _say(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _SERVE_PACKAGES:
            return _say(MissingExtra("serving a checkpoint", "serve", install_command("serve")))
        if package not in _TRAIN_PACKAGES:
            raise
        return _say(MissingExtra("the trainer", "train", install_command("train")))
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def wait_asleep() -> None:
    """Let torch's CPU threads sleep while they wait for one another; to be called before torch is
    imported. What the user set stays.

    They would spin: of use to whoever has a machine for themselves, and there a few percent. Where
    something else runs, too, a thread that spins keeps the very one off the core that it waits for,
    and steps take five to fifteen times as long.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def error_json(error: TrmcloudError) -> str:
    """The error as one line of JSON. ``again``: the same may succeed with nothing changed but time
    or room."""
    return json.dumps(
        {
            "what": error.what,
            "where": error.where,
            "next_step": error.next_step,
            "again": getattr(error, "again", False),
        }
    )


def _say(error: TrmcloudError) -> int:
    line = f"error: {error}"
    if error.next_step:
        line += f". Next: {error.next_step}"
    print(line, file=sys.stderr)
    print(error_json(error), file=sys.stderr)
    return error.exit_code
