"""An inference server and a training on one real GPU: `python -m benchmarks.kernel_share_real --json`.

Arms: each alone; both in time slices; both under CUDA MPS; both under MPS with explsched, the server as high-priority
and the training as best-effort. Every round runs all arms, with the same Poisson arrivals of requests; the figures are
medians of the ratios within rounds. Needs an NVIDIA GPU, its driver with nvidia-cuda-mps-control, and a CUDA build of
torch. The last line is JSON with device, driver and date; `--out` keeps it, from the first arm on, so that a run that
is cut off has measured something:

    python -m benchmarks.kernel_share_real --json --out benchmarks/results/kernel_share_h200.json

takes about half an hour; with `--rounds 1 --seconds 10`, less than ten minutes. Where MPS cannot run (in many
containers), `--without-mps` measures what is left: what the gate adds to a step, and both sides in time slices.

First each side runs alone twice, so that its kernels are known: once for their times, once while NVML's counters are
observed for their shares (Hopper or newer). `--profiles` brings shares measured by ncu instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from benchmarks.kernel_share_arms import ARMS, ArmError, Setup, Side, base_environment, run, without_mps
from benchmarks.kernel_share_figures import Report, arm_figures, summary
from wrappers import kernel_manager, mps

_LEARN_WINDOW_S = 0.25


@dataclass(frozen=True, slots=True)
class Machine:
    """On what it was measured."""

    device: str
    uuid: str
    driver: str
    cuda: str
    torch: str
    date: str


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(min=1), help="Length of each run.")
@click.option("--load", default=0.3, show_default=True, type=click.FloatRange(0.01, 0.95),
              help="Requests arrive at this share of the server's own capacity.")  # fmt: skip
@click.option("--inference", "served", default="resnet50", show_default=True,
              type=click.Choice(["resnet50", "transformer", "tiny"]))  # fmt: skip
@click.option("--training", "trained", default="resnet50", show_default=True,
              type=click.Choice(["resnet50", "transformer", "tiny"]))  # fmt: skip
@click.option("--profiles", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Profile file to start from, instead of learning shares from NVML's counters.")  # fmt: skip
@click.option("--without-mps", "no_mps", is_flag=True, help="Leave out what needs CUDA MPS.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Keep the JSON here, too.")
@click.option("--json", "as_json", is_flag=True, help="Print nothing but the JSON.")
@click.option("--cpu", is_flag=True, hidden=True, help="Try this program out; the figures mean nothing.")
def main(
    rounds: int,
    seconds: float,
    load: float,
    served: str,
    trained: str,
    profiles: Path | None,
    no_mps: bool,  # noqa: FBT001
    out: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
    cpu: bool,  # noqa: FBT001
) -> None:
    """Measure what sharing a real GPU costs and brings."""
    machine = _cpu() if cpu else _gpu()
    if not cpu and not no_mps:
        _check_mps()
    arms = without_mps(ARMS) if no_mps else ARMS
    library = _checked_library()
    with tempfile.TemporaryDirectory(prefix="sx-") as name:
        directory = Path(name)
        setup = Setup(
            models={"inference": served, "training": trained},
            device="cpu" if cpu else "cuda",
            seconds=seconds,
            rate=None,
            directory=directory,
            library=library,
            environment=base_environment(directory),
        )
        try:
            learned = _learn(setup, arms, machine.uuid, profiles)
            capacity = run([Side("inference")], setup, 0, {})["inference"]["rate"]
            setup = replace(setup, rate=load * capacity)
            measured: list[dict[str, Report]] = []
            for number in range(rounds):
                measured.append({})
                for arm, sides in arms.items():
                    measured[-1][arm] = run(sides, setup, number + 1, {})
                    if not as_json:
                        click.echo(f"round {number + 1}, {arm}: {arm_figures(measured[-1][arm])}")
                    text = _result(machine, setup, load, capacity, learned, measured)
                    if out is not None:
                        out.write_text(text + "\n")
        except ArmError as error:
            raise click.ClickException(str(error)) from error
    click.echo(text)


def _result(
    machine: Machine, setup: Setup, load: float, capacity: float, learned: str, measured: Sequence[Mapping[str, Report]]
) -> str:
    return json.dumps(
        {
            **asdict(machine),
            "models": setup.models,
            "seconds": setup.seconds,
            "load": load,
            "requests_per_s": round(load * capacity, 3),
            "profiles": learned,
            **summary(measured, load),
            "rounds": [{arm: arm_figures(reports) for arm, reports in round_.items()} for round_ in measured],
        }
    )


# In a process of its own: a CUDA context of ours would lie on the GPU while others are measured.
_PROBE = """
import json, torch
there = torch.cuda.is_available()
found = torch.cuda.get_device_properties(0) if there else None
words = {"there": there, "torch": torch.__version__, "cuda": torch.version.cuda}
print(json.dumps({**words, "device": found.name, "uuid": str(found.uuid)} if found else words))
"""


def _gpu() -> Machine:
    """The GPU that CUDA calls 0. Raises ClickException, with what is missing, where there is none."""
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("torch is not installed; a CUDA build is needed: https://pytorch.org/get-started")
    done = subprocess.run([sys.executable, "-c", _PROBE], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException("torch cannot look for GPUs; its message is above")
    found = json.loads(done.stdout)
    if not found["there"]:
        build = f"built for CUDA {found['cuda']}" if found["cuda"] else "a CPU build"
        raise click.ClickException(
            f"no CUDA GPU can be used here (torch {found['torch']} is {build}); run it on a GPU node, "
            "or the virtual GPU instead: python -m benchmarks.kernel_share --virtual --json"
        )
    uuid = f"GPU-{found['uuid'].removeprefix('GPU-')}"
    return Machine(found["device"], uuid, _driver(), str(found["cuda"]), found["torch"], _today())


def _check_mps() -> None:
    try:
        mps.control(os.environ)
    except mps.MpsError as error:
        raise click.ClickException(f"{error}; --without-mps measures the rest") from error


def _cpu() -> Machine:
    import torch

    return Machine("cpu: a try of the program, not a measurement", "", "", "", torch.__version__, _today())


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _checked_library() -> Path:
    try:
        library = kernel_manager.library(os.environ)
        kernel_manager.manager(os.environ)
    except kernel_manager.NotInstalledError as error:
        raise click.ClickException(str(error)) from error
    fault = kernel_manager.preload_fault(library, os.environ)
    if fault:
        raise click.ClickException(f"{library} cannot be preloaded: {fault}")
    return library


def _learn(setup: Setup, arms: Mapping[str, Sequence[Side]], uuid: str, profiles: Path | None) -> str:
    """Make the kernels of both sides known; returns how."""
    place = setup.directory / "explsched" / "kernels-v1.tsv"
    place.parent.mkdir(mode=0o700)
    if profiles is not None:
        shutil.copy(profiles, place)
    [training] = arms["training managed"]
    sides = [replace(training, role=role) for role in setup.models]
    for side in sides:
        run([side], setup, 0, {})
    if profiles is not None or not uuid:
        return "as given" if profiles is not None else "times only"
    words = []
    for side in sides:
        trace = setup.directory / f"trace-{side.role}"
        trace.touch()
        windows = int(setup.seconds / _LEARN_WINDOW_S)
        argv = [sys.executable, "-m", "explsched.cli", "kernels", "refine", "--trace", str(trace)]
        argv += ["--gpu", uuid, "--windows", str(windows), "--window", str(_LEARN_WINDOW_S)]
        observer = subprocess.Popen(
            argv, env=setup.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        run([side], replace(setup, seconds=2 * setup.seconds), 0, {"EXPLSCHED_TRACE": str(trace)})
        text, _ = observer.communicate()
        words.append(f"{side.role}: {text.strip()}")
    return "; ".join(words)


if __name__ == "__main__":
    main()
