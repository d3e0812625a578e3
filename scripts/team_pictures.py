"""Draws docs/screens/team-*.png: the page of a team's server in Debian's Chromium, by a run.

.venv/bin/python scripts/team_pictures.py     # about two minutes

People log in with homes of their own and launch on the server's machine at $3.60 an hour. Their
trainer is the tests' stand-in, so that losses are invented; dollars, times and records are real.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / "docs" / "screens"
PICTURES = (
    ("team-spending", "/?by=person", 1280, False),
    ("team-spending-narrow", "/?by=project", 360, True),
    ("team-audit", "/audit", 1280, False),
)


def main() -> None:
    sys.path.insert(0, str(HERE))
    from tests.e2e.test_server import Team, token_of
    from tests.e2e.user import LAUNCH
    from tests.standins.browser import chromium
    from trmcloud.api import Home

    with tempfile.TemporaryDirectory(prefix="trmcloud-team-") as folder:
        team = Team(Path(folder))
        try:
            team.add("lea", "lead", "5")
            team.add("ada", "member", "2")
            team.add("bob", "member", "2", "--project", "vision")
            hold = team.host.hold()  # the server's commands get its name; it is there from later on
            hold.unlink()
            server = team.serve("--four-eyes", "500")
            lea, ada, bob = (team.log_in(name, server) for name in ("lea", "ada", "bob"))
            lea.run("budget", "set", "month", "1.50")
            for user, paper, name in (
                (ada, "a", "baseline"), (ada, "a", "wider"), (bob, "b", "crops"),
            ):  # fmt: skip
                user.run(
                    *LAUNCH, "--budget", "0.20", "--steps", "60", "--tag", f"paper={paper}",
                    "--name", name,
                )  # fmt: skip
            hold.touch()
            bob.run(*LAUNCH, "--budget", "0.30", "--steps", "60", "--name", "longer", "-d")
            lea.fails("budget", "raise", "month", "900", code=4)
            bob.fails("budget", "set", "account", "5", code=16)
            os.environ.update(team.host.env())
            Home(team.host.home, principal="ada").ask_approval("the ablation needs it", more="3")
            with chromium(Path(folder) / "chromium") as browser:
                for name, path, width, dark in PICTURES:
                    page = browser.page(width, 900, dark=dark)
                    page.open(f"{server.url}{path}#token={token_of(lea)}")
                    page.until("document.documentElement.dataset.drawn")
                    page.picture(FOLDER / f"{name}.png", whole=True)
                    print(f"{name}.png: {(FOLDER / f'{name}.png').stat().st_size:,} bytes")
        finally:
            team.end()


if __name__ == "__main__":
    main()
