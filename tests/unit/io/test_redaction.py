"""A bundle that leaves this machine holds no secret, in any form."""

from __future__ import annotations

import base64
import json
import os
import random
import stat
import string
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from trmcloud.io import exchanges
from trmcloud.io.exchanges import ExchangeLog, exchange_log, recorded_exchanges
from trmcloud.io.redaction import (
    Redactor,
    find_token,
    is_secret_name,
    mask_tokens,
    masked,
    secrets_of,
)

KEY = "rpa_STANDIN0ACCOUNT0KEY"
ODD = 'p"ss w/rd+é%41'
ENVIRON = {
    "RUNPOD_API_KEY": KEY,
    "DB_PASSWORD": ODD,
    "MY_PAT": "pat-0123456789",
    "HF_TOKEN": "hf_" + "q" * 20,
    "PATH": "/usr/bin:/bin",
    "TRMCLOUD_HOME": "/home/ann/.trmcloud",
}
SSH = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ5uYm9keXNrZXlib2R5c2tleWJvZHlza2V5 ann@laptop"
PRIVATE = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
    "-----END OPENSSH PRIVATE KEY-----\n"
)
PRESIGNED = (
    "https://b.s3.amazonaws.com/runs/x.bin?X-Amz-Algorithm=AWS4-HMAC-SHA256"
    "&X-Amz-Credential=AKIAQWERTYUIOPASDFGH%2F20261126&X-Amz-Signature=5d41402abc4b2a76b9719d911017"
)
SEEDED = (
    KEY, ODD, "pat-0123456789", "hf_" + "q" * 20, "AAAAC3NzaC1lZDI1NTE5", "b3BlbnNzaC1rZXkt",
    "5d41402abc4b2a76b9719d911017", "AKIAQWERTYUIOPASDFGH", "eyJhbGciOiJIUzI1NiJ9",
    "ann@example.org", "/home/ann", "laptop-of-ann", "hunter2hunter2", "ghp_" + "a" * 36,
    "s3cr3tvalue", "dXNlcjpwYXNz",
)  # fmt: skip


def redactor() -> Redactor:
    return Redactor(
        secrets_of(ENVIRON), folders=["/home/ann"], names=["ann", "laptop-of-ann", "root"]
    )


def assert_clean(text: str) -> None:
    assert [each for each in SEEDED if each in text] == []
    assert quote(ODD, safe="") not in text
    assert base64.b64encode(ODD.encode()).decode() not in text


def seeded() -> dict[str, Any]:
    """A record with each kind of secret in each kind of place."""
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4fwpM"
    return {
        "name": "trmc-1-r1-g1",
        "env": {"HF_TOKEN": "hf_" + "q" * 20, "PLAIN": "s3cr3tvalue", "N": 5},
        "environment": [{"key": "A", "value": "s3cr3tvalue"}, "B=s3cr3tvalue", "s3cr3tvalue"],
        "secrets": {"X": "s3cr3tvalue"},
        "apiKey": "hunter2hunter2",
        "owner": {"email": "ann@example.org", "password": "hunter2hunter2", "userId": "ann-17"},
        "args": f"curl -H 'Authorization: Bearer {KEY}' -u ann:{ODD} {PRESIGNED}",
        "note": f"see {PRESIGNED} and https://ann:hunter2hunter2@host.example/x for {jwt}",
        "publicKey": SSH,
        "log": [f"key: {SSH}", PRIVATE, "token=hunter2hunter2", "Basic dXNlcjpwYXNzd29yZA=="],
        "text": f"mail ann@example.org; ghp_{'a' * 36}; in /home/ann/x on laptop-of-ann by ann",
        "quoted": json.dumps({"password": ODD, "url": quote(ODD, safe="")}),
        "encoded": base64.b64encode(ODD.encode()).decode(),
        "hourlyRate": 0.69,
        "tokens": 4096,
        "ok": True,
    }


def test_no_seeded_secret_is_left_and_all_else_is() -> None:
    told = redactor().json(seeded())
    assert_clean(json.dumps(told, ensure_ascii=False))
    assert_clean(json.dumps(told))
    assert told["name"] == "trmc-1-r1-g1"
    assert (told["hourlyRate"], told["tokens"], told["ok"]) == (0.69, 4096, True)
    assert told["env"] == {
        "HF_TOKEN": "[removed: str]", "PLAIN": "[removed: str]", "N": "[removed: int]",
    }  # fmt: skip
    assert told["environment"][1:] == ["B=[removed: str]", "[removed: str]"]
    assert "X-Amz-Signature=[removed]" in told["note"]
    assert "https://b.s3.amazonaws.com/runs/x.bin?" in told["args"]
    assert told["log"][0] == "key: ssh-ed25519 [removed: key]"
    assert "in ~/x on [removed: name] by [removed: name]" in told["text"]


def test_text_is_cleaned_as_json_is() -> None:
    without = {name: of for name, of in seeded().items() if not name.startswith(("env", "secrets"))}
    assert_clean(redactor().text(json.dumps(without, ensure_ascii=False)))
    assert_clean(redactor().document(b"plain text, no JSON: " + json.dumps(without).encode()))
    events = f"event: log\ndata: {json.dumps(seeded())}\n\ndata: cut off {{\n{json.dumps(seeded())}"
    assert_clean(redactor().document(events))
    assert redactor().document(events).startswith('event: log\ndata: {"name": "trmc-1-r1-g1"')
    assert_clean(json.dumps(redactor().json({"data": json.dumps(seeded())})))


@pytest.mark.parametrize("seed", range(50))
def test_a_known_secret_is_found_wherever_it_stands(seed: int) -> None:
    at = random.Random(seed)
    alphabet = string.ascii_letters + string.digits + "+/=%&\"'\\ -_.é漢"
    secret = "".join(at.choices(alphabet, k=at.randrange(8, 60)))
    made = Redactor([secret])
    around = "".join(at.choices(string.ascii_lowercase + " ", k=5))
    for form in (
        secret, quote(secret, safe=""), json.dumps(secret)[1:-1],
        base64.b64encode(secret.encode()).decode(),
        base64.urlsafe_b64encode(secret.encode()).decode(),
    ):  # fmt: skip
        told = json.dumps(made.json({"a": [around + form + around, {form: form}]}))
        assert form.rstrip("=") not in json.loads(told)["a"][0]
        assert secret not in told


def test_what_is_cut_by_its_length_keeps_its_hash() -> None:
    told = redactor().json({"args": "x" * 60_000})["args"]
    assert told.startswith("[removed: 60000 characters, sha256 ")
    assert redactor().json([[[]]] * 3) == [[[]]] * 3
    nested: Any = "s3cr3tvalue"
    for _ in range(60):
        nested = [nested]
    assert "s3cr3tvalue" not in json.dumps(redactor().json(nested))


def test_common_user_names_do_not_shred_the_text() -> None:
    made = Redactor(names=["root", "ubuntu", "al"], folders=["/"])
    assert made.text("as root on ubuntu, al / x") == "as root on ubuntu, al / x"
    assert made.text("") == ""
    assert not is_secret_name("hourlyRate")


# -- the record of an account ----------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.at = 1_790_000_000.0

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


def log_in(home: Path) -> ExchangeLog:
    return exchange_log(home, "runpod", KEY, ENVIRON, Clock())


def test_what_is_recorded_was_redacted_before(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.record(
        "POST", f"https://ann:pw123456@api.example/v2/pods?api_key={KEY}&limit=5",
        body=seeded(), status=201,
        headers={"Set-Cookie": "s3cr3tvalue", "Content-Type": "application/json",
                 "Authorization": f"Bearer {KEY}"},
        answer=json.dumps(seeded()),
    )  # fmt: skip
    log.record("GET", "https://api.example/v2/pods", error=OSError(f"no {KEY}"))
    written = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    for each in (KEY, "s3cr3tvalue", "hunter2hunter2", "pw123456", PRIVATE[40:60]):
        assert each not in written
    call, read = recorded_exchanges(tmp_path)
    assert call["url"] == "/v2/pods?api_key=%5Bremoved%5D&limit=5"
    assert (call["method"], call["status"], call["provider"]) == ("POST", 201, "runpod")
    assert call["headers"] == {"content-type": "application/json"}
    assert (read["status"], read["error"]) == (0, "OSError: no [removed: secret]")
    assert KEY[:12] not in " ".join(map(str, tmp_path.rglob("*")))
    for path in tmp_path.rglob("*.jsonl"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_days_of_polling_stay_bounded_and_keep_the_create(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.record("POST", "https://api.example/v2/pods", status=201, answer='{"id": "pod-1"}')
    for number in range(4_000):
        answer = json.dumps({"pods": [{"uptime": number, "text": "x" * 900}]})
        log.record("GET", "https://api.example/v2/pods", status=200, answer=answer)
    sizes = [path.stat().st_size for path in (tmp_path / "requests").iterdir()]
    assert max(sizes) <= exchanges.MOST_BYTES
    assert sum(sizes) <= 2 * exchanges.MOST_BYTES + 10_000
    told = recorded_exchanges(tmp_path)
    assert told[0]["answer"] == {"id": "pod-1"}
    assert told[-1]["answer"]["pods"][0]["uptime"] == 3_999


def test_an_answer_that_does_not_change_is_counted(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for answer in ["{}"] * 5 + ['{"a": 1}'] + ["{}"]:
        log.record("GET", "https://api.example/v2/pods", status=200, answer=answer)
    told = recorded_exchanges(tmp_path)
    assert [each["answer"] for each in told] == [{}, {"a": 1}, {}]
    assert told[1]["same_before"] == 4


def test_what_is_too_large_is_cut_and_said(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    many = json.dumps([{"id": number} for number in range(9_000)])
    log.record("GET", "https://api.example/v2/pods", status=200, answer=many)
    log.record("GET", "https://api.example/v2/x", status=200, answer="y" * 300_000)
    assert ["answer" in each for each in recorded_exchanges(tmp_path)] == [False, False]
    assert [each["cut"].endswith(" bytes") for each in recorded_exchanges(tmp_path)] == [True] * 2


def test_a_record_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "requests").write_text("a file where the folder should be")
    log_in(tmp_path).record("GET", "https://api.example/v2/pods", status=200, answer="{}")
    (tmp_path / "requests").unlink()
    (tmp_path / "requests").mkdir()
    log = log_in(tmp_path)
    log.record("POST", "https://api.example/a", status=200, answer="{}")
    [path] = (tmp_path / "requests").iterdir()
    with open(path, "ab") as file:
        file.write(b'{"at": 17, "cut off')
    assert [each["url"] for each in recorded_exchanges(tmp_path)] == ["/a"]
    path.unlink()
    os.symlink(tmp_path / "elsewhere", path)
    log.record("POST", "https://api.example/b", status=200, answer="{}")
    assert not (tmp_path / "elsewhere").exists()


# -- tokens as they are typed ------------------------------------------------------------------

TYPED = (
    "hf_" + "aB3" * 10, "hf_" + "Q" * 34, "hf_" + "7" * 40, "rpa_" + "Z9" * 15,
    "rpa_" + "ABCDEF12" * 6, "sk-" + "a1B2" * 8, "sk-" + "x" * 48, "sk-proj-" + "Ab_9" * 12,
    "AKIA" + "IOSFODNN7EXAMPL3", "ASIA" + "QWERTYUIOPASDFGH", "ghp_" + "a" * 36,
)  # fmt: skip


@pytest.mark.parametrize("token", TYPED)
def test_a_typed_token_is_found_wherever_it_stands(token: str) -> None:
    for text in (
        token, f"--token={token}", f"HF_TOKEN={token}", f"'{token}'", f'{{"t": "{token}"}}',
        f"export A={token}; python train.py", f"https://me:{token}@hub.example/x", f"a,{token},b",
        f"--header=Authorization: Bearer {token}", f"({token})", f"{token}\n",
    ):  # fmt: skip
        assert find_token(text) == token[:4], text
        assert token not in mask_tokens(text)
        assert token not in json.dumps(masked({"a": [text, {"b": (text,)}], "n": 1}))
        assert token not in Redactor().text(text)


def _ordinary() -> list[str]:
    """Arguments that begin like tokens, or look like some."""
    rng = random.Random(51)
    letters = string.ascii_lowercase
    found = [
        "hf_hub", "hf_hub_download", "hf_transfer=1", "--use_hf_hub", "hf_", "rpa_", "sk-", "AKIA",
        "hf_model-name-with-dashes-that-is-longer-than-thirty-characters", "rpa_short",
        "hf_datasets/squad_v2/train-00000-of-00001.parquet", "sk-learn", "sk-learn==1.5.2",
        "sk-SK", "risk-" + "a" * 40, "AKIA_bucket", "AKIAKO", "s3://AKIA/models",
        "task-" + "0" * 32, "disk-0123456789abcdef0123456789abcdef", "--mask-" + "b" * 32,
        "sk-learn-pipeline-of-trees",
        "hf_cache/models--org--name/snapshots/0123456789abcdef0123456789abcdef01234567/x.bin",
        "checkpoint_hf_" + "a" * 30, "my_rpa_" + "b" * 30, "XAKIA" + "A" * 16,
    ]  # fmt: skip
    while len(found) < 200:
        prefix = rng.choice(("hf_", "rpa_", "sk-", "AKIA"))
        most = {"hf_": 29, "rpa_": 29, "sk-": 31, "AKIA": 15}[prefix]
        alphabet = letters.upper() if prefix == "AKIA" else letters + string.digits
        words = [
            "".join(rng.choices(alphabet, k=rng.randint(1, most))) for _ in range(rng.randint(1, 4))
        ]
        joint = rng.choice(("-", "_", "/", ".")) if prefix != "AKIA" else "-"
        found.append(prefix + joint.join(words))
    return found


def test_two_hundred_ordinary_arguments_pass() -> None:
    found = _ordinary()
    assert len(found) == 200
    assert [each for each in found if find_token(each)] == []
    assert [each for each in found if mask_tokens(each) != each] == []
