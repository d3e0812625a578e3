"""A project's own list of packages becomes lines for pip, or is refused by the line at fault."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from trmcloud.app.package_resolving import ResolvedPackages, resolve
from trmcloud.app.requirement_files import Packages, found_in, read_packages
from trmcloud.core.errors import DataError


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lines(packages: Packages) -> dict[str, str]:
    return {line.where: line.text for line in packages.lines}


def test_a_file_of_requirements_is_read_with_all_that_it_includes(tmp_path: Path) -> None:
    put(tmp_path, "requirements.txt", "-r more/base.txt\n\ntorch>=2 ; python_version > '3.8' # t\n")
    put(tmp_path, "more/base.txt", "-c fixed.txt\n--extra-index-url https://example.org/simple\n")
    put(tmp_path, "more/fixed.txt", "numpy<3\n")
    put(tmp_path, "more/base.txt", (tmp_path / "more/base.txt").read_text() + "einops\\\n ==0.8\n")
    made = read_packages(tmp_path, "requirements.txt")
    assert lines(made) == {
        "more/base.txt:3": "einops ==0.8",
        "requirements.txt:3": "torch>=2 ; python_version > '3.8'",
    }
    assert [line.text for line in made.constraints] == ["numpy<3"]
    assert "--extra-index-url https://example.org/simple\n" in made.text()
    assert "# more/base.txt:3\neinops ==0.8\n" in made.text()


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("einops\nnumpy=>1\n", "'numpy=>1' is not a requirement", 2),
        ("-e ./mine\n", "./mine: there is no such file here", 1),
        ("# ours\n/home/me/wheel.whl\n", "this path is on this machine and is not sent", 2),
        ("-r other.txt\n", "other.txt cannot be read", 1),
        ("--install-it\n", "this option is not allowed in a requirements file", 1),
        ("-r requirements.txt\n", "files include each other in a circle", 1),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, words: str, line: int
) -> None:
    put(tmp_path, "requirements.txt", text)
    with pytest.raises(DataError, match=words) as refused:
        read_packages(tmp_path, "requirements.txt")
    assert refused.value.where == f"requirements.txt:{line}"


PROJECT = """
[project]
name = "p"
requires-python = ">=3.10"
dependencies = [
    "einops>=0.8",
]
[project.optional-dependencies]
train = ["tqdm"]
"""


def test_a_project_names_packages_extras_and_its_own_folders(tmp_path: Path) -> None:
    put(tmp_path, "pyproject.toml", PROJECT)
    (tmp_path / "src").mkdir()
    made = read_packages(tmp_path, "pyproject.toml[train]")
    assert lines(made) == {"pyproject.toml:6": "einops>=0.8", "pyproject.toml:9": "tqdm"}
    assert made.folders == (".", "src")
    assert (made.python, made.python_where) == (">=3.10", "pyproject.toml:4")
    with pytest.raises(DataError, match="it has no extra 'other'; it has train"):
        read_packages(tmp_path, "pyproject.toml[other]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.poetry]\n", "no \\[project\\] table"),
        ("[project]\ndynamic = ['dependencies']\n", "only known once it is built"),
        ("[project\n", "it is not TOML"),
        ("[project]\nrequires-python = 'new'\n", "'new' is not a version of Python"),
    ],
)
def test_a_project_that_does_not_say_is_refused(tmp_path: Path, text: str, words: str) -> None:
    put(tmp_path, "pyproject.toml", text)
    with pytest.raises(DataError, match=words):
        read_packages(tmp_path, "pyproject.toml")


LOCK = """
version = 1
requires-python = ">=3.9"

[[package]]
name = "mine"
version = "0.1"
source = { editable = "." }
dependencies = [
    { name = "tool" },
    { name = "older", marker = "python_full_version < '3.11'" },
    { name = "windows", marker = "sys_platform == 'win32'" },
    { name = "forked" },
]

[package.optional-dependencies]
dev = [{ name = "unwanted" }]

[[package]]
name = "tool"
version = "1.2"
source = { registry = "https://example.org/simple" }
dependencies = [{ name = "inner", extra = ["fast"] }]

[[package]]
name = "inner"
version = "3.0"
source = { registry = "https://example.org/simple" }

[package.optional-dependencies]
fast = [{ name = "quick" }]

[[package]]
name = "quick"
version = "0.4"
source = { registry = "https://example.org/builds" }

[[package]]
name = "older"
version = "1.0"
source = { registry = "https://example.org/simple" }

[[package]]
name = "windows"
version = "1.0"
source = { registry = "https://example.org/simple" }

[[package]]
name = "unwanted"
version = "1.0"
source = { registry = "https://example.org/simple" }

[[package]]
name = "forked"
version = "2.0"
source = { git = "https://example.org/forked?rev=v2#0123abcd" }
"""


def test_a_lock_gives_what_the_project_needs_at_its_versions(tmp_path: Path) -> None:
    put(tmp_path, "uv.lock", LOCK)
    made = read_packages(tmp_path, "uv.lock")
    assert [line.text for line in made.lines] == [
        "tool==1.2",
        "inner==3.0",
        "quick==0.4",
        'older==1.0 ; python_version == "3.9" or python_version == "3.10"',
        "forked @ git+https://example.org/forked@0123abcd",
    ]
    assert made.folders == (".",)
    assert [line.text.split()[0] for line in made.options] == ["--extra-index-url"] * 2


CONDA = """
name: mine
channels: [conda-forge]
dependencies:
  - python=3.10
  - pytorch::pytorch=2.4
  - cudatoolkit=11.8
  - numpy>=1.26,<2   # pinned
  - scipy=1.13=py310_0
  - pip
  - pip:
      - einops==0.8
  - tqdm
variables:
  - A=1
"""


def test_conda_packages_are_mapped_to_those_that_pip_installs(tmp_path: Path) -> None:
    put(tmp_path, "environment.yml", CONDA)
    made = read_packages(tmp_path, "environment.yml")
    assert lines(made) == {
        "environment.yml:6": "torch==2.4.*",
        "environment.yml:8": "numpy>=1.26,<2",
        "environment.yml:9": "scipy==1.13.*",
        "environment.yml:12": "einops==0.8",
        "environment.yml:13": "tqdm",
    }
    assert (made.python, made.python_where) == ("==3.10.*", "environment.yml:5")
    assert made.left_out == ("cudatoolkit", "pip")


def test_files_are_found_by_their_usual_names_the_most_exact_first(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "uv.lock", "notes.txt"):
        put(tmp_path, name, "")
    assert found_in(tmp_path) == ("uv.lock", "pyproject.toml")


# -- what pip says of them -------------------------------------------------------------------------


class Pip:
    """A pip that fails with these words; an index that has these versions of every package."""

    def __init__(self, said: str, there: str = "") -> None:
        self._said, self._there = said, there
        self.asked: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self.asked.append(list(words))
        if words[0] == "index":
            found = f"x (1)\nAvailable versions: {self._there}\n" if self._there else ""
            missing = "" if found else "ERROR: No matching distribution found for x"
            return subprocess.CompletedProcess(words, 0 if found else 1, found, missing)
        return subprocess.CompletedProcess(words, 1, "", self._said)


def listed(folder: Path, text: str) -> Packages:
    put(folder, "requirements.txt", text)
    return read_packages(folder, "requirements.txt")


NONE = "ERROR: No matching distribution found for {}\n"
DOWN = "WARNING: Retrying: Temporary failure in name resolution\n"


@pytest.mark.parametrize(
    ("said", "there", "words"),
    [
        (NONE.format("einopsy"), "", "there is no package einopsy on the index"),
        (NONE.format("einopsy>=9"), "0.7, 0.8", "there is no einopsy>=9 .*newest is 0.8"),
        (
            "The conflict is caused by:\n    The user requested einopsy\n    a 1 depends on b\n\n",
            "",
            "conflict: The user requested einopsy; a 1 depends on b",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version: "
            "2.0 Requires-Python >=3.13\n" + NONE.format("einopsy"),
            "2.0",
            "has no build for Python 3.11: Requires-Python >=3.13",
        ),
    ],
)
def test_what_pip_refuses_is_refused_by_its_line(
    tmp_path: Path, said: str, there: str, words: str
) -> None:
    packages = listed(tmp_path, "# ours\neinopsy\n")
    with pytest.raises(DataError, match=words) as refused:
        resolve(packages, tmp_path, "3.11", Pip(said, there))
    assert refused.value.where == "requirements.txt:2"


@pytest.mark.parametrize(
    ("said", "there", "unknown"),
    [
        (DOWN + NONE.format("einopsy"), "", "the index cannot be reached"),
        (NONE.format("einopsy"), "0.8", "einopsy has no prebuilt package"),
    ],
)
def test_what_is_not_known_here_is_no_refusal(
    tmp_path: Path, said: str, there: str, unknown: str
) -> None:
    assert unknown in resolve(listed(tmp_path, "einopsy\n"), tmp_path, "", Pip(said, there)).unknown


def test_paths_and_repositories_are_not_asked_for(tmp_path: Path) -> None:
    pip = Pip("")
    packages = listed(tmp_path, "git+https://example.org/a\nb @ https://example.org/b.whl\n")
    assert resolve(packages, tmp_path, "", pip) == ResolvedPackages(
        unknown="it names only paths and repositories"
    )
    assert not pip.asked


def test_a_python_that_the_project_does_not_take_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "pyproject.toml", PROJECT)
    packages = read_packages(tmp_path, "pyproject.toml")
    with pytest.raises(DataError, match=r"needs Python >=3\.10, but the machine has 3\.9"):
        resolve(packages, tmp_path, "3.9", Pip(""))
