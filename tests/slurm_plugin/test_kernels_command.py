"""`sexplsched kernels` as a user calls it."""

import json
import os
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from kernel_intercept.profile import store
from kernel_intercept.profile.store import ProfileError, Source
from tests.kernel_intercept.profiles import FILL, profile, stored
from tests.kernel_intercept.test_ncu import DETAILS, details, raw

ROOT = Path(__file__).parents[2]
CLIENT = {
    "pid": 77,
    "job": "42",
    "class": "best-effort",
    "request_permille": 250,
    "limit_permille": 500,
    "launches": 123456,
    "gpu_ns": 4_500_000_000,
    "waits": 17,
    "waited_ns": 12_500_000,
    "longest_wait_ns": 1_230_000,
    "passed": 3,
    "routed": 11,
    "look_ups": 12,
}
GPU = {"uuid": "GPU-01234567-89ab", "clients": [CLIENT, {**CLIENT, "pid": 78, "job": ""}]}
STATUS = {"policy": "quota", "gpus": [GPU]}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's profile file, not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("EXPLSCHED_KM_SOCKET", raising=False)
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    monkeypatch.setattr("kernel_intercept.profile.manager.TEMPORARY", str(tmp_path / "tmp"))
    return store.default_path()


@contextmanager
def manager(address: Path, answer: bytes) -> Iterator[None]:
    """Answers one status request, and checks that it is one."""
    address.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(address))
        server.listen()
        asked: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(100))
                connection.send(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()
        assert asked == [struct.pack("=IHH", 0x4D505845, 1, 4)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["kernels", *arguments])


def test_an_empty_table(file: Path) -> None:
    done = run()
    assert (done.exit_code, done.output) == (0, f"{file}: no kernels are known yet\n")


def test_kernels_are_ordered_by_total_time_and_readable(file: Path) -> None:
    cut = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0"
    profiles = [
        profile("small", samples=3, gpu_ns=1000),
        profile(cut, samples=100, gpu_ns=12_345, source=Source.NCU),
        profile(FILL, samples=10, gpu_ns=90_000),
    ]
    store.update(file, lambda _: profiles)
    lines = run().output.splitlines()
    assert [line.split()[-1] if "(" not in line else "fill" for line in lines[1:]] == [
        "at::native::elementwise_kernel<...>",
        "fill",
        "small",
    ]
    assert lines[1].split()[:9] == ["64,1,1", "256,1,1", "0", "9.0", "100", "12.3", "30.0", "40.0", "ncu"]
    shown = json.loads(run("--json").output)
    assert [row["total_ns"] for row in shown["kernels"]] == [1_234_500, 900_000, 3000]
    assert shown["kernels"][1]["mangled"] == FILL


def test_bad_lines_are_told_and_the_rest_is_shown(file: Path) -> None:
    store.update(file, lambda _: [profile()])
    with file.open("a") as stream:
        stream.writelines(["nonsense\n"] * 12)
    done = run()
    assert done.exit_code == 0
    assert done.stderr.count("found 1 columns, accepted are 11") == 10
    assert "and 2 more" in done.stderr
    assert "vectorized_elementwise_kernel" in done.stdout


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a job, short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sx-") as directory:
        monkeypatch.setenv("SLURM_TMPDIR", directory)
        yield Path(directory)


def test_the_clients_of_the_managers_of_this_machine(file: Path, short: Path) -> None:
    address = short / f"explsched-{os.geteuid()}-42-abc/km/kernel-manager.sock"
    with manager(address, json.dumps(STATUS).encode()):
        lines = run("--job", "42").output.splitlines()
    assert lines[0] == f"{address}: policy quota"
    expected = "01234567-89a 42 77 best-effort 25.0 50.0 123456 4500.0 17 12.5 1.23 3 11/12"
    assert [line.split() for line in lines[2:4]] == [expected.split(), []]
    address.unlink()
    with manager(address, json.dumps(STATUS).encode()):
        shown = json.loads(run("--json", "--socket", str(address)).output)
    assert shown["managers"] == [{"socket": str(address), **STATUS}]


def test_the_manager_that_slurm_starts_for_a_user(file: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernel_intercept.profile.manager.TEMPORARY", str(short))
    documented = re.search(r"manager_socket=/tmp/([^`]+)`", (ROOT / "docs/admin.md").read_text())
    assert documented
    address = short / documented[1].replace("%u", str(os.geteuid()))
    address.parent.mkdir()
    address.touch()
    assert "no kernel manager answers" in run("--job", "42").stderr  # it was asked


def test_a_job_that_no_manager_serves(file: Path) -> None:
    done = run("--job", "43")
    assert done.exit_code == 0
    assert "no manager on this machine serves job 43" in done.stderr


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"gpus": ', b"\xff"])
def test_a_manager_that_answers_nonsense(file: Path, short: Path, answer: bytes) -> None:
    with manager(short / "s", answer):
        done = run("--socket", str(short / "s"))
    assert "accepted is one JSON object" in str(done.exception)


def test_a_manager_that_is_gone_is_told(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_KM_SOCKET", str(tmp_path / "gone"))
    done = run()
    assert done.exit_code == 0
    assert f"{tmp_path}/gone: no kernel manager answers" in done.stderr
    assert run("--socket", str(tmp_path / "gone")).exit_code == 1


def test_import_and_forget(file: Path, tmp_path: Path) -> None:
    store.update(file, lambda _: [profile(FILL, samples=10, gpu_ns=5000)])
    export = tmp_path / "ncu.csv"
    export.write_text(
        "".join([*details(*DETAILS), *raw((FILL, "40", "9", "0", "12.5"), ("unknown<1>(T1)", "1", "1", "0", "1"))])
    )
    tried = run("import", str(export), "--dry-run")
    assert tried.stdout == "2 kernels of 3 launches would be imported\n"
    assert "'unknown<1>(T1)' is none of the 1 known kernels" in tried.stderr
    assert len(store.read(file).profiles) == 1
    refused = run("import", str(export), "--strict")
    assert (refused.exit_code, str(refused.exception)) == (1, f"{export}: 1 rows cannot be used, nothing is imported")
    assert run("import", str(export)).exit_code == 0
    [fill, triton] = sorted(stored(file), key=lambda p: p.name)
    assert (fill.source, fill.samples, fill.gpu_ns, fill.compute_permille) == (Source.NCU, 10, 5000, 125)
    assert (triton.name, triton.samples, triton.gpu_ns) == ("triton_poi_0", 0, 2570)

    assert run("forget", "*vectorized*", "-n").output == "1 kernels would be forgotten\n"
    assert len(stored(file)) == 2
    assert run("forget", "*vectorized*").output == "1 kernels forgotten\n"
    assert stored(file) == (triton,)
    assert "none of 1 kernels matches 'nothing'" in str(run("forget", "nothing").exception)
    assert run("forget", f"{triton.key.name_hash:016x}").exit_code == 0
    assert stored(file) == ()


@contextmanager
def forgetful_manager(address: Path, answers: Callable[[bytes], bytes]) -> Iterator[list[bytes]]:
    """Yields the messages it was sent, complete once the block has been left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(address))
        server.listen()
        asked: list[bytes] = []

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while message := connection.recv(100):
                    asked.append(message)
                    connection.send(answers(message))

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join()


def test_a_running_manager_forgets_too(file: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_KM_SOCKET", str(short / "s"))
    gone = profile("gone")
    store.update(file, lambda _: [gone, profile("kept")])
    with forgetful_manager(short / "s", answers=lambda message: message) as asked:
        done = run("forget", "gone")
    assert (done.exit_code, done.stderr) == (0, "")
    key = gone.key
    numbers = struct.unpack("=IHHQ8I", asked[0])
    assert numbers[:4] == (0x4D505845, 1, 6, key.name_hash)
    assert numbers[4:10] == (key.grid.x, key.grid.y, key.grid.z, key.block.x, key.block.y, key.block.z)
    assert (len(asked), *numbers[10:]) == (1, key.shared_bytes, key.compute_capability)


def test_a_manager_that_does_not_forget_is_told(file: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLSCHED_KM_SOCKET", str(short / "s"))
    store.update(file, lambda _: [profile("gone")])
    with forgetful_manager(short / "s", answers=lambda _: b"12345678no"):
        done = run("forget", "gone")
    assert "does not forget" in done.stderr
    assert stored(file) == ()


def test_what_is_no_export_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    export = tmp_path / "log.txt"
    export.write_text("step 1\n")
    assert f"{export}: no table with a column 'Kernel Name'" in str(run("import", str(export)).exception)
    assert run("import", str(tmp_path / "none")).exit_code == 2
    assert not file.exists()


# As ncu is called, and as it prints: to the file, where messages stand between, and nothing of its own elsewhere.
NCU = """#!/bin/sh
echo "$@" > {directory}/told
while [ "$1" != --log-file ]; do shift; done
cp {directory}/export.csv "$2"
shift 2
exec "$@"
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of an `ncu` on PATH, which prints what is in export.csv there."""
    directory = tmp_path / "nsight"
    directory.mkdir()
    (directory / "ncu").write_text(NCU.format(directory=directory))
    (directory / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def test_measure_runs_ncu_and_takes_its_figures_over(file: Path, stand_in: Path) -> None:
    store.update(file, lambda _: [profile(FILL, samples=10, gpu_ns=5000)])
    (stand_in / "export.csv").write_text("".join(raw((FILL, "40", "9", "0", "12.5"))))
    ran = stand_in / "ran"
    script = f"echo $EXPLSCHED_INTERCEPT > {ran}"
    tried = run("measure", "--launches", "7", "--dry-run", "--", "sh", "-c", script)
    assert (tried.exit_code, tried.output) == (0, "1 kernels of 1 launches would be imported\n")
    assert ran.read_text() == "off\n"  # the command runs, and its kernels are not held up
    told = (stand_in / "told").read_text().split()
    assert told[told.index("--launch-count") + 1] == "7"
    assert told[told.index("--metrics") + 1].split(",")[:3] == [
        "gpu__time_duration.sum",
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ]
    assert stored(file)[0].source is Source.TIMING
    assert run("measure", "true").exit_code == 0
    [fill] = stored(file)
    assert (fill.source, fill.samples, fill.gpu_ns, fill.bandwidth_permille) == (Source.NCU, 10, 5000, 400)


def test_measure_tells_of_a_command_that_fails_and_keeps_what_was_measured(file: Path, stand_in: Path) -> None:
    (stand_in / "export.csv").write_text("".join(raw((FILL, "40", "9", "0", "12.5"))))
    done = run("measure", "--", "sh", "-c", "exit 3")
    assert (done.exit_code, str(done.exception)) == (1, "sh ended with status 3; what was measured until then counts")
    assert len(stored(file)) == 1


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "==ERROR== ERR_NVGPUCTRPERM"),
        ("==PROF== Connected to process 7\n", "no kernel was launched"),
    ],
)
def test_measure_tells_why_there_is_nothing(file: Path, stand_in: Path, printed: str, reason: str) -> None:
    (stand_in / "export.csv").write_text(printed)
    assert f"{stand_in}/ncu ends with status 0 and has measured nothing: {reason}" in str(
        run("measure", "true").exception
    )
    assert not file.exists()


def test_measure_without_ncu_says_where_it_comes_from(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("measure", "true")
    assert isinstance(done.exception, ProfileError)
    assert "ncu is not on PATH: NVIDIA Nsight Compute comes with" in str(done.exception)


def test_the_help_shows_the_commands_to_type(file: Path) -> None:
    assert "srun --jobid=42 --overlap sexplsched kernels --job 42\n" in run("--help").output
    assert "--page raw --print-kernel-base mangled" in run("import", "--help").output


def test_refine_without_a_gpu_names_what_is_missing(file: Path, tmp_path: Path) -> None:
    done = run("refine", "--trace", str(tmp_path / "trace"), "--gpu", "GPU-0")
    assert isinstance(done.exception, ProfileError)
    assert "NVML cannot be used" in str(done.exception) or "GPU-0: " in str(done.exception)
