"""Build the wheel and the sdist, and try each in an empty environment with an empty home.

    make release

Where git's tag names HEAD (``git tag v0.2.0``) it is a release: the tree must be clean and
CHANGELOG.md have its section. Anywhere else it is a rehearsal of one. Nothing is published: what to
type for that is the last line printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
IN_WHEEL = {
    "trmcloud/": "trmcloud/",
    "model/": "trmcloud/bundle/model/",
    "sky/": "trmcloud/bundle/sky/",
}
TINY = (
    *("--recipe", "trm-tiny", "--phase", "fast", "--data", "python-stdlib", "--processes", "1"),
    *("--steps", "12", "--set", "depth=1", "--set", "width=32", "--rate", "3.60"),
)


def main() -> None:
    version = tagged()
    notes = section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version or "Unreleased")
    if version and git("status", "--porcelain"):
        raise SystemExit(f"error: {version} is tagged, and the tree has changes\n  try: git status")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    # The wheel is made of the sdist: what that lacks is missed here.
    call(BIN / "uv", "build", "--quiet", "--no-build-isolation", "--python", sys.executable)
    (sdist,), (wheel,) = (ROOT / "dist").glob("*.tar.gz"), (ROOT / "dist").glob("*.whl")
    lacking = [*lacking_in_wheel(wheel), *lacking_in_sdist(sdist)]
    if lacking:
        raise SystemExit("error: not as in git:\n  " + "\n  ".join(lacking))
    print(f"✔ {wheel.name} and {sdist.name} hold what git has")
    for built in (wheel, sdist):
        try_out(built, version)
    print(f"\n{notes.strip()}\n")
    if version:
        print(f"{version} is ready. git push origin v{version}: the release workflow drafts it")
    else:
        print("A rehearsal: no tag names this commit. To release it: CHANGELOG.md, commit, git tag")


def tagged() -> str:
    """The version that a tag gives HEAD; empty where none does."""
    found = [tag for tag in git("tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    if len(found) > 1:
        raise SystemExit(f"error: several versions are tagged here: {', '.join(found)}")
    return found[0][1:] if found else ""


def section(changelog: str, version: str) -> str:
    """What stands below a version's heading.

    Raises:
        SystemExit: nothing does, or it is not sorted into ``SECTIONS``.
    """
    found = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None or not found[1].strip():
        raise SystemExit(f"error: CHANGELOG.md says nothing below '## {version}'")
    parts = re.findall(r"^### (.+)$", found[1], re.MULTILINE)
    if not parts or not set(parts) <= set(SECTIONS) or not found[1].strip().startswith("### "):
        raise SystemExit(f"error: CHANGELOG.md: {version} is not sorted into {', '.join(SECTIONS)}")
    return found[1]


def lacking_in_wheel(wheel: Path) -> Iterator[str]:
    """Each file that git has for the wheel and it lacks, and each that it has beyond."""
    tracked = git("ls-files", "--", *IN_WHEEL).splitlines()
    wanted = {
        to + name.removeprefix(folder)
        for name in tracked
        for folder, to in IN_WHEEL.items()
        if name.startswith(folder)
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    yield from (f"the wheel lacks {name}" for name in sorted(wanted - held))
    yield from (f"the wheel has {name}" for name in sorted(held - wanted))


def lacking_in_sdist(sdist: Path) -> Iterator[str]:
    with tarfile.open(sdist) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    wanted = {name for name in git("ls-files").splitlines() if (ROOT / name).is_file()}
    yield from (f"the sdist lacks {name}" for name in sorted(wanted - held))
    yield from (f"the sdist has {name}" for name in sorted(held - wanted - {"PKG-INFO"}))


def try_out(built: Path, version: str) -> None:
    """Install it where nothing else is, with the versions on record, and use it as a newcomer.

    The trainer's packages come from this environment's own folders, behind those installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        python, home = Path(folder, "env/bin/python"), Path(folder, "home")
        home.mkdir()
        pins = Path(folder, "pins")
        pins.write_text(pinned(ROOT / "constraints.txt"))
        call(BIN / "uv", "venv", "-q", "--python", sys.executable, python.parents[1])
        began = time.monotonic()
        call(BIN / "uv", "pip", "install", "-q", "--python", python, "-c", pins, built)
        check_core(python.parents[1], built, time.monotonic() - began)
        alone = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"}

        def run(*words: str) -> str:
            done = subprocess.run(
                ["trmcloud", *words], cwd=home, env=alone, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(
                    f"error: {built.name}: trmcloud {' '.join(words)}: {done.returncode}\n"
                    f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            print(f"✔ {built.suffix[1:]}: trmcloud {' '.join(words)}")
            return done.stdout

        said = run("--version").split()[1]
        name = built.name.removesuffix(".tar.gz").split("-")[1]
        if said != name or (version and said != version):
            raise SystemExit(f"error: {built.name} says that it is {said}, of {version or name}")
        run("--help")
        run("plan", "--budget", "1000")
        run("status")
        run("prices", "list")
        run("budget", "show")
        run("export", "8xA100", "--phase", "fast", "--output", "train.sh")
        call("bash", "-n", home / "train.sh")
        run("export", "all", "--as", "sky", "--output", "tasks")
        lend(python)
        run("launch", "local", *TINY, "--budget", "1", "-y")
        run("fetch-best", "--into", "best")
        if not list((home / "best").glob("*.safetensors")):
            raise SystemExit(f"error: {built.name}: no weights came home")


MOST_PACKAGES, MOST_CORE_MB = 15, 25


def check_core(environment: Path, built: Path, seconds: float) -> None:
    """Hold what an installation without extras brings to its limits: packages, trmcloud among
    them, and their files' bytes; the bytecode that Python makes of them is not counted."""
    (site,) = environment.glob("lib/python*/site-packages")
    packages = sorted(path.name.split("-")[0] for path in site.glob("*.dist-info"))
    size = sum(
        path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )
    told = f"{len(packages)} packages, {size / 1e6:.1f} MB, {seconds:.1f} s"
    if len(packages) > MOST_PACKAGES or size > MOST_CORE_MB * 1_000_000:
        raise SystemExit(
            f"error: {built.name} without extras: {told}; at most {MOST_PACKAGES} packages and "
            f"{MOST_CORE_MB} MB\n  {', '.join(packages)}"
        )
    print(f"✔ {built.suffix[1:]}: without extras {told}")


def lend(python: Path) -> None:
    """Let an environment find this one's packages, behind its own."""
    ours = [path for path in sys.path if path.endswith("site-packages")]
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    purelib = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    Path(purelib, "lent.pth").write_text("\n".join(ours) + "\n")


def pinned(constraints: Path) -> str:
    """The versions alone: what was just built has no hash on record."""
    lines = constraints.read_text(encoding="utf-8").splitlines()
    return "\n".join(line.rstrip(" \\") for line in lines if re.match(r"[a-zA-Z]", line))


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def call(*words: str | os.PathLike[str]) -> None:
    try:
        subprocess.run([os.fspath(word) for word in words], cwd=ROOT, check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: {shown(error.cmd)} ended with {error.returncode}") from None


def shown(words: Sequence[str]) -> str:
    return " ".join(words[:4]) + (" …" if len(words) > 4 else "")


if __name__ == "__main__":
    main()
