"""What ``scripts/new_provider.py`` writes is a provider: one folder and one row."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def done(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree), "GIT_CONFIG_GLOBAL": "/dev/null"}
    ended = subprocess.run(
        words, cwd=tree, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_written_provider_is_one_folder_and_one_row_and_keeps_the_contract(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    unwanted = shutil.ignore_patterns("__pycache__", "bundle")
    for name in ("trmcloud", "tests", "scripts"):
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted, symlinks=True)
    shutil.copy2(ROOT / "pyproject.toml", tree)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com")
    done(tree, "git", "init", "-q")
    done(tree, "git", "add", "-A")
    done(tree, *git, "commit", "-qm", "before")

    done(tree, sys.executable, "scripts/new_provider.py", "acme_gpu")

    done(tree, "git", "add", "-A")
    changed = done(tree, "git", "diff", "--cached", "--numstat").splitlines()
    rows = {path: (added, removed) for added, removed, path in map(str.split, changed)}
    assert rows.pop("trmcloud/providers/registry.py") == ("1", "0")
    assert rows
    assert all(path.startswith("trmcloud/providers/acme_gpu/") for path in rows)
    suite = ("tests/contract/test_compute.py", "tests/unit/test_provider_ids.py")
    told = done(
        tree, sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
        *suite, "-k", "acme_gpu or provider_ids",
    )  # fmt: skip
    assert " passed" in told
    done(tree, sys.executable, "-m", "ruff", "check", "-q", "trmcloud/providers/acme_gpu")
    done(tree, sys.executable, "-m", "ruff", "format", "--check", "-q", "trmcloud/providers")
    named = "from trmcloud.operations.plans.planning import rent_from"
    known = "import trmcloud.providers.registry"
    asked = "print(rent_from('8xH100', ['acme_gpu'], '', key_allowed=False, enabled=list))"
    assert done(tree, sys.executable, "-c", f"{named}; {known}; {asked}") == "['acme_gpu']\n"


def test_another_package_adds_a_provider_by_an_entry_point(tmp_path: Path) -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "new_provider.py"))["FILES"]
    folder = tmp_path / "acme_plugin"
    folder.mkdir()
    for name, text in written.items():
        own = text.replace("trmcloud.providers.NAME", "acme_plugin")
        (folder / name).write_text(own.replace("NAME", "acme").replace("TITLE", "Acme"))
    about = tmp_path / "acme_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-plugin\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[trmcloud.providers]\nodd = no_such_package\nacme = acme_plugin\n"
    )
    asked = f"""
import sys
from pathlib import Path
from trmcloud.operations.plans.planning import rent_from
from trmcloud.core.catalog.providers import TRAITS, traits_of
from trmcloud.providers.protocol import Site
from trmcloud.providers.registry import Providers

providers = Providers(Site(Path({str(tmp_path)!r}), {{}}, str, Path, list))
assert "acme" not in TRAITS, "entry points are read when a name is not known"
assert providers["aws"] is providers["gcp"] and "acme_plugin" not in sys.modules
assert rent_from("8xH100", ["acme"], "", key_allowed=False, enabled=list) == ["acme"]
assert traits_of("acme").title == "Acme"
assert list(providers["acme"].compute("acme").list_pods()) == []
assert not {{"httpx2", "boto3"}} & set(sys.modules)
"""
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    words = (sys.executable, "-c", asked)
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the provider odd cannot be used: ModuleNotFoundError") == 1
