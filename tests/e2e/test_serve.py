"""A checkpoint that was trained here, served to clients, and asked questions."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.documents import document_in
from tests.e2e.serving import WITHIN_S, Server
from tests.e2e.user import TINY, User, real_trainer, until, write_text
from tests.standins.data_host import DataHost
from tests.standins.data_host import serving as serving_data
from tests.typist import InProcess
from trmcloud.core.catalog.eval_tasks import suite_of
from trmcloud.io.hashing import file_sha256
from trmcloud.io.requests import send

pytest.importorskip("starlette", reason="the extra `serve`")
pytest.importorskip("uvicorn", reason="the extra `serve`")

pytestmark = pytest.mark.timeout(900)

ITEMS = (
    {"question": "Ann has 3 dogs and gets 2 more. How many has she?", "answer": "5\n#### 5"},
    {"question": "What are 4 times 6?", "answer": "4 * 6 = 24\n#### 24"},
    {"question": "No mark?", "answer": "24"},
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user with what a server needs of a checkpoint of a few real steps in ``best``."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = real_trainer(folder / "trainer")
    user = InProcess(folder, trainer=trainer, environment={"OMP_NUM_THREADS": "1"})
    write_text(folder)
    user.run("launch", "local", *TINY, "--steps", "20", "--processes", "1", "--budget", "1", "-y")
    user.run("fetch-best", "--for-inference", "--into", "best")
    assert not (folder / "best" / "optimizer.safetensors").exists()
    yield user
    user.end_everything()


class Serving(Server):
    """``trmcloud serve``."""

    def __init__(self, user: User, *more: str) -> None:
        super().__init__(user, "serve", *more)

    def ask(self, path: str, question: Mapping[str, Any] | None = None) -> Any:
        body = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": "application/json"}
        )
        with send(request, WITHIN_S) as answer:
            return json.loads(answer.read())

    def ended(self) -> str:
        """stderr of a server that ended well, and answers no more."""
        err = super().ended()
        assert self.is_gone()
        return err

    def is_gone(self) -> bool:
        """Whether nothing answers at its port."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except ConnectionRefusedError:
            return True
        return False


def test_a_run_is_served_until_ctrl_c(trained: User) -> None:
    run_id = trained.only_run().run_id
    serving = Serving(trained, run_id)
    try:
        info = serving.ask("/info")
        assert (info["run_id"], info["family"], info["step"]) == (run_id, "trm", 20)
        wish = {"prompt": "def f", "max_tokens": 8, "temperature": 0.8, "top_k": 32, "seed": 4}
        text = serving.ask("/generate", wish)["text"]
        words = ("--prompt", "def f", "--max-tokens", "8", "--top-k", "32", "--seed", "4")
        assert trained.run("sample", "best", *words).rstrip("\n") == f"def f{text}".rstrip("\n")
        assert serving.end() == ""
    finally:
        serving.process.kill()


def test_a_server_does_not_outlive_whoever_started_it(trained: User) -> None:
    serving = Serving(trained, "best")
    assert serving.ask("/health")
    serving.process.kill()  # as the kernel does where memory runs out: nobody is told
    serving.process.wait(WITHIN_S)
    until(serving.is_gone, what="nothing answers any more")
    serving.process.communicate(timeout=WITHIN_S)  # its half of the pipes is closed, too


def test_as_json_at_any_address_it_says_where_it_answers_and_what_to_mind(trained: User) -> None:
    """SIGTERM ends the trainer's half of it, too."""
    serving = Serving(trained, "best", "--json", "--host", "0.0.0.0")
    try:
        told = document_in(serving.shown)
        assert (told["schema"], told["of"]) == ("serving/1", "checkpoint")
        assert told["url"].endswith(f":{serving.port}")
        taken = trained.fails("serve", "best", "--port", str(serving.port), code=2)
        assert f"cannot listen on 127.0.0.1:{serving.port}: address already in use" in taken
        serving.process.terminate()
        out, warning = serving.process.communicate(timeout=WITHIN_S)
        assert (serving.process.returncode, out) == (0, "")
        assert serving.is_gone()
        [warned] = [line for line in warning.splitlines() if line.startswith("warning: ")]
        assert "0.0.0.0 can be reached from other machines, without encryption" in warned
    finally:
        serving.process.kill()


def test_a_tasks_file_that_is_another_one_is_refused(trained: User) -> None:
    rows = [{"query": f"Is {n} even?", "choices": ["yes", "no"], "gold": n % 2} for n in range(100)]
    [copa] = suite_of("copa").tasks
    folder = trained.folder / "tasks" / "commonsense_reasoning"
    folder.mkdir(parents=True)
    (folder / "copa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = trained.refused("eval", "best", "--task", "copa", "--data", "tasks", code=9)
    assert "the file of copa is not the published one: its SHA-256 is" in refused
    assert "delete it, or leave --data out" in refused
    host = DataHost()
    host.files[urlsplit(copa.address).path] = folder / "copa.jsonl"
    with serving_data(host):
        trained.environment.update(host.environment)
        refused = trained.refused("eval", "best", "--task", "copa", code=9)
    assert f"copa.jsonl has SHA-256 {file_sha256(folder / 'copa.jsonl')[:16]}…" in refused


def test_questions_are_answered_and_what_is_no_question_is_told(trained: User) -> None:
    path = trained.folder / "items.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ITEMS))
    task = ("eval", "best", "--task", "gsm8k", "--data", "items.jsonl")
    told = trained.json(*task, "--json")["values"]
    assert (told["items"], told["correct"], told["bad_lines"]) == (2, 0, 1)
    assert told["bad"] == [{"line": 3, "why": "no #### in its answer"}]
    for wrong, what in (
        (("eval", "best", "--task", "gsm8k"), "a task needs questions"),
        (("eval", "best", "--task", "mmlu"), "no task 'mmlu'"),
        (("eval", "best", "--task", "arc-eazy"), "did you mean arc-easy?"),
        (("eval", "best", "--task", "core", "--data", "items.jsonl"), "no folder 'items.jsonl'"),
        (("eval", "best", "--limit", "3"), "--limit needs --task"),
        ((*task[:-1], "nowhere.jsonl"), "no file 'nowhere.jsonl'"),
    ):
        assert what in trained.refused(*wrong, code=2)
