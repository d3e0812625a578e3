"""What is said of tests that were left out for want of programs."""

from __future__ import annotations

from tests.missing_tools import last_lines


def test_the_last_lines_count_by_program_and_name_one_command() -> None:
    lines = last_lines(
        [
            "pods that answer over SSH: there is no sshd on this machine",
            "no openssh-server",
            "there is no rsync on this machine",
            "no SkyPilot here: make sky",
        ]
    )
    assert lines == [
        "4 tests were not run: 2 for want of sshd, 1 for want of rsync, 1 for other reasons.",
        "  1 × no SkyPilot here: make sky",
        "On Debian and Ubuntu this installs what is missing: apt-get install openssh-server rsync",
        "Elsewhere, install the packages that bring rsync, sshd.",
    ]
    assert last_lines([]) == ()
    assert last_lines(["there is a GPU here"]) == [
        "1 test was not run: 1 for other reasons.",
        "  1 × there is a GPU here",
    ]
