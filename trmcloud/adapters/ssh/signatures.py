"""Who signed a file, by the user's own ``ssh-keygen -Y``: keys that they have anyway."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from trmcloud.core.plain_text import one_line
from trmcloud.core.values import dataclass

NAMESPACE = "trmcloud-receipt"
"""What the signature is for: one made for anything else is none of a receipt."""
SUFFIX = ".sig"
_WITHIN_S = 20.0
_GOOD = re.compile(r'Good "[^"]*" signature (?:for (?P<who>.+) )?with (?P<key>\S+ key \S+)')


@dataclass(frozen=True)
class Signature:
    """``good``: it is one of this very file. ``key`` made it; ``who`` that is by the file of known
    signers, empty where none was asked or it is in none. ``why``: what is wrong otherwise."""

    good: bool
    key: str = ""
    who: str = ""
    why: str = ""


def signature_of(path: Path, signers: Path | None) -> Signature | None:
    """What is known of the signature beside ``path``; None where there is none.

    Args:
        signers: a file as ``ssh-keygen`` calls ``allowed_signers``.
    """
    beside = path.with_name(path.name + SUFFIX)
    if not beside.is_file():
        return None
    program = shutil.which("ssh-keygen")
    if program is None:
        return Signature(False, why="there is no ssh-keygen here to check it with")
    content = path.read_bytes()
    sealed = ("-n", NAMESPACE, "-s", str(beside))
    checked = _run((program, "-Y", "check-novalidate", *sealed), content)
    found = _GOOD.search(checked)
    if found is None:
        return Signature(False, why=f"it is not of this file: {one_line(checked)[:200]}")
    key = found["key"]
    if signers is None:
        return Signature(True, key)
    said = _run((program, "-Y", "find-principals", "-f", str(signers), "-s", str(beside)), content)
    for name in said.splitlines():
        words = (program, "-Y", "verify", "-f", str(signers), "-I", name, *sealed)
        good = _GOOD.search(_run(words, content))
        if good is not None and good["who"]:
            return Signature(True, key, good["who"])
    return Signature(True, key, why=f"{signers.name} does not know this key")


def _run(words: tuple[str, ...], content: bytes) -> str:
    try:
        done = subprocess.run(
            words,
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout.decode("utf-8", "replace").strip()
