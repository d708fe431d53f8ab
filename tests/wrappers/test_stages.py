"""`sxrun --measure-stages` on trainings with a module that stands for PyTorch, and on others."""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from explsched.job_options.values import stages_ms
from wrappers.stages import Counters, MeasuredStages, Meter, between, measured

ROOT = Path(__file__).parents[2]
MS = 1_000_000

# As little of PyTorch as a training of one process uses: same names, same calls between them.
TORCH = {
    "__init__.py": """
from types import SimpleNamespace
cuda = SimpleNamespace(is_initialized=lambda: False)
compiler = SimpleNamespace(is_compiling=lambda: False)
""",
    "optim/__init__.py": "",
    "optim/optimizer.py": """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
""",
    "utils/__init__.py": "",
    "utils/data/__init__.py": "",
    "utils/data/dataloader.py": """
import time
class _BaseDataLoaderIter:
    _num_workers = 0
    def __iter__(self):
        return self
    def __next__(self):
        time.sleep(0.004)
        return 1
""",
    "distributed/__init__.py": "from .distributed_c10d import all_reduce",
    "distributed/distributed_c10d.py": """
import time
def all_reduce(tensor, op=None, group=None, async_op=False):
    time.sleep(0.002)
""",
}
TRAINING = """
import time
from torch.distributed import all_reduce
from torch.optim.optimizer import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter
import explsched_site_marker
optimizer, batches = Optimizer(), _BaseDataLoaderIter()
for _ in range(400):
    next(batches)
    until_s = time.thread_time() + 0.003
    while time.thread_time() < until_s:
        pass
    all_reduce(1)
    optimizer.step()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH with a package torch, and a sitecustomize of the site."""
    for name, text in TORCH.items():
        path = tmp_path / "site" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "site/sitecustomize.py").write_text("import sys, types\nsys.modules['explsched_site_marker'] = types")
    return tmp_path / "site"


def measure(site: Path, code: str, *options: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    told = site.parent / "progress"
    environment = os.environ | {"EXPLSCHED_PROGRESS_FILE": str(told), "PYTHONPATH": f"{site}:{ROOT}"}
    environment.pop("SLURM_PROCID", None)
    command = [sys.executable, "-m", "wrappers.sxrun", *options, "--", sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done, [json.loads(line) for line in told.read_text().splitlines()]


def test_a_training_is_measured_without_a_word_of_its_own_beside_the_sites_customization(site: Path) -> None:
    done, told = measure(site, TRAINING, "--measure-stages")
    line = [line for line in told if "stages" in line][-1]  # on a busy machine later windows may be faster
    iteration, reading, computing, talking = stages_ms(str(line["stages"]))
    assert (done.returncode, done.stdout) == (0, "")
    assert reading >= 4
    assert talking >= 2
    assert computing == pytest.approx(3, rel=0.2)  # CPU time: other work on the machine does not count
    assert iteration >= reading + talking + 3 * 0.8
    assert f"--stages {line['stages']}" in done.stderr


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('done')", "no iteration of a PyTorch training was seen"),
        ("import sys; sys.exit(3)", "no iteration of a PyTorch training was seen"),
        (TRAINING.replace("range(400)", "range(5)"), "[0-5] iterations were counted, too few"),
    ],
)
def test_what_cannot_be_measured_runs_as_ever_and_the_end_says_why(site: Path, code: str, why: str) -> None:
    plain, _ = measure(site, code)
    done, told = measure(site, code, "--measure-stages")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert re.match(f"sxrun: stages are not measured: {why}", done.stderr.removeprefix(plain.stderr))
    assert [line for line in told if "stages" in line] == []


def test_a_program_that_sets_its_own_path_is_measured(site: Path) -> None:
    own_path = "import sys; sys.path[:] = [one for one in sys.path if 'in_training' not in one]\n"
    _, told = measure(site, own_path + TRAINING, "--measure-stages")
    assert [line for line in told if "stages" in line] != []


def test_a_program_without_pytorch_loads_nothing_that_counts(site: Path) -> None:
    code = "import sys; print({'_explsched_stages', 'multiprocessing', 'mmap'} & {*sys.modules})"
    done, _ = measure(site, code, "--measure-stages")
    assert done.stdout == "set()\n"


def test_a_release_with_other_names_is_told_of_and_the_training_goes_on(site: Path) -> None:
    (site / "torch/utils/data/dataloader.py").write_text("class _BaseDataLoaderIter:\n    __next__ = None\n")
    code = (
        "import torch.optim.optimizer as o\ndel o.register_optimizer_step_post_hook\nimport torch.utils.data.dataloader"
    )
    (site / "torch/optim/optimizer.py").write_text("register_optimizer_step_post_hook = None")
    done, _ = measure(site, code + "\nprint('trained')", "--measure-stages")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "stages are measured without torch.optim.optimizer" in done.stderr


def test_a_full_disk_ends_the_measurement_and_not_the_training(site: Path, tmp_path: Path) -> None:
    """As a full disk gives a file no room: writing to its memory would be a SIGBUS; and its log takes no word of it."""
    full = "import errno, os\ndef fail(*_): raise OSError(errno.ENOSPC, 'full')\nos.posix_fallocate = fail\n"
    environment = os.environ | {
        "EXPLSCHED_STAGES_DIRECTORY": str(tmp_path),
        "PYTHONPATH": f"{ROOT / 'wrappers/in_training'}:{site}:{ROOT}",
    }
    command = ["bash", "-c", 'exec "$0" -c "$1" 2> /dev/full', sys.executable, full + TRAINING + "print('trained')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert [path.stat().st_size for path in tmp_path.glob("*.stages")] == [0]


def test_collectives_of_a_release_without_a_compiler_are_measured(site: Path) -> None:
    (site / "torch/__init__.py").write_text(TORCH["__init__.py"].replace("compiler =", "no_compiler ="))
    done, told = measure(site, TRAINING, "--measure-stages")
    assert (done.returncode, [line for line in told if "stages" in line] == []) == (0, False), done.stderr


ON_GPU = """
import time
class cuda:
    is_capturing = False
    is_initialized = staticmethod(lambda: True)
    @classmethod
    def is_current_stream_capturing(cls):
        return cls.is_capturing
    class Event:
        def __init__(self, enable_timing):
            pass
        def record(self):
            self.spoils()
            self.time_s = time.monotonic()
        def query(self):
            self.spoils()
            return True
        def elapsed_time(self, later):
            return 1e3 * (later.time_s - self.time_s)
        def spoils(self):
            if cuda.is_capturing:
                print("operation not permitted when stream is capturing")
                raise RuntimeError
"""
CAPTURING = """
import torch
from types import SimpleNamespace
tensor = SimpleNamespace(is_cuda=True)
for step in range(400):
    torch.cuda.is_capturing = step == 200
    next(batches)
    time.sleep(0.003)
    all_reduce(tensor)
    optimizer.step()
"""


def test_a_cuda_graph_of_whole_steps_is_not_spoilt(site: Path) -> None:
    """Nobody may ask for an event while it is captured."""
    (site / "torch/__init__.py").write_text(TORCH["__init__.py"] + ON_GPU)
    head, _, _ = TRAINING.partition("for _ in")
    done, told = measure(site, head + CAPTURING, "--measure-stages")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "no longer measured" not in done.stderr
    _, reading, computing, talking = stages_ms(str([line for line in told if "stages" in line][-1]["stages"]))
    assert (reading >= 4, computing >= 3, talking >= 2) == (True, True, True)


LOADING = """
import multiprocessing, os, shutil
import torch.utils.data
from torch.utils.data._utils.fetch import _MapDatasetFetcher
def load():
    for _ in range(20):
        _MapDatasetFetcher().fetch()
shutil.rmtree(os.environ["EXPLSCHED_STAGES_DIRECTORY"])
worker = multiprocessing.get_context("fork").Process(target=load)
worker.start()
worker.join()
print(worker.exitcode)
"""
FETCH = (
    "class _MapDatasetFetcher:\n    def fetch(self):\n        return 1\n_IterableDatasetFetcher = _MapDatasetFetcher\n"
)


def test_a_loader_that_finds_no_place_for_its_counters_says_so_once(site: Path) -> None:
    """A cleaner of /tmp removes them in long trainings; each epoch has new loaders."""
    (site / "torch/utils/data/_utils").mkdir()
    (site / "torch/utils/data/_utils/__init__.py").touch()
    (site / "torch/utils/data/_utils/fetch.py").write_text(FETCH)
    worker = "from types import SimpleNamespace\nget_worker_info = lambda: SimpleNamespace(id=0)\n"
    (site / "torch/utils/data/__init__.py").write_text(worker)
    done, _ = measure(site, LOADING, "--measure-stages")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert done.stderr.count("stages are not measured: [Errno") == 1


def test_without_a_place_for_counters_the_command_runs_unmeasured(capsys: pytest.CaptureFixture[str]) -> None:
    with measured(given := {"SLURM_TMPDIR": "/proc"}) as environment:
        assert environment == given
    assert re.match(r"sxrun: stages are not measured: /proc/\S+: No such file", capsys.readouterr().err)


def test_a_file_system_without_locks_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("wrappers.runtime_directory.fcntl.flock", none)
    with measured(given := {"A": "1"}) as environment:
        assert environment == given
    [told] = [line for line in capsys.readouterr().err.splitlines() if "not measured" in line]
    assert re.match(r"sxrun: stages are not measured: /tmp/explsched-\S+: No locks available", told)
    assert not Path(told.split(": ")[2]).exists()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A job's own temporary directory, of which sxrun takes none with a long path."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_what_a_killed_sxrun_leaves_goes_with_the_next(site: Path, short_path: Path) -> None:
    """As when a job is cancelled and does not end in time."""
    environment = os.environ | {"SLURM_TMPDIR": str(short_path), "PYTHONPATH": f"{site}:{ROOT}"}
    command = [sys.executable, "-m", "wrappers.sxrun", "--measure-stages", "--"]

    def names_meanwhile() -> list[str]:
        look = [*command, "ls", str(short_path)]
        return subprocess.run(look, env=environment, capture_output=True, text=True, check=True).stdout.split()

    reading = [*command, "sh", "-c", "echo; exec cat"]
    killed = subprocess.Popen(reading, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    [left] = short_path.iterdir()
    assert left.name in names_meanwhile()  # it is in use
    killed.kill()
    killed.communicate()
    assert left.name not in names_meanwhile()
    assert list(short_path.iterdir()) == []


def counters(iterations: int, each_ms: int = 10, **more: int) -> Counters:
    """Of a process on a CPU that waits for batches for a tenth of its time, and computes the rest."""
    zeros = dict.fromkeys(Counters._fields, 0)
    whole = iterations * each_ms * MS
    computing = {"rest": whole * 9 // 10, "rests": iterations, "cpu": whole * 9 // 10, "cpus": iterations}
    return Counters(**zeros | {"iterations": iterations, "elapsed": whole, "waiting": whole // 10} | computing | more)


def test_loading_beside_the_computation_is_reading_too() -> None:
    loading = counters(110, workers=4, loading=500 * 24 * MS, batches=500, reads=100)  # of all iterations
    assert between(counters(10), loading) == MeasuredStages(10, 6, 9, 0)


def test_collectives_that_no_computation_hides_are_not_computing() -> None:
    ddp = counters(110, ddp_talking=20 * MS, ddp_exposed=5 * MS, ddp_iterations=5)
    assert between(counters(10), ddp) == MeasuredStages(10, 1, 8, 4)


def test_on_a_gpu_its_own_clock_counts() -> None:
    before, after = counters(10, is_on_gpu=1), counters(110, is_on_gpu=1, cpu=0, cpus=0, rest=540 * MS, rests=100)
    assert between(before._replace(rest=40 * MS, rests=0), after).gpu_ms == 5


def test_the_fastest_window_counts_whatever_comes_between() -> None:
    meter, told = Meter(), []
    elapsed = iterations = 0
    for look in range(40):
        slow = 2 if look < 10 or 20 <= look < 30 else 1  # shares its GPU, validates
        iterations, elapsed = iterations + 10, elapsed + slow * 100 * MS
        news = meter.look({"1": counters(iterations)._replace(elapsed=elapsed)})
        told += [news.iteration_ms] if news else []
    assert (told[0], told[-1]) == (20, 10)
    assert told == sorted(told, reverse=True)
