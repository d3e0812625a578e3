"""How a pod ends itself: every way its provider leaves, one after another, again and again.

Which of RunPod's ways a pod-scoped key may use is documented nowhere, so all are tried. First comes
the one that was seen to work, v2's action; v2 takes such keys, which its predecessor refused;
GraphQL did, and ends early in 2027; what ``runpodctl`` speaks depends on its age. A way that works
ends this very process; each attempt is therefore written down before it is made, and the last one
written down is the one that worked.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trmcloud.core.contract import pod_contract as contract
from trmcloud.core.values import dataclass, replace
from trmcloud.io.files import write_atomic
from trmcloud.io.one_request import send
from trmcloud.pod.machine.environment import RUNPOD_API_KEY, RUNPOD_POD_ID

TERMINATION_NAME = "termination.json"

_DEFAULT_API = "https://api.runpod.io"
_ENV_API = "TRMCLOUD_RUNPOD_API"
_ENV_GRAPHQL = "RUNPOD_API_BASE_URL"
#: Python's own name is turned away at RunPod's edge.
_USER_AGENT = "trmcloud-pod/1"
_TIMEOUT_S = 20.0
_BELIEVE_S = 20.0
"""How long a way that said yes is given to come true before the next one is tried."""
_PAUSES_S = (10.0, 30.0, 60.0)
_KEPT = 60
_MAX_TEXT = 200
_SKY_TIMEOUT_S = 60.0
"""Importing SkyPilot alone takes seconds."""
_TEARDOWN_TIMEOUT_S = 240.0
"""It waits for the cloud to have ended them, which its own end cuts short."""
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_POD_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Attempt:
    """``code`` is an HTTP status or an exit code; None where there was no answer.

    ``ok`` is None as long as the way has not answered.
    """

    way: str
    at: float
    code: int | None = None
    text: str = ""
    ok: bool | None = None


@dataclass(frozen=True)
class Answer:
    code: int | None
    text: str
    ok: bool


@dataclass(frozen=True)
class Way:
    name: str
    try_it: Callable[[], Answer]


def ways_of(environment: Mapping[str, str]) -> tuple[Way, ...]:
    """The ways that ``TRMCLOUD_PROVIDER`` leaves, in the order it names them: runpod, skypilot (its
    autodown, at once), shutdown (the machine); none where it says so.

    Where it is not set, a container that bears a RunPod id is taken for a RunPod pod.
    """
    provider = environment.get(contract.ENV_PROVIDER)
    if provider is None:
        provider = "runpod" if environment.get(RUNPOD_POD_ID) else "none"
    known: Mapping[str, Callable[[], tuple[Way, ...]]] = {
        "runpod": lambda: _runpod_ways(environment),
        "skypilot": lambda: _skypilot_ways(environment),
        "shutdown": _shutdown_ways,
    }
    return tuple(way for name in provider.split("+") if name in known for way in known[name]())


def own_ways_of(environment: Mapping[str, str], *, whole: bool = False) -> tuple[Way, ...]:
    """Those that end this machine and none beside it: the first of several ends them all.

    ``whole``: the first one is lost, or all of them are past their hard stop. Then this one ends
    the cluster, as the first would.
    """
    named = environment.get(contract.ENV_PROVIDER, "").split("+")
    cluster = _teardown_ways(environment) if whole and "skypilot" in named else ()
    return (*cluster, *(_shutdown_ways() if "shutdown" in named else ()))


class Chain:
    """The attempts to end this pod, recorded in ``record`` (None: nowhere) and told to ``tell``."""

    def __init__(
        self,
        ways: Sequence[Way],
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
                answer = Answer(None, f"{type(error).__name__}: {error}", False)
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


# -- RunPod -----------------------------------------------------------------------------------
def _runpod_ways(environment: Mapping[str, str]) -> tuple[Way, ...]:
    pod_id = environment.get(RUNPOD_POD_ID, "")
    key = environment.get(RUNPOD_API_KEY, "")
    if not _POD_ID.fullmatch(pod_id):
        return ()
    # With or without its last part, as on the controller; GraphQL lies beside it.
    base = (environment.get(_ENV_API) or _DEFAULT_API).rstrip("/").removesuffix("/v2")
    graphql = (environment.get(_ENV_GRAPHQL) or base).rstrip("/") + "/graphql"
    pod = f"{base}/v2/pods/{pod_id}"
    mutation = f"mutation {{ podTerminate(input: {{podId: {json.dumps(pod_id)}}}) }}"

    def control(*words: str) -> Callable[[], Answer]:
        return lambda: _command(("runpodctl", *words, pod_id), environment, key)

    def call(
        method: str, url: str, body: Mapping[str, Any] | None, *, is_graphql: bool = False
    ) -> Callable[[], Answer]:
        return lambda: _request(method, url, body, key, is_graphql=is_graphql)

    return (
        Way("v2 action terminate", call("POST", f"{pod}/action", {"action": "terminate"})),
        Way("v2 delete", call("DELETE", pod, None)),
        Way("graphql podTerminate", call("POST", graphql, {"query": mutation}, is_graphql=True)),
        Way("runpodctl remove pod", control("remove", "pod")),
        Way("runpodctl pod delete", control("pod", "delete")),
    )


def _command(
    words: Sequence[str],
    environment: Mapping[str, str],
    key: str = "",
    *,
    within_s: float | None = None,
) -> Answer:
    """Run a command; its answer is its exit code and the end of what it printed."""
    within_s = _TIMEOUT_S if within_s is None else within_s
    path = environment.get("PATH", os.defpath)
    program = shutil.which(words[0], path=f"{path}:/usr/local/bin:/usr/local/sbin:/usr/sbin:/sbin")
    if program is None:
        return Answer(None, f"{words[0]} is not installed", False)
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
        return Answer(None, f"no answer within {within_s:.0f} s", False)
    text = _hide(printed.decode("utf-8", "replace").strip()[-_MAX_TEXT:], key)
    return Answer(child.returncode, text, child.returncode == 0)


def _request(
    method: str, url: str, body: Mapping[str, Any] | None, key: str, *, is_graphql: bool
) -> Answer:
    if not url.startswith(("https://", "http://")):
        return Answer(None, "its address is not http", False)
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
        return Answer(None, _hide(str(error), key), False)
    text = _hide(content.decode("utf-8", "replace").strip(), key)
    ok = 200 <= code < 300
    return Answer(code, text, ok and not (is_graphql and _has_errors(content)))


def _has_errors(content: bytes) -> bool:
    """GraphQL answers 200 whatever happened; what went wrong stands in ``errors``."""
    try:
        data = json.loads(content)
        return not isinstance(data, dict) or bool(data.get("errors"))
    except ValueError:
        return True


def _hide(text: str, key: str) -> str:
    return text.replace(key, "***") if key else text


# -- a machine that SkyPilot made ---------------------------------------------------------------
_SKY_PYTHON = "skypilot-runtime/bin/python"
_AUTODOWN_NOW = (
    "from sky.skylet import autostop_lib as a; "
    "a.set_autostop(0, 'cloudvmray', a.AutostopWaitFor.NONE, True)"
)
"""SkyPilot's daemon on the machine looks once a minute, and ends it with what it was given."""
_TEARDOWN_NOW = (
    "import os; os.environ.update(dict.fromkeys("
    "('AWS_SHARED_CREDENTIALS_FILE', 'AWS_CONFIG_FILE'), '/dev/null')); "
    "from sky import provision; from sky.utils import cluster_utils as u, yaml_utils; "
    "c = yaml_utils.read_yaml(os.path.expanduser(u.SKY_CLUSTER_YAML_REMOTE_PATH)); "
    "provision.terminate_instances(u.get_provider_name(c), c['cluster_name'], c['provider'])"
)
"""What that daemon does, which runs on the first machine alone; what it needs lies on all of them.
On AWS by the role of the machine, as there."""


def _skypilot_ways(environment: Mapping[str, str]) -> tuple[Way, ...]:
    return _by_skypilot("skypilot autodown", _AUTODOWN_NOW, _SKY_TIMEOUT_S, environment)


def _teardown_ways(environment: Mapping[str, str]) -> tuple[Way, ...]:
    return _by_skypilot("skypilot teardown", _TEARDOWN_NOW, _TEARDOWN_TIMEOUT_S, environment)


def _by_skypilot(
    name: str, script: str, within_s: float, environment: Mapping[str, str]
) -> tuple[Way, ...]:
    """Its settings lie in the home of the user who made the cluster, whom root acts for here."""
    user, home = environment.get("TRMCLOUD_SKY_USER", "root"), environment.get("TRMCLOUD_SKY_HOME")
    if not home or not _USER.fullmatch(user):
        return ()
    words = [f"{home}/{_SKY_PYTHON}", "-c", script]
    if user != "root" and os.geteuid() == 0:
        words = ["sudo", "-n", "-H", "-u", user, *words]
    own = {"HOME": home, "PATH": environment.get("PATH", os.defpath)}
    return (Way(name, lambda: _command(words, own, within_s=within_s)),)


# -- a machine that ends by being shut down ---------------------------------------------------
def _shutdown_ways() -> tuple[Way, ...]:
    def run(*words: str) -> Callable[[], Answer]:
        return lambda: _command(words, os.environ)

    return (
        Way("systemctl poweroff", run("systemctl", "poweroff", "--force")),
        Way("shutdown now", run("shutdown", "-h", "now")),
        Way("poweroff", run("poweroff", "-f")),
    )
