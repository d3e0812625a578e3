"""The judge of hostile contents finds each planted violation, and none in a benign visit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.contents import WORDS
from tests.hostile.doors import Code, Visit
from tests.hostile.judge import Finding, Judge
from tests.hostile.watch import Connected, Executed, Observation, Talk, find_strace, watch
from tests.hostile.world import KEYS, MARK, Hosts, World, hosts
from tests.missing_tools import find

pytestmark = pytest.mark.skipif(find("strace") is None, reason="there is no strace")

_PLAN = Visit("plan", ())


class Ground:
    """A checkout whose ``trmcloud`` is a script of the test, and a world to run it in."""

    def __init__(self, folder: Path, served: Hosts) -> None:
        self.hosts = served
        python = os.path.realpath(sys.executable)
        self.world = World(
            folder / "visit", served.user.url, served.tree.url, served.stranger.url, python
        )
        self.world.make()
        self.code = Code(folder / "code")
        Path(self.code.trmcloud).parent.mkdir(parents=True)
        Path(self.code.python).symlink_to(python)
        self.log = folder / "log"
        self.log.mkdir()

    def seen(self, script: str, most_s: float = 60.0, talk: Talk | None = None) -> Observation:
        program = Path(self.code.trmcloud)
        program.write_text(f"#!{self.world.python} -IS\nimport os, subprocess, sys\n{script}\n")
        program.chmod(0o755)
        return watch(
            [self.code.trmcloud], environment=self.world.environment(), cwd=self.world.tree,
            log=self.log, most_s=most_s, talk=talk,
        )  # fmt: skip

    def found(self, script: str, visit: Visit = _PLAN, most_s: float = 60.0) -> list[Finding]:
        self.hosts.clear()
        judge = Judge(self.code, self.world, self.log / "sky")
        places = judge.places(visit)
        return judge.judge(visit, self.seen(script, most_s), self.hosts, places)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with hosts(tmp_path / "visit" / "ran") as served:
        yield Ground(tmp_path, served)


BENIGN = """
quiet = {"PATH": os.environ["PATH"]}
subprocess.run(["git", "-C", os.getcwd(), "ls-files"], env=quiet, capture_output=True)
open(os.environ["TRMCLOUD_HOME"], "w").close()
print("8xH100")
"""


def test_a_benign_visit_has_no_finding(ground: Ground) -> None:
    assert ground.found(BENIGN) == []


@pytest.mark.parametrize(
    ("script", "kind", "part"),
    [
        ("subprocess.run(['sh', '-c', 'true'])", "executed", "/bin/sh"),
        ("subprocess.run(['/bin/sh', '-c', 'exec git --version'], env={})", "executed",
         "/bin/sh -c"),
        ("subprocess.run(['python3', 'train.py'], env={'PATH': '/usr/bin'})", "executed",
         "train.py"),
        ("os.symlink('/usr/bin/true', 'git'); subprocess.run(['./git'], env={})", "executed",
         "tree/git"),
        ("subprocess.run(['git', 'version'])", "environment", "RUNPOD_API_KEY"),
        ("open('../outside/secret.txt').read()", "opened", "outside/secret.txt"),
        ("os.symlink('../outside', 'x'); open('x/token.txt')", "opened", "outside/token.txt"),
        ("os.symlink('/etc/hostname', 'x'); open('x')", "opened", "/etc/hostname through 'x'"),
        ("open(os.path.expanduser('~/.ssh/id_rsa'))", "opened", "~/.ssh/id_rsa"),
        ("subprocess.run(['git', 'config', '-f', os.path.expanduser('~/.netrc'), '-l'], env={})",
         "opened", "~/.netrc"),
        ("import socket; socket.socket().connect_ex(('127.0.0.3', 9))", "connected",
         "127.0.0.3 port 9"),
        ("import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.9', 53))", "connected",
         "127.0.0.9"),
        ("import socket; socket.socket(10, 2).connect_ex(('2001:db8::1', 53))", "connected",
         "2001:db8"),
        ("print('the key is', os.environ['HF_TOKEN'])", "printed", "stdout"),
        (f"print('…{MARK.lower()}0outside', file=sys.stderr)", "printed", "stderr"),
        ("open('written', 'w')", "wrote", "tree/written"),
        ("os.mkdir('../outside/x')", "wrote", "outside/x"),
        ("os.rename('../outside/token.txt', '../tmp/x')", "wrote", "outside/token.txt"),
        ("os.unlink('../outside/token.txt')", "wrote", "outside/token.txt"),
        ("open(os.environ['TMPDIR'] + '/../ran/kind')", "crashed", "FileNotFoundError"),
        ("subprocess.run(['git', '-C', '../ran', 'version'], env={})\n"
         "try: open('../ran/kind')\nexcept OSError: pass", "ran", "kind"),
        ("os.makedirs(os.environ['TRMCLOUD_HOME']); "
         "open(os.environ['TRMCLOUD_HOME'] + '/x', 'w').write(os.environ['HF_TOKEN'])",
         "kept", "home/trmcloud/x"),
        ("raise ValueError('x')", "crashed", "ValueError: x"),
        ("os.kill(os.getpid(), 11)", "crashed", "status -11"),
    ],
)  # fmt: skip
def test_each_kind_of_violation_is_found(ground: Ground, script: str, kind: str, part: str) -> None:
    found = ground.found(script)
    assert any(each.kind == kind and part in each.detail for each in found), found


def test_a_key_in_a_request_is_found_and_the_index_s_own_password_is_not(ground: Ground) -> None:
    ask = """
import urllib.request
for url in {urls!r}:
    try: urllib.request.urlopen(url, timeout=10)
    except OSError: pass
"""
    tree, user = ground.hosts.tree.url, ground.hosts.user.url
    [found] = ground.found(
        ask.format(urls=[f"{tree}/{KEYS['HF_TOKEN']}/simple/", f"{user}/simple/"])
    )
    assert (found.kind, found.detail[:12]) == ("asked", "tree's index")
    [other] = ground.found(ask.format(urls=[f"{ground.hosts.stranger.url}/x"]))
    assert other.kind == "connected"


def test_what_the_user_s_own_command_does_is_the_user_s(ground: Ground) -> None:
    script = "subprocess.run(['python3', 'train.py'], env={'PATH': '/usr/local/bin:/usr/bin:/bin'})"
    (ground.world.tree / "train.py").write_text("import os\nos.system('true')\n")
    ground.world = World(**{**vars(ground.world), "python": _system_python()})
    runs = Visit("try", (), runs_command=True)
    assert ground.found(script, runs) == []
    assert {each.kind for each in ground.found(script)} == {"executed"}
    found = ground.found("subprocess.run(['python3', 'train.py'])", runs)
    assert {(each.kind, "HF_TOKEN" in each.detail) for each in found} == {("environment", True)}


def _system_python() -> str:
    import shutil

    return shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable


def test_a_link_in_the_place_of_an_output_leads_nowhere_it_may_write(ground: Ground) -> None:
    visit = Visit("fetch-best", ("--into", "best"), outputs=("best", "best.partial"))
    assert ground.found("os.mkdir('best'); open('best/x', 'w')", visit) == []
    (ground.world.tree / "best.partial").symlink_to(ground.world.outside)
    found = ground.found("open('best.partial/x', 'w')", visit)
    assert {each.kind for each in found} == {"opened", "wrote"}, found


def test_a_link_above_what_is_typed_is_followed(ground: Ground) -> None:
    """And only the new folder there is written."""
    (ground.world.tree / "kept").symlink_to(ground.world.outside)
    visit = Visit("fetch-best", ("--into", "kept/a"), outputs=("kept", "kept.partial"))
    made = "os.mkdir('kept/a'); open('kept/a/x', 'w'); os.open('kept', os.O_RDONLY)"
    assert ground.found(made, visit) == []
    found = ground.found("open('kept/secret.txt'); open('kept/b', 'w')", visit)
    assert {each.kind for each in found} == {"opened", "wrote"}, found


def test_what_blocks_or_leaves_a_process_behind_is_ended(ground: Ground) -> None:
    found = ground.found("os.mkfifo('pipe'); open('pipe')", most_s=1.0)
    assert "slow" in {each.kind for each in found}
    script = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env={})"
    seen = ground.seen(script, most_s=2.0)
    assert seen.is_over_time
    assert seen.wall_s < 30


def test_the_record_names_each_program_its_folder_and_its_environment(ground: Ground) -> None:
    script = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(s.getsockname()).close()\n"
        "os.mkdir('a\\nb')\n"
        "subprocess.run(['git', 'version', 'é\"]'], cwd='a\\nb', env={'A': '1, \"2'})"
    )
    seen = ground.seen(script)
    [git] = [e.program for e in seen.events if isinstance(e, Executed) and "git" in e.program.path]
    assert (git.words, dict(git.environment)) == (("git", "version", 'é"]'), {"A": '1, "2'})
    assert git.cwd == str(ground.world.tree / "a\nb")
    assert git.parent is not None
    assert git.parent.path == ground.code.trmcloud
    assert [e.port for e in seen.events if isinstance(e, Connected)] == list(seen.own_ports)


def test_a_talk_fills_in_what_was_answered(ground: Ground) -> None:
    answers = """
import json
for line in sys.stdin:
    asked = json.loads(line)
    fields = {"quote": "q-1"} if asked["method"] == "plan" else {}
    answer = {"id": asked["id"], "got": asked, "result": {"structuredContent": fields}}
    print(json.dumps(answer), flush=True)
"""
    talk = Talk(
        [
            {"method": "launch", "params": {"quote": "$quote"}},
            {"method": "plan", "params": {}},
            {"method": "launch", "params": {"quote": "$quote"}},
        ]
    )
    seen = ground.seen(answers, talk=talk)
    assert seen.out.count(b'"got"') == 2
    assert b'"quote": "q-1"' in seen.out.splitlines()[1]


def test_a_machine_without_strace_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_strace() is None
    assert WORDS[0] == "python3"
