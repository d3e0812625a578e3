"""A user who is told: by the command that drives, by the next one, by the pod, and never at the
training's cost."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.user import LAUNCH, User, until
from tests.standins.receiver import LOSES, Receiver

CANARY = "canary-4e1d"


def kinds(receiver: Receiver) -> list[str]:
    return [notice["kind"] for notice in receiver.notices]


def test_a_run_is_told_from_its_start_to_its_end(user: User, receiver: Receiver) -> None:
    user.environment["RUNPOD_API_KEY"] = CANARY
    user.run("admin", "notify", "add", "webhook", f"{receiver.url}/hook")
    receiver.answers = [(500, {}), LOSES]
    user.run(*LAUNCH, "--steps", "150", "--budget", "1")

    def all_told() -> bool:
        user.run("status")
        return bool(
            user.json("admin", "notify", "list", "--json")["destinations"][0]["waiting"] == 0
        )

    until(all_told, what="all of it")
    told = kinds(receiver)
    assert told.count("ended") == told.count("started") == 1
    end = next(notice for notice in receiver.notices if notice["kind"] == "ended")
    run = user.only_run()
    assert (end["run"], end["facts"]["outcome"]) == (run.run_id, "finished")
    assert end["title"] == f"{run.run_id}: finished"
    assert len(receiver.got) >= len(told) + 1, "what was lost came again, by its id"
    assert all(CANARY.encode() not in body for _, _, body in receiver.got)
    row = user.json("admin", "notify", "list", "--json")["destinations"][0]
    assert (row["waiting"], row["gave_up"]) == (0, None)


def test_a_pod_that_was_given_the_webhook_tells_while_nobody_is_awake(
    user: User, receiver: Receiver
) -> None:
    user.environment["RUNPOD_API_KEY"] = CANARY
    out = user.run("admin", "notify", "add", "webhook", receiver.url, "--on-pod", "--only", "ended")
    assert (
        "pods of runs launched from now on get the webhook and its secret, but not your "
        "account's key" in out
    )
    receiver.answers = [(429, {"Retry-After": "1"}), LOSES]
    user.run(*LAUNCH, "--steps", "300", "--budget", "1", "-d")
    (pod,) = user.pods()
    given = user.home / "pods" / pod.name / "webhook.json"
    assert given.stat().st_mode & 0o777 == 0o600
    assert set(json.loads(given.read_text())) == {"url", "secret", "only", "version"}
    until(lambda: len(receiver.got) == 3, what="the pod's own word, until it was taken")
    assert kinds(receiver) == ["ended"], "of three requests one notice, by its id"
    assert "text" not in receiver.notices[0]
    user.run("status")
    until(lambda: user.only_run().state.value == "closed" or bool(user.run("status")))
    assert kinds(receiver) == ["ended"], "the controller's word bears the same id"
    assert len(set(receiver.ids)) == 1
    for path in Path(user.home / "pods").rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes()
