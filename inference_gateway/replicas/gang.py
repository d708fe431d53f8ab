"""A replica over several nodes of one job: the first runs the server that the gateway knows, the others its workers.

Slurm starts and ends the nodes of a job together. The first node's wrapper starts the workers by `srun`; when one of
them ends, the whole job ends, and the gateway starts another. All are told the same place to meet, in placeholders of
their commands and in the variables that torchrun and its likes read. `python -m inference_gateway.replicas.gang` is
what runs on the other nodes. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference_gateway.replicas.staging import Stage, StagingError


@dataclass(frozen=True, slots=True)
class Gang:
    """So many nodes that meet at a port of the first one's address."""

    nodes: int
    leader: str
    port: int

    def placeholders(self, rank: int) -> dict[str, str]:
        """What is replaced in the command on the node of this rank, from 0."""
        words = {"nodes": self.nodes, "rank": rank, "leader": self.leader, "leader_port": self.port}
        return {f"{{{name}}}": str(value) for name, value in words.items()}

    def environment(self, rank: int) -> dict[str, str]:
        """The variables of the node of this rank."""
        own = {"NODES": self.nodes, "RANK": rank, "LEADER": self.leader, "LEADER_PORT": self.port}
        common = {"NNODES": self.nodes, "NODE_RANK": rank, "MASTER_ADDR": self.leader, "MASTER_PORT": self.port}
        found = {f"EXPLSCHED_{name}": value for name, value in own.items()}
        found |= {
            name: value for kind in ("", "PET_") for name, value in ((f"{kind}{key}", common[key]) for key in common)
        }
        return {name: str(value) for name, value in found.items()}

    def workers(self, words: Sequence[str], values: Mapping[str, str], stage: Stage | None) -> list[str]:
        """The command that runs `words` on the other nodes. `values` are the placeholders that all nodes share."""
        others = str(self.nodes - 1)
        steps = ["srun", "--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", "--mem=0"]
        cpus = os.environ.get("SLURM_CPUS_PER_TASK", "1")
        own = ["--nodes", str(self.nodes), "--leader", self.leader, "--leader-port", str(self.port)]
        own += [f"--value={name}={value}" for name, value in values.items()]
        own += ["--stage", str(stage.source), str(stage.target)] if stage else []
        module = [sys.executable, "-m", "inference_gateway.replicas.gang", *own, "--", *words]
        return [*steps, f"--cpus-per-task={cpus}", "--kill-on-bad-exit=1", *module]


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """The words with placeholders replaced; any other braces stay."""
    done = list(words)
    for placeholder, value in values.items():
        done = [word.replace(placeholder, value) for word in done]
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the worker of this node."""
    parser = argparse.ArgumentParser(prog="gang", description=__doc__, allow_abbrev=False)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--leader", required=True)
    parser.add_argument("--leader-port", type=int, required=True)
    parser.add_argument("--value", action="append", default=[], help="a placeholder and what it stands for")
    parser.add_argument("--stage", nargs=2, type=Path, metavar=("SOURCE", "TARGET"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    gang = Gang(options.nodes, options.leader, options.leader_port)
    rank = int(os.environ["SLURM_PROCID"]) + 1
    values = dict(value.split("=", 1) for value in options.value) | gang.placeholders(rank)
    try:
        if options.stage:
            Stage(*options.stage).bring()
        words = filled(options.command[1:], values)
        os.execvpe(words[0], words, {**os.environ, **gang.environment(rank)})  # noqa: S606  no shell is wanted
    except (StagingError, OSError) as error:
        sys.stderr.write(f"replica, node {rank}: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
