"""`sexplsched submit`: tasks of the Go training scheduler (Pewpenguin/training-scheduler), run by Slurm.

Fields of a task file: name, required_gpus, min_gpu_memory (MB), params. In params, `command` is what to run (a list of
words, or one shell line); every other entry is given to it as --key=value. Their own files name no command: it then
stands behind `--` on the command line.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Meta

from explsched.errors import ExplschedError
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.gpu_memory import gpu_memory_mib
from wrappers.template import SXRUN

_EXAMPLES = """\b
examples:
  sexplsched submit --config task.json --dry-run -- python train.py
  sexplsched submit --name resnet --gpus 2 -- python train.py --epochs=90
"""


_MB_PER_MIB = 1.048576


class TaskError(ExplschedError):
    """The task file cannot be used."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task as its file describes it."""

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
    required_gpus: Annotated[int, Meta(ge=0, le=100_000)] = 1
    min_gpu_memory: Annotated[int, Meta(ge=0)] = 0
    params: dict[str, str | int | float | bool | list[str]] = {}

    def command(self, typed: Sequence[str] = ()) -> list[str]:
        """The words to run: those typed, else the task's own. Raises `TaskError` if there are none."""
        given = list(typed) or self.params.get("command")
        if isinstance(given, str):
            words = shlex.split(given)
        elif isinstance(given, list):
            words = list(given)
        else:
            raise TaskError(
                "no command: give the program behind --, as in `submit --config task.json -- python train.py`, "
                'or in the file as params.command, e.g. ["python", "train.py"]'
            )
        return words + [f"--{key}={value}" for key, value in self.params.items() if key != "command"]


def sbatch_arguments(
    task: Task, constraint: str | None, typed: Sequence[str] = (), gpu_type: str = ""
) -> tuple[list[str], str]:
    """The sbatch command line and script of a task; features of nodes, or a type of GPUs, with enough GPU memory.

    A task is one process: all its GPUs are on one node, which `--gpus` alone does not ask for.
    """
    argv = ["sbatch", "--parsable", f"--job-name={task.name}"]
    if task.required_gpus:
        argv += ["--nodes=1", f"--gpus-per-node={gpu_type}{':' if gpu_type else ''}{task.required_gpus}"]
    if constraint:
        argv.append(f"--constraint={constraint}")
    return argv, f"#!/bin/bash\nexec {SXRUN} -- {shlex.join(task.command(typed))}\n"


@click.command(epilog=_EXAMPLES)
@click.option("--config", "task_path", type=click.Path(path_type=Path), help="Task file (JSON).")
@click.option("--name", help="Name of the task; overrides the file.")
@click.option("--gpus", type=click.IntRange(0, 100_000), help="GPUs; overrides required_gpus.")
@click.option("--memory", "memory_mb", type=click.IntRange(min=0), help="Memory per GPU, MB; overrides min_gpu_memory.")
@click.option("--constraint", help="Node features with enough GPU memory.  [default: from --memory]")
@click.option("--dry-run", is_flag=True, help="Show the command and script, submit nothing.")
@click.argument("command", nargs=-1)
def submit(
    *,
    task_path: Path | None,
    name: str | None,
    gpus: int | None,
    memory_mb: int | None,
    constraint: str | None,
    dry_run: bool,
    command: tuple[str, ...],
) -> None:
    """Submit a task as a job: a JSON file, options, or both.

    The file has name, required_gpus, min_gpu_memory and params, as those of training-scheduler (Pewpenguin, in Go).

    GPU memory is requested by node features that name a size (gpumem80g, 80gb ...) or a known model (a100-80gb, h100
    ...), or else by the smallest GPU type that does; see `sexplsched gpus`.
    """
    task = _task(task_path, {"name": name, "required_gpus": gpus, "min_gpu_memory": memory_mb})
    gpu_type = ""
    if task.min_gpu_memory and not constraint:
        constraint, gpu_type = _with_memory(task.min_gpu_memory)
    argv, script = sbatch_arguments(task, constraint, command, gpu_type)
    if dry_run:
        click.echo(f"# {shlex.join(argv)}\n{script}", nl=False)
        return
    try:
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError) as error:
        raise TaskError("sbatch is not installed or not on PATH (Debian package slurm-client)") from error
    if done.returncode:
        raise TaskError(f"{task.name}: sbatch refused the task: {done.stderr.strip()}")
    click.echo(f"Submitted batch job {done.stdout.strip()}")


def _task(path: Path | None, given: Mapping[str, object]) -> Task:
    """The task of a file, with what was given instead. Raises `TaskError`."""
    typed = {field: value for field, value in given.items() if value is not None}
    if path is None and "name" not in typed:
        raise click.UsageError("give --config FILE or --name NAME")
    fields = {**(msgspec.to_builtins(read_task(path)) if path else {}), **typed}
    try:
        return msgspec.convert(fields, Task)
    except msgspec.ValidationError as error:
        raise TaskError(str(error)) from error


def _with_memory(least_mb: int) -> tuple[str, str]:
    """Features of the nodes whose GPUs have so much memory; where no feature tells, the smallest type of GPUs that has.

    Slurm takes alternatives of features, but one type only. Raises `TaskError` where no GPU is known to have it.
    """
    nodes = [node for node in CliClient().nodes() if node.gpus]
    found = sorted({node.gpu_memory_feature for node in nodes if node.gpu_memory_mib * _MB_PER_MIB >= least_mb} - {""})
    if found:
        return "|".join(found), ""
    types = {name for node in nodes for name in node.gpu_types if gpu_memory_mib(name) * _MB_PER_MIB >= least_mb}
    if types:
        return "", min(types, key=lambda name: (gpu_memory_mib(name), name))
    largest = max((node.gpu_memory_mib for node in nodes), default=0)
    known = (
        f"the largest known has {largest} MiB"
        if largest
        else "no node has a feature that states it, or GPUs of a type that does"
    )
    raise TaskError(
        f"no GPU is known to have {least_mb} MB: {known}; name the feature of nodes that have with --constraint "
        "(see `sexplsched gpus`), or ask for 0"
    )


def read_task(path: Path) -> Task:
    """Read and check a task file. Raises `TaskError` naming file and field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Task)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TaskError(f"{path}: {error} (fields: {', '.join(Task.__struct_fields__)})") from error
