"""What a script's own record says of its time, and what of it is not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trmcloud.adapters.files.recipes import load_recipe
from trmcloud.adapters.local.run_files import LocalRunFiles
from trmcloud.adapters.prices.tables import load_offers
from trmcloud.core.contract.pod_contract import PodName
from trmcloud.core.errors import ConflictError, NotFoundError
from trmcloud.core.planner.planning import make_plan
from trmcloud.core.spec.spec import RunSpec
from trmcloud.export.adopt import find_folder, look
from trmcloud.export.script import spec_text
from trmcloud.pod.agent.attempts import Life, Lives, write_lives

NOW = 1_795_000_000.0


def folder_of(tmp_path: Path, *, run_id: str = "r-0a1b2c", pod: str = "") -> Path:
    root = tmp_path / "trmcloud-run"
    root.mkdir()
    pod = pod or str(PodName("0a1b2c3d", "r-0a1b2c", 1, int(NOW) + 100))
    write_lives(root, Lives(run_id, "0a1b2c3d", "trm", (Life(1, pod, NOW),)))
    plan = make_plan(
        RunSpec("trm", ("fast",), "8xH100"), load_recipe("trm"), load_offers(NOW), NOW, "p-0000"
    )
    assert plan.recommended is not None
    (root / "spec.json").write_text(spec_text(plan, plan.recommended))
    return root


def test_the_folder_is_found_by_its_record(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"standalone\.json"):
        find_folder(tmp_path)
    root = folder_of(tmp_path)
    assert find_folder(tmp_path) == find_folder(root) == root


@pytest.mark.parametrize("names", [{"run_id": "../../etc"}, {"pod": "../../etc"}])
def test_names_that_could_lead_elsewhere_are_refused(names: dict[str, str], tmp_path: Path) -> None:
    root = folder_of(tmp_path, **names)
    with pytest.raises(ConflictError, match="no record"):
        look(root, LocalRunFiles(root))


def test_a_run_that_saved_nothing_says_so(tmp_path: Path) -> None:
    root = folder_of(tmp_path)
    with pytest.raises(NotFoundError, match="saved no checkpoint"):
        look(root, LocalRunFiles(root))
    record = json.loads((root / "standalone.json").read_text())
    (root / "standalone.json").write_text(json.dumps({**record, "version": 9}))
    with pytest.raises(ConflictError, match="version 9"):
        look(root, LocalRunFiles(root))
