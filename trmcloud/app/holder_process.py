"""The process of a grant's holder: it tries a command, or reads a working tree, as that user.

    python -m trmcloud.app.holder_process try|tree FOLDER

``FOLDER/asked.json`` says what to do, ``FOLDER/ground/answer.json`` what came of it. A trial's
progress is printed as lines of JSON, a working tree as a tar.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from trmcloud.app.commands import command_of, request_of, root_of
from trmcloud.app.trial import TrialBounds, TrialGround, log_path, try_command
from trmcloud.app.trial_checks import RequestedMachine
from trmcloud.app.working_tree import look_at
from trmcloud.core.contract.records import dump
from trmcloud.core.errors import TrmcloudError
from trmcloud.io.files import write_atomic

ANSWER_NAME, LOG_NAME = "answer.json", "log"


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    asked = json.loads((folder / "asked.json").read_bytes())
    ground = folder / "ground"
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        answer = _tried(asked, ground) if what == "try" else _tree(asked)
    except TrmcloudError as error:
        told = {"what": str(error), "next_step": error.next_step}
        answer = {"error": {"kind": type(error).__name__, **told}}
    write_atomic(ground / ANSWER_NAME, json.dumps(answer), durable=False, mode=0o600)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _tried(asked: Mapping[str, Any], ground: Path) -> dict[str, Any]:
    wish = {name: tuple(v) if isinstance(v, list) else v for name, v in asked["wish"].items()}
    data = str(wish.pop("data", ""))
    for_s, steps, gigabytes, online = asked["bounds"]
    environment = {name: os.environ[name] for name in ("PATH", "LANG")}
    home = ground / "home"
    here = Path(asked["here"])
    os.chdir(here)
    trial = try_command(
        TrialGround(home, environment, dict(os.environ), asked["python_path"], time.time),
        request_of(asked["words"], wish),
        TrialBounds(for_s, steps, gigabytes, online),
        RequestedMachine(),
        here,
        data,
        _tell,
    )
    write_atomic(ground / LOG_NAME, log_path(home, trial).read_bytes(), durable=False, mode=0o600)
    return {"trial": json.loads(dump(trial))}


def _tell(progress: Mapping[str, object]) -> None:
    print(json.dumps(progress), flush=True)


def _tree(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Print the files that would be sent as a tar."""
    here = Path(asked["here"])
    command = command_of(request_of(("true",), {"root": asked["root"]}), "", here)
    tree = look_at(root_of(command, here), (), command.folder)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name in tree.names:
            with open(os.open(tree.root / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                content = file.read()
            about = tarfile.TarInfo(name)
            about.size = len(content)
            about.mode = 0o755 if os.access(tree.root / name, os.X_OK) else 0o644
            archive.addfile(about, io.BytesIO(content))
    sys.stdout.flush()
    return {"folder": command.folder, "git_commit": tree.git_commit}


if __name__ == "__main__":
    main()
