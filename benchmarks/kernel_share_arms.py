"""The arms of `benchmarks.kernel_share_real`: who runs beside whom, and under what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from typing import IO, Any, cast

from wrappers import kernel_manager, mps

_SXRUN = (sys.executable, "-m", "wrappers.sxrun")
_END_S = 20.0
LOAD = 0.3  # requests arrive at this share of the server's own capacity


class ArmError(Exception):
    """A side failed or did not run as it should; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One process of an arm: its role, and what the sxrun around it gets before the command (none: no sxrun)."""

    role: str
    options: tuple[str, ...] = ()


Pair = tuple[Side, Side]
_HIGH, _BEST_EFFORT = ("--share", "high"), ("--share", "best-effort")
_BELOW = ("--", "env", *(f"{name}={value}" for name, value in mps.BELOW_NORMAL.items()))  # not for MPS's daemon

ARMS: Mapping[str, Pair] = {
    "time slices": (Side("inference"), Side("training")),
    "mps": (Side("inference", ("--mps",)), Side("training", ("--mps",))),
    "mps with client priority": (Side("inference", ("--mps",)), Side("training", ("--mps", *_BELOW))),
    "explsched": (Side("inference", ("--mps", *_HIGH)), Side("training", ("--mps", *_BEST_EFFORT))),
    "explsched without mps": (Side("inference", _HIGH), Side("training", _BEST_EFFORT)),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What all arms have in common. `models` names one per role."""

    models: Mapping[str, str]
    device: str
    eager: bool
    seconds: float
    environment: Mapping[str, str]

    @property
    def patience_s(self) -> float:
        """How long a side may take to answer: a server with too many requests takes longer than they come."""
        return 120.0 + 3 * self.seconds


def base_environment(directory: Path) -> dict[str, str]:
    """Our own environment without anything that shares a GPU, and with a profile file of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXPLSCHED_", "CUDA_MPS_"))}
    places = ("EXPLSCHED_INTERCEPT_LIBRARY", "EXPLSCHED_KM", "EXPLSCHED_GATE")
    ours = {name: os.environ[name] for name in places if name in os.environ}
    nowhere = directory / "no-mps"  # a daemon at the default place would serve the arms without MPS, too
    nowhere.mkdir()
    return {**kept, **ours, "XDG_CACHE_HOME": str(directory), "CUDA_MPS_PIPE_DIRECTORY": str(nowhere)}


class Worker:
    """A side's process, which answers each line by a line of JSON. Its first one says that it is ready."""

    def __init__(self, side: Side, setup: Setup) -> None:
        argv = [*_SXRUN, *side.options] if side.options else []
        argv += [sys.executable, "-m", "benchmarks.kernel_share_worker", side.role, setup.device]
        argv += ["--model", setup.models.get(side.role, "tiny"), *(["--eager"] if setup.eager else [])]
        self._side, self._patience_s = side, setup.patience_s
        self._process = subprocess.Popen(
            argv, env=setup.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._input, self._output = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def ask(self, line: str) -> dict[str, Any]:
        """Tell the worker something and wait for its answer. Raises `ArmError`."""
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        """Tell the worker something; one that has ended shows when it is heard."""
        with suppress(BrokenPipeError):
            self._input.write(f"{line}\n")
            self._input.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for the next answer. Raises `ArmError`, also if the side does not run as it should."""
        timer = Timer(self._patience_s, self._process.terminate)
        timer.start()
        line = next((line for line in self._output if line.startswith("{")), None)
        timer.cancel()
        if line is None:
            status = self._process.wait(_END_S)
            raise ArmError(f"the {self._side.role} ended (status {status}), or took {self._patience_s:.0f} s")
        return checked(self._side, json.loads(line))

    def close(self) -> None:
        """End the worker: it reads the end of its input, or is made to end."""
        for end in (self._input.close, self._process.terminate, self._process.kill):
            with suppress(BrokenPipeError):
                end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
                break
        self._output.close()


def run(sides: Pair, setup: Setup, rate: float | None) -> dict[str, Any]:
    """What the phases of one arm give. The first arm, without a rate of requests, also tells what each side can do."""
    found: dict[str, Any] = {}
    began_s = time.monotonic()
    try:
        check_installed(sides, setup.environment)
        with ExitStack() as stack:
            server, training = (stack.enter_context(closing(Worker(side, setup))) for side in sides)
            found["machine"] = server.hear()["machine"]
            training.hear()
            found["ready_s"] = round(time.monotonic() - began_s, 1)
            if rate is None:
                found["capacity"] = server.ask(f"{setup.seconds / 3}")
                found["training_alone"] = training.ask(f"{setup.seconds / 2}")
                rate = LOAD * found["capacity"]["rate"]
            found["alone"] = server.ask(f"{setup.seconds * 2 / 3} {rate}")
            # As long as the server takes: it may have requests left after `seconds`.
            training.tell(f"{setup.patience_s}")
            found["both"] = server.ask(f"{setup.seconds} {rate}")
            found["training"] = training.ask("stop")
    except ArmError as error:
        found["failed"] = str(error)
    return found


def outputs(sides: Pair, setup: Setup, rate: float | None, steps: int = 150) -> dict[str, Any]:
    """Whether a deterministic training computes the same, bit by bit, beside the server as without sxrun and alone."""
    found: dict[str, Any] = {}
    try:
        check_installed(sides, setup.environment)
        if rate is None:
            raise ArmError("the server's capacity is not known: no arm could measure it")
        three = (sides[0], replace(sides[1], role="outputs"), Side("outputs"))
        with ExitStack() as stack:
            workers = [stack.enter_context(closing(Worker(side, setup))) for side in three]
            for worker in workers:
                worker.hear()
            server, beside, alone = workers
            found["alone"] = alone.ask(f"{steps}")
            server.tell(f"{setup.patience_s} {rate}")
            found["beside"] = beside.ask(f"{steps}")
            found["equal"] = found["alone"]["digests"] == found["beside"]["digests"]
    except ArmError as error:
        found["failed"] = str(error)
    return found


def check_installed(sides: Pair, environment: Mapping[str, str]) -> None:
    """Raise `ArmError` if something is missing that the sides need."""
    options = sides[0].options
    try:
        if "--mps" in options:
            mps.control(environment)
        if "--share" in options:
            kernel_manager.manager(environment)
            library = kernel_manager.library(environment)
            if fault := kernel_manager.preload_fault(library, environment):
                raise ArmError(f"{library} cannot be preloaded: {fault}")
    except (mps.MpsError, kernel_manager.NotInstalledError) as error:
        raise ArmError(str(error)) from error


def checked(side: Side, found: dict[str, Any]) -> dict[str, Any]:
    """What a worker reports, if it runs as its side asks: sxrun runs its command in any case. Raises `ArmError`."""
    if "failed" in found:
        raise ArmError(f"the {side.role} failed: {found['failed']}")
    if "--mps" in side.options and not found["mps"]:
        raise ArmError(f"the {side.role} ran without CUDA MPS; see the message of sxrun above")
    if "--share" in side.options and not found["gate"]:
        known = "a kernel manager" if found["gate"] is None else "its kernels managed: the manager does not know it"
        raise ArmError(f"the {side.role} ran without {known}; see the message of sxrun above")
    return found
