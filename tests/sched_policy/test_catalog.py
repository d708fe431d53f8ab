"""Policies of other packages: the documented example, installed as a user would, and packages that do not work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sched_policy import catalog
from sched_policy.policy import JobData, Policy, needs_of
from simulation.colocation.dilu import ComplementaryJobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example installed by pip."""
    root = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, root / "source")  # building leaves files beside the source
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*argv, "--target", str(root / "lib"), str(source)], check=True)
    return root / "lib"


def sexplsched(*words: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{path}:{EXAMPLE.parents[1]}"}
    argv = [sys.executable, "-m", "explsched.cli", *words]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


def broken(path: Path, name: str, code: str, group: str = "policies") -> Path:
    """A package whose entry point leads to `code`."""
    (path / f"{name}.py").write_text(code)
    info = path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[explsched.{group}]\n{name} = {name}:make\n")
    return path


def plans(path: Path, policy: str) -> subprocess.CompletedProcess[str]:
    """Plan for three waiting jobs of 1, 4 and 2 GPUs on one node of 4, with every check there is."""
    code = f"""
import json
from sched_policy import catalog
from sched_policy.checked import checked_plan
from tests.sched_policy.builders import job, nodes, snapshot
seen = snapshot(job(1, 1), job(2, 4), job(3, 2), on=nodes(1))
plan = checked_plan(catalog.build({policy!r}), seen)
print(json.dumps([[score.job_id for score in plan.scores], [start.job_id for start in plan.starts]]))
"""
    environment = {**os.environ, "PYTHONPATH": f"{path}:{EXAMPLE.parents[1]}"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_example_is_listed_and_plans(site: Path) -> None:
    listed = sexplsched("policies", "--json", path=site)
    assert json.loads(listed.stdout)["largest-first"] == {"summary": "largest gangs first, EASY backfill", "needs": []}
    assert json.loads(plans(site, "largest-first").stdout) == [[2, 3, 1], [2]]


def test_the_example_is_as_short_as_promised() -> None:
    lines = (EXAMPLE / "largest_first.py").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith(("from ", '"""'))]) <= 20


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise RuntimeError('no licence')", "bad.*does not load.*RuntimeError: no licence"),
        ("make = 3", "bad.*is not callable"),
        ("def make(options): raise KeyError('x')", "bad.*cannot be built.*KeyError"),
        ("def make(options): return object()", "bad.*lacks name, summary, needs_durations, plan"),
        (
            "class P:\n  name, summary, needs_durations = 'bad', '', False\n  def plan(self, s): return 1 / 0\n"
            "make = lambda options: P()",
            "policy 'bad' failed: ZeroDivisionError",
        ),
        (
            "class P:\n  name, summary, needs_durations = 'bad', '', False\n  def plan(self, s): return []\n"
            "make = lambda options: P()",
            "policy 'bad' made a list instead of a Plan",
        ),
        (
            "class make:\n  name, summary, needs_durations = 'worse', '', False\n  def __init__(self, o): pass\n"
            "  def plan(self, s): return []",
            "policy 'bad' of package 'bad' calls itself 'worse': both names must be the same",
        ),
        (
            "import numpy\nfrom sched_policy.plan import Plan, Ranking\n"
            "class make:\n  name, summary, needs_durations = 'bad', '', False\n  def __init__(self, o): pass\n"
            "  def plan(self, s): return Plan(scores=Ranking(s, numpy.zeros(1), str))",
            r"a ranking needs one value per job, of shape \(3,\), found \(1,\)",
        ),
    ],
)
def test_a_package_that_does_not_work_is_named_and_harms_nobody_else(tmp_path: Path, code: str, fault: str) -> None:
    path = broken(tmp_path, "bad", code)
    failed = plans(path, "bad")
    assert failed.returncode != 0
    assert "PolicyError" in failed.stderr
    assert re.search(fault, failed.stderr), failed.stderr
    assert plans(path, "fifo").returncode == 0
    assert sexplsched("policies", path=path).returncode == 0


def test_a_sweep_strategy_of_another_package_decides_and_a_broken_one_is_named(tmp_path: Path) -> None:
    works = "class make:\n  name = 'mine'\n  def decide(self, sweep, gpus): return sweep"
    path = broken(broken(tmp_path, "mine", works, "sweep_strategies"), "worse", "make = 3", "sweep_strategies")
    code = """
from sched_policy import catalog
print(catalog.STRATEGIES.names()[-2:], catalog.STRATEGIES.build("mine").decide(7, 1))
catalog.build("explsched", catalog.PolicyOptions(sweep_strategy="worse"))
"""
    environment = {**os.environ, "PYTHONPATH": f"{path}:{EXAMPLE.parents[1]}"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "('median-stop', 'mine') 7\n"
    assert "sweep strategy 'worse' of package 'worse' does not load: worse:make: is not callable" in ran.stderr


def test_a_plugin_cannot_take_the_name_of_a_policy_of_ours(tmp_path: Path) -> None:
    path = broken(tmp_path, "fifo", "raise RuntimeError")
    assert json.loads(plans(path, "fifo").stdout)[0] == [1, 2, 3]


@pytest.mark.parametrize("name", catalog.POLICIES.names())
def test_a_policy_that_uses_durations_says_what_it_does_without(name: str) -> None:
    policy = catalog.build(name)
    assert policy.needs_durations == any(need.data is JobData.RUN_TIMES for need in needs_of(policy))


def test_the_list_of_policies_names_their_needs(tmp_path: Path) -> None:
    listed = sexplsched("policies", path=tmp_path).stdout
    srtf = listed.partition("\nsrtf ")[2].partition("\nsrsf ")[0]
    assert "needs run-time estimates or time limits; without: jobs of unknown length come last" in " ".join(
        srtf.split()
    )
    described = json.loads(sexplsched("policies", "--json", path=tmp_path).stdout)
    assert described["slaq"]["needs"][0]["data"] == "learning curves"
    assert described["fair"]["needs"] == []


@pytest.mark.parametrize("name", sorted(catalog.POLICIES.names()))
def test_policies_that_choose_nodes_are_known_by_name(name: str) -> None:
    policy = catalog.build(name)
    chooses = isinstance(policy, Policy) and (policy.place.binds or isinstance(policy.sharing, ComplementaryJobs))
    assert chooses == (name in catalog.CHOOSE_NODES)
