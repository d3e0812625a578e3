"""A command's working folder: what is put back into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.pod.job.workspace import put_back


@pytest.mark.parametrize("there", ["nothing", "a file", "a folder"])
def test_a_checkpoint_takes_the_place_of_what_an_attempt_left(tmp_path: Path, there: str) -> None:
    copy, place = tmp_path / "resume" / "last", tmp_path / "work" / "out" / "last"
    copy.mkdir(parents=True)
    (copy / "model.bin").write_text("whole")
    place.parent.mkdir(parents=True)
    if there == "a file":
        place.write_text("half")
    elif there == "a folder":
        place.mkdir()
        (place / "model.bin").write_text("half")
    assert put_back(copy, tmp_path / "work", "out/last") == place
    assert (place / "model.bin").read_text() == "whole"
    assert not copy.exists()


def test_a_name_that_leads_out_of_the_working_folder_is_not_written_to(tmp_path: Path) -> None:
    copy, work = tmp_path / "resume" / "last.pt", tmp_path / "work"
    for folder in (copy.parent, work, tmp_path / "outside"):
        folder.mkdir()
    copy.write_text("whole")
    (work / "out").symlink_to(tmp_path / "outside")
    assert put_back(copy, work, "out/last.pt") == copy
    assert put_back(copy, work, ".") == copy
    assert not list((tmp_path / "outside").iterdir())
