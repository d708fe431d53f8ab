"""Worker processes: results in order, faults raised here, and nobody left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from explsched.errors import PolicyError
from simulation.cli.parallel import WorkerError, run_all
from tests.slurm_plugin import work

ROOT = Path(__file__).parents[3]
_HOLD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
from pathlib import Path
from simulation.cli.parallel import run_all
from tests.slurm_plugin import work
run_all(work.hold, [Path(sys.argv[1])] * 2, 2, lambda *_: None)
"""


def eventually(condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + 60
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.05)
    return condition()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_come_in_the_order_of_the_tasks_from_other_processes() -> None:
    reports: list[tuple[int, int, int]] = []
    found = run_all(work.square, [1, 9, 5], 2, lambda *report: reports.append(report))
    assert [value for value, _ in found] == [1, 81, 25]
    assert os.getpid() not in {pid for _, pid in found}
    assert {(0, 1, 10), (1, 9, 10), (2, 5, 10)} <= set(reports)
    assert {(0, 1, 1), (1, 1, 1), (2, 1, 1)} <= set(reports)


def test_the_first_fault_ends_all_the_others() -> None:
    with pytest.raises(PolicyError, match="two is not accepted"):
        run_all(work.fail_at_two, [1, 2, 3], 3, lambda *_: None)
    assert multiprocessing.active_children() == []


def test_a_process_that_dies_is_an_error() -> None:
    with pytest.raises(WorkerError, match=r"killed.*-j"):
        run_all(work.vanish, [1, 2], 2, lambda *_: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    main = subprocess.Popen([sys.executable, "-c", _HOLD, tmp_path], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert all(runs(pid) for pid in pids)
        main.send_signal(number)
        assert main.wait(60) != 0
        assert eventually(lambda: not any(runs(pid) for pid in pids))
    finally:
        main.kill()
        main.wait()
