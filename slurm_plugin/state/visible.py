"""Who may see what of a published state.

Slurm's `PrivateData` may hide other people's jobs, nodes, partitions and reservations; what a job reports is its
owner's unless the site says otherwise. A page and the daemon's socket have many readers: what is the same for all of
them is worked out once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from slurm_plugin.state.published import (
    HIDDEN,
    PROGRESS,
    Change,
    Curve,
    Explanation,
    JobRow,
    NodeRow,
    PlanLine,
    State,
    encoded,
    part,
)

_NUMBER = re.compile(r"\d+")
_One = TypeVar("_One")


class Visible:
    """A state, and what each user may see of it."""

    def __init__(self, state: State) -> None:
        """All that does not depend on the reader."""
        self.state = state
        if not state.private:
            return
        self._explained = part(state.explanations, tuple[Explanation, ...])
        self._owner = {one.jobid: one.user for one in self._explained}
        self._jobs_of: defaultdict[str, set[int]] = defaultdict(set)
        for job_id, user in self._owner.items():
            self._jobs_of[user].add(job_id)
        self._rows = _by_user((row.user, at) for at, row in enumerate(state.jobs))
        self._sentences = _by_user((one.user, at) for at, one in enumerate(self._explained))
        self._curves = _by_user((one.user, one) for one in part(state.curves, tuple[Curve, ...]))
        self._plan = part(state.plan, tuple[PlanLine, ...])
        self._lines = _by_user((self._owner_of(line), at) for at, line in enumerate(self._plan))
        self._changes = part(state.changes, tuple[Change, ...])
        if state.private == (PROGRESS,):
            self._open_rows = [_without_report(row) for row in state.jobs]
            self._open_sentences = [replace(one, sentences=one.sentences[:1]) for one in self._explained]
            self._open_lines = [replace(line, text="") for line in self._plan]

    def of(self, user: str) -> State:
        """What a user may see: all of it, all but what others' jobs report, or only what is his."""
        if not self.state.private:
            return self.state
        return self._all_jobs(user) if self.state.private == (PROGRESS,) else self._own_jobs(user)

    def _owner_of(self, line: PlanLine) -> str | None:
        """Whose jobs a line of the plan is about; None if they are several users'."""
        owners = {self._owner.get(job_id) for job_id in line.jobs}
        return owners.pop() if len(owners) == 1 else None

    def _all_jobs(self, user: str) -> State:
        """Everybody's jobs, but what they report and what follows from it for the user's own only."""
        lines = _with_own(self._open_lines, self._plan, self._lines.get(user, ()))
        sentences = _with_own(self._open_sentences, self._explained, self._sentences.get(user, ()))
        return replace(
            self.state,
            jobs=tuple(_with_own(self._open_rows, self.state.jobs, self._rows.get(user, ()))),
            explanations=encoded(sentences),
            curves=encoded(self._curves.get(user, [])),
            plan=encoded(lines),
        )

    def _own_jobs(self, user: str) -> State:
        """The user's own jobs only, and no id of another's in any text."""
        state, ours = self.state, self._jobs_of.get(user, set())
        words = _Words({str(job_id) for job_id in self._owner.keys() - ours})
        own_rows = (state.jobs[at] for at in self._rows.get(user, ()))
        rows = (replace(row, reason=words.of(row.reason), sharing=words.of(row.sharing)) for row in own_rows)
        sentences = [self._explained[at] for at in self._sentences.get(user, ())]
        lines = [self._plan[at] for at in self._lines.get(user, ())]
        shows_nodes = "nodes" not in state.private
        return replace(
            state,
            jobs=tuple(rows),
            nodes=tuple(_with_holders(node, ours) for node in state.nodes if shows_nodes),
            leases=tuple(lease for lease in state.leases if lease.job in ours),
            samples=state.samples if shows_nodes else (),
            explanations=encoded([replace(one, sentences=tuple(map(words.of, one.sentences))) for one in sentences]),
            curves=encoded(self._curves.get(user, [])),
            plan=encoded([replace(line, text=words.of(line.text)) for line in lines]),
            changes=encoded(
                [replace(change, text=words.of(change.text)) for change in self._changes if change.jobid in ours]
            ),
        )


class _Words:
    """Texts without the ids of hidden jobs. A number that happens to be such an id goes, too."""

    def __init__(self, hidden: Container[str]) -> None:
        self._hidden = hidden

    def of(self, text: str) -> str:
        return _NUMBER.sub(lambda found: "another" if found[0] in self._hidden else found[0], text)


def _by_user(found: Iterable[tuple[str | None, _One]]) -> Mapping[str | None, list[_One]]:
    grouped: defaultdict[str | None, list[_One]] = defaultdict(list)
    for user, one in found:
        grouped[user].append(one)
    return dict(grouped)


def _with_own(others: list[_One], all_of_it: tuple[_One, ...], own: Iterable[int]) -> list[_One]:
    """What is open to everybody, with the user's own in full."""
    found = others.copy()
    for at in own:
        found[at] = all_of_it[at]
    return found


def _without_report(row: JobRow) -> JobRow:
    reason = row.reason.partition(";")[0] if row.planned else ""
    return replace(
        row, step="-", value=None, utility=None, score=None, params="", params_changed=0, malformed=0, reason=reason
    )


def _with_holders(node: NodeRow, ours: Container[int]) -> NodeRow:
    return replace(
        node,
        jobs=tuple(held for held in node.jobs if held[0] in ours),
        devices=tuple(tuple(job if job in ours else HIDDEN for job in holders) for holders in node.devices),
    )
