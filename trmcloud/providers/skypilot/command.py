"""SkyPilot's own command, ``sky``, spoken to in JSON: it lives in an environment of its own.

It pins packages that trmcloud needs newer, and costs seconds to import; the command is its public
face, and finds and starts its API server by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trmcloud.core.errors import AuthError, ProviderError, ProviderRefused
from trmcloud.core.text import strip_control
from trmcloud.io.children import find_program

ENV_SKY = "TRMCLOUD_SKY"
"""Path of the ``sky`` command; the one on PATH where it is not set."""
OLDEST = (0, 14)
TESTED = "0.14.1"
"""The version that this adapter was tried with; a nightly build of October 2026 was only read."""
INSTALL = "make sky, then export TRMCLOUD_SKY=$PWD/.venv-sky/bin/sky"

_TIMEOUT_S = 90.0
_VERSION = re.compile(r"version ([0-9]{1,4})\.([0-9]{1,4})(?:\.\w{1,20})*")
_MAX_TEXT = 300
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b")
_ADVICE = ("Hint:", "To fix:", "To keep retrying")
"""The lines at the end of SkyPilot's error that advise its own commands: no reason."""
_MOST_TRIES = 20
"""Lines before the answer that might be its beginning."""


def find_sky(environ: Mapping[str, str]) -> str:
    """
    Raises:
        ProviderRefused: there is none.
    """
    named = environ.get(ENV_SKY, "").strip()
    found = find_program(named or "sky", environ.get("PATH", os.defpath))
    if found is None:
        raise ProviderRefused(
            f"SkyPilot is not installed: there is no {named or 'sky'}", next_step=INSTALL
        )
    return os.path.abspath(found)


def why_untested(version: str) -> str:
    """Return a sentence about a ``version`` newer than what this adapter was tried with, or ''."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) <= OLDEST:
        return ""
    return f"{version} is newer than {TESTED}, the version that was tested"


class Sky:
    """The ``sky`` command. SkyPilot's usage reports are off unless the user has said otherwise.

    It runs in ``folder``, an empty one, and not where the user is: that may be another party's
    tree, whose ``.sky.yaml`` it would obey. The folder stays, since the server that ``sky`` starts
    is in it, too; None: a temporary one, for a command that starts no server.
    """

    def __init__(self, program: str, environ: Mapping[str, str], folder: Path | None) -> None:
        self._program, self._folder = program, folder
        # It has a Python of its own, whose packages ours would shadow.
        own = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
        self._environ = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", **own}

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ

    @property
    def program(self) -> str:
        return self._program

    def version(self) -> str:
        """
        Raises:
            ProviderRefused: it is older than what this adapter was tried with.
        """
        text = self.run("--version")
        match = _VERSION.search(text)
        if match is None or (int(match[1]), int(match[2])) < OLDEST:
            raise ProviderRefused(
                f"{text.strip()[-60:] or 'SkyPilot'} is too old: 0.14 or newer is needed",
                where=self._program,
                next_step=INSTALL,
            )
        return match[0].removeprefix("version ")

    def run(self, *words: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run the command and return its output.

        Raises:
            ProviderError: it failed, said in the last line that it printed, or did not end.
        """
        code, out, said = self._done(words, timeout_s)
        if code != 0:
            raise _explained(words[0], f"{out}\n{said}")
        return out

    def complaint(self, *words: str, timeout_s: float = _TIMEOUT_S) -> str:
        """Run the command and return its error text where it failed; '' where it did not.

        Raises:
            ProviderError: it did not end, or did not get through to the server.
        """
        code, _, said = self._done(words, timeout_s)
        if _is_down(said):
            raise _explained(words[0], said)
        return said if code != 0 else ""

    def _done(self, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
        """Its exit status, what it printed and what it complained of, to be shown."""
        if self._folder is None:
            with tempfile.TemporaryDirectory(prefix="trmcloud-sky-") as made:
                return self._done_in(Path(made), words, timeout_s)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._done_in(self._folder, words, timeout_s)

    def _done_in(
        self, folder: Path, words: Sequence[str], timeout_s: float
    ) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=folder,
                env=self._environ,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise ProviderError(
                f"sky {words[0]} did not answer within {timeout_s:.0f} s",
                next_step="sky api info; if the server hangs: sky api stop; sky api start",
            ) from None
        except OSError as error:
            raise ProviderRefused(
                f"SkyPilot cannot be run: {error.strerror}",
                where=self._program,
                next_step=INSTALL,
            ) from None
        out = done.stdout.decode("utf-8", "replace")
        said = done.stderr.decode("utf-8", "replace")
        return done.returncode, strip_control(out), strip_control(said)

    def read(self, *words: str) -> Any:
        """The JSON a command prints, after whatever it says first.

        Raises:
            ProviderError: it failed, or there is none.
        """
        return self.read_and_said(*words)[0]

    def read_and_said(self, *words: str) -> tuple[Any, str]:
        """Return the same, and the command's error text.

        Raises:
            ProviderError: likewise.
        """
        code, text, said = self._done((*words, "-o", "json"), _TIMEOUT_S)
        if code != 0:
            raise _explained(words[0], f"{text}\n{said}")
        for match in islice(re.finditer(r"^[\[{]", text, re.MULTILINE), _MOST_TRIES):
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(text[match.start() :]), f"{text[: match.start()]}\n{said}"
        raise ProviderError(f"sky {words[0]} printed no JSON", next_step=f"sky {words[0]} -o json")

    def require_cloud(self, cloud: str, line: str = "") -> None:
        """``line``: what a person types to ask the same.

        Raises:
            AuthError: SkyPilot has no access to it; its own advice is shown.
        """
        if cloud.lower() not in _names(self.read("check", cloud)):
            advice = _advice(self._try("check", cloud))
            raise AuthError(
                f"{cloud} is not enabled in SkyPilot: {advice or 'no access'}",
                next_step=line or f"sky check {cloud}",
            )

    def enabled(self, *clouds: str) -> frozenset[str]:
        """Clouds that SkyPilot has access to, in its own words; asked about ``clouds`` alone where
        some are named.

        Raises:
            ProviderError: it cannot be asked.
        """
        return _names(self.read("check", *clouds))

    def _try(self, *words: str) -> str:
        try:
            return self.run(*words)
        except ProviderError as error:
            return error.what


def _names(told: Any) -> frozenset[str]:
    """Of what ``sky check`` tells: workspace → cloud → what it is good for."""
    clouds = told.values() if isinstance(told, dict) else ()
    return frozenset(
        name.lower()
        for names in clouds
        if isinstance(names, (dict, list))
        for name in names
        if isinstance(name, str)
    )


def _advice(said: str) -> str:
    """The reason ``sky check`` gives, on one line."""
    _, found, rest = said.partition("Reason")
    lines: Sequence[str] = rest.partition("\n\n")[0].splitlines() if found else ()
    return " ".join(line.strip() for line in lines).partition(": ")[2][:_MAX_TEXT]


def _is_down(said: str) -> bool:
    return "ApiServerConnectionError" in said or "API server process exited" in said


def reasons_in(said: str) -> list[str]:
    """The lines that tell what went wrong: of its last exception, if there is one, the first sums
    it up and the last is the most precise. What it advises is left out."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    starts = [n for n, line in enumerate(lines) if _EXCEPTION.match(line)]
    found: list[str] = []
    for line in lines[starts[-1] if starts else 0 :]:
        if line.startswith(_ADVICE[:2]):
            break
        if not line.startswith(_ADVICE):
            found.append(line)
    return found if starts else found[-1:]


def _explained(verb: str, said: str) -> ProviderError:
    why = [*reasons_in(said), "it gave no reason"][0][:_MAX_TEXT]
    if _is_down(said):
        return ProviderError(
            f"SkyPilot's API server is down: {why}", next_step="sky api info; sky api start"
        )
    return ProviderError(f"sky {verb} failed: {why}")
