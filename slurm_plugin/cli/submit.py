"""`sexplsched submit --config task.json`: the task files of the Go training scheduler, run by Slurm.

Fields: name, required_gpus, min_gpu_memory (MB), params. In params, `command` is what to run (a list of words, or one
shell line); every other entry is given to it as --key=value.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Meta

from explsched.errors import ExplschedError

_EXAMPLES = """\b
example:
  sexplsched submit --config task.json --dry-run
"""


class TaskError(ExplschedError):
    """The task file cannot be used."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task as its file describes it."""

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
    required_gpus: Annotated[int, Meta(ge=0, le=100_000)] = 1
    min_gpu_memory: Annotated[int, Meta(ge=0)] = 0
    params: dict[str, str | int | float | bool | list[str]] = {}

    def command(self) -> list[str]:
        """The words to run. Raises `TaskError` if the task names none."""
        given = self.params.get("command")
        if isinstance(given, str):
            words = shlex.split(given)
        elif isinstance(given, list):
            words = list(given)
        else:
            raise TaskError('params.command is missing: the program to run, e.g. ["python", "train.py"]')
        return words + [f"--{key}={value}" for key, value in self.params.items() if key != "command"]


def sbatch_arguments(task: Task, gpu_memory_feature: str | None) -> tuple[list[str], str]:
    """The sbatch command line and script of a task.

    Slurm knows no GPU memory; a site that marks its nodes with a feature per memory size names it.
    """
    argv = ["sbatch", "--parsable", f"--job-name={task.name}"]
    if task.required_gpus:
        argv.append(f"--gpus={task.required_gpus}")
    if gpu_memory_feature:
        argv.append(f"--constraint={gpu_memory_feature}")
    return argv, f"#!/bin/bash\nexec {shlex.join(['sxrun', '--', *task.command()])}\n"


@click.command(epilog=_EXAMPLES)
@click.option("--config", "task_path", required=True, type=click.Path(path_type=Path), help="Task file (JSON).")
@click.option("--constraint", help="Feature of nodes with enough GPU memory, needed if min_gpu_memory is set.")
@click.option("--dry-run", is_flag=True, help="Show the command and script, submit nothing.")
def submit(task_path: Path, constraint: str | None, dry_run: bool) -> None:  # noqa: FBT001  click passes by name
    """Submit a task file (JSON).

    It has name, required_gpus, min_gpu_memory and params.
    """
    task = read_task(task_path)
    if task.min_gpu_memory and not constraint:
        raise TaskError(
            f"{task_path}: min_gpu_memory is {task.min_gpu_memory}, but Slurm knows no GPU memory; name the feature of "
            "the nodes that have as much with --constraint (see `sinfo -o '%N %f %G'`), or set it to 0"
        )
    argv, script = sbatch_arguments(task, constraint)
    if dry_run:
        click.echo(f"# {shlex.join(argv)}\n{script}", nl=False)
        return
    try:
        done = subprocess.run(argv, input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TaskError("sbatch is not installed or not on PATH (Debian package slurm-client)") from error
    if done.returncode:
        raise TaskError(f"{task_path}: sbatch refused the task: {done.stderr.strip()}")
    click.echo(f"Submitted batch job {done.stdout.strip()}")


def read_task(path: Path) -> Task:
    """Read and check a task file. Raises `TaskError` naming file and field."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Task)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise TaskError(f"{path}: {error} (fields: {', '.join(Task.__struct_fields__)})") from error
