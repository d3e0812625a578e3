"""A model that is trained on text, then on conversations, and answers over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.serving import Server
from tests.e2e.user import User, real_trainer, write_text
from trmcloud.core.control.run_state import RunState

openai = pytest.importorskip("openai", reason="the extra `dev`")
pytest.importorskip("starlette", reason="the extra `serve`")
pytest.importorskip("uvicorn", reason="the extra `serve`")

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.more]

WITHIN_S = 800
COLOURS = {
    "grass": "green", "snow": "white", "coal": "black", "blood": "red", "the sky": "blue",
    "a lemon": "yellow", "a carrot": "orange", "a rose": "pink",
}  # fmt: skip
ASKED = (
    "What colour is {0}?", "Which colour has {0}?", "Tell me the colour of {0}.",
    "{0}: which colour?", "Name the colour of {0}.", "What is the colour of {0}?",
)  # fmt: skip
SHAPE = (
    *("--set", "depth=2", "--set", "width=64", "--set", "head_dim=32", "--set", "hidden=128"),
    *("--set", "vocab_size=512", "--set", "sequence=64", "--set", "batch=16"),
    *("--set", "eval_tokens=2048", "--set", "eval_every=60", "--set", "save_every=60"),
)
LAUNCH = ("launch", "local", "--recipe", "chat-tiny", "--rate", "3.60", "--budget", "2", *SHAPE)


def question(thing: str, how: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": how.format(thing)},
        {"role": "assistant", "content": f"It is {COLOURS[thing]}."},
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A user whose one run trained both phases."""
    folder = tmp_path_factory.mktemp("chat")
    trainer = real_trainer(folder / "trainer")
    user = User(folder, trainer=trainer, environment={"OMP_NUM_THREADS": "1"})
    write_text(folder)
    lines = [json.dumps({"messages": question(thing, how)}) for thing in COLOURS for how in ASKED]
    (folder / "colours.jsonl").write_text("\n".join(lines) + "\n")
    given = ("--data", "text.py", "--chat-data", "colours.jsonl")
    words = (*LAUNCH, *given, "--steps", "180", "--processes", "1", "-y")
    user.run(*words, within_s=WITHIN_S)
    yield user
    user.end_everything()


def first_run(user: User) -> RunState:
    return min(user.ledger().runs.values(), key=lambda run: run.created_at)


def held_out(user: User) -> list[list[dict[str, str]]]:
    [path] = user.home.glob("data/*/validation.jsonl")
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def test_both_phases_were_trained_and_the_answer_is_the_chat_phases(trained: User) -> None:
    run = first_run(trained)
    assert {name: ended.outcome for name, ended in run.phases.items()} == {
        "train": "finished",
        "chat": "finished",
    }
    scored = trained.json("eval", run.run_id, "--json")["values"]
    assert scored["phase"] == "chat"
    # Only the answers' bytes are judged.
    answers = sum(len(each[1]["content"]) for each in held_out(trained))
    assert scored["bytes"] == answers
    assert scored["val_bpb"] < 1.0


def test_a_conversation_over_http(trained: User) -> None:
    run_id = first_run(trained).run_id
    server = Server(trained, "serve", run_id)
    try:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")

        def answer(messages: list[Any], **more: Any) -> Any:
            return client.chat.completions.with_raw_response.create(
                model="chat-tiny", messages=messages, temperature=0, max_tokens=20, **more
            )

        every = held_out(trained)
        right = 0
        for asked, wanted in every:
            told = answer([asked])
            assert "Trmcloud-Warning" not in told.headers
            [choice] = told.parse().choices
            right += choice.message.content == wanted["content"]
        assert right > len(every) / 2
        # Two turns, a system's message, and the stream.
        first, said = every[0]
        second, _ = every[1]
        told = answer([{"role": "system", "content": "Be short."}, first, said, second]).parse()
        assert told.choices[0].message.content
        whole = answer([first]).parse()
        assert whole.choices[0].finish_reason == "stop"
        stream = client.chat.completions.create(
            model="chat-tiny", messages=[first], temperature=0, max_tokens=20, stream=True
        )
        pieces = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert pieces == whole.choices[0].message.content
        shown = trained.run(
            "sample", run_id, "--prompt", first["content"], "--temperature", "0",
            "--max-tokens", "20",
        )  # fmt: skip
        assert shown.strip() == pieces
        for messages, what in (
            ([first, said], "there is nothing to answer"),
            ([first, second], "message 2 is from 'user'"),
            ([said], "message 1 is from 'assistant'"),
        ):
            with pytest.raises(openai.BadRequestError, match=what):
                answer(messages)
        with pytest.raises(openai.BadRequestError, match="the model takes at most 64"):
            answer([{"role": "user", "content": "grass " * 200}])
        assert server.end() == ""
    finally:
        server.kill()


def test_a_chat_phase_from_the_weights_of_a_run(trained: User) -> None:
    base = ("--phase", "train", "--data", "text.py", "--steps", "20", "--processes", "1", "-y")
    trained.run(*LAUNCH, *base, "--set", "save_every=20", "--name", "base")
    chat = ("--phase", "chat", "--steps", "20", "--processes", "1", "-y", "--name", "after")
    trained.run(*LAUNCH, *chat, "--from", "base", "--data", "colours.jsonl")
    runs = {run.name: run for run in trained.ledger().runs.values()}
    assert {name: ended.outcome for name, ended in runs["after"].phases.items()} == {
        "chat": "finished"
    }
    plain = ("--set", "tokenizer=bpe")
    trained.run(*LAUNCH, *base, "--set", "save_every=20", *plain, "--name", "plain")
    told = trained.fails(*LAUNCH, *chat, "--from", "plain", "--data", "colours.jsonl", code=10)
    assert "the tokenizer of these weights has no tokens for conversations" in told


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (
            ("--phase", "chat", "--data", "colours.jsonl"),
            2,
            "the chat phase needs weights to start from",
        ),
        (("--chat-data", "missing.jsonl"), 9, "there is no such file or folder"),
        (("--chat-data", "text.py"), 9, "the line is not JSON"),
        (("--chat-data", "python-stdlib"), 2, "is text, not conversations"),
        (("--phase", "train", "--chat-data", "colours.jsonl"), 2, "leaves the chat phase out"),
        (("--data", "small-questions"), 2, "is only for the chat phase"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    trained: User, words: tuple[str, ...], code: int, what: str
) -> None:
    before = len(trained.ledger().runs)
    given = words if "--data" in words else ("--data", "text.py", *words)
    assert what in trained.fails(*LAUNCH, *given, "-y", code=code)
    assert len(trained.ledger().runs) == before
