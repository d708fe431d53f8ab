"""The house itself: shell files, wheel contents, files that must not name this machine."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_doors_are_shut() -> None:
    done = subprocess.run(["lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "6 kept, 0 broken" in done.stdout


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]
    present = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert set(listed) == present


@pytest.mark.parametrize("script", ["install", "demo", "test", "native", "lint"])
def test_scripts_are_executable_and_short(script: str) -> None:
    path = ROOT / "scripts" / script
    assert path.stat().st_mode & 0o111
    assert len(path.read_text().splitlines()) <= 45


def test_the_catalogue_starts_fast() -> None:
    """`sexplsched status` builds one policy: it must not pay for the libraries of the others."""
    heavy = ("scipy", "rustworkx", "cvxpy", "matplotlib", "rich")
    built = "import sys, sched_policy.catalog as c; c.build('explsched')"
    code = f"{built}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
