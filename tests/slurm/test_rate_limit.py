"""A slurmctld that limits each user's requests: the daemon stays below, and the whole order arrives all the same."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from slurm_plugin.client.capabilities import RATE_LIMIT
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import Config, OrderSection, ProgressSection
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, machine, up
from slurm_plugin.steering.controller import Controller
from tests.slurm.jobs import submit, until
from tests.slurm.users import STEERS, add_users, as_user

pytestmark = pytest.mark.slurm
BUCKET, JOBS = 30, 40


@pytest.fixture
def limited(needs_accounting: None, open_tmp: Path) -> Iterator[Cluster]:
    version = machine.slurm_version()
    if not RATE_LIMIT.is_in(version):
        pytest.skip(f"Slurm {version.release} has no rate limit, {RATE_LIMIT.since.release} brought it")
    limit = f"rl_enable,rl_bucket_size={BUCKET},rl_refill_rate=2"
    place = open_tmp / "rate-limited"
    cluster = up(ClusterSpec(nodes=1, accounting=True, extra=(("SlurmctldParameters", limit),)), place)
    add_users(cluster)
    yield cluster
    down(place)


def test_a_new_order_stays_below_the_limit(limited: Cluster, open_tmp: Path) -> None:
    submit(limited, "--gres=gpu:8")
    for _ in range(JOBS):
        submit(limited, "--gres=gpu:8")
    client = CliClient(environment=limited.env())
    until(lambda: any(job.state == "RUNNING" for job in client.jobs()), "one job runs, the others wait")
    config = Config(
        policy="fifo",
        interval_s=15.0,
        progress=ProgressSection(spool=open_tmp),
        order=OrderSection(scope="partition"),  # every job gets a site factor
    )

    def one_pass(controller: Controller) -> tuple[int, int]:
        made = controller.reconcile(time.time())
        return len(made.changes), len(made.failures)

    passes = 0
    while sum(bool(job.site_factor) for job in client.jobs()) < JOBS:
        ours = Controller(CliClient(environment=limited.env()), config)  # with the policy, which reads our files
        written, refused = as_user(STEERS, partial(one_pass, ours))
        assert 0 < written <= BUCKET
        assert refused == 0
        passes += 1
        assert passes <= math.ceil(JOBS / 10)
        time.sleep(config.interval_s)
    log = (limited.layout.logs / "slurmctld.log").read_text()
    assert "RPC rate limiting enabled" in log
    assert "rate limit exceeded" not in log
