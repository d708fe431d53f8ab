"""Commands of a test's gateway are those of this checkout, in the caller's environment."""

import json
from pathlib import Path

import pytest

from testkit.gateway import Gateway

ROOT = Path(__file__).parents[2]


def test_a_gateways_programs_import_this_checkout_beside_the_callers_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "path.json"
    (tmp_path / "sitecustomize.py").write_text(f"import json, sys\njson.dump(sys.path, open({str(path)!r}, 'w'))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "reload" in Gateway({}, tmp_path / "services.yaml", "", tmp_path).command("--help")
    assert json.loads(path.read_text())[:2] == [str(ROOT), str(tmp_path)]
