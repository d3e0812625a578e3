"""The ways in which a pod ends itself: every way its provider leaves, one after another, again and
again.

Which ways there are is in the provider's own ``self_end.py``. A way that works ends this very
process; each attempt is therefore written down before it is made, and the last one written down is
the one that worked.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.values import Value, replace
from trmcloud.io.files import write_atomic
from trmcloud.io.requests import send
from trmcloud.pod.machine.environment import self_ends

TERMINATION_NAME = "termination.json"
SHUTDOWN = "shutdown"
"""The provider name of a machine that ends by being shut down."""

#: Python's own name is turned away at RunPod's edge.
_USER_AGENT = "trmcloud-pod/1"
_TIMEOUT_S = 20.0
_BELIEVE_S = 20.0
"""The time that an accepted way has to take effect before the next one is tried."""
_PAUSES_S = (10.0, 30.0, 60.0)
_KEPT = 60
_MAX_TEXT = 200


class Attempt(Value):
    """``code`` is an HTTP status or an exit code; None where there was no answer.

    ``ok`` is None as long as the way has not answered.
    """

    way: str
    at: float
    code: int | None = None
    text: str = ""
    ok: bool | None = None


class EndAnswer(Value):
    code: int | None
    text: str
    ok: bool


class EndMethod(NamedTuple):
    name: str
    try_it: Callable[[], EndAnswer]


class Tools(NamedTuple):
    """The functions from which a provider's ``self_end`` makes its ways."""

    command: Callable[..., EndAnswer]
    request: Callable[..., EndAnswer]


def ways_of(environment: Mapping[str, str]) -> tuple[EndMethod, ...]:
    """The ways that ``TRMCLOUD_PROVIDER`` leaves, in the order it names them: providers whose
    ``self_end.py`` is here, and shutdown (the machine); none where it says so.

    Where it is not set, a container that bears the mark of a provider is taken for its pod.
    """
    named = environment.get(contract.ENV_PROVIDER)
    own = self_ends()
    if named is None:
        names = [n for n, there in own.items() if environment.get(getattr(there, "MARK", ""))]
    else:
        names = named.split("+")
    found: list[EndMethod] = []
    for name in names:
        if name == SHUTDOWN:
            found += _shutdown_ways()
        elif name in own:
            found += starmap(EndMethod, own[name].ways(environment, _TOOLS))
    return tuple(found)


def own_ways_of(environment: Mapping[str, str], *, whole: bool = False) -> tuple[EndMethod, ...]:
    """Those that end this machine and none beside it: the first of several ends them all.

    ``whole``: the first one is lost, or all of them are past their hard stop. Then this one ends
    the cluster, as the first would.
    """
    named = environment.get(contract.ENV_PROVIDER, "").split("+")
    found: list[EndMethod] = []
    for name, there in self_ends().items() if whole else ():
        if name in named and hasattr(there, "cluster_ways"):
            found += starmap(EndMethod, there.cluster_ways(environment, _TOOLS))
    return (*found, *(_shutdown_ways() if SHUTDOWN in named else ()))


class SelfEnd:
    """The attempts to end this pod, recorded in ``record`` (None: nowhere) and told to ``tell``."""

    def __init__(
        self,
        ways: Sequence[EndMethod],
        record: Path | None,
        why: str,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = lambda text: None,
        shown_s: float = 0.0,
    ) -> None:
        """``shown_s``: how long each attempt stands in the record before it is made, so that
        somebody outside can read which one was the last."""
        self._ways = tuple(ways)
        self._record = record
        self._why = why
        self._now, self._sleep, self._tell = now, sleep, tell
        self._shown_s = shown_s
        self._attempts: list[Attempt] = []

    def run(self) -> None:
        """Until the container is gone: this never returns, and is not meant to."""
        if not self._ways:
            self._tell(f"{self._why}; nothing on this pod can end it")
        rounds = 0
        while True:
            self.once()
            self._sleep(_PAUSES_S[min(rounds, len(_PAUSES_S) - 1)])
            rounds += 1

    def once(self) -> None:
        """Every way once; one that said yes is given time to come true."""
        for way in self._ways:
            self._attempts.append(Attempt(way.name, self._now()))
            self._write()
            if self._shown_s:
                self._sleep(self._shown_s)
            try:
                answer = way.try_it()
            except Exception as error:
                answer = EndAnswer(None, f"{type(error).__name__}: {error}", False)
            text = contract.strip_control(answer.text).replace("\n", " ")[:_MAX_TEXT]
            done = replace(self._attempts[-1], code=answer.code, text=text, ok=answer.ok)
            self._attempts[-1] = done
            self._write()
            said = "accepted" if answer.ok else "refused"
            code = "no answer" if answer.code is None else f"code {answer.code}"
            self._tell(f"{self._why}; {way.name}: {said}, {code} {text}".rstrip())
            if answer.ok:
                self._sleep(_BELIEVE_S)

    def _write(self) -> None:
        # The first round tells what works here; of the rounds after it the newest suffice.
        if len(self._attempts) > _KEPT:
            del self._attempts[_KEPT // 2 : _KEPT // 2 + 1]
        if self._record is not None:
            record = {
                "version": 1,
                "why": self._why,
                "attempts": [asdict(attempt) for attempt in self._attempts],
            }
            with contextlib.suppress(OSError):
                write_atomic(self._record, json.dumps(record))


# -- what ways are made of -----------------------------------------------------------------------
def _command(
    words: Sequence[str],
    environment: Mapping[str, str],
    *,
    hide: str = "",
    within_s: float | None = None,
) -> EndAnswer:
    """Run a command. Its answer is its exit code and the end of its output, without ``hide``."""
    within_s = _TIMEOUT_S if within_s is None else within_s
    path = environment.get("PATH", os.defpath)
    program = shutil.which(words[0], path=f"{path}:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        return EndAnswer(None, f"{words[0]} is not installed", False)
    child = subprocess.Popen(
        [program, *words[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"HOME": "/root", **environment},
        start_new_session=True,
    )
    try:
        printed, _ = child.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        return EndAnswer(None, f"no answer within {within_s:.0f} s", False)
    text = _hide(printed.decode("utf-8", "replace").strip()[-_MAX_TEXT:], hide)
    return EndAnswer(child.returncode, text, child.returncode == 0)


def _request(
    method: str,
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    key: str,
    errors_in_body: bool = False,
) -> EndAnswer:
    """Ask with ``key`` as the bearer. ``errors_in_body``: a 2xx whose JSON has ``errors`` is a
    refusal."""
    if not url.startswith(("https://", "http://")):
        return EndAnswer(None, "its address is not http", False)
    headers = {"Authorization": f"Bearer {key}", "User-Agent": _USER_AGENT}
    headers["Accept"] = "application/json"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with send(request, _TIMEOUT_S) as response:
            code, content = response.status, response.read(65_536)
    except urllib.error.HTTPError as error:
        with error:
            code, content = error.code, error.read(65_536)
    except (OSError, ValueError) as error:
        return EndAnswer(None, _hide(str(error), key), False)
    text = _hide(content.decode("utf-8", "replace").strip(), key)
    ok = 200 <= code < 300
    return EndAnswer(code, text, ok and not (errors_in_body and _has_errors(content)))


def _has_errors(content: bytes) -> bool:
    try:
        data = json.loads(content)
        return not isinstance(data, dict) or bool(data.get("errors"))
    except ValueError:
        return True


def _hide(text: str, key: str) -> str:
    return text.replace(key, "***") if key else text


_TOOLS = Tools(_command, _request)


# -- a machine that ends by being shut down ---------------------------------------------------
def _shutdown_ways() -> tuple[EndMethod, ...]:
    def run(*words: str) -> Callable[[], EndAnswer]:
        return lambda: _command(words, os.environ)

    return (
        EndMethod("systemctl poweroff", run("systemctl", "poweroff", "--force")),
        EndMethod("shutdown now", run("shutdown", "-h", "now")),
        EndMethod("poweroff", run("poweroff", "-f")),
    )
