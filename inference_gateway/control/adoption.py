"""Which replicas there are: Slurm's word first, the state file's second. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.transitions import ACTIVE, LOST_AFTER_S
from inference_gateway.model import ServerState
from inference_gateway.replicas.submission import parse_tag
from slurm_plugin.client.records import SlurmJob


def adopted(
    jobs: Mapping[str, SlurmJob], remembered: Sequence[Replica], servers: Sequence[ServerState], now_s: float
) -> tuple[Replica, ...]:
    """The replicas behind the jobs that carry the gateway's tag.

    A job that nobody remembers is taken as it is; one that the data plane sends requests to serves. What is remembered
    without a job is gone, but for a submission so fresh that Slurm may not have it yet: it stays, so that it is not
    made a second time.
    """
    known = {replica.name: replica for replica in remembered}
    serving = {server.name: server for server in servers if server.state in ("up", "down")}
    found: list[Replica] = []
    for name, job in jobs.items():
        tag = parse_tag(job.comment)
        if tag is None or job.state not in ACTIVE:
            continue
        replica = known.get(name)
        if replica is None or replica.phase is Phase.SUBMITTING:
            fresh = Replica(tag.service, name, tag.generation, Phase.PENDING, now_s, job.submit_s, job_id=job.job_id)
            replica = replace(fresh, burst=replica.burst) if replica else fresh
            server = serving.get(name)
            if server is not None and job.state == "RUNNING":
                served = replace(replica, host=server.host, port=server.port, restarts=job.restarts)
                replica = served.to(Phase.SERVING, now_s)
        found.append(replica)
    fresh_submissions = [
        replica
        for replica in remembered
        if replica.phase is Phase.SUBMITTING and replica.name not in jobs and now_s - replica.asked_s < LOST_AFTER_S
    ]
    return (*found, *fresh_submissions)
