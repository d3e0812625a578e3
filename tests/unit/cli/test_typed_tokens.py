"""A token that is typed in a command is refused before anything is stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.e2e.test_typed_tokens import COMMAND, HERE, OWN, TOKEN, kept
from tests.e2e.user import User
from tests.typist import InProcess, typist
from trmcloud.core.errors import UsageError

__all__ = ["typist"]


@pytest.fixture
def user(typist: InProcess) -> InProcess:
    typist.cwd = typist.folder / "project"
    typist.cwd.mkdir()
    (typist.cwd / "train.py").touch()
    return typist


DOORS: Sequence[tuple[str, ...]] = (
    ("plan", "--budget", "1", "--", *COMMAND),
    ("run", *HERE, *OWN, "--dry-run", "--", *COMMAND),
    ("run", *HERE, *OWN, "-y", "--", *COMMAND),
    ("run", *HERE, *OWN, "-y", "--", "sh", "-c", f"HF_TOKEN={TOKEN} python3 train.py"),
    ("run", *HERE, *OWN, "-y", "--resume", f"python3 train.py --key={TOKEN}", "--", "python3",
     "train.py"),
    ("run", *HERE, *OWN, "-y", "--tag", f"key={TOKEN}", "--", "python3", "train.py"),
    ("run", *HERE, *OWN, "-y", "--env", f"HF_TOKEN={TOKEN}", "--", "python3", "train.py"),
    ("try", "--for", "2", "--", *COMMAND),
    ("sweep", *HERE, *OWN, "-y", "lr=1|2", "--", *COMMAND, "{lr}"),
    ("sweep", *HERE, *OWN, "--dry-run", f"lr={TOKEN}|2", "--", "python3", "train.py", "{lr}"),
    ("rehearse", *HERE, *OWN, "--", *COMMAND),
    ("export", *HERE, "--as", "sbatch", "--set", f"data=https://me:{TOKEN}@hub.example/x"),
    ("launch", "local", "--recipe", "trm-tiny", "--rate", "3.60", "--budget", "0.05", "-y",
     "--set", f"data=https://me:{TOKEN}@hub.example/x"),
    ("launch", "local", "--recipe", "trm-tiny", "--rate", "3.60", "--budget", "0.05", "-y",
     "--tag", f"key={TOKEN}"),
)  # fmt: skip


@pytest.mark.parametrize("words", DOORS, ids=lambda words: " ".join(words[:1]))
def test_a_command_refuses_it_before_anything_is_stored(user: User, words: tuple[str, ...]) -> None:
    code, out, err = user.ended(*words)
    assert code == UsageError.exit_code, out + err
    assert "holds a token (hf_a…)" in err
    assert "--env HF_TOKEN" in err
    assert TOKEN not in out + err
    assert kept(user) == []
