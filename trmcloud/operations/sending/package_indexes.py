"""The indexes that packages are looked up at: the user's own settings, and what a list adds.

uv is started apart from the user's files, so their settings of pip and uv are read here and passed
on by name, in variables of that one process (its arguments are readable by every user of this
machine). A login, from an address or from netrc, goes to an origin (scheme, host and port) that the
user's own settings name, and to no other: a list cannot send one to an index of its choice.
"""

from __future__ import annotations

import configparser
import netrc
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import tomllib

from trmcloud.core.values import Value, replace
from trmcloud.operations.sending.requirement_files import PUBLIC, Option, names_variable

_KEYS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "proxy")
_OF_UV = {
    "UV_INDEX_URL": "index-url", "UV_DEFAULT_INDEX": "index-url",
    "UV_EXTRA_INDEX_URL": "extra-index-url", "UV_INDEX": "extra-index-url",
    "UV_FIND_LINKS": "find-links", "UV_NO_INDEX": "no-index", "UV_INSECURE_HOST": "trusted-host",
}  # fmt: skip
_YES = ("1", "true", "yes", "on", "y", "t")


class Indexes(Value):
    """Addresses, without logins; ``logins`` are ``name:password``, percent-encoded, by origin."""

    index: str = PUBLIC
    extra: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    is_off: bool = False
    insecure: tuple[str, ...] = ()
    certificates: str = ""
    proxy: str = ""
    logins: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, options: Iterable[Option]) -> Indexes:
        """Return them as pip has them after a list's own options.

        A list's ``--trusted-host`` is not followed here: it would show the user's login of that
        host to others.
        """
        made = self
        for option in options:
            if option.name == "--no-index":
                made = replace(made, is_off=True)
            elif option.name == "--index-url":
                made = replace(made, index=option.value, extra=())  # as pip: instead of all others
            elif option.name == "--extra-index-url":
                made = replace(made, extra=(*made.extra, option.value))
            elif option.name == "--find-links":
                made = replace(made, links=(*made.links, option.value))
        return made

    def environment(self) -> dict[str, str]:
        """Return uv's variables for them."""
        links = [self._with_login(each).replace(",", "%2C") for each in self.links]
        made = {"UV_FIND_LINKS": ",".join(links)}
        if self.is_off:
            made["UV_NO_INDEX"] = "1"
        else:
            made["UV_DEFAULT_INDEX"] = self._with_login(self.index)
            made["UV_INDEX"] = " ".join(map(self._with_login, self.extra))
        made |= {"UV_INSECURE_HOST": " ".join(self.insecure), "SSL_CERT_FILE": self.certificates}
        made |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), self.proxy)
        return {name: value for name, value in made.items() if value}

    def text(self) -> str:
        """Return their addresses for a message, without logins."""
        every = self.links if self.is_off else (self.index, *self.extra, *self.links)
        return " and ".join(re.sub(r"//[^/@]*@", "//", each) for each in every)

    def _with_login(self, url: str) -> str:
        scheme, separator, rest = url.partition("://")
        login = self.logins.get(_origin(url)) if "@" not in rest.partition("/")[0] else None
        return f"{scheme}{separator}{login}@{rest}" if login else url


def why_unknown(options: Iterable[Option]) -> str:
    """Return why packages cannot be looked up here, of a list with these options; '' if they can
    be."""
    for option in options:
        if option.name in ("--index-url", "--extra-index-url", "--find-links"):
            if named := names_variable(option.value):
                return f"{option.where} names {named}"
            if not option.value.startswith(("http://", "https://")):
                return f"{option.where} takes packages from {option.value[:80]}"
    names = {option.name for option in options}
    return "it has --no-index" if "--no-index" in names and "--find-links" not in names else ""


def user_indexes(environ: Mapping[str, str]) -> Indexes:
    """Return what the user's settings name: pip's, and uv's where pip has none."""
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    said, logins = _of_uv(environ, home)
    said |= _of_pip(environ, home)
    bare: dict[str, list[str]] = {}
    for key in ("index-url", "extra-index-url", "find-links"):
        for url in said.get(key, "").split():
            login, url = _login_of(url)
            login = login or logins.get(url, "") or _of_netrc(url, environ, home)
            if login:
                logins[_origin(url)] = login
            bare.setdefault(key, []).append(url)
    certificates = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # as requests has them
    return Indexes(
        index=next(iter(bare.get("index-url", ())), PUBLIC),
        extra=tuple(bare.get("extra-index-url", ())),
        links=tuple(bare.get("find-links", ())),
        is_off=said.get("no-index", "").lower() in _YES,
        insecure=tuple(said.get("trusted-host", "").split()),
        certificates=said.get("cert")
        or next((environ[n] for n in certificates if n in environ), ""),
        proxy=said.get("proxy", ""),
        logins=logins,
    )


def _of_pip(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the values of pip's files, in its order, and of its variables."""
    named = environ.get("PIP_CONFIG_FILE", "")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    files = [
        *(Path(folder) / "pip/pip.conf" for folder in reversed(shared)), Path("/etc/pip.conf"),
        home / ".pip/pip.conf", home / "Library/Application Support/pip/pip.conf",
        config / "pip/pip.conf", Path(sys.prefix) / "pip.conf", *([Path(named)] if named else ()),
    ]  # fmt: skip
    parser = configparser.RawConfigParser()
    for path in files if named != os.devnull else ():
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
    made: dict[str, str] = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            made |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for key in _KEYS:
        if value := environ.get(f"PIP_{key.upper().replace('-', '_')}"):
            made[key] = value
    return {key: made[key] for key in _KEYS if made.get(key)}


def _of_uv(environ: Mapping[str, str], home: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the values of uv's files and variables by pip's names for them, and logins by
    address."""
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    named = environ.get("UV_CONFIG_FILE")
    files = [Path(named)] if named else [Path("/etc/uv/uv.toml"), config / "uv/uv.toml"]
    made: dict[str, str] = {}
    logins: dict[str, str] = {}
    for path in files if not environ.get("UV_NO_CONFIG") else ():
        try:
            table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for part in (table, table.get("pip", {})):
            made |= {key: _joined(part[key]) for key in _KEYS if key in part}
        for index in table.get("index", ()):
            url, key = str(index.get("url", "")), "extra-index-url"
            if index.get("explicit"):
                continue
            if index.get("default"):
                made["index-url"] = url
            else:
                made[key] = f"{made.get(key, '')} {url}"
            _note_login(logins, str(index.get("name", "")), url, environ)
    for variable, key in _OF_UV.items():
        urls = []
        for each in re.split(r"[\s,]+", environ.get(variable, "").strip()):
            name, _, url = each.rpartition("=") if re.match(r"[\w.-]+=", each) else ("", "", each)
            _note_login(logins, name, url, environ)
            urls.append(url)
        if any(urls):
            made[key] = " ".join(urls)
    return made, logins


def _note_login(logins: dict[str, str], name: str, url: str, environ: Mapping[str, str]) -> None:
    start = f"UV_INDEX_{re.sub('[^A-Z0-9]', '_', name.upper())}"
    if name and f"{start}_USERNAME" in environ:
        password = environ.get(f"{start}_PASSWORD", "")
        logins[url] = _encoded(environ[f"{start}_USERNAME"], password)


def _of_netrc(url: str, environ: Mapping[str, str], home: Path) -> str:
    """Return the login of the address's host, of an entry that names it."""
    try:
        host = urlsplit(url).hostname or ""
        entry = netrc.netrc(environ.get("NETRC") or str(home / ".netrc")).hosts.get(host)
    except (OSError, ValueError, netrc.NetrcParseError):
        return ""
    return _encoded(entry[0], entry[2] or "") if entry and host != "default" else ""


def _encoded(name: str, password: str) -> str:
    return f"{quote(name, safe='')}:{quote(password, safe='')}"


def _login_of(url: str) -> tuple[str, str]:
    """``https://me:key@host/simple`` → ``me:key`` and the address without it."""
    found = re.fullmatch(r"(\w+://)([^/@]*)@(.*)", url)
    return (found[2], found[1] + found[3]) if found else ("", url)


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else ""


def _joined(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
