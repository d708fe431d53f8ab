"""Groups of jobs on one GPU, on a real cluster: planned, started together, verified, dissolved, and under fire."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kernel_intercept.profile import manager
from kernel_intercept.profile.store import ProfileError
from slurm_plugin.client.changes import SetAdminComment, TargetJob
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ShardRule
from slurm_plugin.devcluster import Cluster, ClusterSpec, DevClusterError, down, sharing, up
from slurm_plugin.devcluster.sharing import GPUS, KINDS, PER_GPU, Native, Site
from slurm_plugin.steering.grouping import LiveGroup, live_groups
from slurm_plugin.steering.release import choice, free_shards
from tests.slurm.jobs import command, environment, final_state, run, state_of, submit, until
from wrappers import kernel_manager
from wrappers.kernel_manager import NotInstalledError

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "build" / "native"


@contextmanager
def cluster_of(place: Path, spec: ClusterSpec) -> Iterator[Cluster]:
    try:
        cluster = up(spec, place / "c")
    except DevClusterError as error:
        if "Bad SelectTypeParameter" not in str(error):
            raise
        pytest.skip("this Slurm does not know LL_SHARED_GRES")  # 22.05 does not
    yield cluster
    down(place / "c")


@pytest.fixture(scope="module")
def native() -> Native:
    """The native build with the interposer's GPU double."""
    try:
        return Native.of(NATIVE, kernel_manager.library(os.environ), kernel_manager.manager(os.environ))
    except (NotInstalledError, FileNotFoundError) as error:
        pytest.skip(str(error))


@pytest.fixture
def site(place: Path, native: Native) -> Iterator[Site]:
    with cluster_of(place, sharing.SPEC) as cluster:
        yield sharing.prepare(place, cluster, native)


@contextmanager
def daemon(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    process = site.start_daemon()
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def groups(site: Site) -> list[LiveGroup]:
    return [group for group in live_groups(site.client.jobs()) if group.is_complete]


def launches(site: Site) -> dict[int, tuple[Path, int]]:
    """By job of this cluster: the manager that serves it, and its kernel launches so far."""
    found: dict[int, tuple[Path, int]] = {}
    for path in manager.sockets(None, os.geteuid()):
        try:
            answer = manager.ask(path).answer
        except (ProfileError, OSError):
            continue  # somebody else's, on its way up or down
        clients = [client for gpu in answer["gpus"] for client in gpu["clients"]]
        ours = [client for client in clients if client["job"] and belongs_to(site, int(client["pid"]))]
        found |= {int(client["job"]): (path, int(client["launches"])) for client in ours}
    return found


def belongs_to(site: Site, pid: int) -> bool:
    """Whether a process runs in a job of this cluster: others run beside it, and number their jobs alike."""
    try:
        return f"SLURM_CONF={site.environment['SLURM_CONF']}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except FileNotFoundError:
        return False  # it has ended


def all_progress(site: Site, jobs: list[int]) -> bool:
    before = launches(site)
    time.sleep(1.0)
    now = launches(site)
    return all(job in before and job in now and now[job][1] > before[job][1] for job in jobs)


def is_gone(client: CliClient, job_id: int) -> bool:
    return state_of(client, job_id) == "GONE"


def test_a_group_of_four_on_one_gpu(site: Site) -> None:
    """Planned while the GPUs are busy, started together, verified; each progresses; one ends, the others go on."""
    filler = site.filler(GPUS)  # one by one, a pass between two of them would plan for one GPU
    until(lambda: state_of(site.client, filler) == "RUNNING", "the GPUs are busy")
    with daemon(site):
        kind = {site.member(KINDS[i // PER_GPU], 25.0): i // PER_GPU for i in range(GPUS * PER_GPU)}
        until(lambda: [group.size for group in groups(site)] == [PER_GPU] * GPUS, "groups are planned")
        assert {state_of(site.client, job) for job in kind} == {"PENDING"}
        run(site.cluster, "scancel", str(filler))
        until(lambda: [group.verified for group in groups(site)] == [True] * GPUS, "all run where they should")
        devices = {group.number: {device for _, device in group.running} for group in groups(site)}
        assert [len(device) for device in devices.values()] == [1] * GPUS
        assert len(set.union(*devices.values())) == GPUS
        first = groups(site)[0]
        for group in groups(site):  # those that suit each other, not those that were submitted together
            assert sum(kind[job] for job in group.job_ids) == PER_GPU // 2
            until(partial(all_progress, site, list(group.job_ids)), "each of them progresses")
            assert len({launches(site)[job][0] for job in group.job_ids}) == 1
        ours = [command("sexplsched"), "explain", str(first.job_ids[1]), "--config", str(site.product.config)]
        assert f"one of the 4 jobs of group {first.number}" in run(site.cluster, *ours)
        until(lambda: ": verified." in run(site.cluster, *ours), "the next pass has published that")

        run(site.cluster, "scancel", str(first.job_ids[0]))
        rest = list(first.job_ids[1:])
        until(lambda: [group.number for group in groups(site)] != [] and len(groups(site)) == 1, "it dissolves")
        until(lambda: all_progress(site, rest), "the others go on")
        others = [job for job in kind if job != first.job_ids[0]]
        until(lambda: site.client.jobs() == (), "all end")
        assert {final_state(site.cluster, job) for job in others} == {"COMPLETED"}
        until(lambda: site.log.read_text().count("group dissolved") == GPUS, "both groups are over")
    assert site.log.read_text().count("group verified") == GPUS


def test_groups_are_pinned_to_their_nodes(place: Path) -> None:
    """All CPUs are taken until the pins are there, which the daemon does not see: otherwise Slurm would be quicker."""
    spec = ClusterSpec(nodes=2, gpus_per_node=1, shards_per_node=PER_GPU)
    with cluster_of(place, spec) as cluster:
        site = Site(place, cluster, environment(cluster))
        site.product.install(sharing.SETTINGS)
        blocker = submit(cluster, "--nodes=2", "--exclusive")
        until(lambda: state_of(site.client, blocker) == "RUNNING", "all CPUs are taken")
        jobs = [
            submit(cluster, "--gres=shard:1", f"--comment=explsched:stages={KINDS[i // PER_GPU]}")
            for i in range(2 * PER_GPU)
        ]

        def pins() -> list[tuple[str, ...]]:
            return sorted(job.required_nodes for job in site.client.jobs() if job.job_id != blocker)

        def verified() -> set[frozenset[int]]:
            return {frozenset(group.job_ids) for group in groups(site) if group.verified}

        with daemon(site):
            until(lambda: pins() == [("n1",)] * PER_GPU + [("n2",)] * PER_GPU, "all are pinned")
            planned = {group.job_ids for group in groups(site)}
            run(cluster, "scancel", str(blocker))
            until(lambda: verified() == set(map(frozenset, planned)), "both groups run")
            assert all(sum(job in jobs[:PER_GPU] for job in group) == PER_GPU // 2 for group in planned)
            assert {device for group in groups(site) for _, device in group.running} == {
                (("n1", (0,)),),
                (("n2", (0,)),),
            }
            run(cluster, "scontrol", "requeue", str(jobs[0]))
            until(lambda: state_of(site.client, jobs[0]) == "PENDING", "one is requeued")
            until(
                lambda: () in pins() and [g.verified for g in groups(site)] == [True], "it is let go, its group is over"
            )
        assert "refused" not in site.log.read_text()


@pytest.mark.parametrize("rule", list(ShardRule))
def test_slurms_choice_of_gpus_is_foreseen(place: Path, rule: ShardRule) -> None:
    parameters = "CR_Core_Memory" + (",LL_SHARED_GRES" if rule is ShardRule.LEAST_LOADED else "")
    chance = random.Random(3)
    spec = ClusterSpec(nodes=1, gpus_per_node=3, shards_per_node=12, extra=(("SelectTypeParameters", parameters),))
    with cluster_of(place, spec) as cluster:
        client = CliClient(environment=cluster.env())
        (node,) = client.nodes()
        jobs: list[int] = []
        for _ in range(10):
            running = [job for job in client.jobs() if job.state == "RUNNING"]
            free = free_shards(node, running)
            assert free is not None
            wanted = chance.randint(1, 3)
            expected = choice(free, wanted, rule)
            if expected is None:
                gone = chance.choice(running).job_id
                run(cluster, "scancel", str(gone))
                until(partial(is_gone, client, gone), "it has ended")
                continue
            jobs.append(submit(cluster, f"--gres=shard:{wanted}"))
            until(lambda: state_of(client, jobs[-1]) == "RUNNING", "it runs")
            seen = client.look()
            assert {job.job_id: job.gpu_indices for job in seen.jobs}[jobs[-1]] == (("n1", (expected,)),)
            assert seen.shard_rule is rule


def test_pins_go_with_the_daemon_and_other_words_stay(site: Site) -> None:
    fillers = [site.filler() for _ in range(GPUS)]
    until(lambda: {state_of(site.client, job) for job in fillers} == {"RUNNING"}, "the GPUs are busy")
    waits = submit(site.cluster, "--gres=shard:1")
    mark = "JS1:a= explsched-group:group=1&of=2&node=n1&since=5"
    assert site.client.apply([TargetJob(waits, ("n1",), mark)]) == ()

    def job() -> tuple[tuple[str, ...], str]:
        (found,) = [job for job in site.client.jobs() if job.job_id == waits]
        return found.required_nodes, found.admin_comment

    assert job() == (("n1",), mark)
    refused = site.client.apply([TargetJob(fillers[0], ("n2",), "x"), SetAdminComment(fillers[1], "y")])
    assert [failure.change for failure in refused] == [TargetJob(fillers[0], ("n2",), "x")]
    config = site.product.config
    config.write_text(config.read_text().replace("interval_s: 1.0", "interval_s: 600.0"))
    with daemon(site):
        until(lambda: site.log.exists() and " pass " in site.log.read_text(), "the daemon works")
        assert site.client.apply([TargetJob(waits, ("n1",), mark)]) == ()
    assert job() == ((), "JS1:a=")
