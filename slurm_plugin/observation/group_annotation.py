"""What the daemon notes of a job that shares GPUs or is placed: its group, its pin, its pause. Pure.

The state is one entry in the job's AdminComment, so that another process or a restarted daemon can read it:
`explsched-group:group=12&of=4&node=n1&since=1700000000`: planned as one of 4 jobs on a GPU, and pinned to node n1.
`explsched-group:pause=1700000600`: left to Slurm until then, because it did not start on its planned node.
Other entries of the AdminComment stay.
"""

from __future__ import annotations

import re
from typing import Self

from msgspec import Struct

from slurm_plugin.client.records import SlurmJob

PREFIX = "explsched-group:"
_WORD = re.compile(
    rf"{PREFIX}(?=.)(?:group=(?P<group>\d+)&of=(?P<size>\d+)(?:&|$))?"
    r"(?:node=(?P<node>[^&\s]+)&since=(?P<since>\d+)(?:&|$))?(?:pause=(?P<pause>\d+))?"
)
_KEPT = re.compile(r"[A-Za-z0-9_.:=&@%+,/-]*")
_LONGEST = 900  # bytes; Slurm refuses more than 1024


class GroupAnnotation(Struct, frozen=True):
    """What is known of one job.

    Attributes:
        group: the group's number, None for a job that is in none.
        size: how many jobs the group has.
        node: the node that the job was pinned to while it waited, "" for none.
        since_s: when it was pinned.
        pause_s: until when the job is left to Slurm, 0 for not at all.

    """

    group: int | None = None
    size: int = 0
    node: str = ""
    since_s: int = 0
    pause_s: int = 0

    @classmethod
    def of(cls, admin_comment: str) -> Self:
        """The annotation in a job's AdminComment, an empty one where there is none."""
        if PREFIX not in admin_comment:
            return cls()
        match = next(filter(None, map(_WORD.fullmatch, admin_comment.split())), None)
        if match is None:
            return cls()
        group = int(match["group"]) if match["group"] else None
        return cls(
            group, int(match["size"] or 0), match["node"] or "", int(match["since"] or 0), int(match["pause"] or 0)
        )

    def __str__(self) -> str:
        words = [f"group={self.group}&of={self.size}"] if self.group is not None else []
        words += [f"node={self.node}&since={self.since_s}"] if self.node else []
        words += [f"pause={self.pause_s}"] if self.pause_s else []
        return PREFIX + "&".join(words) if words else ""

    def written(self, admin_comment: str) -> str:
        """The AdminComment with this annotation in it."""
        return " ".join([*_others(admin_comment), *filter(None, [str(self)])])


def may_be_annotated(admin_comment: str) -> bool:
    """Whether there is room for an annotation, and nothing in the AdminComment that could not be written back."""
    kept = _others(admin_comment)
    return all(map(_KEPT.fullmatch, kept)) and len(" ".join(kept)) <= _LONGEST


def _others(admin_comment: str) -> list[str]:
    return [word for word in admin_comment.split() if not word.startswith(PREFIX)]


def is_pinned(record: SlurmJob) -> bool:
    """Whether the nodes that a job requires are the daemon's pin, and not its owner's."""
    return bool(record.required_nodes) and record.required_nodes == (GroupAnnotation.of(record.admin_comment).node,)
