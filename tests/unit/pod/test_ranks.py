from trmcloud.pod.agent.ranks import trainer_command


def test_one_rank_is_started_without_torchrun_and_is_nobody_elses_rank() -> None:
    given = {"PATH": "/bin", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
    words, environment = trainer_command("python3", 1, given)
    assert words == ["python3", "-m", "model.train"]
    assert environment == {
        **given, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    }  # fmt: skip


def test_several_ranks_are_torchruns() -> None:
    words, environment = trainer_command("python3", 8, {"PATH": "/bin"})
    assert words[:3] == ["python3", "-m", "torch.distributed.run"]
    assert words[-4:] == ["--nproc_per_node", "8", "-m", "model.train"]
    assert environment == {"PATH": "/bin"}
