"""The arms of `benchmarks.kernel_share_real`: who runs beside whom, and under what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

_SXRUN = (sys.executable, "-m", "wrappers.sxrun")
_READY_S, _MARGIN_S = 300.0, 300.0


class ArmError(Exception):
    """A worker failed; the message says which, and where."""


@dataclass(frozen=True, slots=True)
class Side:
    """One process of an arm: its role, and the options of the sxrun around it (None: no sxrun)."""

    role: str
    options: tuple[str, ...] | None = None
    preload: bool = False  # only the library, without a manager: everything passes through


ARMS: Mapping[str, tuple[Side, ...]] = {
    "inference alone": (Side("inference"),),
    "training alone": (Side("training"),),
    "time-slicing": (Side("inference"), Side("training")),
    "mps": (Side("inference", ("--mps",)), Side("training", ("--mps",))),
    "explsched": (
        Side("inference", ("--mps", "--share", "high")),
        Side("training", ("--mps", "--share", "best-effort")),
    ),
    "inference managed": (Side("inference", ("--mps", "--share", "high")),),
    "training managed": (Side("training", ("--mps", "--share", "best-effort")),),
    "training preloaded": (Side("training", preload=True),),
}


def without_mps(arms: Mapping[str, tuple[Side, ...]]) -> dict[str, tuple[Side, ...]]:
    """The arms that are left where there is no MPS: processes take turns, and the gate chooses whose turn it is."""
    return {
        name: tuple(
            replace(side, options=tuple(word for word in side.options if word != "--mps")) if side.options else side
            for side in sides
        )
        for name, sides in arms.items()
        if name != "mps"
    }


@dataclass(frozen=True, slots=True)
class Setup:
    """What all arms have in common. `models` names one per role; `rate` is in requests per second."""

    models: Mapping[str, str]
    device: str
    seconds: float
    rate: float | None
    directory: Path
    library: Path
    environment: Mapping[str, str]


def base_environment(directory: Path) -> dict[str, str]:
    """Our own environment without anything that shares a GPU, and with a profile file of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXPLSCHED_", "CUDA_MPS_"))}
    places = {name: os.environ[name] for name in ("EXPLSCHED_INTERCEPT_LIBRARY", "EXPLSCHED_KM") if name in os.environ}
    nowhere = directory / "no-mps"  # a daemon at the default place would serve the arms without MPS, too
    nowhere.mkdir()
    return {**kept, **places, "XDG_CACHE_HOME": str(directory), "CUDA_MPS_PIPE_DIRECTORY": str(nowhere)}


def run(sides: Sequence[Side], setup: Setup, seed: int, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Run the sides at the same time; returns what each reports, by role. Raises `ArmError`."""
    with ExitStack() as stack:
        started = []
        for side in sides:
            process = stack.enter_context(_start(side, setup, seed, variables))
            stack.callback(process.terminate)  # before the context waits for it; nothing if it has ended
            started.append((side, process))
        for side, process in started:
            _await_ready(side, process)
        for _, process in started:
            _let_go(process)
        return {side.role: _result(side, process, setup.seconds + _MARGIN_S) for side, process in started}


def _start(side: Side, setup: Setup, seed: int, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    argv = [] if side.options is None else [*_SXRUN, *side.options, "--"]
    argv += [sys.executable, "-m", "benchmarks.kernel_share_worker", side.role, "--model", setup.models[side.role]]
    argv += ["--device", setup.device, "--seconds", str(setup.seconds), "--seed", str(seed)]
    if side.role == "inference" and setup.rate is not None:
        argv += ["--rate", str(setup.rate)]
    preloaded = {"LD_PRELOAD": str(setup.library)} if side.preload else {}
    environment = {**setup.environment, **preloaded, **variables}
    return subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _await_ready(side: Side, process: subprocess.Popen[str]) -> None:
    if _open(process.stdout).readline() != "ready\n":
        raise ArmError(f"the {side.role} ended with status {process.wait(_READY_S)} before it was ready")


def _let_go(process: subprocess.Popen[str]) -> None:
    stream = _open(process.stdin)
    stream.write("\n")
    stream.flush()


def _open(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ArmError("a worker was started without pipes")
    return stream


def _result(side: Side, process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ArmError(f"the {side.role} has not ended after {timeout_s:.0f} s") from None
    if process.returncode:
        raise ArmError(f"the {side.role} ended with status {process.returncode}")
    return checked(side, json.loads(text))


def checked(side: Side, found: dict[str, Any]) -> dict[str, Any]:
    """What a worker reports, if it ran as its side asks: sxrun runs its command in any case. Raises `ArmError`."""
    options = side.options or ()
    if "--mps" in options and not found["mps"]:
        raise ArmError(f"the {side.role} ran without CUDA MPS; see the message of sxrun above")
    if "--share" in options and found["gate"] is None:
        raise ArmError(f"the {side.role} ran without a kernel manager; see the message of sxrun above")
    return found
