"""What became of a sweep: the daemon's notes, the table, the files made of it, and how a simulation reads them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import resource
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from explsched.errors import ExplschedError
from sched_policy.model import Direction
from sched_policy.plan import Plan, Preemption, Score, Stop
from simulation.traces.formats import read_any
from slurm_plugin.audit_file import AuditEntry
from slurm_plugin.client.changes import CancelJob
from slurm_plugin.client.notation import clock
from slurm_plugin.client.records import SlurmJob, SlurmNode
from slurm_plugin.config import Config, OrderSection, ProgressSection, SlurmSection, StateSection
from slurm_plugin.observation import sweep_record
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.state.jobs import explanations
from slurm_plugin.state.publish import Publisher, state_of
from slurm_plugin.state.published import Curve, Totals, part
from slurm_plugin.state.view import View
from slurm_plugin.steering.controller import Controller
from slurm_plugin.sweeps.files import best_so_far, draw, table
from slurm_plugin.sweeps.results import CurvePoint, SweepResults, SweepTraining, results
from slurm_plugin.web import answers
from tests.slurm_kit import FakeSlurm, record

NOW_S = 10_000.0
COMMENT = "explsched:sweep=digits&checkpoint=USR1&early-stop=1"


class Fixed(msgspec.Struct, frozen=True):
    """A policy that always plans the same."""

    made: Plan
    name: str = "fixed"

    def plan(self, _snapshot: object) -> Plan:
        return self.made


def config(spool: Path) -> Config:
    order = OrderSection(scope="partition", site_factor_file=spool / "site_factors.json")
    state = StateSection(directory=spool / "state", socket=spool / "state.sock")
    return Config(progress=ProgressSection(spool=spool), order=order, state=state)


def training(job_id: int, comment: str = COMMENT, **fields: Any) -> SlurmJob:
    held = {"state": "RUNNING", "start_s": 1000.0, "gpus": 4, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    return record(job_id, comment=comment, uid=os.geteuid(), submit_s=900.0 + job_id, **{**held, **fields})


def reported(
    spool: Path,
    job_id: int,
    *values: float | None,
    end: bool = False,
    status: int | None = 0,
    metric: str = "loss",
    **params: object,
) -> None:
    """Ten steps and 100 s between reports, of 100 steps."""
    base = {"restart": 0, "total_steps": 100}
    lines: list[dict[str, object]] = [{"time_s": 1000.0, "event": "start"}, {"time_s": 1000.0, "params": params}]
    for at, value in enumerate(values, start=1):
        lines.append({**base, "time_s": 1000.0 + 100 * at, "step": 10 * at, "metric": metric, "value": value})
    if end:
        lines.append({"time_s": 1000.0 + 100 * len(values), "event": "end", "status": status})
    (spool / f"{job_id}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def observed(*jobs: SlurmJob) -> Observation:
    return observe(FakeSlurm(jobs).look(), ProgressSpool(Path("/nowhere")), NOW_S)


def passed(monkeypatch: pytest.MonkeyPatch, spool: Path, slurm: FakeSlurm, made: Plan, now_s: float) -> None:
    """One pass of a daemon that has just started."""
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(made))
    Controller(slurm, config(spool)).reconcile(now_s)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A sweep: 1 is done, 2 was stopped, 3 runs and should make room, 4 waits. Slurm knows of 3 and 4 only."""
    slurm = FakeSlurm([training(1), training(2), training(3), training(4, state="PENDING", start_s=None)])
    reported(tmp_path, 1, 3.0, 1.0, 0.5, end=True, lr=0.1, seed=1)
    reported(tmp_path, 2, 3.0, 2.5, lr=1.0, seed=1)
    reported(tmp_path, 3, 3.0, None, 2.0, lr=0.01, seed=1)
    scores = tuple(Score(n, 1.0, f"why {n}") for n in (1, 2, 3, 4))
    made = Plan(scores=scores, stops=(Stop(2, "cannot win"),), preemptions=(Preemption(3, "4 goes first"),))
    passed(monkeypatch, tmp_path, slurm, made, NOW_S)
    assert slurm.cancelled == [2]
    del slurm.known[1], slurm.known[2]
    monkeypatch.undo()

    def look(_path: object) -> View:
        return View.of(config(tmp_path), slurm.look(), NOW_S)

    monkeypatch.setattr("slurm_plugin.cli.sweep.look", look)
    monkeypatch.setattr("slurm_plugin.cli.sweep.remembered", lambda _config, prefix: slurm.tagged_jobs(prefix))
    return slurm


def run(*words: object, fails: bool = False) -> Result:
    done = CliRunner().invoke(root, ["sweep", *map(str, words)])
    assert (done.exit_code != 0) == fails, done.output
    return done


def shown(*words: object) -> dict[str, Any]:
    (one,) = json.loads(run("show", "digits", "--json", *words).stdout)["sweeps"]
    return dict(one)


def test_reports_are_read_to_the_last(digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_WHOLE_LOOK", 1000)
    for job_id in (1, 3):  # one is over, one runs
        reported(tmp_path, job_id, *(1 / n for n in range(1, 51)))
    found = {training["job"]: (len(training["curve"]), training["best"]) for training in shown()["trainings"]}
    assert found[1] == found[3] == (50, 1 / 50)


def test_trainings_that_are_over_are_shown_with_what_became_of_them(digits: FakeSlurm) -> None:
    found = shown()
    told = {t["job"]: (t["state"], t["best"], len(t["curve"])) for t in found["trainings"]}
    assert told == {1: ("done", 0.5, 3), 2: ("stopped", 2.5, 2), 3: ("running", 2.0, 2), 4: ("waiting", None, 0)}
    assert [t["job"] for t in found["trainings"]] == [1, 3, 2, 4]  # best first
    assert {t["job"]: t["reason"] for t in found["trainings"]}[2] == "cannot win"
    assert (found["best"], found["best_job"]) == (0.5, 1)
    assert found["trainings"][0]["params"] == [["lr", 0.1], ["seed", 1.0]]
    # Stopped after 200 s of 1,000 on four GPUs.
    assert found["saved_gpu_h"] == pytest.approx(4 * 800 / 3600)


def test_what_was_saved_does_not_grow_where_the_last_run_began_anew(digits: FakeSlurm, tmp_path: Path) -> None:
    again = {"restart": 1, "total_steps": 100, "time_s": 2000.0, "step": 1, "metric": "loss", "value": 3.0}
    with (tmp_path / "2.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    assert shown()["saved_gpu_h"] == pytest.approx(4 * 800 / 3600)


def test_the_page_names_what_varies_and_counts_reports_that_were_no_numbers(digits: FakeSlurm) -> None:
    page = run("show", "digits").stdout
    assert "digits of ada: 4 trainings, 1 done, 1 running, 1 waiting, 1 stopped; loss (min)" in page
    assert "best so far: 0.5, job 1 (lr=0.1,seed=1)" in page
    assert "1 reports were not usable" in page
    assert "lr=0.01 " in page
    assert "lr=0.01,seed" not in page


def test_of_a_training_that_nothing_tells_of_it_is_not_said_how_it_ended_nor_what_it_used(
    digits: FakeSlurm, tmp_path: Path
) -> None:
    """As for another user: Slurm has forgotten 1 and 2, and their reports cannot be read."""
    for job_id in (1, 2):
        (tmp_path / f"{job_id}.jsonl").unlink()
    told = {t["job"]: (t["state"], t["gpu_h"], t["reason"]) for t in shown()["trainings"] if t["job"] < 3}
    assert told == {1: ("over", None, ""), 2: ("stopped", None, "cannot win")}
    digits.known.clear()
    for job_id in (3, 4):
        (tmp_path / f"{job_id}.jsonl").unlink(missing_ok=True)
    page = run("show", "digits").stdout
    assert "4 trainings, 1 stopped, 3 over" in page
    assert "GPU-hours: not known" in page
    (listed,) = json.loads(run("list", "--json").stdout)["sweeps"]
    assert (listed["over"], listed["ended"], listed["gpu_h"]) == (3, 0, None)


def test_a_training_whose_command_failed_is_not_done(digits: FakeSlurm, tmp_path: Path) -> None:
    reported(tmp_path, 1, 3.0, 1.0, 0.5, end=True, status=1)
    (failed,) = [t for t in shown()["trainings"] if t["job"] == 1]
    assert (failed["state"], failed["reason"]) == ("ended", "its command ended with status 1")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ({"end": True}, ("done", "")),
        ({"end": True, "status": 1}, ("ended", "its command ended with status 1")),
        ({"end": True, "status": None}, ("ended", "")),  # told to end, as by scancel
        ({}, ("ended", "")),
    ],
)
def test_the_page_says_of_a_training_that_is_over_what_sweep_show_says(
    digits: FakeSlurm, tmp_path: Path, end: dict[str, Any], told: tuple[str, str]
) -> None:
    reported(tmp_path, 1, 3.0, 1.0, 0.5, **end)
    state = state_of(View.of(config(tmp_path), digits.look(), NOW_S), (), ())
    page = json.loads(json.dumps(answers.sweep(state, "digits", "ada", ())))
    assert {(one["state"], one["reason"]) for one in page["trainings"] if one["curve"]["jobid"] == 1} == {told}
    assert {(one["state"], one["reason"]) for one in shown()["trainings"] if one["job"] == 1} == {told}
    assert json.loads(json.dumps(answers.sweeps(state)))["sweeps"][0]["ended"] == 2


@dataclass
class SharedSlurm(FakeSlurm):
    """Its GPUs have four shards each."""

    def nodes(self) -> tuple[SlurmNode, ...]:
        return tuple(msgspec.structs.replace(node, shards=4 * node.gpus) for node in super().nodes())


ON_SHARDS: dict[str, Any] = {"gpus": 0, "gpus_per_node": None, "gpu_nodes": (), "shards_per_node": 1}


def test_every_view_tells_the_same_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 to 3 end after the pass: 1 is done, 2 was stopped, 3 had a whole node. 4 was suspended, 8 runs no more."""
    alone = {"gpus": 1, "gpus_per_node": 1, "exclusive": "NODE"}
    slurm = SharedSlurm(
        [
            training(1, **ON_SHARDS),
            training(2, **ON_SHARDS),
            training(3, **alone),
            training(4, start_s=NOW_S - 3600, suspended_s=1800.0),
            training(5, start_s=NOW_S - 3600, **ON_SHARDS),
            training(6, start_s=NOW_S - 3600, **alone),
            training(7, state="PENDING", start_s=None, restarts=1),
            training(8, state="COMPLETING", start_s=NOW_S - 3600),
            training(9, state="PENDING", start_s=None),
        ]
    )
    for job_id in range(1, 7):
        reported(tmp_path, job_id, 3.0, 2.0, 1.0, end=job_id == 1)
    without_total = (tmp_path / "2.jsonl").read_text().replace(', "total_steps": 100', "").splitlines()[:-1]
    (tmp_path / "2.jsonl").write_text("".join(f"{line}\n" for line in without_total))
    scores = tuple(Score(n, 1.0, "") for n in range(1, 10))
    passed(monkeypatch, tmp_path, slurm, Plan(scores=scores, stops=(Stop(2, "cannot win"),)), NOW_S)
    assert slurm.cancelled == [2]
    monkeypatch.undo()
    del slurm.known[1], slurm.known[2], slurm.known[3]
    view = View.of(config(tmp_path), slurm.look(), NOW_S)
    monkeypatch.setattr("slurm_plugin.cli.sweep.look", lambda _path: view)
    monkeypatch.setattr("slurm_plugin.cli.sweep.remembered", lambda _config, _prefix: ())

    found = shown()
    told = {t["job"]: (t["state"], t["gpus"], round(3600 * t["gpu_h"])) for t in found["trainings"]}
    assert told == {
        1: ("done", 1, 75),  # 300 s with a quarter of a GPU
        2: ("stopped", 1, 50),
        3: ("ended", 4, 1200),
        4: ("running", 4, 4 * 3600),
        5: ("running", 1, 900),
        6: ("running", 4, 4 * 3600),
        7: ("paused", 4, 0),
        8: ("running", 4, 4 * 3600),
        9: ("waiting", 4, 0),
    }
    assert found["saved_gpu_h"] == pytest.approx(0.25 * 100 / 3600)  # done ones took 300 s

    state = state_of(view, (), ())
    rows = {row.jobid: (row.gpus, round(3600 * row.gpu_hours)) for row in state.jobs}
    assert rows == {job_id: told[job_id][1:] for job_id in range(4, 10)}
    stop = AuditEntry(NOW_S, 2, "JobState", "", "CANCELLED", "", "stop", "cannot win")
    page = cast("dict[str, Any]", answers.sweep(state, "digits", "ada", (stop,)))
    of_page = {one["curve"]["jobid"]: (one["state"], one["curve"]["gpu_hours"]) for one in page["trainings"]}
    assert {job_id: (one, round(3600 * gpu_h)) for job_id, (one, gpu_h) in of_page.items()} == {
        job_id: (told[job_id][0], told[job_id][2]) for job_id in range(1, 7)
    }
    assert page["saved_gpu_hours"] == pytest.approx(found["saved_gpu_h"])
    (listed,) = json.loads(json.dumps(answers.sweeps(state)))["sweeps"]
    for one in (page, listed):
        assert (one["running"], one["waiting"], one["paused"]) == (4, 1, 1)
        assert one["gpu_hours"] == pytest.approx(found["gpu_h"])
    assert answers.summary(state)["running"] == 4


def test_trainings_that_aim_at_different_things_have_no_best_in_common(digits: FakeSlurm, tmp_path: Path) -> None:
    digits.known[5] = training(5, COMMENT + "&metric=error")
    reported(tmp_path, 5, 0.1, metric="error")
    state = state_of(View.of(config(tmp_path), digits.look(), NOW_S), (), ())
    page = answers.sweep(state, "digits", "ada", ())
    assert page is not None and page["best"] is None


def test_a_training_without_sxrun_is_done_after_its_last_step(digits: FakeSlurm, tmp_path: Path) -> None:
    reported(tmp_path, 1, *(1.0 / step for step in range(1, 11)))
    assert {t["state"] for t in shown()["trainings"] if t["job"] == 1} == {"done"}


def test_the_name_alone_shows_the_sweep(digits: FakeSlurm) -> None:
    for form in ((), ("--csv",)):
        assert run("digits", *form).output == run("show", "digits", *form).output
    assert "digitz" in str(run("digitz", fails=True).exception)
    assert "No such option" in run("--csv", fails=True).output


def test_two_forms_at_once_are_refused(digits: FakeSlurm) -> None:
    assert "--csv and --json: give one of them" in run("show", "digits", "--csv", "--json", fails=True).output


def test_a_training_that_reports_another_metric_is_told_what_to_do(digits: FakeSlurm, tmp_path: Path) -> None:
    reported(tmp_path, 1, 0.3, 0.5, end=True, metric="accuracy")
    (silent,) = [t for t in shown()["trainings"] if t["job"] == 1]
    assert silent["reason"] == "it reports accuracy, but no loss: choose with --metric"
    reported(tmp_path, 3, 0.3, metric="accuracy")
    view = View.of(config(tmp_path), digits.look(), NOW_S)
    (told,) = [one for one in explanations(view) if one.jobid == 3]
    assert (
        "It has not reported loss yet, but accuracy: --metric of sxbatch names the metric that counts."
        in told.sentences
    )


@pytest.mark.parametrize(("age_s", "words"), [(0.0, ("why 3", "Priority; why 4")), (3600.0, ("own", "Priority; own"))])
def test_the_reasons_are_the_daemons_as_long_as_it_tells_them(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, words: tuple[str, str]
) -> None:
    """It remembers what it has granted; a look of our own would say that whom it asked to leave was promoted."""
    seen = View.of(config(tmp_path), digits.look(), NOW_S).seen
    told, own = (
        View.planned(config(tmp_path), seen, Plan(scores=tuple(Score(n, 1.0, why) for n, why in reasons)))
        for reasons in (((3, "why 3"), (4, "why 4")), ((3, "own"), (4, "own")))
    )
    Publisher(tmp_path / "state").publish(told, (), (), "tests", Totals(), ahead_s=time.time() - NOW_S - age_s)
    monkeypatch.setattr("slurm_plugin.cli.sweep.look", lambda _path: own)
    found = {training["job"]: training["reason"] for training in shown()["trainings"]}
    assert (found[3], found[4]) == words


def test_a_training_that_has_started_since_the_last_pass_does_not_say_why_it_waits(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, views = Plan(scores=(Score(3, 1.0, "why 3"), Score(4, 1.0, "a gain"))), []
    for now in (digits.known[4], training(4)):
        digits.known[4] = now
        views.append(View.planned(config(tmp_path), View.of(config(tmp_path), digits.look(), NOW_S).seen, plan))
    Publisher(tmp_path / "state").publish(views[0], (), (), "tests", Totals(), ahead_s=time.time() - NOW_S)
    monkeypatch.setattr("slurm_plugin.cli.sweep.look", lambda _path: views[1])
    (started,) = (one for one in shown()["trainings"] if one["job"] == 4)
    assert (started["state"], started["reason"]) == ("running", "a gain")


def test_a_training_that_slurm_holds_says_so(digits: FakeSlurm) -> None:
    digits.known[4] = msgspec.structs.replace(digits.known[4], reason="JobHeldUser", priority=0)
    (held,) = [t for t in shown()["trainings"] if t["job"] == 4]
    assert (held["state"], held["reason"]) == ("waiting", "held: Slurm says JobHeldUser")


def test_a_paused_training_says_why(digits: FakeSlurm) -> None:
    note = "explsched-preemption:since=50&n=0&lost=0&p=0,9000,4,120,others+go+first"
    digits.set(3, state="PENDING", start_s=None, restarts=1, admin_comment=note)
    (paused,) = [t for t in shown()["trainings"] if t["job"] == 3]
    assert (paused["state"], paused["reason"]) == ("paused", "others go first")


@pytest.mark.parametrize(
    ("restarts", "note"), [(1, ""), (2, "explsched-preemption:since=50&n=0&lost=0&p=0,9000,4,120,others+go+first")]
)
def test_a_training_that_a_node_failure_requeued_says_so(digits: FakeSlurm, restarts: int, note: str) -> None:
    """Also where we had preempted an earlier run of it."""
    waits = {"state": "PENDING", "start_s": None, "node_names": (), "gpu_nodes": (), "reason": "BeginTime"}
    later = {"restarts": restarts, "admin_comment": note, "eligible_s": NOW_S + 120}
    digits.known[9] = training(9, **waits, **later)
    (requeued,) = [t for t in shown()["trainings"] if t["job"] == 9]
    assert (requeued["state"], requeued["reason"]) == ("paused", "requeued by Slurm or its owner; BeginTime")


def test_explain_says_that_a_training_rests_until_when_and_how_to_end_that(tmp_path: Path) -> None:
    """Slurm itself says no more than BeginTime."""
    delayed = {"reason": "BeginTime", "restarts": 1, "eligible_s": NOW_S + 400}
    seen = observed(training(4, state="PENDING", start_s=None, **delayed))
    plan = Plan(scores=(Score(4, 0.0, "not among the best"),), rests=frozenset({4}))
    (told,) = explanations(View.planned(config(tmp_path), seen, plan))
    assert "under policy explsched: not among the best." in told.sentences[2]
    assert told.sentences[3].startswith("Its sweep keeps it paused, also while GPUs are idle")
    assert f"delays its start until {clock(NOW_S + 400)}" in told.sentences[3]
    assert "scontrol update JobId=4 Comment=" in told.sentences[3]


def test_explain_says_why_lines_do_not_count(tmp_path: Path) -> None:
    steps = [{"time_s": NOW_S, "step": step, "metric": "loss", "value": 1.0} for step in (1, 2, 1)]
    (tmp_path / "3.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    seen = observe(FakeSlurm([training(3)]).look(), ProgressSpool(tmp_path), NOW_S)
    (told,) = explanations(View.planned(config(tmp_path), seen, Plan()))
    (why,) = (sentence for sentence in told.sentences if "not counted: 1;" in sentence)
    assert "their step is before one that was reported in the same run" in why


def test_a_diverged_training_is_shown_as_far_as_it_is_with_its_best_finite_value(
    digits: FakeSlurm, tmp_path: Path
) -> None:
    odd = {"metric": "loss", "value": None, "bad": "nan", "total_steps": 100}
    with (tmp_path / "3.jsonl").open("a") as file:
        file.writelines(json.dumps({"time_s": 1400.0 + step, "step": step, **odd}) + "\n" for step in range(40, 60))
    (one,) = (training for training in shown()["trainings"] if training["job"] == 3)
    assert (one["step"], one["best"], len(one["curve"]), one["malformed"]) == (59, 2.0, 2, 21)
    assert one["diverged"] and one["reason"].startswith("diverged; ")
    view = View.of(config(tmp_path), digits.look(), NOW_S)
    (told,) = (one for one in explanations(view) if one.jobid == 3)
    assert "Reports of NaN or infinite values: 20; they are progress without improvement." in told.sentences
    assert any("last step 59 with nan" in sentence for sentence in told.sentences)
    state = state_of(view, (), ())
    (row,) = (row for row in state.jobs if row.jobid == 3)
    assert (row.step, row.value, row.malformed) == ("59/100", None, 21)
    (curve,) = (curve for curve in part(state.curves, tuple[Curve, ...]) if curve.jobid == 3)
    assert (curve.best, curve.points) == (2.0, ((10, 3.0), (30, 2.0)))


@pytest.mark.parametrize(("reports", "order", "best"), [(3, [1, 2, 3, 4], 1), (2, [3, 1, 2, 4], 3)])
def test_a_diverged_training_is_not_the_best_whatever_it_reported_before(
    digits: FakeSlurm, tmp_path: Path, reports: int, order: list[int], best: int
) -> None:
    reported(tmp_path, 3, 3.0, 0.1, *[None] * reports)
    text = (tmp_path / "3.jsonl").read_text().replace('"value": null', '"value": null, "bad": "nan"')
    (tmp_path / "3.jsonl").write_text(text)
    found = shown()
    assert [training["job"] for training in found["trainings"]] == order
    assert found["best_job"] == best
    assert ("diverged" in run("show", "digits").stdout) == (best == 1)
    page = cast(
        "dict[str, Any]",
        answers.sweep(state_of(View.of(config(tmp_path), digits.look(), NOW_S), (), ()), "digits", "ada", ()),
    )
    assert [one["curve"]["jobid"] for one in page["trainings"]] == order[:3]
    assert (page["best"] == 0.1, page["trainings"][-1]["reason"].startswith("diverged")) == (best == 3, best == 1)


def test_a_training_that_has_reported_no_number_has_no_curve(digits: FakeSlurm, tmp_path: Path) -> None:
    odd = {"time_s": 1400.0, "step": 5, "metric": "loss", "value": None, "bad": "inf"}
    (tmp_path / "3.jsonl").write_text(json.dumps(odd) + "\n")
    state = state_of(View.of(config(tmp_path), digits.look(), NOW_S), (), ())
    assert 3 not in {curve.jobid for curve in part(state.curves, tuple[Curve, ...])}
    (one,) = (training for training in shown()["trainings"] if training["job"] == 3)
    assert (one["step"], one["best"]) == (5, None)


def test_what_was_given_at_submission_is_known_of_trainings_that_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--params`, or words of a script; what the training reports counts."""
    comment = f"{COMMENT}&params=depth%3D3%2Clr%3D0.5"
    slurm = FakeSlurm([training(1, comment), training(3, comment)])
    made = Plan(scores=(Score(1, 1.0, ""), Score(3, 1.0, "")), stops=(Stop(1, "cannot win"),))
    passed(monkeypatch, tmp_path, slurm, made, NOW_S)
    del slurm.known[1]
    for job_id in (1, 2, 3):
        reported(tmp_path, job_id, 3.0, lr=0.01 * job_id)
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
    (ended,) = Controller(slurm, config(tmp_path)).decide(NOW_S + 15).seen.snapshot.ended
    assert ended.exploration
    assert dict(ended.exploration.params) == {"depth": 3.0, "lr": 0.01}
    monkeypatch.undo()
    view = View.of(config(tmp_path), slurm.look(), NOW_S)
    remembered = [training(2, comment, state="COMPLETED")]
    (found,) = results(view.seen, {}, sweep_record.read(tmp_path), ProgressSpool(tmp_path), remembered)
    assert {one.job: dict(one.params) for one in found.trainings} == {
        job_id: {"depth": 3.0, "lr": 0.01 * job_id} for job_id in (1, 2, 3)
    }


def test_the_record_that_everybody_may_read_has_no_hyper_parameters_of_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm([training(1, f"{COMMENT}&params=lr%3D0.5")])
    reported(tmp_path, 1, 3.0, dataset="patients-2027", lr=0.123)
    passed(monkeypatch, tmp_path, slurm, Plan(scores=(Score(1, 1.0, ""),)), NOW_S)
    (noted,) = sweep_record.read(tmp_path)
    assert noted.params == (("lr", 0.5),)
    del slurm.known[1]
    monkeypatch.undo()
    seen = View.of(config(tmp_path), slurm.look(), NOW_S).seen
    (found,) = results(seen, {}, (noted,), ProgressSpool(tmp_path), ())  # for its owner, who may read the reports
    assert dict(found.trainings[0].params) == {"dataset": "patients-2027", "lr": 0.123}


def test_what_slurm_still_remembers_is_shown_though_no_daemon_noted_it(digits: FakeSlurm, tmp_path: Path) -> None:
    digits.known[8] = training(8, "explsched:sweep=short", state="FAILED")
    digits.known[9] = training(9, "explsched:sweep=short", state="COMPLETED")
    digits.known[10] = training(10, "explsched:sweep=short&nonsense=1", state="COMPLETED")
    alone = {"gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),), "exclusive": "NODE"}
    digits.known[11] = training(11, "explsched:sweep=short", state="COMPLETED", **alone)
    digits.known[12] = training(12, "explsched:sweep=short", state="COMPLETED", het_job_id=9)
    (one,) = json.loads(run("show", "short", "--json").stdout)["sweeps"]
    told = [(t["job"], t["state"], t["reason"]) for t in one["trainings"]]
    assert told == [(8, "ended", "Slurm says FAILED"), (9, "done", ""), (11, "done", "")]
    assert [t["gpus"] for t in one["trainings"]] == [4, 4, 4]


WITHOUT_GPUS: dict[str, Any] = {"gpus": 0, "gpus_per_node": None, "gpu_nodes": ()}


def test_trainings_without_gpus_are_shown_but_not_exported(digits: FakeSlurm, tmp_path: Path) -> None:
    comment = "explsched:sweep=small"
    waits = {**WITHOUT_GPUS, "state": "PENDING", "start_s": None, "node_names": ()}
    digits.known |= {
        11: training(11, comment, restarts=1, **WITHOUT_GPUS),
        12: training(12, comment, **waits),
        13: training(13, comment, state="COMPLETED", **WITHOUT_GPUS),
        14: training(14, comment, **{**waits, "restarts": 1}),
    }
    for job_id in (11, 13, 14):
        reported(tmp_path, job_id, 3.0, 1.0)
    (one,) = json.loads(run("show", "small", "--json").stdout)["sweeps"]
    told = {t["job"]: (t["state"], t["gpus"], t["gpu_h"], t["best"]) for t in one["trainings"]}
    assert told == {
        11: ("running", 0, 0.0, 1.0),
        12: ("waiting", 0, 0.0, None),
        13: ("done", 0, 0.0, 1.0),
        14: ("paused", 0, 0.0, 1.0),
    }
    assert "no training with GPUs has reported loss twice" in str(run("export", "small", "-", fails=True).exception)
    digits.known[15] = training(15, comment)
    reported(tmp_path, 15, 3.0, 1.0)
    done = run("export", "small", tmp_path / "small.csv")
    assert "4 of 5 trainings are left out: they have no GPUs" in done.stderr
    assert [job.job_id for job in read_any(tmp_path / "small.csv").jobs] == [15]


def test_a_requeued_training_of_a_partition_that_is_not_steered_is_paused(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = msgspec.structs.replace(config(tmp_path), slurm=SlurmSection(partitions=("other",)))
    monkeypatch.setattr("slurm_plugin.cli.sweep.look", lambda _path: View.of(elsewhere, digits.look(), NOW_S))
    digits.set(3, state="PENDING", start_s=None, gpu_nodes=(), node_names=(), restarts=1)
    assert {t["job"]: t["state"] for t in shown()["trainings"]} == {
        1: "done",
        2: "stopped",
        3: "paused",
        4: "waiting",
    }


def test_a_training_with_the_id_of_one_that_was_stopped_was_not_stopped(digits: FakeSlurm) -> None:
    """A slurmctld that was installed anew counts from 1 again."""
    digits.known[2] = training(2, "explsched:sweep=short", state="COMPLETED")
    (one,) = json.loads(run("show", "short", "--json").stdout)["sweeps"]
    assert [(t["job"], t["state"], t["reason"]) for t in one["trainings"]] == [(2, "done", "")]


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "FAILED"])
@pytest.mark.parametrize("comment", ["", "explsched:checkpoint=USR1"])
def test_a_job_of_no_sweep_with_the_id_of_a_training_is_none(digits: FakeSlurm, state: str, comment: str) -> None:
    """A slurmctld that was installed anew counts from 1 again: new jobs were shown as trainings of the old sweep."""
    before = {t["job"]: t for t in shown()["trainings"] if t["job"] in (1, 2)}
    fields: dict[str, Any] = {} if state == "RUNNING" else {"start_s": None, "node_names": (), "gpu_nodes": ()}
    for job_id in (1, 2):
        later = msgspec.structs.replace(training(job_id, comment, state=state, **fields), submit_s=9_000.0)
        digits.known[job_id] = later
    assert {t["job"]: t for t in shown()["trainings"] if t["job"] in (1, 2)} == before


def test_a_training_with_the_id_of_a_former_job_has_not_reported_what_that_one_did(digits: FakeSlurm) -> None:
    digits.known[1] = msgspec.structs.replace(training(1, "explsched:sweep=short", state="FAILED"), submit_s=9_000.0)
    (one,) = json.loads(run("show", "short", "--json").stdout)["sweeps"]
    assert [(t["job"], t["best"], t["curve"]) for t in one["trainings"]] == [(1, None, [])]


def test_sweeps_are_listed(digits: FakeSlurm) -> None:
    (one,) = json.loads(run("list", "--json", "--user", "ada").stdout)["sweeps"]
    assert (one["sweep"], one["done"], one["stopped"], one["best"]) == ("digits", 1, 1, 0.5)
    assert json.loads(run("list", "--json", "--user", "nobody").stdout) == {"sweeps": []}
    assert "digits" in run("list").stdout


def test_a_column_for_each_parameter(digits: FakeSlurm) -> None:
    first, *_, last = csv.DictReader(io.StringIO(run("show", "digits", "--csv").stdout))
    assert (first["job"], first["param.lr"], first["param.seed"], first["step"]) == ("1", "0.1", "1", "30")
    assert (last["job"], last["param.lr"], last["best"]) == ("4", "", "")


def test_no_parameter_is_a_formula_of_a_spreadsheet() -> None:
    params = (("bias", -0.5), ("tag", '=HYPERLINK("http://x","y")'))
    one = SweepTraining(1, "done", 1, 1.0, 0.0, 1.0, 0.0, 1, 1, 0.5, 0, params, 0, 0, 0.0, "", ())
    [told] = csv.DictReader(io.StringIO(table(SweepResults("s", "ada", "loss", Direction.MIN, (one,)))))
    assert (told["param.bias"], told["param.tag"]) == ("-0.5", '\'=HYPERLINK("http://x","y")')


def test_a_picture_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    name, curve = "$x^$_{", (CurvePoint(1, 1.0, 0.5),)
    one = SweepTraining(1, "done", 1, 1.0, 0.0, 1.0, 0.0, 1, 1, 0.5, 0, ((name, name),), 0, 0, 0.0, "", curve)
    draw(SweepResults(name, "ada", name, Direction.MIN, (one,)), tmp_path / "x.svg")
    assert (tmp_path / "x.svg").stat().st_size


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn(digits: FakeSlurm, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"digits{suffix}"
    run("show", "digits", "--plot", path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_what_no_picture_can_be_is_refused(digits: FakeSlurm, tmp_path: Path) -> None:
    done = run("show", "digits", "--plot", tmp_path / "digits.txt", fails=True)
    assert isinstance(done.exception, ExplschedError)
    assert "accepted: .png, .svg, .pdf" in str(done.exception)


def test_an_unknown_sweep_is_answered_with_those_that_are_known(digits: FakeSlurm) -> None:
    assert "no sweep 'mnist' (known: digits)" in str(run("show", "mnist", fails=True).exception)
    assert "no sweep 'digit'; did you mean 'digits'?" in str(run("show", "digit", fails=True).exception)
    assert "no user 'adda'; did you mean 'ada'?" in str(run("list", "-u", "adda", fails=True).exception)
    assert "no user 'adda'" in str(run("show", "digits", "-u", "adda", fails=True).exception)


def test_only_the_reports_of_the_sweep_that_is_shown_are_read(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation has those of months, of all users."""
    digits.known[8] = training(8, "explsched:sweep=other", state="COMPLETED")
    reported(tmp_path, 8, 3.0, end=True)
    opened, really = set(), os.open

    def opens(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        opened.add(Path(path).name)
        return really(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", opens)
    assert {training["job"] for training in shown()["trainings"]} == {1, 2, 3, 4}
    assert "8.jsonl" not in opened
    run("show", "unheard-of", fails=True)
    assert "8.jsonl" not in opened
    assert len(json.loads(run("list", "--json").stdout)["sweeps"]) == 2
    assert "8.jsonl" in opened


def test_two_objectives_under_one_name_are_two_sweeps(digits: FakeSlurm, tmp_path: Path) -> None:
    digits.known[5] = training(5, COMMENT + "&metric=acc&direction=max")
    done = run("show", "digits")
    assert done.stdout.count("best so far") == 1
    assert "they differ in metric: acc (max), loss (min): choose with --metric" in done.stderr
    refused = run("export", "digits", tmp_path / "digits.csv", fails=True)
    assert "acc (max), loss (min): choose with --metric" in str(refused.exception)
    run("export", "digits", tmp_path / "digits.csv", "--metric", "loss")
    assert {job.job_id for job in read_any(tmp_path / "digits.csv").jobs} == {1, 2, 3}
    assert [
        row["job"] for row in csv.DictReader(io.StringIO(run("show", "digits", "--csv", "--metric=acc").stdout))
    ] == ["5"]
    assert "no metric 'los'; did you mean 'loss'" in str(run("show", "digits", "--metric=los", fails=True).exception)
    digits.known[6] = training(6, COMMENT + "&direction=max")
    assert "loss (max), loss (min): give each direction a sweep name" in run("show", "digits", "--metric=loss").stderr


def test_a_sweep_of_one_that_has_not_reported(digits: FakeSlurm, tmp_path: Path) -> None:
    digits.known = {7: training(7, "explsched:sweep=alone&params=lr%3D0.5")}
    page = run("show", "alone").stdout
    assert "1 training, 1 running" in page
    assert "lr=0.5" in page
    assert "nothing to export" in str(run("export", "alone", tmp_path / "x.csv", fails=True).exception)


def test_an_exported_sweep_is_a_trace(digits: FakeSlurm, tmp_path: Path) -> None:
    path = tmp_path / "digits.csv"
    done = run("export", "digits", path)
    assert "1 of 4 trainings are left out" in done.stderr
    assert "2 of 3 curves end before their training" in done.stderr
    trace = read_any(path)
    assert (trace.source_format, trace.rejected) == ("sweep", ())
    assert [(job.job_id, job.submit_s, job.gpus, job.user) for job in trace.jobs] == [
        (1, 0.0, 4, "ada"),
        (2, 1.0, 4, "ada"),
        (3, 2.0, 4, "ada"),
    ]
    one, two, three = (job.learning for job in trace.jobs)
    assert one is not None
    assert two is not None
    assert three is not None
    assert one.exploration.params == (("lr", 0.1), ("seed", 1.0))
    assert {one.exploration.sweep, two.exploration.sweep} == {"digits"}
    assert (trace.jobs[0].run_s, trace.jobs[1].run_s) == (300.0, 1000.0)
    assert (one.losses.tolist(), one.times_s.tolist(), one.total_steps) == ([3.0, 1.0, 0.5], [100.0, 200.0, 300.0], 30)
    assert (two.losses.tolist(), two.steps.tolist(), two.total_steps) == ([3.0, 2.5], [10, 20], 100)
    assert {learning.best_of_sweep for learning in (one, two, three)} == {0.5}


def diverges(spool: Path, job_id: int, *values: float) -> None:
    """The training reports these values, then NaN three times, and ends by itself."""
    reported(spool, job_id, *values, None, None, None, end=True)
    path = spool / f"{job_id}.jsonl"
    path.write_text(path.read_text().replace('"value": null', '"value": null, "bad": "nan"'))


def test_a_training_that_has_diverged_is_not_the_best_of_files(digits: FakeSlurm, tmp_path: Path) -> None:
    diverges(tmp_path, 1, 3.0, 0.1)
    done = run("export", "digits", tmp_path / "digits.csv")
    assert "1 of 4 trainings are left out: they diverged" in done.stderr
    assert "1 of 4 trainings are left out: they did not report loss twice" in done.stderr
    assert {job.job_id for job in read_any(tmp_path / "digits.csv").jobs} == {2, 3}
    told = {one["job"]: one["diverged"] for one in csv.DictReader(io.StringIO(run("show", "digits", "--csv").stdout))}
    assert told == {"1": "true", "2": "false", "3": "false", "4": "false"}
    for job_id in (2, 3):
        diverges(tmp_path, job_id, 3.0, 0.1)
    refused = run("export", "digits", tmp_path / "digits.csv", fails=True)
    assert "has reported loss twice without diverging: nothing to export" in str(refused.exception)


def test_trainings_that_have_diverged_cost_what_they_have_cost_in_the_picture() -> None:
    def of(job_id: int, *values: float, diverged: bool) -> SweepTraining:
        curve = tuple(CurvePoint(step, 3600.0 * step, value) for step, value in enumerate(values, start=1))
        told = (job_id, "done", 1, 1.0, 0.0, 7200.0, 2.0, 2, None, min(values), 0, (), 0, 0, 0.0, "", curve)
        return SweepTraining(*told, diverged)

    trainings = (of(2, 0.9, 0.5, diverged=False), of(1, 0.1, 0.2, diverged=True))
    assert list(best_so_far(SweepResults("s", "ada", "loss", Direction.MIN, trainings))) == [
        (2.0, 0.9),
        (3.0, 0.9),
        (4.0, 0.5),
    ]


def test_a_run_that_goes_on_after_its_last_report_is_exported_whole(digits: FakeSlurm, tmp_path: Path) -> None:
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write(json.dumps({"time_s": 1500.0, "event": "end", "status": 0}) + "\n")
    done = run("export", "digits", tmp_path / "digits.csv")
    assert "2 of 3 curves end before their training" in done.stderr, "what the first has reached is known"
    assert read_any(tmp_path / "digits.csv").jobs[0].run_s == 500.0


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_requeued_training_is_exported_with_the_time_at_which_it_was_first_submitted(
    digits: FakeSlurm, tmp_path: Path, state: str
) -> None:
    digits.set(3, state=state, restarts=1, submit_s=5_000.0)  # Slurm tells the time of the requeue
    run("export", "digits", tmp_path / "digits.csv")
    told = {job.job_id: job.submit_s for job in read_any(tmp_path / "digits.csv").jobs}
    assert told == {1: 0.0, 2: 1.0, 3: 2.0}


def test_a_sweep_exported_to_the_standard_output_has_nothing_else_there(digits: FakeSlurm, tmp_path: Path) -> None:
    run("export", "digits", tmp_path / "digits.csv")
    done = run("export", "digits", "-")
    assert done.stdout == (tmp_path / "digits.csv").read_text()
    assert "-: 3 trainings" in done.stderr


def test_an_exported_sweep_can_be_simulated(digits: FakeSlurm, tmp_path: Path) -> None:
    path = tmp_path / "digits.csv"
    run("export", "digits", path)
    words = ["simulate", "--trace", str(path), "--cluster", "1x4", "--policy", "explsched", "--json"]
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)


def test_notes_outlive_the_daemon_and_are_written_once(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sweep_record.read(tmp_path)
    assert [(note.what, note.job) for note in before] == [
        *(("joined", n) for n in (1, 2, 3, 4)),
        *(("paused", 3), ("stopped", 2)),
    ]
    passed(monkeypatch, tmp_path, digits, Plan(), NOW_S + 60)
    assert sweep_record.read(tmp_path) == before
    passed(monkeypatch, tmp_path, FakeSlurm([training(9)]), Plan(scores=(Score(9, 0.0, ""),)), NOW_S + 100 * 86_400)
    assert [note.job for note in sweep_record.read(tmp_path)] == [9]


def test_a_training_that_returns_to_a_former_size_is_noted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Plan(scores=(Score(2, 0.0, ""),))
    waiting = training(2, state="PENDING", start_s=None, node_names=(), gpu_nodes=())
    sizes = [training(2, gpus=n, gpu_nodes=(("n1", n),)) for n in (4, 2, 4)]
    for at_s, job in enumerate([*sizes, waiting, sizes[2]]):
        passed(monkeypatch, tmp_path, FakeSlurm([job]), made, NOW_S + at_s)
    assert [note.held_gpus for note in sweep_record.read(tmp_path)] == [4, 2, 4]


def test_what_slurm_refused_was_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm([training(2)], refuses=lambda change: isinstance(change, CancelJob))
    passed(monkeypatch, tmp_path, slurm, Plan(scores=(Score(2, 0.0, ""),), stops=(Stop(2, "no"),)), NOW_S)
    assert [note.what for note in sweep_record.read(tmp_path)] == ["joined"]


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A file system that answers only while the event is set; patience with it is short."""
    answers, opened = threading.Event(), os.open

    def slowly(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith(sweep_record.NAME):
            answers.wait()
        return opened(path, *rest, **more)

    monkeypatch.setattr("slurm_plugin.observation.sweep_record.os.open", slowly)
    yield answers
    answers.set()


def test_a_refusal_is_logged_once_until_it_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurm([training(2), training(3)], refusal="Requested nodes are busy")
    made = Plan(scores=tuple(Score(n, 1.0, "") for n in (2, 3)), stops=(Stop(2, "cannot win"),))
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(made))
    controller = Controller(slurm, config(tmp_path))

    def logged() -> int:
        caplog.clear()
        assert controller.reconcile(NOW_S).failures
        return sum("refused by Slurm" in line for line in caplog.messages)

    assert [logged(), logged()] == [1, 0]
    slurm.refusal = "Invalid job id specified"
    assert [logged(), logged()] == [1, 0]


def test_notes_that_a_hanging_spool_does_not_take_are_written_when_it_answers(
    tmp_path: Path, hanging: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    hanging.set()
    notes = sweep_record.SweepRecord(tmp_path, patience_s=0.05)
    one, two = (observed(training(job_id)) for job_id in (1, 2))
    notes.note(one.snapshot.jobs, (), Plan(), one.jobs, NOW_S)
    hanging.clear()
    for now_s in (NOW_S + 1, NOW_S + 2):
        notes.note(two.snapshot.jobs, (CancelJob(2),), Plan(), two.jobs, now_s)
    assert caplog.text.count("has not answered") == 1
    hanging.set()
    while [note.what for note in sweep_record.read(tmp_path)] != ["joined", "joined", "stopped", "stopped"]:
        notes.note((), (), Plan(), {}, NOW_S + 3)


def test_notes_that_wait_for_a_write_that_hangs_for_good_are_written_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a file server was given up, though the spool is there again."""
    hung, ends, really = threading.Event(), threading.Event(), os.open

    def first_hangs(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_APPEND and not hung.is_set():
            hung.set()
            ends.wait()
        return really(path, flags, *rest, **more)

    monkeypatch.setattr("slurm_plugin.observation.sweep_record.os.open", first_hangs)
    notes = sweep_record.SweepRecord(tmp_path, patience_s=0.05)
    one, two = (observed(training(job_id)) for job_id in (1, 2))
    try:
        while not hung.is_set():
            notes.note(one.snapshot.jobs, (), Plan(), one.jobs, NOW_S)
        notes.note(two.snapshot.jobs, (CancelJob(2),), Plan(), two.jobs, NOW_S)
        notes = notes.without_hung_call()
        expected = [("joined", 1), ("joined", 2), ("stopped", 2)]
        while [(note.what, note.job) for note in sweep_record.read(tmp_path)] != expected:
            notes.note((), (), Plan(), {}, NOW_S + 1)
    finally:
        ends.set()
    while (tmp_path / sweep_record.NAME).read_bytes().count(b"\n") < 4:
        pass  # it comes back after all
    assert [(note.what, note.job) for note in sweep_record.read(tmp_path)] == expected


def test_a_daemon_that_starts_while_the_spool_hangs_learns_of_ended_trainings_later(
    tmp_path: Path, digits: FakeSlurm, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
    impatient = partial(sweep_record.SweepRecord, patience_s=0.05)
    monkeypatch.setattr("slurm_plugin.steering.spool.SweepRecord", impatient)
    daemon = Controller(digits, config(tmp_path))
    assert daemon.decide(NOW_S).seen.snapshot.ended == ()
    hanging.set()
    while {job.job_id for job in daemon.decide(NOW_S + 1).seen.snapshot.ended} != {1, 2}:
        pass


def test_a_training_with_the_id_of_an_earlier_one_is_noted_as_well(tmp_path: Path) -> None:
    """A slurmctld that was installed anew counts from 1 again."""
    for comment in (COMMENT, "explsched:sweep=another"):
        for now_s in (NOW_S, NOW_S + 15):
            notes, seen = sweep_record.SweepRecord(tmp_path), observed(training(1, comment))
            notes.note(seen.snapshot.jobs, (), Plan(), seen.jobs, now_s)
    assert [(note.job, note.sweep) for note in sweep_record.read(tmp_path)] == [(1, "digits"), (1, "another")]


def test_a_training_with_the_id_of_an_earlier_one_of_its_sweep_is_another(digits: FakeSlurm, tmp_path: Path) -> None:
    """Its owner submits the sweep again after slurmctld has lost it."""
    digits.known[2] = msgspec.structs.replace(training(2, state="PENDING", start_s=None), submit_s=9_000.0)
    for now_s in (NOW_S + 60, NOW_S + 75):
        notes, seen = sweep_record.SweepRecord(tmp_path), observed(digits.known[2])
        notes.note(seen.snapshot.jobs, (), Plan(), seen.jobs, now_s)
    joined = [note for note in sweep_record.read(tmp_path) if note.job == 2 and note.what == "joined"]
    assert [note.submit_s for note in joined] == [902.0, 9_000.0]
    del digits.known[2]
    assert {t["job"]: t["state"] for t in shown()["trainings"]}[2] == "ended"  # the first was stopped


@pytest.mark.parametrize("comment", ["", "explsched:sweep=digits&unknown=7"])
def test_a_training_whose_comment_names_no_sweep_any_more_still_runs(
    digits: FakeSlurm, tmp_path: Path, comment: str
) -> None:
    """A site's plugin or its owner has changed it."""
    seen = observed(training(3))
    sweep_record.SweepRecord(tmp_path).note(seen.snapshot.jobs, (), Plan(), seen.jobs, NOW_S)
    digits.known[3] = training(3, comment)
    assert {t["job"]: t["state"] for t in shown()["trainings"]}[3] == "running"


def test_notes_for_which_the_disk_has_no_room_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def is_full(*_anything: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    notes, seen = sweep_record.SweepRecord(tmp_path), observed(training(1))
    with monkeypatch.context() as full:
        full.setattr(os, "write", is_full)
        notes.note(seen.snapshot.jobs, (), Plan(), seen.jobs, NOW_S)
    assert "No space left on device" in caplog.text
    notes.note((), (), Plan(), {}, NOW_S + 1)
    assert [note.job for note in sweep_record.read(tmp_path)] == [1]


def test_notes_of_which_the_disk_took_a_part_are_written_whole_later(tmp_path: Path) -> None:
    notes, path = sweep_record.SweepRecord(tmp_path), tmp_path / sweep_record.NAME
    seen, more = observed(training(1)), observed(training(1), training(2), training(3))
    notes.note(seen.snapshot.jobs, (), Plan(), seen.jobs, NOW_S)
    largest = path.stat().st_size * 3 // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ, so the write fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        notes.note(more.snapshot.jobs, (), Plan(), more.jobs, NOW_S + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == largest
    notes.note((), (), Plan(), {}, NOW_S + 2)
    assert [note.job for note in sweep_record.read(tmp_path)] == [1, 2, 3]


def test_strange_lines_and_files_of_others_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / sweep_record.NAME
    path.write_text(
        '{"time_s": 1\n[]\n{"time_s": 1, "what": "joined", "job": 1, "user": "a", "uid": 1, "sweep": "s"}\n'
    )
    assert [note.job for note in sweep_record.read(tmp_path)] == [1]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert sweep_record.read(tmp_path) == ()
    if os.geteuid() == 0:
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
        os.chown(path, 12345, 12345)
        assert sweep_record.read(tmp_path) == ()


def test_where_slurm_hides_others_jobs_only_the_daemons_group_may_read_the_record(
    digits: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the admin hides them later, and nothing new is recorded."""
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
    daemon, record = Controller(digits, config(tmp_path)), tmp_path / sweep_record.NAME
    modes = []
    for setting in ("none", "accounts,jobs,usage", "none"):
        digits.settings["PrivateData"] = setting
        _ = daemon.capabilities()  # which the daemon asks for in each pass
        daemon.reconcile(NOW_S + 1)
        modes.append(stat.S_IMODE(record.stat().st_mode))
    assert modes == [0o644, 0o640, 0o644]


def test_a_misspelt_command_is_not_taken_for_a_sweep() -> None:
    done = CliRunner().invoke(root, ["sweep", "shwo", "digits"])
    assert "no command 'shwo'; did you mean 'show'?" in done.output
