"""Logs what became of groups from one pass to the next: one line an event."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from explsched.log import event
from slurm_plugin.steering.groups.grouping import Device, LiveGroup

_LOG = logging.getLogger("explsched.groups")


def log_groups(before: Sequence[LiveGroup], now: Sequence[LiveGroup]) -> None:
    """Log the differences between the groups of two passes."""
    for level, message, group in differences(before, now):
        jobs = ",".join(map(str, group.job_ids))
        event(_LOG, level, message, group=group.number, of=group.size, jobs=jobs, devices=_devices(group))


def differences(before: Sequence[LiveGroup], now: Sequence[LiveGroup]) -> Iterator[tuple[int, str, LiveGroup]]:
    """(level, what happened, the group) of every group that is new, verified, apart or over."""
    known = {(group.number, group.size): group for group in before}
    for group in now:
        last = known.pop((group.number, group.size), None)
        if not group.running:
            continue  # which of those that wait will be together may change with every pass
        if last is None or not last.running:
            yield logging.INFO, "group starts", group
        if not group.is_complete:
            continue
        was = last.verified if last is not None and last.is_complete else None
        if group.verified is False and was is not False:
            yield logging.WARNING, "group is apart: Slurm chose different GPUs, its jobs run ungrouped", group
        elif group.verified and not group.waiting and not (was and last is not None and not last.waiting):
            yield logging.INFO, "group verified: all its jobs run on the same GPU", group
    for group in known.values():
        if group.running:
            yield logging.INFO, "group dissolved", group


def device_name(device: Device) -> str:
    """GPUs as in `n1:0` or `n1:0,1+n2:0`; empty if they are not known."""
    return "+".join(f"{node}:{','.join(map(str, indices))}" for node, indices in device)


def _devices(group: LiveGroup) -> str:
    return " ".join(sorted({device_name(device) or "unknown" for _, device in group.running}))
