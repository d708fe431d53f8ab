"""A machine that poses as a GPU node: stand-ins for the interposer, the kernel manager and CUDA MPS."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_MPS = """#!/bin/bash
echo "$* pipe=$CUDA_MPS_PIPE_DIRECTORY visible=$CUDA_VISIBLE_DEVICES" >> "$STAND_IN_LOG"
pid_file=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if [ "$1" = -d ]; then
  [ -z "$STAND_IN_MPS_FAULT" ] || { echo "$STAND_IN_MPS_FAULT" >&2; exit 1; }
  echo "$*" > "$CUDA_MPS_PIPE_DIRECTORY/arguments"
  sleep 600 &
  echo $! > "$pid_file"
  mkfifo -m 600 "$CUDA_MPS_PIPE_DIRECTORY/control"
else
  read -r word
  echo "$word" >> "$STAND_IN_LOG"
  kill -KILL "$(cat "$pid_file")"
  rm "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
"""
# Tells its signal mask, which must be empty.
_MANAGER = """#!{python}
import os, signal, socket, sys
log = open(os.environ["STAND_IN_LOG"], "a", buffering=1)
masked = signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
print("manager starts", *sys.argv[1:], "masked", len(masked), file=log)
if fault := os.environ.get("STAND_IN_MANAGER_FAULT"):
    sys.exit(fault)
directory = sys.argv[sys.argv.index("--dir") + 1]
os.makedirs(directory, 0o700, exist_ok=True)
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
address = directory + "/kernel-manager.sock"
if os.path.exists(address):
    os.unlink(address)  # of one that was killed
server.bind(address)
server.listen(64)
signal.sigwait({{signal.SIGTERM}})
print("manager ends", file=log)
"""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    def variables(self) -> dict[str, str]:
        """The output of env(1)."""
        return dict(line.split("=", 1) for line in self.out.splitlines() if "=" in line)


@dataclass(frozen=True, slots=True)
class GpuNode:
    """Where the stand-ins are, and the environment of a job on the node."""

    directory: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def library(self) -> Path:
        return self.directory / "libstand_in.so"

    def log(self) -> list[str]:
        """What the stand-ins were told, line by line."""
        path = self.directory / "log"
        return path.read_text().splitlines() if path.exists() else []

    def rooms(self) -> list[Path]:
        return list((self.directory / "tmp").iterdir())

    def start(self, *arguments: str, inherited: Collection[int] = (), **variables: str) -> subprocess.Popen[str]:
        running = subprocess.Popen(
            [sys.executable, "-m", "wrappers.sxrun", *arguments],
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )
        self.started.append(running)
        return running

    def sxrun(self, *arguments: str, **variables: str) -> Done:
        running = self.start(*arguments, **variables)
        out, err = running.communicate()
        return Done(running.returncode, out, err)


@contextmanager
def gpu_node() -> Iterator[GpuNode]:
    """A node of one test. A test that fails leaves nothing running: it would warn in another test, much later."""
    # Not tmp_path: it is too long for sockets, as many a job's directory.
    with tempfile.TemporaryDirectory(prefix="sx-") as directory:
        node = _build(Path(directory))
        try:
            yield node
        finally:
            for running in node.started:
                running.terminate()  # sxrun passes it on; nothing happens to one that has ended
                running.communicate()


def _build(directory: Path) -> GpuNode:
    programs, temporary = directory / "bin", directory / "tmp"
    for each in (programs, temporary):
        each.mkdir()
    _program(programs / "nvidia-cuda-mps-control", _MPS)
    _program(directory / "sexplkmd", _MANAGER.format(python=sys.executable))
    source = directory / "stand_in.c"
    source.write_text("int stand_in_for_the_interposer(void) { return 7; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", directory / "libstand_in.so", source], check=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "EXPLSCHED_", "SLURM_"))}
    ours = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "42",
        "EXPLSCHED_CHECKPOINT": "USR1",  # else Slurm would be asked what the job's comment says
        "SLURM_TMPDIR": str(temporary),
        "EXPLSCHED_PROGRESS_FILE": str(directory / "progress"),
        "EXPLSCHED_INTERCEPT_LIBRARY": str(directory / "libstand_in.so"),
        "EXPLSCHED_KM": str(directory / "sexplkmd"),
        "STAND_IN_LOG": str(directory / "log"),
    }
    return GpuNode(directory, {**kept, **ours})


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
