"""A project's own list of packages becomes lines for pip, or is refused by the line at fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from trmcloud.core.errors import DataError
from trmcloud.operations.sending import requirement_files
from trmcloud.operations.sending.requirement_files import Packages, SentFiles, found_in
from trmcloud.operations.sending.working_tree import look_at


def put(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read_packages(root: Path, typed: str, folder: str = "") -> Packages:
    sent = SentFiles(root, look_at(root).names, folder)
    return requirement_files.read_packages(sent, typed)


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
        ("-e ./mine\n", "./mine: there is no such file among those that are sent", 1),
        ("# ours\n/home/me/wheel.whl\n", "this path is outside the folder that is sent", 2),
        ("mine @ file:///home/me/mine\n", "this path is outside the folder that is sent", 1),
        ("mine @ FILE:///home/me/mine\n", "this path is outside the folder that is sent", 1),
        ("git+file:///home/me/mine\n", "this path is outside the folder that is sent", 1),
        ("-e ../mine\n", "this path is outside the folder that is sent", 1),
        ("-f /home/me/wheels\n", "this path is outside the folder that is sent", 1),
        ("-r other.txt\n", "other.txt is not among the files that are sent: there is no such", 1),
        ("--install-it\n", "--install-it: this option is not allowed", 1),
        ("--index\n", "--index: this option is not allowed", 1),
        ("--pre --no-bin :all:\n", "--no-bin: this option is not allowed", 1),
        ("einops --no-binary :all:\n", "--no-binary: this option is not allowed", 1),
        ("-i\n", "--index-url has no value|-i has no value", 1),
        ("-r requirements.txt\n", "files include each other in a circle", 1),
        ("-e einops\n", "./einops: there is no such file among those that are sent", 1),
        ("-r loop\n", "loop is not among the files that are sent", 1),
        ("-f " + "w" * 300 + "\n-r w\n", "w is not among the files that are sent", 2),
        ("einops ; " + "(" * 4000 + "\n", "is not a requirement", 1),
        ("einops==" + "1" * 5000 + "\n", "is not a requirement", 1),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    tmp_path: Path, text: str, words: str, line: int
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    put(tmp_path, "requirements.txt", text)
    with pytest.raises(DataError, match=words) as refused:
        read_packages(tmp_path, "requirements.txt")
    assert refused.value.where == f"requirements.txt:{line}"


def test_many_includes_are_refused_soon(tmp_path: Path) -> None:
    for number in range(8):
        put(tmp_path, f"{number}.txt", f"-r {number + 1}.txt\n" * 50)
    put(tmp_path, "8.txt", "einops\n")
    with pytest.raises(DataError, match="it includes more than 100 files"):
        read_packages(tmp_path, "0.txt")


def test_what_no_index_is_asked_for_is_known_with_its_reason(tmp_path: Path) -> None:
    put(tmp_path, "libs/mine/pyproject.toml", "")
    put(
        tmp_path,
        "start/requirements.txt",
        "einops==0.8 --hash=sha256:00\n-e ../libs/mine[all]\na @ git+https://h/a\n"
        "git+ssh://git@h/b#egg=b\nhttps://h/c_c-1.0-py3-none-any.whl\n"
        "d --config-settings=x=y\ne @ https://${USER}:${KEY}@h/e.whl\n",
    )
    made = read_packages(tmp_path, "requirements.txt", "start")
    assert [(line.name, line.why) for line in made.lines] == [
        ("einops", ""),
        ("", "it is in the tree"),
        ("a", "it is a repository"),
        ("b", "it is a repository"),
        ("c-c", "it is a direct address"),
        ("d", "its options apply to a build"),
        ("e", "it names ${USER}, ${KEY}"),
    ]
    assert [str(line.asked) for line in made.lines if line.asked] == ["einops==0.8"]
    assert "einops==0.8 --hash=sha256:00\n" in made.text()


def test_each_option_becomes_a_line_of_its_own(tmp_path: Path) -> None:
    put(tmp_path, "wheels/a.whl", "")
    put(tmp_path, "more/list.txt", "-f ../wheels --pre -ihttps://h/s --trusted-host 'h'\n")
    put(tmp_path, "requirements.txt", "-r more/list.txt\n")
    made = read_packages(tmp_path, "requirements.txt")
    assert [option.text for option in made.options] == [
        "--find-links wheels",
        "--pre",
        "--index-url https://h/s",
        "--trusted-host h",
    ]


PROJECT = """
[project]
name = "p"
requires-python = ">=3.10"
dependencies = [
    "einops>=0.8",
]
[project.optional-dependencies]
train = ["tqdm"]
all = ["P[train]"]
"""


def test_a_project_names_packages_extras_and_its_own_folders(tmp_path: Path) -> None:
    put(tmp_path, "pyproject.toml", PROJECT)
    (tmp_path / "src").mkdir()
    made = read_packages(tmp_path, "pyproject.toml[train]")
    assert lines(made) == {"pyproject.toml:6": "einops>=0.8", "pyproject.toml:9": "tqdm"}
    assert made.folders == (".", "src")
    assert (made.python, made.python_where) == (">=3.10", "pyproject.toml:4")
    assert lines(read_packages(tmp_path, "pyproject.toml[all]")) == lines(made)
    with pytest.raises(DataError, match="it has no extra 'other'; it has all, train"):
        read_packages(tmp_path, "pyproject.toml[other]")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.poetry]\n", "no \\[project\\] table"),
        ("[project]\ndynamic = ['dependencies']\n", "only known once it is built"),
        ("[project\n", "it is not TOML"),
        ("[project]\nrequires-python = 'new'\n", "'new' is not a version of Python"),
        ("[project]\ndependencies = 5\n", "its tables do not have the usual form"),
        ('[project]\ndependencies = ["https://h/a\\n--pre"]\n', "has control characters"),
        ("a = " + "[" * 9000, "its tables do not have the usual form|it is not TOML"),
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
    assert [option.text for option in made.options] == [
        "--index-url https://example.org/simple",
        "--extra-index-url https://example.org/builds",
    ]


def test_a_lock_beside_the_public_index_adds_to_it(tmp_path: Path) -> None:
    put(tmp_path, "uv.lock", LOCK.replace("example.org/simple", "pypi.org/simple/"))
    made = read_packages(tmp_path, "uv.lock")
    assert [o.text for o in made.options] == ["--extra-index-url https://example.org/builds"]


@pytest.mark.parametrize("source", ["/home/me/mine", "../mine"])
def test_a_lock_does_not_lead_out_of_the_tree(tmp_path: Path, source: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "mine").mkdir()
    put(tmp_path / "tree", "uv.lock", LOCK.replace('editable = "."', f'editable = "{source}"'))
    with pytest.raises(DataError, match="outside the folder that is sent") as refused:
        read_packages(tmp_path / "tree", "uv.lock")
    assert refused.value.where == "uv.lock:6"


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
