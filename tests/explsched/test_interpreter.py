"""Programs of ours in processes of their own, in a directory where others have put modules."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from explsched import interpreter
from slurm_plugin.client.protocol import probe_pyslurm
from slurm_plugin.state import serving

ROOT = Path(__file__).parents[2]
PRODUCT = ("explsched", "inference_gateway", "kernel_intercept", "slurm_plugin", "wrappers")


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Is there once a module of the working directory has run."""
    found = tmp_path / "ran"
    for name in ("asyncio", "pyslurm", "random"):
        (tmp_path / f"{name}.py").write_text(f"open({str(found)!r}, 'w')\nraise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    return found


def test_the_probe_for_pyslurm_runs_no_module_of_the_working_directory(trap: Path) -> None:
    _ = probe_pyslurm()
    assert not trap.exists()


def test_what_serves_the_state_runs_no_module_of_the_working_directory(trap: Path) -> None:
    nowhere = trap.parent / "none" / "state.sock"
    done = subprocess.run(serving.argv(trap.parent, nowhere), capture_output=True, text=True, check=False)
    assert "No such file or directory" in done.stderr
    assert not trap.exists()


@pytest.mark.parametrize("flag", ["-P", "-I"])
def test_who_leaves_the_environments_modules_out_starts_others_that_do(trap: Path, flag: str) -> None:
    say = "import sys; from explsched import interpreter; print(interpreter.of_code('import random'))"
    done = subprocess.run([sys.executable, flag, "-c", say], capture_output=True, text=True, check=True)
    argv = ast.literal_eval(done.stdout)
    assert argv[1] == flag
    subprocess.run(argv, check=True)
    assert not trap.exists()
    assert interpreter.of_module("explsched.cli", "--help")[1] == "-P"


def test_no_part_of_the_product_starts_python_in_another_way() -> None:
    """A list that begins with `sys.executable` is a command."""

    def commands(path: Path) -> list[str]:
        lists = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.List | ast.Tuple))
        first = (ast.unparse(one.elts[0]) for one in lists if one.elts)
        return [f"{path.relative_to(ROOT)}: {word}" for word in first if word == "sys.executable"]

    files = (path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py")))
    found = [one for path in files for one in commands(path)]
    assert found == ["explsched/interpreter.py: sys.executable"]
