"""The house itself: shell files, wheel contents, files that must not name this machine."""

import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from wrappers import kernel_manager

ROOT = Path(__file__).parent.parent


def test_doors_are_shut() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 kept, 0 broken" in done.stdout


def test_every_package_is_in_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]
    present = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "testkit", "benchmarks"}
    assert set(listed) == present


def test_the_wheel_holds_the_native_parts_and_no_sources(tmp_path: Path) -> None:
    # The build directory is kept, so that only the first run compiles everything.
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    argv += ["--config-settings", f"build-dir={ROOT}/build/wheel", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(argv, check=True, capture_output=True)
    [wheel] = tmp_path.iterdir()
    assert wheel.name.endswith(f"-py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        daemon = next(name for name in names if name.endswith(".data/scripts/sexplkmd"))
        archive.extractall(tmp_path)
    library = tmp_path / "kernel_intercept/lib/libexplsched_intercept.so"
    assert kernel_manager.preload_fault(library, {}) is None
    (tmp_path / daemon).chmod(0o755)  # pip does it when it installs
    usage = subprocess.run([tmp_path / daemon, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--foreground" in usage
    told = subprocess.run([tmp_path / daemon, "--version"], capture_output=True, text=True, check=True).stdout
    assert told == f"sexplkmd {version('explsched')}\n"
    assert not {Path(name).suffix for name in names} & {".cpp", ".hpp", ".c", ".h", ".S", ".def", ".map", ".o", ".a"}


@pytest.mark.parametrize("script", ["install", "demo", "test", "native", "lint"])
def test_scripts_are_executable_and_short(script: str) -> None:
    path = ROOT / "scripts" / script
    assert path.stat().st_mode & 0o111
    assert len(path.read_text().splitlines()) <= 45


def test_slurm_is_asked_before_the_policies_load() -> None:
    """What a person waits for: numpy loads while Slurm answers, so nothing that is needed to ask may load it."""
    code = "import sys, slurm_plugin.cli.status; print('numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


def test_the_catalogue_starts_fast() -> None:
    """`sexplsched status` builds one policy: it must not pay for the libraries of the others."""
    heavy = ("scipy", "rustworkx", "cvxpy", "matplotlib", "rich")
    built = "import sys, sched_policy.catalog as c; c.build('explsched')"
    code = f"{built}; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_failed_test_shows_how_the_logs_of_its_daemons_end(tmp_path: Path) -> None:
    failing = tmp_path / "test_failing.py"
    failing.write_text(
        "def test_it(tmp_path):\n"
        "    (tmp_path / 'slurmctld.log').write_text('first words\\n' + 'more\\n' * 50 + 'last words\\n')\n"
        "    assert False\n"
    )
    argv = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "conftest", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [*argv, f"--basetemp={tmp_path}/t", failing], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "last words" in done.stdout
    assert "first words" not in done.stdout
