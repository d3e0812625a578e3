"""A container's command in RunPod's three forms: ``args`` as one text, ``entrypoint`` and ``cmd``.

The platform keeps one text and takes it apart as a shell's words, or as a JSON object where it is
one; both facts are those of the published contract and of RunPod's own command line tool.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LIMIT_BYTES = 102_400
DEFAULT = ("start.sh",)
"""What RunPod's images run where nothing else is asked for."""


class Command(NamedTuple):
    """Empty lists leave it to the image."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()

    @property
    def args(self) -> str:
        """As it is stored; ``read`` gives the same command back."""
        parts = {"entrypoint": self.entrypoint, "cmd": self.cmd}
        told = {name: list(words) for name, words in parts.items() if words}
        return json.dumps(told, separators=(",", ":")) if told else ""

    def words(self, image_entrypoint: Sequence[str]) -> tuple[str, ...]:
        """What is executed: an entry point of one's own takes the image's command away, too."""
        if self.entrypoint:
            return (*self.entrypoint, *self.cmd)
        return (*image_entrypoint, *(self.cmd or DEFAULT))


def read(args: str) -> Command:
    """A stored text, taken apart."""
    try:
        told = json.loads(args)
    except ValueError:
        told = None
    if isinstance(told, dict):
        return Command(tuple(told.get("entrypoint") or ()), tuple(told.get("cmd") or ()))
    try:
        return Command(cmd=tuple(shlex.split(args)))
    except ValueError:
        return Command(cmd=tuple(args.split()))


def stored(body: Mapping[str, Any]) -> str:
    """The text to be stored for a request.

    Raises:
        ValueError: the forms say different things.
    """
    listed = Command(tuple(body.get("entrypoint", ())), tuple(body.get("cmd", ())))
    if "args" not in body:
        return listed.args
    args: str = body["args"]
    asked = read(args)
    for name in ("entrypoint", "cmd"):
        if name in body and tuple(body[name]) != getattr(asked, name):
            raise ValueError(f"args and {name} describe different commands")
    return args


def deployment_bytes(body: Mapping[str, Any]) -> int:
    """How long the request is that is made of a create: the command in one text, variables in rows.
    Its form is not published; this one is that of the older API's."""
    made = {key: value for key, value in body.items() if key not in ("cmd", "entrypoint", "env")}
    made["args"] = stored(body)
    made["env"] = [{"key": key, "value": value} for key, value in body.get("env", {}).items()]
    return len(json.dumps({"input": made}))
