"""Whose a pod is, by its name: what is none of ours is never touched."""

from __future__ import annotations

import pytest

from trmcloud.core.contract.pod_names import PodName, parse_pod_name

NAME = "trmc-0a1b2c3d-r54aa48-g12-1795258139"


def test_a_name_of_ours_is_read_as_it_was_written() -> None:
    name = PodName("0a1b2c3d", "r54aa48", 12, 1795258139)
    assert parse_pod_name(NAME) == name
    assert str(name) == NAME
    assert str(PodName("0a1b2c3d", "r-54-aa48", 12, 1795258139)) == NAME


@pytest.mark.parametrize(
    "text",
    ["", "trmc-", NAME + "-worker1", "x" + NAME, NAME + "\n", NAME.replace("g12", "g012"),
     NAME.replace("g12", "g12345"), NAME.replace("0a1b", "0A1B"), NAME.replace("1795", "01795"),
     NAME.replace("g12", "g١٢"), NAME.replace("r54aa48", "r" * 21)],
)  # fmt: skip
def test_anything_else_is_none_of_ours(text: str) -> None:
    assert parse_pod_name(text) is None
