"""What a list of packages becomes: asked of the real uv, and of an index on loopback."""

from __future__ import annotations

import datetime
import json
import os
import ssl
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.standins.package_index import PackageIndex, trap, wheel
from trmcloud.core.errors import DataError
from trmcloud.io import children
from trmcloud.operations.sending import package_resolving
from trmcloud.operations.sending.package_indexes import user_indexes
from trmcloud.operations.sending.package_resolving import ResolvedPackages
from trmcloud.operations.sending.requirement_files import PUBLIC, Packages, SentFiles, read_packages
from trmcloud.operations.sending.working_tree import look_at


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    made = PackageIndex()
    made.wheel("alpha", "1.0", ["beta>=1"])
    made.wheel("beta", "1.0")
    made.wheel("beta", "2.0")
    made.wheel("wants-old", "1.0", ["beta<2"])
    made.wheel("wants-new", "1.0", ["beta>=2"])
    made.wheel("wants-more", "1.0", ["nowhere"])
    made.wheel("on-source", "1.0", ["source"])
    made.add("source", trap("source", "1.0", tmp_path / "mark"))
    made.wheel("mixed", "2.0", ["beta<2"])
    made.add("mixed", trap("mixed", "1.0", tmp_path / "mark"))
    made.wheel("later", "1.0", python=">=3.14")
    made.wheel("windows", "1.0", tag="cp312-cp312-win_amd64")
    made.wheel("early", "1.0rc1")
    with made.serving():
        yield made
    assert not (tmp_path / "mark").exists()


def packages_of(tree: Path, name: str) -> Packages:
    return read_packages(SentFiles(tree, look_at(tree).names), name)


def resolve(
    tmp_path: Path,
    text: str,
    environ: Mapping[str, str],
    python: str = "",
    passed: tuple[str, ...] = (),
) -> ResolvedPackages:
    """What is known of a list of this text, in a home without settings but those given."""
    tree = tmp_path / "tree"
    tree.mkdir(exist_ok=True)
    (tree / "requirements.txt").write_text(text)
    home = {"HOME": str(tmp_path), "PATH": os.defpath, "PIP_CONFIG_FILE": os.devnull, **environ}
    packages = packages_of(tree, "requirements.txt")
    return package_resolving.resolve(packages, tree, python, passed, home)


@pytest.mark.parametrize(
    ("text", "versions", "unpinned"),
    [
        ("alpha\n", ("alpha==1.0", "beta==2.0"), ()),
        ("alpha\nbeta<2\n", ("alpha==1.0", "beta==1.0"), ()),
        ("Alpha[fast] ; python_version > '3.8'\n", ("alpha==1.0", "beta==2.0"), ()),
        ("early\n", ("early==1.0rc1",), ()),
        ("beta --hash=sha256:00\n", ("beta==2.0",), ()),
        ("source\nbeta\n", ("beta==2.0",), (("source", "it has no prebuilt package"),)),
        ("on-source\n", ("on-source==1.0",), (("source", "it has no prebuilt package"),)),
        (
            "mixed\nwants-new\n",
            ("beta==2.0", "wants-new==1.0"),
            (("mixed", "it has no prebuilt package"),),
        ),
        ("windows\nbeta\n", ("beta==2.0",), (("windows", "it has no prebuilt package"),)),
        ("later\nbeta\n", ("beta==2.0",), (("later", "it needs Python >=3.14"),)),
        ("beta\nalpha\n--no-binary alpha\n", ("beta==2.0",), (("alpha", "--no-binary names it"),)),
        (
            "git+https://h/a\nb @ https://h/b.whl\n",
            (),
            (
                ("requirements.txt:1", "it is a repository"),
                ("requirements.txt:2", "it is a direct address"),
            ),
        ),
    ],
)
def test_what_can_be_known_is_and_the_rest_has_its_reason(
    tmp_path: Path,
    index: PackageIndex,
    text: str,
    versions: tuple[str, ...],
    unpinned: tuple[tuple[str, str], ...],
) -> None:
    made = resolve(tmp_path, text, {"PIP_INDEX_URL": index.url})
    assert made == ResolvedPackages(versions, unpinned, own_index=index.url)


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("# ours\nnowhere\n", "there is no package nowhere on the index, http://127", ":2"),
        ("beta>=9\n", "there is no beta>=9 on the index, http://127.*; the newest is 2.0", ":1"),
        ("beta==1.5\n", "there is no beta==1.5 on the index, .*; the newest is 2.0", ":1"),
        ("wants-old\nwants-new\n", "its packages conflict: .*wants-new.* depend", ":1"),
        ("beta==1.0\nbeta==2.0\n", "conflict: you require beta==1.0 and beta==2.0", ":1"),
        ("wants-more\n", "there is no package nowhere on the index", ""),
    ],
)
def test_what_cannot_be_installed_is_refused_by_its_line(
    tmp_path: Path, index: PackageIndex, text: str, words: str, line: str
) -> None:
    with pytest.raises(DataError, match=words) as refused:
        resolve(tmp_path, text, {"PIP_INDEX_URL": index.url})
    assert refused.value.where == f"requirements.txt{line}"


def test_a_package_for_another_python_than_this_machines_is_refused(
    tmp_path: Path, index: PackageIndex
) -> None:
    with pytest.raises(DataError, match=r"later has no build for Python 3\.11: it needs >=3\.14"):
        resolve(tmp_path, "later\n", {"PIP_INDEX_URL": index.url}, "3.11")


def test_a_python_that_the_project_does_not_take_is_refused(tmp_path: Path) -> None:
    text = "[project]\nname = 'p'\nrequires-python = '>=3.10'\ndependencies = ['beta']\n"
    (tmp_path / "pyproject.toml").write_text(text)
    packages = packages_of(tmp_path, "pyproject.toml")
    with pytest.raises(DataError, match=r"needs Python >=3\.10, but the machine has 3\.9"):
        package_resolving.resolve(packages, tmp_path, "3.9")


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("--no-index\nalpha\n", "it has --no-index"),
        ("-f ./wheels\nalpha\n", "requirements.txt:1 takes packages from ./wheels"),
        ("--no-binary :all:\nalpha\n", "requirements.txt:1 has everything built on the machine"),
        ("-i http://127.0.0.1:9/simple\nalpha\n", "the index cannot be reached"),
        ("-i https://h/${A}/${B}\nalpha\n", "names ${A}, ${B}; --env B sets it on the machine"),
    ],
)
def test_what_is_not_known_here_is_no_refusal(
    tmp_path: Path, index: PackageIndex, text: str, unknown: str
) -> None:
    made = resolve(tmp_path, text, {"PIP_INDEX_URL": index.url}, "", ("A",))
    assert unknown in made.unknown
    assert not index.asked


def test_without_uv_nothing_is_pinned_and_the_way_to_it_is_said(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the only one is in the tree."""
    program = tmp_path / "tree" / "uv"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    made = resolve(tmp_path, "alpha\n", {"PATH": str(program.parent), "PIP_INDEX_URL": index.url})
    assert made.unknown.startswith("uv is not installed here: ")
    assert "packages]" in made.unknown
    assert not index.asked


def test_a_lock_is_its_own_answer(tmp_path: Path, index: PackageIndex) -> None:
    (tmp_path / "uv.lock").write_text(
        "version = 1\nrequires-python = '>=3.11'\n[[package]]\nname = 'p'\n"
        "source = {virtual = '.'}\ndependencies = [{name = 'alpha'}]\n"
        "[[package]]\nname = 'alpha'\nversion = '1.0'\nsource = {registry = 'https://h/simple'}\n"
    )
    packages = packages_of(tmp_path, "uv.lock")
    environ = {"HOME": str(tmp_path), "PIP_INDEX_URL": index.url}
    made = package_resolving.resolve(packages, tmp_path, "3.11", (), environ)
    assert made == ResolvedPackages(("alpha==1.0",))
    assert not index.asked


# -- which index, and with what --------------------------------------------------------------------


@pytest.fixture
def private() -> Iterator[PackageIndex]:
    made = PackageIndex()
    made.login = "me:k%y"
    made.wheel("beta", "3.0")
    made.wheel("ours", "1.0", ["beta"])
    with made.serving():
        yield made


def test_an_index_that_wants_a_login_is_no_refusal(
    tmp_path: Path, index: PackageIndex, private: PackageIndex
) -> None:
    settings = {"PIP_INDEX_URL": index.url, "PIP_EXTRA_INDEX_URL": private.url}
    made = resolve(tmp_path, "ours\nalpha\n", settings)
    assert made.versions == ("alpha==1.0", "beta==2.0")
    assert made.unpinned == (("ours", "the index wants a login"),)


@pytest.mark.parametrize("way", ["address", "netrc", "uv", "uv by name", "pip.conf"])
def test_the_users_own_index_gets_the_users_login(
    tmp_path: Path, index: PackageIndex, private: PackageIndex, way: str
) -> None:
    """The best version of all indexes is taken, as pip does on the machine."""
    settings = {"PIP_INDEX_URL": index.url}
    config = tmp_path / ".config"
    if way == "address":
        settings["PIP_EXTRA_INDEX_URL"] = private.url_with("me:k%25y")
    elif way == "netrc":
        settings["PIP_EXTRA_INDEX_URL"] = private.url
        (tmp_path / ".netrc").write_text("machine 127.0.0.1\nlogin me\npassword k%y\n")
    elif way == "uv":
        settings["UV_INDEX"] = private.url_with("me:k%25y")
    elif way == "uv by name":
        (config / "uv").mkdir(parents=True)
        (config / "uv" / "uv.toml").write_text(
            f"[[index]]\nname = 'our-own'\nurl = '{private.url}'\n"
            "[[index]]\nname = 'other'\nurl = 'http://127.0.0.1:9/'\nexplicit = true\n"
        )
        settings |= {"UV_INDEX_OUR_OWN_USERNAME": "me", "UV_INDEX_OUR_OWN_PASSWORD": "k%y"}
    else:
        (config / "pip").mkdir(parents=True)
        (config / "pip" / "pip.conf").write_text(
            f"[global]\nextra-index-url =\n  {private.url_with('me:k%25y')}\n"
        )
        settings["PIP_CONFIG_FILE"] = ""
    made = resolve(tmp_path, "ours\nalpha\n", settings)
    assert made.versions == ("alpha==1.0", "beta==3.0", "ours==1.0")


def test_pips_settings_come_before_uvs_and_the_machines_before_both(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    assert user_indexes(environ).index == PUBLIC
    environ["UV_DEFAULT_INDEX"] = "https://uv/simple"
    assert user_indexes(environ).index == "https://uv/simple"
    environ["PIP_INDEX_URL"] = "https://pip/simple"
    made = user_indexes({**environ, "PIP_NO_INDEX": "true", "PIP_CERT": "/ca.pem"})
    assert (made.index, made.is_off, made.certificates) == ("https://pip/simple", True, "/ca.pem")


def test_the_machines_index_is_the_one_that_is_asked(tmp_path: Path, index: PackageIndex) -> None:
    settings = {"PIP_INDEX_URL": "http://127.0.0.1:9", "TRMCLOUD_INSTALL_PIP_INDEX_URL": index.url}
    assert resolve(tmp_path, "beta\n", settings).versions == ("beta==2.0",)


def test_a_rented_machine_is_not_said_to_ask_the_users_index(
    tmp_path: Path, index: PackageIndex
) -> None:
    """Private names would go to the public one there."""
    own = {"PIP_INDEX_URL": index.url}
    assert resolve(tmp_path, "beta\n", own).own_index == index.url
    assert resolve(tmp_path, "beta\n", own, "3.11").own_index == ""
    assert resolve(tmp_path, f"-i {index.url}\nbeta\n", own).own_index == ""
    told = {**own, "TRMCLOUD_INSTALL_PIP_INDEX_URL": f"{index.url}/"}
    assert resolve(tmp_path, "beta\n", told).own_index == ""


def test_a_login_is_in_no_argument(
    tmp_path: Path, private: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user of a machine sees the arguments of its processes."""
    seen = []
    real = children.run_reader

    def run_reader(words, **more):
        seen.append((words, more["environment"]))
        return real(words, **more)

    monkeypatch.setattr(package_resolving, "run_reader", run_reader)
    settings = {"PIP_INDEX_URL": private.url_with("me:k%25y"), "RUNPOD_API_KEY": "rpa_1", "X": "y"}
    assert resolve(tmp_path, "ours\n", settings).versions == ("beta==3.0", "ours==1.0")
    [(words, environment)] = seen
    assert "k%25y" not in " ".join(words)
    assert {"--no-build", "--no-config"} <= set(words)
    assert os.path.isabs(words[words.index("--python") + 1])
    assert set(environment) == {
        *("PATH", "HOME", "UV_HTTP_RETRIES", "UV_PYTHON_DOWNLOADS", "UV_CACHE_DIR"),
        "UV_DEFAULT_INDEX",
    }
    assert environment["HOME"] != str(tmp_path)


def test_the_cache_is_never_in_the_tree(
    tmp_path: Path, index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "tree" / "cache"
    made = resolve(tmp_path, "beta\n", {"UV_CACHE_DIR": str(cache), "PIP_INDEX_URL": index.url})
    assert made.versions == ("beta==2.0",)
    assert not cache.exists()


@pytest.mark.parametrize("name", ["http_proxy", "PIP_PROXY", "ALL_PROXY"])
def test_an_index_behind_a_proxy_is_reached(tmp_path: Path, index: PackageIndex, name: str) -> None:
    settings = {
        name: index.url.removesuffix("/simple"),
        "PIP_INDEX_URL": "http://packages.invalid/simple",
    }
    assert resolve(tmp_path, "beta\n", settings).versions == ("beta==2.0",)
    assert index.asked[0][0] == "http://packages.invalid/simple/beta/"


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "socks4://127.0.0.1:9", "nonsense:x:y"])
def test_a_proxy_that_cannot_be_used_is_one_line(
    tmp_path: Path, index: PackageIndex, proxy: str
) -> None:
    settings = {"ALL_PROXY": proxy, "PIP_INDEX_URL": "http://packages.invalid/simple"}
    assert resolve(tmp_path, "beta\n", settings).unknown == "the index cannot be reached"


def certificate(folder: Path) -> Path:
    """A key and its own certificate for 127.0.0.1, in one file."""
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ours")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    path = folder / "ca.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.mark.parametrize("name", ["", "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_an_index_of_a_companys_own_root_is_reached(
    tmp_path: Path, index: PackageIndex, name: str
) -> None:
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), index.handler())
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        settings = {"PIP_INDEX_URL": f"https://127.0.0.1:{server.server_address[1]}/simple"}
        made = resolve(tmp_path, "beta\n", {**settings, **({name: str(path)} if name else {})})
    finally:
        server.shutdown()
        server.server_close()
    if name:
        assert made.versions == ("beta==2.0",)
    else:
        assert made.unknown == "the index's certificate is not trusted"


def test_a_certificate_file_that_is_not_there_is_one_line(
    tmp_path: Path, index: PackageIndex
) -> None:
    settings = {"PIP_INDEX_URL": "https://127.0.0.1:9/simple", "SSL_CERT_FILE": "/not/there.pem"}
    assert resolve(tmp_path, "beta\n", settings).unknown == "the index cannot be reached"


# -- beside pip ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["alpha\n", "alpha\nbeta<2\n", "wants-old\nalpha\n", "early\n"])
def test_pip_installs_what_uv_was_asked_for(tmp_path: Path, index: PackageIndex, text: str) -> None:
    """The second opinion: pip on the same list and indexes, one of them with a better version."""
    other = PackageIndex()
    other.wheel("beta", "1.7")
    other.wheel("beta", "2.5")
    with other.serving():
        settings = {"PIP_INDEX_URL": index.url, "PIP_EXTRA_INDEX_URL": other.url}
        versions = resolve(tmp_path, text, settings, "3.11").versions
        report = tmp_path / "report.json"
        words = ["-m", "pip", "install", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run(
            [sys.executable, *words, "-r", str(tmp_path / "tree" / "requirements.txt")],
            env={"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, **settings},
            check=True,
            capture_output=True,
        )
    found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    assert versions == tuple(sorted(f"{each['name']}=={each['version']}" for each in found))


def test_a_wheel_of_the_tree_is_left_to_the_machine(tmp_path: Path, index: PackageIndex) -> None:
    name, content = wheel("ours", "1.0", ["nowhere"])
    (tmp_path / "tree" / "wheels").mkdir(parents=True)
    (tmp_path / "tree" / "wheels" / name).write_bytes(content)
    made = resolve(tmp_path, f"./wheels/{name}\nbeta\n", {"PIP_INDEX_URL": index.url})
    assert made.versions == ("beta==2.0",)
    assert made.unpinned == (("requirements.txt:1", "it is in the tree"),)
