"""What each Slurm can do, from its release and its configuration."""

import pytest

from slurm_plugin.client.capabilities import (
    BACKFILL,
    CGROUPS_OFF,
    GPU_ACCOUNTING,
    GPU_RESERVATIONS,
    LUA_SUBMIT,
    RATE_LIMIT,
    SHARDS,
    SITE_FACTOR,
    TABLE,
    Capabilities,
    Capability,
    RateLimit,
    SlurmVersion,
    requeue_delay_s,
    respects_topology,
    settings,
)

CONFIG = """\
Configuration data as of 2026-01-02T03:04:05
AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages
GresTypes               = gpu,shard
JobSubmitPlugins        = (null)
PriorityType            = priority/multifactor
SchedulerType           = sched/backfill
SlurmctldParameters     = {parameters}

Slurmctld(primary) at vm is UP
"""


def found(version: str, parameters: str = "(null)") -> Capabilities:
    return Capabilities(SlurmVersion.read(version), settings(CONFIG.format(parameters=parameters)))


def present(capabilities: Capabilities) -> set[Capability]:
    return {capability for capability, there in capabilities if there}


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ("slurm-wlm 22.05.8", SlurmVersion(22, 5, 8)),
        ("slurm 25.11.7", SlurmVersion(25, 11, 7)),
        ("slurm 26.05.0-0rc1", SlurmVersion(26, 5, 0)),
        ("slurm 24.11", SlurmVersion(24, 11)),
    ],
)
def test_releases(words: str, version: SlurmVersion) -> None:
    assert SlurmVersion.read(words) == version
    assert str(version).startswith(version.release)


def test_words_without_a_release_are_an_error() -> None:
    with pytest.raises(ValueError, match="holds no version"):
        SlurmVersion.read("slurm")


@pytest.mark.parametrize(
    ("version", "more"),
    [("22.05.8", set()), ("23.11.0", {GPU_RESERVATIONS, CGROUPS_OFF}), ("26.05.5", {GPU_RESERVATIONS, CGROUPS_OFF})],
)
def test_what_releases_bring(version: str, more: set[Capability]) -> None:
    assert present(found(version)) == {SITE_FACTOR, BACKFILL, SHARDS} | more


def test_an_absence_is_explained() -> None:
    old, new = found("22.05.8"), found("24.11.5")
    assert old.absence(RATE_LIMIT) == "Slurm 23.02 brings it"
    assert new.absence(RATE_LIMIT) == "SlurmctldParameters is (null), without rl_enable"
    assert new.absence(GPU_RESERVATIONS) == ""
    assert all(old.absence(capability) for capability in TABLE if not old.has(capability))


@pytest.mark.parametrize(
    ("version", "parameters", "limit"),
    [
        ("24.11.5", "rl_enable", RateLimit(30, 2.0)),
        ("24.11.5", "idle_on_node_suspend,rl_enable,rl_bucket_size=100,rl_refill_rate=10,rl_refill_period=2",
         RateLimit(100, 5.0)),
        ("24.11.5", "rl_bucket_size=100", None),
        ("22.05.8", "rl_enable", None),
    ],
)  # fmt: skip
def test_the_rate_limit(version: str, parameters: str, limit: RateLimit | None) -> None:
    assert found(version, parameters).rate_limit() == limit


def test_a_full_bucket_is_all_that_a_pass_can_take_at_once() -> None:
    limit = RateLimit(30, 2.0)
    assert (limit.requests(5), limit.requests(15), limit.requests(300)) == (10, 30, 30)


@pytest.mark.parametrize(
    ("line", "is_known"),
    [
        ("TopologyPlugin          = topology/none", False),  # 22.05
        ("TopologyPlugin          = topology/default", False),
        ("TopologyPlugin          = topology/flat", False),  # 24.05
        ("TopologyPlugin          = (null)", False),
        ("", False),
        ("TopologyPlugin          = topology/tree", True),
        ("TopologyPlugin          = topology/block", True),
        ("TopologyPlugin          = topology/3d_torus", True),
    ],
)
def test_whether_slurm_places_gangs_by_its_network(line: str, is_known: bool) -> None:  # noqa: FBT001  a case's values
    assert respects_topology(settings(line)) is is_known


@pytest.mark.parametrize(
    ("lines", "delay_s"),
    [
        ("AuthInfo                = (null)\nSchedulerParameters     = (null)", 120),
        ("AuthInfo                = cred_expire=300", 300),
        ("AuthInfo                = socket=/run/munge/munge.socket.2,cred_expire=600", 600),
        ("AuthInfo                = cred_expire=4", 120),
        ("AuthInfo                = cred_expire=300\nSchedulerParameters     = defer,requeue_delay=0", 0),
        ("", 120),
    ],
)
def test_how_long_slurm_delays_a_requeued_job(lines: str, delay_s: float) -> None:
    assert requeue_delay_s(settings(lines)) == delay_s


@pytest.mark.parametrize(
    ("key", "setting", "capability", "there"),
    [
        ("JobSubmitPlugins", "throttle,lua", LUA_SUBMIT, True),
        ("JobSubmitPlugins", "job_submit/lua", LUA_SUBMIT, True),
        ("JobSubmitPlugins", "evaluate", LUA_SUBMIT, False),
        ("AccountingStorageTRES", "cpu,gres/gpu:a100", GPU_ACCOUNTING, True),
        ("AccountingStorageTRES", "cpu,gres/gpumem,gres/gpuutil", GPU_ACCOUNTING, False),
    ],
)
def test_a_setting_counts_by_whole_words(key: str, setting: str, capability: Capability, *, there: bool) -> None:
    assert Capabilities(SlurmVersion(24, 11), {key: setting}).has(capability) is there


@pytest.mark.parametrize(
    ("parameters", "defers"),
    [("bf_continue,defer", True), ("defer_batch", True), ("bf_continue", False), ("(null)", False)],
)
def test_whether_batch_jobs_are_started_while_they_are_submitted(parameters: str, *, defers: bool) -> None:
    assert Capabilities(SlurmVersion(24, 11), {"SchedulerParameters": parameters}).defers is defers
