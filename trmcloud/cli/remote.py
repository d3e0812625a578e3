"""Commands through a server: the server of this home's login, and command lines sent there.

What is about files of this machine stays here: the working tree of ``run`` is sent, and what a
command writes is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from trmcloud.core import errors
from trmcloud.core.errors import (
    AccessDenied,
    AuthError,
    CheckpointError,
    ConflictError,
    LinkError,
    TrmcloudError,
    UsageError,
)
from trmcloud.server.rights import (
    MOST_INPUT_BYTES,
    V1,
    Kind,
    Parsed,
    Where,
    check_value,
    kind_of,
    rule_of,
    sends_tree,
    with_value,
)

ENV_AT_SERVER = "TRMCLOUD_AT_SERVER"
"""Set for commands that a server runs: they are for its own home."""
NAME = "server.json"
ANSWER_WITHIN_S = 60.0
UPLOAD_WITHIN_S = 3600.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TESTS_FILES = ("eval", "sample", "serve")
_CHUNK = 1 << 20
_MOST_LINE = 1 << 24
_DOWNLOAD = re.compile(r"download-[0-9]{1,3}")


class Login:
    """A server, and the token that this home has for it."""

    def __init__(self, url: str, token: str, person: str = "") -> None:
        self.url, self.token, self.person = url, token, person


def login_path(environ: Mapping[str, str]) -> Path:
    from trmcloud.app.home import home_dir

    return home_dir(environ) / NAME


def login_here(environ: Mapping[str, str]) -> Login | None:
    """The login of this home; None where it has none.

    Raises:
        AuthError: its file can be read by others, or not at all.
    """
    if environ.get(ENV_AT_SERVER):
        return None
    path = login_path(environ)
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    if mode & 0o077:
        raise AuthError(
            "the login's token can be read by others on this machine",
            where=str(path),
            next_step=f"chmod 600 {path}",
        )
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return Login(str(kept["url"]), str(kept["token"]), str(kept.get("person", "")))
    except (OSError, ValueError, KeyError, TypeError):
        raise AuthError(
            "the login cannot be read", where=str(path), next_step="trmcloud login URL"
        ) from None


def server_url(text: str) -> str:
    """
    Raises:
        UsageError: no address of a server, or one to which a token would be sent unencrypted.
    """
    parts = urlsplit(text.strip().rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise UsageError(
            f"{text[:80]!r} is no address of a server",
            next_step="trmcloud login https://trmcloud.example.com",
        )
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise UsageError(
            "a token is sent only over https, or to this machine",
            next_step=f"trmcloud login https://{parts.netloc}",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


# -- sending it ------------------------------------------------------------------------------------


def run(login: Login, words: Sequence[str], parse: Callable[[Sequence[str]], Parsed]) -> int | None:
    """Run a command line on the server, its output here; its exit code. None where it is this
    machine's own to run. ``parse`` reads a command line as the command itself does.

    Raises:
        TrmcloudError: as the command's own, or of the way there.
    """
    parsed = parse(words)
    rule = rule_of(parsed.command)
    if parsed.is_help or rule.where is Where.LOCAL:
        _require_files(parsed)
        return None
    if rule.where is Where.REFUSED:
        raise AccessDenied(
            f"{parsed.command} does not work through a server", next_step=rule.instead
        )
    for given in parsed.given:  # before anything is sent
        if kind_of(parsed.command, given.name) not in (Kind.OUTPUT, Kind.INPUT):
            check_value(parsed.command, given)
    sent, outputs = _with_downloads(words, parsed)
    sent, inputs = _with_inputs(sent, parsed)
    body: dict[str, Any] = {
        "words": sent,
        "inputs": {name: content for name, (_, content) in inputs.items()},
        "columns": shutil.get_terminal_size().columns,
        "project": os.environ.get("TRMCLOUD_PROJECT", ""),
    }
    if sends_tree(parsed):
        body |= _send_tree(login, parsed)
    named = {**outputs, **{name: path for name, (path, _) in inputs.items()}}
    return _stream(login, body, outputs, named, fetches=parsed.command == "fetch-best")


def _require_files(parsed: Parsed) -> None:
    """
    Raises:
        UsageError: a checkpoint is named that is on the server.
    """
    for name in parsed.values("checkpoint"):
        if parsed.command in _TESTS_FILES and not Path(name).expanduser().exists():
            raise UsageError(
                f"{parsed.command} takes a folder here while you are logged in to a server",
                next_step=f"trmcloud fetch-best {name[:60]}",
            )


def _with_downloads(words: Sequence[str], parsed: Parsed) -> tuple[list[str], dict[str, str]]:
    """(the words with names in place of paths here, by those names the paths)"""
    made = list(words)
    outputs: dict[str, str] = {}
    for given in parsed.given:
        if kind_of(parsed.command, given.name) is not Kind.OUTPUT:
            continue
        for path in given.values:
            if os.path.lexists(os.path.expanduser(path)):
                raise ConflictError(
                    f"{path} exists already", next_step=f"{given.shown} with another name"
                )
            name = f"download-{len(outputs) + 1}"
            outputs[name] = path
            made = with_value(made, given.shown, path, name)
    return made, outputs


def _with_inputs(
    words: Sequence[str], parsed: Parsed
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """(the words with names in place of files here, by those names the files' paths and contents)

    Raises:
        UsageError: a file cannot be read, or is too large.
    """
    made = list(words)
    inputs: dict[str, tuple[str, str]] = {}
    for given in parsed.given:
        if kind_of(parsed.command, given.name) is not Kind.INPUT:
            continue
        for path in given.values:
            try:
                with open(os.path.expanduser(path), "rb") as file:
                    content = file.read(MOST_INPUT_BYTES + 1).decode()
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{given.shown} {path[:80]}: it cannot be read: {error}",
                    next_step=f"{given.shown} with a text file of this machine",
                ) from None
            if len(content.encode()) > MOST_INPUT_BYTES:
                raise UsageError(f"{given.shown} {path[:80]} is larger than {MOST_INPUT_BYTES:,} B")
            name = f"input-{len(inputs) + 1}"
            inputs[name] = path, content
            made = with_value(made, given.shown, path, name)
    return made, inputs


def _send_tree(login: Login, parsed: Parsed) -> dict[str, str]:
    """Send the files of the working tree, as ``run`` chooses them; what the request says of it."""
    from tempfile import TemporaryDirectory

    from trmcloud.app.working_tree import look_at, pack
    from trmcloud.core.contract.command import CODE_NAME

    here = Path.cwd()
    tree = look_at(here)
    if tree.keys:
        told = ", ".join(tree.keys[:3])
        print(f"left out, since they look like keys: {told}", file=sys.stderr)
    with TemporaryDirectory(prefix="trmcloud-send-") as folder:
        archive = pack(tree, Path(folder)) / CODE_NAME
        size = archive.stat().st_size
        with open(archive, "rb") as file:
            request = _request(login, "POST", f"{V1}/uploads", file)
            request.add_header("Content-Length", str(size))
            request.add_header("Content-Type", "application/x-tar")
            with closing(_answer(login, request, UPLOAD_WITHIN_S)) as answer:
                made = json.loads(answer.read(1 << 16))
    return {"upload": str(made["upload"])}


def _stream(
    login: Login,
    body: Mapping[str, Any],
    outputs: Mapping[str, str],
    named: Mapping[str, str],
    *,
    fetches: bool,
) -> int:
    """``named``: by the names that were sent, the paths that are shown in their place."""
    request = _request(login, "POST", f"{V1}/commands", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    code: int | None = None
    try:
        with closing(_answer(login, request, ANSWER_WITHIN_S)) as answer:
            while line := answer.readline(_MOST_LINE):
                message = json.loads(line)
                if "error" in message:
                    raise _as_error(message)
                for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
                    if text := message.get(name):
                        for sent, path in named.items():
                            text = text.replace(sent, path)
                        stream.write(text)
                        stream.flush()
                if "exit_code" in message:
                    code = int(message["exit_code"])
                    _download(login, message, outputs, fetches=fetches)
    except KeyboardInterrupt:
        print("\nleft; runs continue on the server: trmcloud attach RUN", file=sys.stderr)
        raise
    except BrokenPipeError:
        raise
    except (OSError, HTTPException, ValueError) as error:
        raise _cut(login, error) from None
    if code is None:
        raise _cut(login, None)
    return code


def _download(
    login: Login, message: Mapping[str, Any], outputs: Mapping[str, str], *, fetches: bool
) -> None:
    """Download what the command has written, each file checked by its hash.

    Raises:
        CheckpointError: a file is not what the server said.
    """
    if not message.get("files"):
        return
    tops = {str(each["name"]).split("/")[0] for each in message["files"]}
    targets = {top: Path(outputs.get(top, top)).expanduser() for top in tops}
    for top, target in targets.items():
        if not fetches and top not in outputs:
            continue
        if os.path.lexists(target):
            raise ConflictError(f"{target} exists already", next_step="--into with another name")
    for each in message["files"]:
        name = str(each["name"])
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in name or "\\" in name:
            raise CheckpointError("the server named a file outside its folder")
        if parts[0] in outputs or fetches:
            target = targets[parts[0]].joinpath(*parts[1:])
            _fetch(login, str(message["id"]), name, target, str(each["sha256"]))


def _fetch(login: Login, key: str, name: str, target: Path, sha256: str) -> None:
    import hashlib

    request = _request(login, "GET", f"{V1}/commands/{quote(key)}/files/{quote(name)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with closing(_answer(login, request, ANSWER_WITHIN_S)) as answer, open(target, "xb") as file:
        while chunk := answer.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != sha256:
        target.unlink()
        raise CheckpointError(
            "the file is not the one that the server has", where=str(target),
            next_step="run the command again",
        )  # fmt: skip


# -- HTTP ------------------------------------------------------------------------------------------


def call(login: Login, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The JSON of an answer.

    Raises:
        TrmcloudError: as the server says, or of the way there.
    """
    request = _request(login, method, path, json.dumps(body).encode() if body is not None else None)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with closing(_answer(login, request, ANSWER_WITHIN_S)) as answer:
            return json.loads(answer.read(_MOST_LINE))
    except (OSError, HTTPException, ValueError) as error:
        raise _cut(login, error) from None


def _request(login: Login, method: str, path: str, body: Any = None) -> urllib.request.Request:
    request = urllib.request.Request(login.url + path, data=body, method=method)
    if login.token:
        request.add_header("Authorization", f"Bearer {login.token}")
    return request


def _answer(login: Login, request: urllib.request.Request, within_s: float) -> Any:
    from trmcloud.io.requests import send

    try:
        return send(request, within_s)
    except urllib.error.HTTPError as error:
        with closing(error):
            text = error.read(1 << 16)
        raise _refused(error.code, text) from None
    except (OSError, HTTPException) as error:
        raise _cut(login, error) from None


def _refused(status: int, text: bytes) -> TrmcloudError:
    with suppress(ValueError, KeyError, TypeError):
        message = json.loads(text)
        if isinstance(message, dict) and "error" in message:
            return _as_error(message)
    return LinkError(
        f"the server answered {status}", next_step="check the address: trmcloud login URL"
    )


def _as_error(message: Mapping[str, Any]) -> TrmcloudError:
    """The server's error, of the same kind."""
    from trmcloud.cli.views.json_output import code_of

    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, TrmcloudError)
    ]
    what, after = str(message["error"]), str(message.get("next") or "")
    for kind in kinds:
        with suppress(TypeError):
            made = kind(what, next_step=after)
            if code_of(made) == message.get("code"):
                return made
    return LinkError(what, next_step=after)


def _cut(login: Login, error: Exception | None) -> LinkError:
    why = getattr(error, "reason", error)
    told = f": {why}" if why is not None and str(why) else ""
    return LinkError(
        f"no answer from {login.url}{told}",
        next_step="runs continue on the server; try again, or trmcloud logout to work here",
    )
