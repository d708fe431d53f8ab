"""Policies that choose nodes, on a real cluster: what they plan is where jobs run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests.slurm.jobs import a_daemon, command, config, empty, run, submit, until

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def parted(needs_slurm: None, open_tmp: Path) -> Iterator[Cluster]:
    """GPUs in parts: two nodes with one each."""
    yield up(ClusterSpec(nodes=2, gpus_per_node=1, shards_per_node=8), open_tmp / "parts")
    down(open_tmp / "parts")


@pytest.fixture
def parts(parted: Cluster) -> Iterator[CliClient]:
    yield CliClient(environment=parted.env())
    empty(parted)


@contextmanager
def steered(cluster: Cluster, spool: Path, policy: str) -> Iterator[Path]:
    """A daemon that has begun to look; its log."""
    log = spool.parent / "log"
    with a_daemon(cluster, spool.parent, config(spool, policy)):
        until(lambda: log.exists() and " pass " in log.read_text(), "the daemon works")
        yield log


def jobs(client: CliClient) -> dict[int, SlurmJob]:
    return {job.job_id: job for job in client.jobs()}


def nodes(client: CliClient) -> dict[int, tuple[str, ...]]:
    return {job_id: job.node_names for job_id, job in jobs(client).items()}


@contextmanager
def all_cpus_taken(cluster: Cluster) -> Iterator[None]:
    """Slurm starts nothing more, so that a plan can be there first: the daemon plans with GPUs."""
    client = CliClient(environment=cluster.env())
    free = dict.fromkeys(cluster.spec.node_names, cluster.spec.cpus_per_node)
    for job in client.jobs():
        for name in job.node_names:
            free[name] -= job.cpus
    takers = [submit(cluster, f"--nodelist={name}", f"--ntasks={cpus}", "--mem=100") for name, cpus in free.items()]
    until(lambda: all(jobs(client)[taker].state == "RUNNING" for taker in takers), "all CPUs are taken")
    yield
    run(cluster, "scancel", *map(str, takers))


def run_planned(cluster: Cluster, log: Path, pins: int, *submissions: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Where jobs run that Slurm may start when the daemon has seen so many of them pinned to their nodes."""
    client = CliClient(environment=cluster.env())
    with all_cpus_taken(cluster):
        started = [submit(cluster, *options) for options in submissions]
        until(lambda: sum(bool(jobs(client)[job].required_nodes) for job in started) == pins, "the plan is in Slurm")
        before = passes(log)
        until(lambda: passes(log) > before + 1, "the next pass has seen it")
    return run_all(client, started)


def run_all(client: CliClient, started: Sequence[int]) -> list[tuple[str, ...]]:
    until(lambda: all(jobs(client)[job].state == "RUNNING" for job in started), "all run")
    return [nodes(client)[job] for job in started]


def passes(log: Path) -> int:
    return log.read_text().count(" pass ")


def share(request: float, limit: float) -> str:
    return f"--comment=explsched:request={request}&limit={limit}"


def test_parts_of_gpus_that_together_use_them_well(parted: Cluster, parts: CliClient, spool: Path) -> None:
    """Dilu: the second would ask for more than is left of the GPU where Slurm alone puts it."""
    shares = ((4, share(0.5, 0.7)), (4, share(0.6, 0.7)), (3, share(0.4, 0.7)))
    three = [(f"--gres=shard:{shards}", said) for shards, said in shares]
    assert run_all(parts, [submit(parted, *one) for one in three]) == [("n1",), ("n1",), ("n2",)]
    empty(parted)
    with steered(parted, spool, "dilu") as log:
        assert run_planned(parted, log, 3, *three) == [("n1",), ("n2",), ("n2",)]
        until(lambda: "group verified" in log.read_text(), "the two that share are found on one GPU")


COMPUTES, READS = "explsched:stages=100/10/90/0", "explsched:stages=100/90/10/0"
PAIRS = (
    # The shorter partner is the better one: both end sooner.
    ("sjf-bsbf", ("--time=300", COMPUTES), ("--time=20", COMPUTES), ("--time=20", READS)),
    # An opportunistic job goes into the gaps of a guaranteed one, and not beside its like.
    (
        "antman",
        ("--time=60", "explsched:job-class=opportunistic"),
        ("--time=60", COMPUTES),
        ("--time=60", "explsched:job-class=opportunistic"),
    ),
)


@pytest.mark.parametrize(("policy", "first", "second", "newcomer"), PAIRS, ids=("sjf-bsbf", "antman"))
def test_a_newcomer_shares_with_the_partner_that_the_policy_chooses(
    parted: Cluster,
    parts: CliClient,
    spool: Path,
    policy: str,
    first: tuple[str, str],
    second: tuple[str, str],
    newcomer: tuple[str, str],
) -> None:
    """Slurm alone puts it on the first node, beside the first one. It is told in how many parts its batch fits."""
    said = spool.parent / "said"
    script = f'{sys.executable} -m wrappers.sxrun -- sh -c "echo \\$EXPLSCHED_SUB_BATCHES >{said}; sleep 600"'

    def start(options: tuple[str, str], *more: str) -> int:
        limit, comment = options
        shards = ("--gres=shard:4", f"--comment={comment}", f"--chdir={ROOT}")
        return submit(parted, *shards, limit, *more, script=script)

    there = [start(first, "--nodelist=n1"), start(second, "--nodelist=n2")]
    until(lambda: all(jobs(parts)[job].state == "RUNNING" for job in there), "both run")
    with steered(parted, spool, policy) as log:
        with all_cpus_taken(parted):
            job = start(newcomer)
            until(lambda: jobs(parts)[job].required_nodes == ("n2",), "it is given its node")
        until(lambda: jobs(parts)[job].state == "RUNNING", "it runs")
        until(lambda: "group verified" in log.read_text(), "the two are found on one GPU")
    until(lambda: said.exists() and said.read_text() == "2\n", "it knows that half of the GPU's memory is its")


ONE_GPU = ("--gres=gpu:1",)


def test_slurm_alone_packs(small: Cluster, client: CliClient) -> None:
    assert run_all(client, [submit(small, *ONE_GPU) for _ in range(3)]) == [("n1",)] * 3


@pytest.mark.parametrize(("policy", "pins"), [("balanced", 3), ("simple", 2)])
def test_each_node_gets_its_jobs(small: Cluster, client: CliClient, policy: str, pins: int, spool: Path) -> None:
    """Balanced: the node with fewer jobs. Simple: idle nodes while there are any; the third is left to Slurm."""
    with steered(small, spool, policy) as log:
        found = run_planned(small, log, pins, *[ONE_GPU] * 3)
        assert found[:2] == [("n1",), ("n2",)]
        until(lambda: log.read_text().count("placement verified") >= 2, "it was looked at where they run")
        assert "another node" not in log.read_text()


def test_jobs_that_name_their_node_keep_it(small: Cluster, client: CliClient, spool: Path) -> None:
    with steered(small, spool, "balanced") as log:
        named = run_all(client, [submit(small, *ONE_GPU, "--nodelist=n1") for _ in range(2)])
        assert [*named, *run_planned(small, log, 1, ONE_GPU)] == [("n1",), ("n1",), ("n2",)]


def test_pins_are_taken_back(small: Cluster, client: CliClient, spool: Path) -> None:
    """By the daemon when it stops, and by an admin when it was killed."""
    with all_cpus_taken(small):
        job = submit(small, *ONE_GPU)
        with a_daemon(small, spool.parent, config(spool, "balanced")):  # ends by SIGKILL
            until(lambda: jobs(client)[job].required_nodes == ("n1",), "it is pinned")
        assert jobs(client)[job].required_nodes == ("n1",)
        ours = [command("sexplsched"), "admin", "reset", "--config", str(spool.parent / "explsched.yaml")]
        run(small, *ours)
        assert jobs(client)[job].required_nodes == ()
        assert jobs(client)[job].admin_comment == ""


@pytest.fixture(scope="module")
def switched(needs_slurm: None, open_tmp: Path) -> Iterator[Cluster]:
    """Two switches with two nodes each, so that neighbours by name are not near each other."""
    switches = "SwitchName=s1 Nodes=n[1,3]\nSwitchName=s2 Nodes=n[2,4]\nSwitchName=root Switches=s[1-2]\n"
    tree = ClusterSpec(
        nodes=4,
        gpus_per_node=1,
        shards_per_node=0,
        extra=(("TopologyPlugin", "topology/tree"),),
        files=(("topology.conf", switches),),
    )
    yield up(tree, open_tmp / "switched")
    down(open_tmp / "switched")


def test_a_gang_is_leased_below_one_switch(switched: Cluster, spool: Path) -> None:
    """By name the first two nodes would be n1 and n2, below two switches."""
    client = CliClient(environment=switched.env())
    busy = [submit(switched, "--gres=gpu:1", f"--nodelist={name}", "--time=30") for name in ("n1", "n2", "n3", "n4")]
    until(lambda: all(jobs(client)[job].state == "RUNNING" for job in busy), "all nodes are taken")
    gang = submit(switched, "--nodes=2", "--gpus-per-node=1", "--time=60")
    with a_daemon(switched, spool.parent, config(spool, "fifo")):
        until(lambda: bool(client.reservations()), "the gang has a lease")
        assert [lease.nodes for lease in client.reservations()] == [("n1", "n3")]
        told = run(switched, command("sexplsched"), "explain", str(gang), "--config", f"{spool.parent}/explsched.yaml")
        assert "Its 2 nodes are near each other, below s1." in told
