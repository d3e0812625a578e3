"""SkyPilot's own home of each cloud: one credential, one port, nothing else of the user's."""

from __future__ import annotations

import json
import shlex
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.unit.skypilot.rig import NAME, NOW, Rig, request, stand_in
from trmcloud.core.catalog.providers import brokered
from trmcloud.core.errors import AmbiguousCreate, ProviderRefused
from trmcloud.ports.compute import PodKeys
from trmcloud.providers.skypilot.command import Sky
from trmcloud.providers.skypilot.compute import SkyPilotCompute, TwoHomeCompute
from trmcloud.providers.skypilot.homes import BACKUPS_KEPT, SkyHome, environ_of_user
from trmcloud.providers.skypilot.provider import check_skypilot
from trmcloud.providers.skypilot.secrets import FILES, NEVER, is_there, on_machine
from trmcloud.providers.skypilot.traits import CLOUDS

PLANTED = (
    *(".aws/credentials", ".aws/config", ".azure/msal_token_cache.json", ".cloudflare/accountid"),
    *(".config/gcloud/application_default_credentials.json", ".lambda_cloud/lambda_keys"),
    *(".nebius/credentials.json", ".nebius/NEBIUS_IAM_TOKEN.txt", ".runpod/config.toml"),
    *(".verda/config.json", ".config/doctl/config.yaml", ".config/vastai/vast_api_key"),
    *(".cloudflare/r2.credentials", ".coreweave/cw.config", ".coreweave/cw.credentials"),
    *(".cache/huggingface/token", ".huggingface/token", ".kube/config", ".netrc"),
    *(".git-credentials", ".config/wandb/settings", ".docker/config.json", ".oci/config"),
)
OTHERS = ("HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "TRMCLOUD_HOME", "KUBECONFIG", "PYTHONPATH")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    home = tmp_path / "user"
    for path in PLANTED:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(f"planted {path}")
    return home


def environment() -> dict[str, str]:
    names = [name for files in FILES.values() for name in files.environment]
    made = [n for files in FILES.values() if files.made for n in files.made.variables]
    return {name: f"value-of-{name}" for name in (*names, *made, *OTHERS)} | {"PATH": "/bin"}


def files_in(home: SkyHome) -> set[str]:
    """What can be read below it, links followed."""
    found = subprocess.run(
        ["find", "-L", ".", "-type", "f"], cwd=home.path, capture_output=True, text=True, check=True
    )
    return {line.removeprefix("./") for line in found.stdout.splitlines()}


@pytest.mark.parametrize("provider", brokered())
def test_a_home_holds_one_clouds_credential_and_its_variables_alone(
    provider: str, user: Path, tmp_path: Path
) -> None:
    home = SkyHome(tmp_path / "trm", provider, user, environment())
    home.lay()
    mine = (*FILES[provider].links, *FILES[provider].first_of)
    there = files_in(home) - {".sky/config.yaml"}
    assert there
    assert all(any(p == m or p.startswith(f"{m}/") for m in mine) for p in there), there
    given = home.environ()
    foreign = {n for name, f in FILES.items() if name != provider for n in f.environment}
    assert not given.keys() & (foreign - set(FILES[provider].environment)), given
    assert not given.keys() & set(OTHERS)
    assert (given["HOME"], given["SKY_RUNTIME_DIR"]) == (str(home.path), str(home.path))
    for folder in (home.path, home.root):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_folder_that_a_command_is_typed_in_says_nothing_to_sky(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be another party's tree: its ``.sky.yaml`` names a server, which would get keys."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / ".sky.yaml").write_text("api_server:\n  endpoint: http://evil.example\n")
    monkeypatch.chdir(tree)
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"enabled": ["AWS"]}))
    given = {
        "PATH": "/usr/bin:/bin", "HOME": str(user), "RUNPOD_API_KEY": "canary",
        "SKYPILOT_PROJECT_CONFIG": str(tree / ".sky.yaml"),
        "TRMCLOUD_SKY": str(stand_in(tmp_path / "sky", state)), "AWS_ACCESS_KEY_ID": "mine",
    }  # fmt: skip
    homes = {name: SkyHome(tmp_path / "trm", name, user, given) for name in CLOUDS}
    (found,) = check_skypilot(given, lambda name: name == "aws", homes.__getitem__)
    assert found.state == "ok", found
    seen = json.loads(state.read_text())["from"]
    assert len(seen) > 3
    for folder, server, names in seen:
        assert not Path(folder).is_relative_to(tree)
        assert server.removeprefix("http://127.0.0.1:").isdigit() or server == ""
        assert "RUNPOD_API_KEY" not in names


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("api_server:\n  endpoint: http://ours.example  # of the team\n", "http://ours.example"),
        ("aws:\n  a: 1\napi_server:\n\n  # x\n  service: 1\n  endpoint: 'http://o'\n", "http://o"),
        ("aws:\n  endpoint: http://other\n", None),
        ("", None),
    ],
)
def test_the_users_own_sky_keeps_its_server_and_gets_no_other_key(
    tmp_path: Path, text: str, server: str | None
) -> None:
    (tmp_path / ".sky").mkdir()
    (tmp_path / ".sky" / "config.yaml").write_text(text)
    given = environment() | {"HOME": str(tmp_path), "SKYPILOT_PROJECT_CONFIG": "/tree/.sky.yaml"}
    made = environ_of_user(given)
    assert made.get("SKYPILOT_API_SERVER_ENDPOINT") == server
    assert made["SKYPILOT_PROJECT_CONFIG"] == "/dev/null"
    assert not made.keys() & set(OTHERS)
    assert made["AWS_PROFILE"] == "value-of-AWS_PROFILE"
    named = given | {"SKYPILOT_API_SERVER_ENDPOINT": "http://named"}
    assert environ_of_user(named)["SKYPILOT_API_SERVER_ENDPOINT"] == "http://named"


def test_no_two_homes_share_a_port_and_each_keeps_its_own(user: Path, tmp_path: Path) -> None:
    homes = [SkyHome(tmp_path, provider, user, {}) for provider in brokered()]
    ports = [home.environ()["SKYPILOT_API_SERVER_LOCAL_PORT"] for home in homes]
    assert len({*ports}) == len(ports)
    assert "46580" not in ports, "the user's own server"
    again = [SkyHome(tmp_path, name, user, {}).environ() for name in brokered()]
    assert [one["SKYPILOT_API_SERVER_LOCAL_PORT"] for one in again] == ports


@pytest.mark.parametrize("name", [n for n in NEVER if n != ".runpod"])
def test_a_credential_put_into_a_home_stops_launches(name: str, user: Path, tmp_path: Path) -> None:
    home = SkyHome(tmp_path / "trm", "skypilot-runpod", user, {})
    home.lay()
    (home.path / name).parent.mkdir(parents=True, exist_ok=True)
    (home.path / name).write_text("a key")
    with pytest.raises(ProviderRefused, match="would copy"):
        home.lay()


def test_a_key_of_the_environment_is_written_once_for_the_owners_eyes(tmp_path: Path) -> None:
    home = SkyHome(tmp_path / "trm", "lambda", tmp_path / "nobody", {"LAMBDA_API_KEY": "secret-1"})
    home.lay()
    path = home.path / ".lambda_cloud" / "lambda_keys"
    assert path.read_text() == "api_key = secret-1\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret-1" not in home.environ().values()
    assert "secret-1" not in home.command("sky", "down", "x")
    with pytest.raises(ProviderRefused):
        SkyHome(tmp_path / "b", "lambda", tmp_path / "n", {"LAMBDA_API_KEY": 'x"\ny'}).lay()


def test_of_the_users_settings_one_clouds_are_taken_and_no_logs(user: Path, tmp_path: Path) -> None:
    (user / ".sky").mkdir()
    (user / ".sky" / "config.yaml").write_text(
        "logs:\n  store: aws\n  aws:\n    credentials_file: ~/other\n"
        "aws:\n    vpc_name: mine\n\n    use_internal_ips: true\n"
        "nebius:\n  region_configs:\n    eu-north1: {project_id: p}\n"
    )
    told = {}
    for provider in ("aws", "nebius", "lambda"):
        home = SkyHome(tmp_path / "trm", provider, user, {})
        home.lay()
        told[provider] = (home.path / ".sky" / "config.yaml").read_text()
    assert all("logs" not in text and "credentials_file" not in text for text in told.values())
    assert "aws:\n    remote_identity: SERVICE_ACCOUNT\n    vpc_name: mine\n" in told["aws"]
    assert "use_internal_ips: true\n" in told["aws"]
    assert "nebius:\n  remote_identity: NO_UPLOAD\n" in told["aws"]
    assert "eu-north1: {project_id: p}" in told["nebius"]
    assert "aws:\n  remote_identity: NO_UPLOAD\n" in told["nebius"]
    assert "vpc_name" not in told["lambda"]


def test_the_line_that_is_shown_runs_in_that_home_and_nothing_else_gets_through(
    user: Path, tmp_path: Path
) -> None:
    program = tmp_path / "a b" / "sky"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n/usr/bin/env; echo "$@"\n')
    program.chmod(0o755)
    home = SkyHome(tmp_path / "trm home", "skypilot-runpod", user, environment())
    home.lay()
    line = home.command(str(program), "down", NAME)
    done = subprocess.run(
        ["/bin/bash", "-c", line], env=environment(), capture_output=True, text=True, check=True
    )
    said = dict(row.split("=", 1) for row in done.stdout.splitlines() if "=" in row)
    assert said["HOME"] == said["SKY_RUNTIME_DIR"] == str(home.path)
    assert (
        said["SKYPILOT_API_SERVER_LOCAL_PORT"] == home.environ()["SKYPILOT_API_SERVER_LOCAL_PORT"]
    )
    assert f"down {NAME}" in done.stdout
    assert not {*OTHERS, "AWS_SECRET_ACCESS_KEY", "RUNPOD_API_KEY"} & said.keys()


def test_tables_and_keys_are_backed_up_and_five_are_kept(user: Path, tmp_path: Path) -> None:
    home = SkyHome(tmp_path, "aws", user, {})
    home.lay()
    with sqlite3.connect(home.path / ".sky" / "state.db") as table:
        table.execute("CREATE TABLE clusters (name TEXT)")
        table.execute("INSERT INTO clusters VALUES (?)", (NAME,))
    key = home.path / ".sky" / "generated" / "ssh-keys" / f"{NAME}.key"
    key.parent.mkdir(parents=True)
    key.write_text("the key")
    for second in range(BACKUPS_KEPT + 3):
        home.back_up(NOW + second)
    kept = sorted((home.root / "backups").iterdir())
    assert len(kept) == BACKUPS_KEPT
    assert int(kept[-1].name) == int((NOW + BACKUPS_KEPT + 2) * 1000)
    with sqlite3.connect(kept[-1] / ".sky" / "state.db") as copy:
        assert copy.execute("SELECT name FROM clusters").fetchall() == [(NAME,)]
    assert (kept[-1] / key.relative_to(home.path)).read_text() == "the key"
    assert not list(kept[-1].glob(".aws*")), "no credential is copied once more"
    (home.path / ".sky" / "state.db").write_bytes(b"no table at all" * 400)
    home.back_up(NOW + 100)
    assert sorted((home.root / "backups").iterdir()) == kept, "a bad copy replaces no good one"


def test_a_lost_home_is_restored_before_clusters_are_listed(user: Path, tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    home = SkyHome(tmp_path / "trm", "aws", user, {})
    compute = in_home(rig, home)
    table = home.path / ".sky" / "state.db"
    key = home.path / ".sky" / "generated" / "ssh-keys" / f"{NAME}.key"

    def fill() -> None:
        key.parent.mkdir(parents=True, exist_ok=True)
        key.write_text("the key")
        with sqlite3.connect(table) as conn:
            conn.execute("CREATE TABLE clusters (name TEXT)")

    assert not home.is_lost, "nothing was rented yet"
    compute.list_pods()
    assert not home.path.joinpath(".sky/state.db").exists(), "nothing is made of no backup"
    fill()
    home.back_up(NOW)
    assert home.restored() == ""
    shutil.rmtree(home.path)
    compute.list_pods()
    assert key.read_text() == "the key"
    with sqlite3.connect(table) as conn:
        assert conn.execute("SELECT count(*) FROM clusters").fetchone() == (0,)
    assert any(path.is_symlink() for path in home.path.rglob("*")), "the credential is linked anew"
    said = "its SkyPilot home was lost, and was restored from the backup of"
    assert said in home.restored()
    assert said in compute.on_machine()
    table.write_bytes(b"")
    compute.terminate(NAME)
    with sqlite3.connect(table) as conn:
        assert conn.execute("SELECT count(*) FROM clusters").fetchone() == (0,)


# -- how long a credential is valid ------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "there", "outlives"),
    [
        ("gcp", {".config/gcloud/application_default_credentials.json": "authorized_user"}, False),
        ("gcp", {".config/gcloud/application_default_credentials.json": "service_account"}, True),
        ("azure", {".azure/msal_token_cache.json": ""}, False),
        ("nebius", {".nebius/NEBIUS_IAM_TOKEN.txt": "t"}, False),
        ("nebius", {".nebius/credentials.json": "{}"}, True),
        ("digitalocean", {".config/doctl/config.yaml": "access-token: t"}, False),
        ("aws", {".aws/credentials": "[default]\naws_session_token = t\n"}, False),
        ("aws", {".aws/credentials": "[default]\naws_access_key_id = t\n"}, True),
        ("lambda", {".lambda_cloud/lambda_keys": "k"}, True),
        ("skypilot-runpod", {".runpod/config.toml": "k"}, True),
    ],
)
def test_a_copied_credential_outlives_a_hard_stop_only_where_that_is_known(
    provider: str, there: dict[str, str], outlives: bool, tmp_path: Path
) -> None:
    for path, text in there.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps({"type": text}) if path.endswith("als.json") and
                                     provider == "gcp" else text)  # fmt: skip
    assert is_there(provider, tmp_path, {})
    found = on_machine(provider, tmp_path, "LOCAL_CREDENTIALS", {})
    assert found.outlives(NOW + 1e9) is outlives
    if not outlives:
        word = on_machine(
            provider, tmp_path, "LOCAL_CREDENTIALS", {"TRMCLOUD_SKY_VALID_UNTIL": "never"}
        )
        assert word.outlives(NOW + 1e9)
        assert "you declared that" in word.words


@pytest.mark.parametrize("provider", ["aws", "azure", "gcp"])
def test_a_machine_with_an_identity_of_its_own_gets_no_file(provider: str, tmp_path: Path) -> None:
    found = on_machine(provider, tmp_path, FILES[provider].identity, {})
    assert found.what.startswith("no file")
    assert found.outlives(NOW + 1e9)


def armed(rig: Rig, provider: str, environ: dict[str, str], user: Path) -> tuple[bool, str]:
    home = SkyHome(rig.folder / "trm", provider, user, environ)
    compute = in_home(rig, home)
    compute.create(request(sku="H100-SXM"))
    limit = rig.told()["tasks"][NAME]["resources"]["autostop"]["idle_minutes"]
    rig.row(status="UP", cloud=CLOUDS[provider], autostop=limit, to_down=True)
    compute.list_pods()
    return compute.own_limits(NAME)[0].armed, compute.own_limits(NAME)[0].detail


def in_home(rig: Rig, home: SkyHome) -> SkyPilotCompute:
    home.lay()
    return SkyPilotCompute(
        home.provider,
        Sky(rig.sky.program, home.environ(), home.empty),
        lambda name: PodKeys("PRIVATE", "ssh-ed25519 AAAA host", "ssh-ed25519 AAAA user"),
        lambda: b"payload",
        home.seen,
        home=home,
        settings={},
        now=lambda: rig.now,
    )


def test_autostop_needs_a_credential_that_outlives_the_stop(tmp_path: Path, user: Path) -> None:
    """The limit is set on the cluster in both cases."""
    (user / ".nebius" / "credentials.json").unlink()
    (tmp_path / "1").mkdir()
    is_armed, why = armed(Rig(tmp_path / "1"), "nebius", {}, user)
    assert not is_armed
    assert "exposed" in why
    assert "IAM token" in why
    (user / ".nebius" / "credentials.json").write_text("{}")
    (tmp_path / "2").mkdir()
    is_armed, why = armed(Rig(tmp_path / "2"), "nebius", {}, user)
    assert is_armed, why


def test_the_credential_at_the_launch_is_what_counts(tmp_path: Path, user: Path) -> None:
    rig = Rig(tmp_path)
    (user / ".nebius" / "credentials.json").unlink()
    assert not armed(rig, "nebius", {}, user)[0]
    (user / ".nebius" / "credentials.json").write_text("{}")
    later = in_home(rig, SkyHome(rig.folder / "trm", "nebius", user, {}))
    later.list_pods()
    assert not later.own_limits(NAME)[0].armed, "the machine has the token that was copied then"


# -- clusters of the user's own home -----------------------------------------------------------


class Two:
    """A cluster of an earlier version in the user's home, and a home of its cloud's own."""

    def __init__(self, folder: Path, user: Path) -> None:
        (folder / "old").mkdir()
        (folder / "new").mkdir()
        self.old, self.new = Rig(folder / "old"), Rig(folder / "new")
        self.earlier = self.old.compute("aws")
        home = SkyHome(folder / "trm", "aws", user, {})
        self.own = in_home(self.new, home)
        self.both = TwoHomeCompute(
            self.own, home, self.earlier, user, self.old.folder / "aws", lambda: self.old.now
        )


def test_a_cluster_of_the_users_home_is_watched_and_ended(tmp_path: Path, user: Path) -> None:
    two = Two(tmp_path, user)
    two.earlier.create(request())
    two.old.row(status="UP", cloud="AWS")
    assert [pod.name for pod in two.both.list_pods()] == [NAME]
    assert "asked" not in two.new.told(), "a home that rented nothing is not asked"
    assert two.both.create(request()) == NAME, "and nothing is launched a second time"
    assert "env -i" not in two.both.by_hand(NAME)[1]
    assert shlex.split(two.both.by_hand(NAME)[1])[1:] == ["down", NAME]
    assert two.both.terminate(NAME)
    assert two.old.told()["clusters"] == {}
    assert "asked" not in two.new.told()
    assert two.both.bill(NAME) is not None


def test_a_new_cluster_is_rented_and_ended_in_its_own_home(tmp_path: Path, user: Path) -> None:
    two = Two(tmp_path, user)
    two.both.create(request())
    two.new.row(status="UP", cloud="AWS")
    assert [pod.name for pod in two.both.list_pods()] == [NAME]
    assert "asked" not in two.old.told(), "no server of the user's own is started"
    assert "env -i HOME=" in two.both.by_hand(NAME)[1]
    assert two.both.terminate(NAME)
    assert two.new.told()["clusters"] == {}


def test_an_earlier_launch_not_listed_is_never_made_anew(tmp_path: Path, user: Path) -> None:
    two = Two(tmp_path, user)
    two.earlier.create(request())
    two.old.set(clusters={})
    with pytest.raises(AmbiguousCreate):
        two.both.create(request())
    assert "tasks" not in two.new.told()


def test_a_cluster_without_note_is_found_by_skypilots_table(tmp_path: Path, user: Path) -> None:
    """The notes may be lost; its table is only read, and asking it starts its server."""
    two = Two(tmp_path, user)
    assert two.both.list_pods() == ()
    assert "asked" not in two.old.told()
    (user / ".sky").mkdir()
    with sqlite3.connect(user / ".sky" / "state.db") as table:
        table.execute("CREATE TABLE clusters (name TEXT)")
        table.execute("INSERT INTO clusters VALUES (?)", (NAME,))
    row = {"name": NAME, "status": "UP", "init_kind": None, "cloud": "AWS", "region": "us-east-1",
           "launched_at": int(NOW), "autostop": 5, "to_down": True}  # fmt: skip
    two.old.set(clusters={NAME: row}, requests=[])
    assert [pod.name for pod in two.both.list_pods()] == [NAME]
    assert two.both.terminate(NAME)


def test_each_screen_has_the_credential_and_its_end(tmp_path: Path, user: Path) -> None:
    two = Two(tmp_path, user)
    assert two.both.on_machine().startswith("no file; the IAM role")
    two.both.create(request())
    assert "valid for as long as" in two.both.on_machine(NAME)
