"""The word we leave in a job's AdminComment, so that another process or a restarted daemon knows what is ours.

`explsched:group=12&of=4&node=n1&since=1700000000`: planned as one of 4 jobs on a GPU, group 12, and pinned to node n1.
`explsched:pause=1700000600`: left to Slurm until then, because it did not start where it was meant to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

PREFIX = "explsched:"
_TEXT = re.compile(
    rf"{PREFIX}(?=.)(?:group=(?P<group>\d+)&of=(?P<size>\d+)(?:&|$))?"
    r"(?:node=(?P<node>[^&\s]+)&since=(?P<since>\d+)(?:&|$))?(?:pause=(?P<pause>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Mark:
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
    def of(cls, admin_comment: str) -> Self | None:
        """The mark in a job's AdminComment; None if that is empty or somebody else's."""
        match = _TEXT.fullmatch(admin_comment)
        if match is None:
            return None
        group = int(match["group"]) if match["group"] else None
        return cls(
            group, int(match["size"] or 0), match["node"] or "", int(match["since"] or 0), int(match["pause"] or 0)
        )

    def __str__(self) -> str:
        words = [f"group={self.group}&of={self.size}"] if self.group is not None else []
        words += [f"node={self.node}&since={self.since_s}"] if self.node else []
        words += [f"pause={self.pause_s}"] if self.pause_s else []
        return PREFIX + "&".join(words) if words else ""
