"""Which GPUs jobs hold, whatever users put into names, paths and comments."""

import pytest

from slurm_plugin.client import devices, parse
from slurm_plugin.client.capabilities import settings
from slurm_plugin.client.records import ShardRule

LINE = "JobId={id} JobName={name} JobState=RUNNING JOB_GRES=shard:1   {share} MinCPUsNode=1 Comment={comment} \n"
SHARE = "Nodes=n1 CPU_IDs=0-3 Mem=1000 GRES=shard:1(IDX:3)"


NODES = dict.fromkeys(range(1, 10), ("n1", "n2"))


def line(job_id: int, share: str = SHARE, name: str = "train", comment: str = "") -> str:
    return LINE.format(id=job_id, share=share, name=name, comment=comment)


@pytest.mark.parametrize(
    ("share", "found"),
    [
        (SHARE, (("n1", (3,)),)),
        ("Nodes=n[1-2] CPU_IDs=0 Mem=1 GRES=gpu:a100:3(IDX:0,2-3)", (("n1", (0, 2, 3)), ("n2", (0, 2, 3)))),
        (
            "Nodes=n1 CPU_IDs=0 Mem=1 GRES=shard:2(IDX:0) Nodes=n2 CPU_IDs=0 Mem=1 GRES=shard:2(IDX:5)",
            (("n1", (0,)), ("n2", (5,))),
        ),
        ("Nodes=n1 CPU_IDs=0 Mem=1 GRES=license:1,shard:a100:1(IDX:7)", (("n1", (7,)),)),
        # as Slurm 24.11, 25.11 and 26.05 write it
        ("Nodes=n1 CPU_IDs=0 Mem=1000 GRES=shard:3(0/8,3/8,0/8,0/8)", (("n1", (1,)),)),
        ("Nodes=n1 CPU_IDs=0 Mem=1000 GRES=gpu:1(IDX:0),shard:a100:9(0/8,1/8,8/8,0/8)", (("n1", (0, 1, 2)),)),
    ],
)
def test_indices(share: str, found: devices.HeldGpus) -> None:
    assert devices.held_gpus(line(5, share), NODES) == {5: found}


@pytest.mark.parametrize("share", ["Nodes=n1 CPU_IDs=0 Mem=1 GRES=", "Nodes=n1 CPU_IDs=0 Mem=1 GRES=fpga:1(IDX:0)", ""])
def test_a_job_without_gpus_holds_none(share: str) -> None:
    assert devices.held_gpus(line(5, share), NODES) == {}


def test_a_job_that_says_it_twice_is_unknown_and_hides_no_other() -> None:
    lie = "Nodes=n1 CPU_IDs=0 Mem=1 GRES=shard:1(IDX:0) "
    text = line(1) + line(2, name=f"x {lie}") + line(3, comment=f"a {lie}") + line(4)
    assert devices.held_gpus(text, NODES) == {1: (("n1", (3,)),), 4: (("n1", (3,)),)}


@pytest.mark.parametrize(
    "lie",
    [
        "Nodes=n3 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)",  # not a node of the job's
        "Nodes=n[0-999999] CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0)",
        "Nodes=n2 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:0-9999999)",
        f"Nodes=n2 CPU_IDs=0 Mem=1 GRES=gpu:1(IDX:{'9' * 5000})",
    ],
)
def test_a_job_that_lies_about_where_it_runs_is_unknown(lie: str) -> None:
    assert devices.held_gpus(line(1) + line(2, name=f"x {lie} "), NODES) == {1: (("n1", (3,)),)}


def test_a_number_that_no_job_has_ends_no_pass() -> None:
    text = line(1) + line(2, name=f"x\nJobId={'9' * 5000} y")
    assert devices.held_gpus(text, NODES)[1] == (("n1", (3,)),)


def test_a_name_with_a_line_break_cannot_speak_for_another_job() -> None:
    text = line(1) + line(2, name="x\nJobId=1 Nodes=n1 CPU_IDs=0 Mem=1 GRES=shard:1(IDX:0)") + line(3)
    assert devices.held_gpus(text, NODES) == {3: (("n1", (3,)),)}


def test_the_rule_of_the_site() -> None:
    config = "SelectType              = select/cons_tres\nSelectTypeParameters    = {}\nSlurmUser = root(0)\n"
    for words, rule in (
        ("CR_CORE_MEMORY", ShardRule.FIRST_FIT),
        ("CR_CORE_MEMORY,LL_SHARED_GRES", ShardRule.LEAST_LOADED),
    ):
        assert parse.shard_rule(settings(config.format(words))) is rule
    assert parse.shard_rule({}) is ShardRule.FIRST_FIT
