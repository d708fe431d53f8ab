"""What the interposer adds to kernel launches, on the fake driver: no GPU is needed.

Prints medians over the repetitions:

- `passthrough_p50_ns`, `passthrough_p99_ns`: added by the interposer alone, without a kernel manager
  (`absent_p50_ns`: with one that the environment names and that is not there);
- `credit_p50_ns`: added when the launch is paid for at once, in a best-effort client of a manager that has a second,
  idle client (`credit_alone_p50_ns`: without the second one);
- `gated_p50_ns`: the same beside an idle high-priority client: every sixteenth launch puts a wait into the stream;
- `announced_p50_ns`: added to the launches of a high-priority client beside an idle best-effort one;
- `wake_p99_us`: from the manager's grant of a waiting launch until its client runs again (`wake_p50_us`: usually),
  and `futex_p99_us`: the same for a process that only sleeps and wakes, in turns with it; `one_core_`, `two_cores_`:
  with both on one core, or one core each. A halted core takes its time to come back, above all a virtual one.
  `wake_above_futex_p50_us` and `wake_above_futex_p99_us`: the difference, what of it is ours;
- `preload_ms`: added to the start and end of a program that has nothing to do with CUDA.

Added time is measured in one process that launches in turns through the interposer and through the driver's own
function. A p50 is the difference of the medians. A p99 is what 99 % of the launches through the interposer stay under,
less the median of the bare ones: the bare launch's own tail counts as added time, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from explsched.job_options.table import SHARE

_ROUNDS = 20_000  # of 32 launches each
_WAKES = 1_500
_STARTS = 100


@click.command()
@click.option(
    "--build", default="build/native", show_default=True, type=click.Path(path_type=Path), help="CMake build."
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1, 100), help="Repetitions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(build: Path, repeats: int, as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """Measure the added time of launches and of wake-ups."""
    build = build.resolve()
    if not (build / "benchmarks/launch_times").exists():
        raise click.ClickException(f"{build}: no native build here; run scripts/native, or name one with --build")
    runs = [_measure(build) for _ in range(repeats)]
    figures = {name: round(median(run[name] for run in runs), 2) for name in runs[0]}
    if as_json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:<24} {value:.2f}" for name, value in figures.items()))


def _measure(build: Path) -> dict[str, float]:
    interposed = {
        **os.environ,
        "LD_LIBRARY_PATH": str(build / "tests/kernel/fakecuda/fakecuda"),
        "LD_PRELOAD": str(build / "kernel_intercept/interposer/libexplsched_intercept.so"),
    }
    passthrough = _launch_times(build, interposed)
    absent = _launch_times(build, {**interposed, "EXPLSCHED_KM_SOCKET": "/nonexistent/kernel-manager.sock"})
    with _manager(build) as socket:
        managed = {
            **interposed,
            "EXPLSCHED_KM_SOCKET": socket,
            SHARE.variable: "best-effort",
        }
        high = {**managed, SHARE.variable: "high"}
        alone = _launch_times(build, managed)
        with _idle_client(build, managed):
            beside = _launch_times(build, managed)
            announced = _launch_times(build, high)
        with _idle_client(build, high):
            gated = _launch_times(build, managed)
    wakes = _wakes(build)
    return {
        "passthrough_p50_ns": passthrough["seen_p50"] - passthrough["bare_p50"],
        "passthrough_p99_ns": passthrough["seen_single_p99"] - passthrough["bare_single_p50"],
        "credit_p50_ns": beside["seen_p50"] - beside["bare_p50"],
        "gated_p50_ns": gated["seen_p50"] - gated["bare_p50"],
        "announced_p50_ns": announced["seen_p50"] - announced["bare_p50"],
        "wake_p99_us": wakes.pop("wake_p99_us"),
        "preload_ms": _preload_ms(interposed["LD_PRELOAD"]),
        "absent_p50_ns": absent["seen_p50"] - absent["bare_p50"],
        "bare_p50_ns": passthrough["bare_p50"],
        "bare_p99_ns": passthrough["bare_single_p99"] - passthrough["bare_single_p50"],
        "credit_alone_p50_ns": alone["seen_p50"] - alone["bare_p50"],
        **wakes,
    }


def _preload_ms(library: str) -> float:
    def run_ms(environment: Mapping[str, str]) -> float:
        began_s = time.perf_counter()
        subprocess.run(["true"], env=environment, check=True)
        return (time.perf_counter() - began_s) * 1e3

    bare, preloaded = {"PATH": os.environ["PATH"]}, {"PATH": os.environ["PATH"], "LD_PRELOAD": library}
    times_ms = [(run_ms(bare), run_ms(preloaded)) for _ in range(_STARTS)]
    return median(with_ms for _, with_ms in times_ms) - median(without_ms for without_ms, _ in times_ms)


def _launch_times(build: Path, environment: Mapping[str, str]) -> dict[str, float]:
    command: list[str | Path] = [build / "benchmarks/launch_times", str(_ROUNDS)]
    times = json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    if not times.pop("intercepted"):
        raise RuntimeError("the interposer is not between the program and the driver")
    return dict(times)


@contextmanager
def _manager(build: Path) -> Iterator[str]:
    """A kernel manager of its own; yields its socket."""
    with tempfile.TemporaryDirectory(prefix="kernel-overhead-") as home:  # mode 0700
        profiles = f"{home}/profiles.tsv"
        command: list[str | Path] = [build / "kernel_intercept/manager/sexplkmd", "--dir", home, "--profiles", profiles]
        process = subprocess.Popen([*command, "--foreground"])
        socket = Path(home) / "kernel-manager.sock"
        try:
            while not socket.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"sexplkmd ended with {process.returncode}")
                time.sleep(0.01)
            yield str(socket)
            _check_that_nobody_waited(command)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=10)


def _check_that_nobody_waited(command: Sequence[str | Path]) -> None:
    status = subprocess.run([*command, "--status"], capture_output=True, text=True, check=True).stdout
    clients = [client for gpu in json.loads(status)["gpus"] for client in gpu["clients"]]
    if any(client["waits"] or client["passed"] for client in clients):
        raise RuntimeError(
            f"launches waited or passed unpaid, so the time with credit is not what was measured: {clients}"
        )


@contextmanager
def _idle_client(build: Path, environment: Mapping[str, str]) -> Iterator[None]:
    command: list[str | Path] = [build / "benchmarks/launch_times", "idle"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline() != "idle\n":
            raise RuntimeError("the idle client could not launch")
        yield
    finally:
        process.communicate()


def _wakes(build: Path) -> dict[str, float]:
    manager = build / "kernel_intercept/manager/sexplkmd"
    command: list[str | Path] = [build / "tests/kernel/manager/wake_latency", manager, str(_WAKES)]
    wakes = dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    del wakes["count"]
    above = {f"wake_above_futex_{p}_us": wakes[f"wake_{p}_us"] - wakes[f"futex_{p}_us"] for p in ("p50", "p99")}
    return {**wakes, **above}


if __name__ == "__main__":
    main()
