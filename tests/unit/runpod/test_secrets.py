"""Keys and addresses, and what is not imported without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trmcloud.core.errors import MissingExtra, UsageError
from trmcloud.io.installation import install_command
from trmcloud.providers.runpod import secrets
from trmcloud.providers.runpod.checkup import check_account


@pytest.mark.parametrize(
    "text", ['apikey = "k1"\napiurl = "x"\n', '[default]\napi_key = "k1"\n', "apiKey = 'k1'"]
)
def test_the_key_is_found_where_runpods_own_tools_keep_it(tmp_path: Path, text: str) -> None:
    (tmp_path / ".runpod").mkdir()
    (tmp_path / secrets.CONFIG).write_text(text)
    assert secrets.account_key({"HOME": str(tmp_path)}) == "k1"
    assert secrets.account_key({"HOME": str(tmp_path), "RUNPOD_API_KEY": " k2\n"}) == "k2"


@pytest.mark.parametrize("text", ["", "apikey = 7", "apikey = ''", "[default", "\xff"])
def test_no_key_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".runpod").mkdir()
    (tmp_path / secrets.CONFIG).write_bytes(text.encode("latin-1"))
    assert secrets.account_key({"HOME": str(tmp_path)}) is None
    assert secrets.account_key({"HOME": str(tmp_path / "none")}) is None


def test_addresses() -> None:
    assert secrets.api_base({}) == "https://api.runpod.io"
    assert secrets.graphql_url({}) == "https://api.runpod.io/graphql"
    here = {"TRMCLOUD_RUNPOD_API": "http://127.0.0.1:5/v2/"}
    assert secrets.api_base(here) == "http://127.0.0.1:5"
    assert secrets.graphql_url(here) == "http://127.0.0.1:5/graphql"
    own = {"RUNPOD_API_BASE_URL": "https://g.test"}
    assert secrets.graphql_url(own) == "https://g.test/graphql"
    assert secrets.pod_environment({**here, "RUNPOD_API_KEY": "k"}) == here


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "http://127.0.0.1@evil.test",
        "http://key@127.0.0.1",
        "http://127.0.0.1.evil.test",
        "ftp://x",
        "",
    ],
)
def test_a_key_never_travels_in_the_clear(url: str) -> None:
    if not url:
        assert secrets.api_base({"TRMCLOUD_RUNPOD_API": url}) == secrets.API
        return
    with pytest.raises(UsageError):
        secrets.api_base({"TRMCLOUD_RUNPOD_API": url})


@pytest.mark.parametrize("arguments", [["--help"], ["status"], ["prices", "list"]])
def test_without_a_key_nothing_of_runpods_is_loaded(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trmcloud", *arguments],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "TRMCLOUD_HOME": str(tmp_path / "t"), "PATH": "/usr/bin:/bin"}
        | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trmcloud" in loaded, "the table of imports is there"
    # Not pydantic itself: where it is installed, Typer loads it of its own accord.
    heavy = {"httpx2", "httpx", "tenacity", "runpod", "trmcloud.providers.runpod.models"}
    assert loaded & heavy == set()


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.require_client()
    monkeypatch.setattr(secrets, "_NEEDS", ("no_such_client",))
    with pytest.raises(MissingExtra) as caught:
        secrets.require_client()
    assert caught.value.next_step == install_command("runpod")
    (finding,) = check_account({"RUNPOD_API_KEY": "k"})
    assert (finding.state, finding.fix) == ("bad", caught.value.next_step)
