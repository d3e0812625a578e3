"""Sealed secrets: of no use without their key, or with another; and what a key is refused for."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from trmcloud.core.errors import AuthError, ConflictError, DataError, NotFoundError, UsageError
from trmcloud.server.sealed_secrets import (
    CREDENTIAL,
    ENV_KEY,
    SealedSecrets,
    find_keys,
    names_of,
    new_key,
    unseal,
)

VALUE = "rpa_" + "S3CRET" * 8


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


def test_a_copy_of_the_home_holds_nothing_that_can_be_read(home: Path) -> None:
    key = new_key()
    assert len(base64.urlsafe_b64decode(key)) == 32
    SealedSecrets(home, [key]).put("RUNPOD_API_KEY", VALUE)
    for path in home.rglob("*"):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o600
            content = path.read_bytes()
            for plain in (VALUE.encode(), base64.b64encode(VALUE.encode())[:40], key.encode()):
                assert plain not in content
    assert names_of(home) == ("RUNPOD_API_KEY",)
    assert unseal(home, [key], {}) == {"RUNPOD_API_KEY": VALUE}
    with pytest.raises(AuthError, match="does not open with this key"):
        unseal(home, [new_key()], {})
    with pytest.raises(AuthError, match="no key is given"):
        unseal(home, [], {})
    with pytest.raises(ConflictError, match="is another one"):
        unseal(home, [key], {"RUNPOD_API_KEY": "other"})
    assert unseal(home.parent, [], {}) == {}, "a home without secrets needs no key"


def test_a_file_that_was_changed_renamed_or_cut_is_refused(home: Path) -> None:
    sealed = SealedSecrets(home, [new_key()])
    sealed.put("RUNPOD_API_KEY", VALUE)
    sealed.put("HF_TOKEN", "hf_x")
    one, other = (home / "server" / "secrets" / n for n in ("RUNPOD_API_KEY", "HF_TOKEN"))
    whole = one.read_bytes()
    for content in (b"", whole[:-1], whole[:40], whole[:30] + b"A" + whole[31:], b"\xff" * 90):
        one.write_bytes(content)
        with pytest.raises((AuthError, DataError)):
            sealed.all()
    one.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match="holds another secret"):
        sealed.all()
    one.write_bytes(whole)
    assert sealed.all() == {"RUNPOD_API_KEY": VALUE, "HF_TOKEN": "hf_x"}
    sealed.remove("HF_TOKEN")
    for name in ("HF_TOKEN", "../HF_TOKEN", ""):
        with pytest.raises(NotFoundError):
            sealed.remove(name)


def test_keys_are_rotated_and_the_old_one_opens_nothing_then(home: Path) -> None:
    old, new = new_key(), new_key()
    SealedSecrets(home, [old]).put("RUNPOD_API_KEY", VALUE)
    with pytest.raises(AuthError):
        SealedSecrets(home, [new]).rotate()
    assert SealedSecrets(home, [new, old]).rotate() == 1
    assert SealedSecrets(home, [new]).all() == {"RUNPOD_API_KEY": VALUE}
    with pytest.raises(AuthError):
        SealedSecrets(home, [old]).all()
    # The published form of Fernet: another program with the key opens it, too.
    token = (home / "server" / "secrets" / "RUNPOD_API_KEY").read_bytes()
    assert VALUE.encode() in Fernet(new).decrypt(token)


def test_where_a_key_is_taken_from(home: Path, tmp_path: Path) -> None:
    key, other = new_key(), new_key()
    file = tmp_path / "key"
    file.write_text(f"{key}\n{other}\n")
    file.chmod(0o600)
    (tmp_path / "credentials").mkdir()
    credential = tmp_path / "credentials" / CREDENTIAL
    credential.write_text(other)
    credential.chmod(0o400)
    environ = {ENV_KEY: "of the variable", "CREDENTIALS_DIRECTORY": str(credential.parent)}
    assert find_keys(home, str(file), environ) == (key, other)
    assert find_keys(home, "", environ) == (other,)
    assert find_keys(home, "", {ENV_KEY: key}) == (key,)
    assert find_keys(home, "", {}) == ()
    file.chmod(0o640)
    with pytest.raises(UsageError, match="others can read"):
        find_keys(home, str(file), {})
    (home / "key").write_text(key)
    (tmp_path / "link").symlink_to(home / "key")
    for beside in (home / "key", tmp_path / "link"):
        with pytest.raises(UsageError, match="is in the home that it opens"):
            find_keys(home, str(beside), {})
    with pytest.raises(UsageError, match="cannot be read"):
        find_keys(home, str(tmp_path / "none"), {})


@pytest.mark.parametrize("name", ["", "runpod", "../X", "A/B", "PATH", ENV_KEY, "TRMCLOUD_LEDGER"])
def test_names_that_are_none(home: Path, name: str) -> None:
    with pytest.raises(UsageError):
        SealedSecrets(home, [new_key()]).put(name, "x")
    assert names_of(home) == ()


@pytest.mark.parametrize("key", ["", "x", "A" * 43, "é" * 44, base64.b64encode(b"1" * 31).decode()])
def test_keys_that_are_none_are_told_in_one_line(home: Path, key: str) -> None:
    with pytest.raises(UsageError) as refused:
        SealedSecrets(home, [key])
    assert "\n" not in str(refused.value)
    assert not key or key not in str(refused.value)
