"""What the tests of the product and those of the benchmarks share; a private, real Slurm cluster among it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from slurm_plugin.devcluster import DevClusterError, down, machine

# No test asserts a time, so neither does hypothesis: machines are noisy.
settings.register_profile("explsched", deadline=None)
settings.load_profile("explsched")

# A shell without job control starts `command &` ignoring SIGINT, nohup ignores SIGHUP, and so would every program that
# a test starts.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    parser.addoption("--kills", type=int, default=8, help="so often tests of sudden death kill a process (default: 8)")


def pytest_configure(config: pytest.Config) -> None:
    """Programs of ours that are built for the Slurm of EXPLSCHED_SLURM_PREFIX (scripts/native) come before others."""
    if prefix := machine.prefix():
        built = config.rootpath / f"build/slurm{prefix}/slurm_plugin/native"
        os.environ["PATH"] = f"{built}{os.pathsep}{os.environ['PATH']}"


def pytest_report_header() -> str:
    """Which Slurm the private clusters are of."""
    try:
        return f"slurm: {machine.slurm_version()} ({machine.find('slurmctld')})"
    except DevClusterError as error:
        return f"slurm: {error}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first, then those with tests on clusters; the others fill the gaps."""
    long, slow = ({item.path for item in items if item.get_closest_marker(name)} for name in ("long", "slurm"))
    items.sort(key=lambda item: (item.path not in long, item.path not in slow))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows how the logs end that daemons wrote meanwhile below the test's directories."""
    report = yield
    if report.failed and call.when != "teardown":
        made = [value for value in item.funcargs.values() if isinstance(value, Path)]
        report.sections += [(f"end of {path}", end) for path, end in _log_ends(made, call.start - _TICK_S)]
    return report


_SHOWN_LINES = 40
_TICK_S = 0.02  # by at most this a file's time lags behind the clock


def _log_ends(directories: Iterable[Path], since_s: float) -> Iterator[tuple[Path, str]]:
    """The last lines of each log below that was written to since then (seconds of the epoch), by path."""
    found = {Path(place, name) for top in directories for place, _, names in os.walk(top) for name in names}
    for path in sorted(path for path in found if path.name == "log" or path.suffix in {".log", ".out", ".jsonl"}):
        with suppress(FileNotFoundError):  # the daemons still run
            if path.is_file() and path.stat().st_mtime >= since_s:
                yield path, "\n".join(path.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])


def _reason_to_skip(*needed: str) -> str | None:
    if os.geteuid() != 0:
        return "a private cluster needs root"
    try:
        machine.check(needed)
    except DevClusterError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def needs_slurm() -> None:
    """Skip where no private cluster can run; scripts/test installs what it takes."""
    if reason := _reason_to_skip("munged", "slurmctld", "slurmd", "sinfo"):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs_accounting(needs_slurm: None) -> None:
    """Skip where slurmdbd or MariaDB is missing."""
    if reason := _reason_to_skip("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db"):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def open_tmp() -> Iterator[Path]:
    """A directory that ordinary users can reach, unlike pytest's own, and with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="explsched-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def place(needs_slurm: None, open_tmp: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory for a cluster of one test; whatever runs there afterwards is ended."""
    path = Path(tempfile.mkdtemp(dir=open_tmp))
    path.chmod(0o755)
    yield path
    for state in sorted(path.rglob("cluster.json")):
        down(state.parent)
