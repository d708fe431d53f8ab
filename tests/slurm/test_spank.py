"""Plain sbatch and srun with the SPANK plugin and job_submit.lua, on a real cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from explsched.job_options.table import SCHEDULED
from slurm_plugin import job_options
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests import job_submit
from tests.slurm.jobs import ROOT, SPANK_PLUGIN, command, until
from wrappers import kernel_manager

pytestmark = pytest.mark.slurm
NATIVE = ROOT / "build" / "native" / "tests" / "kernel"


@pytest.fixture(scope="module")
def library(open_tmp: Path) -> Path:
    """The interposer, where every user can read it."""
    directory = open_tmp / "spank_files"
    directory.mkdir()
    try:
        return Path(shutil.copy(kernel_manager.library(os.environ), directory))
    except kernel_manager.NotInstalledError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(needs_slurm: None, open_tmp: Path, library: Path) -> Iterator[Cluster]:
    """A cluster as an admin would set it up: plugstack.conf and job_submit.lua beside slurm.conf."""
    if not SPANK_PLUGIN.exists():
        pytest.skip(f"{SPANK_PLUGIN.relative_to(ROOT)} is not built (scripts/native builds it)")
    files_of_site = library.parent
    plugin = shutil.copy(SPANK_PLUGIN, files_of_site)
    (files_of_site / "spool").mkdir()
    socket = files_of_site / "km-%u" / "kernel-manager.sock"
    manager = kernel_manager.manager(os.environ)
    words = f"library={library} spool={files_of_site}/spool manager_socket={socket} manager={manager}"
    files = (("plugstack.conf", f"optional {plugin} {words}\n"), ("job_submit.lua", job_submit.script()))
    place = open_tmp / "spank"
    yield up(ClusterSpec(nodes=1, extra=(("JobSubmitPlugins", "lua"),), files=files), place)
    down(place)
    end_managers(files_of_site)


def end_managers(files_of_site: Path) -> None:
    """They serve until the node's jobs are cleaned up."""
    for directory in files_of_site.glob("km-*"):
        if (status := status_of(directory)) is not None:
            os.kill(json.loads(status)["pid"], signal.SIGTERM)
        until(partial(is_silent, directory), "the manager has ended")


def status_of(directory: Path) -> str | None:
    argv = [kernel_manager.manager(os.environ), "--dir", directory, "--status"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def is_silent(directory: Path) -> bool:
    return status_of(directory) is None


def run(cluster: Cluster, *argv: str, script: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **cluster.env(), **variables}
    return subprocess.run(argv, input=script, env=environment, capture_output=True, text=True, check=False)


def environment_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_sbatch_tells_the_daemon(site: Cluster) -> None:
    options = (
        "--expl-sweep=digits",
        "--expl-checkpoint=SIGUSR1",
        "--expl-early-stop",
        "--expl-job-class=opportunistic",
    )
    done = run(site, "sbatch", "--parsable", "--hold", "--comment=mine", *options, script="#!/bin/sh\ntrue\n")
    assert done.returncode == 0, done.stderr
    (job,) = [job for job in CliClient(environment=site.env()).jobs() if job.job_id == int(done.stdout)]
    found = job_options.parse(job.comment)
    run(site, "scancel", done.stdout.strip())
    assert job.comment.endswith(" mine")
    assert found is not None
    assert not found.guaranteed
    assert found.exploration is not None
    assert (found.exploration.sweep, found.exploration.checkpoint_signal) == ("digits", "USR1")
    assert found.exploration.may_stop


def test_sxbatch_and_the_plugin_say_the_same(site: Cluster) -> None:
    """sxbatch writes the comment and sets the options' variables, which the plugin reads."""
    argv = ("--json", "--checkpoint=USR1", "--elastic=1-4/1", "--sweep=a", "--hold", "--wrap=true")
    done = run(site, command("sxbatch"), *argv)
    assert done.returncode == 0, done.stderr
    (job,) = [
        job for job in CliClient(environment=site.env()).jobs() if job.job_id == json.loads(done.stdout)["job_id"]
    ]
    run(site, "scancel", str(job.job_id))
    assert job.comment == "explsched:sweep=a&checkpoint=USR1&elastic=1-4/1"


def test_a_task_of_sbatch_preloads_the_library(
    site: Cluster, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = library.parent / "task.out"
    script = "#!/bin/sh\nenv\necho done\n"
    done = run(
        site, "sbatch", "--wait", f"--output={out}", "--expl-share=best-effort", "--expl-limit=0.3", script=script
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert found["LD_PRELOAD"] == str(library)
    assert found["EXPLSCHED_SHARE"] == "best-effort"
    assert found["EXPLSCHED_LIMIT"] == "0.3"
    assert found["EXPLSCHED_KM_SOCKET"] == f"{library.parent}/km-0/kernel-manager.sock"
    assert found["EXPLSCHED_SPOOL"] == f"{library.parent}/spool"


@pytest.mark.parametrize("export", ["NONE", "NIL", "FOO=1", "EXPLSCHED_SHARE"])
def test_a_batch_script_has_its_options_whatever_it_exports(site: Cluster, library: Path, export: str) -> None:
    out = library.parent / f"{export}.out"
    options = ("--expl-share=high", "--expl-checkpoint=USR1", "--expl-early-stop")
    argv = ("sbatch", "--wait", f"--output={out}", f"--export={export}", *options)
    done = run(site, *argv, script="#!/bin/sh\nenv\n", EXPLSCHED_SHARE="best-effort")
    assert done.returncode == 0, done.stderr
    found = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert (found["EXPLSCHED_SHARE"], found["EXPLSCHED_CHECKPOINT"]) == ("high", "USR1")
    assert found["LD_PRELOAD"] == str(library)
    assert found["EXPLSCHED_EARLY_STOP"] == "1"


def test_an_option_that_slurm_hands_on_is_checked_as_one_that_is_given(site: Cluster, library: Path) -> None:
    out = library.parent / "handed_on.out"
    name = "SLURM_SPANK__SLURM_SPANK_OPTION_explsched_expl_share"
    script = f"#!/bin/sh\nenv | grep -e {name} -e EXPLSCHED_\n"
    done = run(site, "sbatch", "--wait", f"--output={out}", f"--export={name}=everything", script=script)
    assert done.returncode == 0, done.stderr
    found = out.read_text()
    assert f"{name}=everything" in found
    assert "EXPLSCHED_SHARE" not in found


def test_a_list_that_the_library_cannot_be_added_to_is_told(site: Cluster) -> None:
    libraries = ":".join(["/lib/x86_64-linux-gnu/libc.so.6"] * 140)
    done = run(site, "srun", "--expl-share=high", "env", LD_PRELOAD=libraries)
    assert environment_of(done)["LD_PRELOAD"] == libraries
    assert "kernels are not gated: LD_PRELOAD is longer than" in done.stderr


def test_a_share_that_the_managers_policy_ignores_is_told(site: Cluster, library: Path) -> None:
    end_managers(library.parent)
    assert run(site, "srun", "--expl-share=high", "true").returncode == 0  # a manager serves from now on
    done = run(site, "srun", "--expl-request=0.25", "true")
    assert "request and limit do not count" in done.stderr
    assert done.returncode == 0, done.stderr
    assert "do not count" not in run(site, "srun", "--expl-share=high", "true").stderr


def test_srun_keeps_what_the_user_preloads(site: Cluster, library: Path) -> None:
    other = library.with_name("libother.so")
    shutil.copy(library, other)
    found = environment_of(run(site, "srun", "--expl-share=high", "env", LD_PRELOAD=str(other)))
    assert found["LD_PRELOAD"] == f"{other}:{library}"


def test_without_options_a_task_is_left_alone(site: Cluster) -> None:
    found = environment_of(run(site, "srun", "env"))
    assert "LD_PRELOAD" not in found
    assert "EXPLSCHED_SHARE" not in found


def test_the_command_line_wins_over_the_variable(site: Cluster) -> None:
    found = environment_of(
        run(site, "srun", "--expl-request=0.25", "env", EXPLSCHED_REQUEST="0.5", EXPLSCHED_LIMIT="0.75")
    )
    assert (found["EXPLSCHED_REQUEST"], found["EXPLSCHED_LIMIT"]) == ("0.25", "0.75")


def test_a_step_inside_a_job_sees_the_jobs_options_once(site: Cluster, library: Path) -> None:
    out = library.parent / "step.out"
    script = "#!/bin/sh\nsrun env\n"
    done = run(site, "sbatch", "--wait", f"--output={out}", "--expl-request=0.4", script=script)
    assert done.returncode == 0, out.read_text()
    found = dict(line.split("=", 1) for line in out.read_text().splitlines() if "=" in line)
    assert found["EXPLSCHED_REQUEST"] == "0.4"
    assert found["LD_PRELOAD"] == str(library)


PERMITTED = ("--expl-sweep=a", "--expl-checkpoint=USR1", "--expl-early-stop", "--expl-elastic=1-4")


def comments(cluster: Cluster) -> dict[int, str]:
    return {job.job_id: job.comment for job in CliClient(environment=cluster.env()).jobs()}


def test_a_job_does_not_consent_for_those_that_it_submits(site: Cluster, library: Path) -> None:
    """Slurm repeats a job's SPANK options and control environment to what runs in it."""
    out = library.parent / "submitting.out"
    script = f"""#!/bin/sh
sbatch --parsable --hold --wrap=true
sbatch --parsable --hold --expl-checkpoint=USR2 --wrap=true
{command("sxbatch")} --parsable --sweep=b --hold --wrap=true
"""
    done = run(site, "sbatch", "--wait", f"--output={out}", *PERMITTED, script=script)
    assert done.returncode == 0, out.read_text()
    ids = [int(word) for word in out.read_text().split()]
    found = comments(site)
    run(site, "scancel", *map(str, ids))
    assert [found[job_id] for job_id in ids] == [
        "explsched:sweep=a",
        "explsched:sweep=a&checkpoint=USR2",
        "explsched:sweep=b",
    ]


def test_an_allocations_options_are_for_its_steps_and_not_for_jobs_submitted_from_it(site: Cluster) -> None:
    line = "srun env; echo id=$(sbatch --parsable --hold --wrap=true)"
    step = environment_of(run(site, "salloc", *PERMITTED, "sh", "-c", line))
    submitted = int(step["id"])
    found = comments(site)[submitted]
    run(site, "scancel", str(submitted))
    assert (step["EXPLSCHED_SWEEP"], step["EXPLSCHED_CHECKPOINT"]) == ("a", "USR1")
    assert found == ""


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--expl-share=most", "--expl-share=most: accepted: high, best-effort"),
        ("--expl-request=2e-1", "accepted: 0.001 to 1"),
        ("--expl-limit=1001", "accepted: 0.001 to 1"),
        ("--expl-sweep=a\tb", "without control characters"),
        ("--expl-checkpoint=KILL", "USR1, USR2"),
        ("--expl-elastic=8-1", "such as 1-8"),
        ("--expl-elastic=1--8", "such as 1-8"),
        ("--expl-elastic=1-8/", "such as 1-8"),
    ],
)
def test_nonsense_is_refused_at_submission(site: Cluster, option: str, words: str) -> None:
    done = run(site, "sbatch", option, script="#!/bin/sh\ntrue\n")
    assert done.returncode != 0
    assert words in done.stderr


def test_a_variable_with_nonsense_is_named_and_ignored(site: Cluster) -> None:
    done = run(site, "srun", "env", EXPLSCHED_SHARE="most")
    assert "EXPLSCHED_SHARE=most is ignored" in done.stderr
    assert "LD_PRELOAD" not in environment_of(done)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--expl-checkpoint=USR1", "--no-requeue"), "a job that is preempted must be requeued"),
        (("--expl-early-stop", "--comment=explsched:early-stop=0"), "give them in one place"),
    ],
)
def test_contradictions_are_refused_by_slurmctld(site: Cluster, options: tuple[str, ...], words: str) -> None:
    done = run(site, "sbatch", *options, script="#!/bin/sh\ntrue\n")
    assert done.returncode != 0
    assert words in done.stderr


def test_a_missing_library_does_not_stop_a_job(site: Cluster, library: Path) -> None:
    hidden = library.rename(library.with_name("hidden.so"))
    try:
        done = run(site, "srun", "--expl-share=high", "env")
        assert "LD_PRELOAD" not in environment_of(done)
        assert "kernels are not gated" in done.stderr
    finally:
        hidden.rename(library)
    states = {node.state for node in CliClient(environment=site.env()).nodes()}
    assert not any("DRAIN" in state for state in states)


def test_a_best_effort_job_is_known_to_the_manager_and_to_explain(site: Cluster, library: Path) -> None:
    """The whole way on the GPU double: plain sbatch, the interposer in the task, a manager for its user, explain."""
    place = library.parent / "km-0"
    manager = kernel_manager.manager(os.environ)
    config = library.parent / "explsched.yaml"
    config.write_text(json.dumps({"slurm": {"client": "cli"}, "progress": {"spool": str(library.parent / "spool")}}))
    kernels = library.parent / "kernels"
    kernels.write_text("step 32 0 1000000 400 400\n")
    script = f"""#!/bin/sh
export LD_LIBRARY_PATH={NATIVE}/fakecuda FAKECUDA_KERNELS={kernels} FAKECUDA_GPU={library.parent}/gpu
exec {NATIVE}/share/share_client 'step*4' 0 0 1000000000
"""
    options = ("--expl-share=best-effort", "--expl-request=0.25", "--gres=shard:1")
    submitted = run(site, "sbatch", "--parsable", f"--output={library.parent}/out", *options, script=script)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    explained = run(site, command("sexplsched"), "explain", job, "--config", str(config)).stdout

    def clients() -> list[dict[str, object]]:
        answer = run(site, str(manager), "--dir", str(place), "--status").stdout
        return [client for gpu in json.loads(answer or '{"gpus": []}')["gpus"] for client in gpu["clients"]]

    until(lambda: any(client["job"] == job for client in clients()), "the manager knows the job")
    (client,) = clients()
    run(site, "scancel", job)
    until(lambda: not clients(), "the manager forgets the job")
    assert (client["class"], client["request_permille"]) == ("best-effort", 250)
    assert "Its kernels share a GPU: class best-effort, request 0.25." in explained


def test_help_lists_the_options(site: Cluster) -> None:
    for tool in ("sbatch", "srun", "salloc"):
        shown = run(site, tool, "--help").stdout
        assert set(re.findall(r"--(expl-[\w-]+)", shown)) >= {option.spank_name for option in SCHEDULED}
