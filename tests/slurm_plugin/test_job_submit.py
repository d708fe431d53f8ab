"""job_submit.lua, run by Lua with what slurmctld gives it. On a real slurmctld: tests/slurm/test_spank.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from lupa.lua53 import LuaRuntime

from explsched.job_options.comment import CONTROL_VARIABLE
from explsched.job_options.generated import job_submit_script
from tests import job_submit


class Controller:
    """slurmctld: its `slurm` module, and what it told the user."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._runtime = LuaRuntime()
        module = self._runtime.table(SUCCESS=0, ERROR=-1, log_user=self.told.append)
        self._runtime.globals().slurm = module
        assert self._runtime.execute(job_submit.script()) == 0

    def submit(self, comment: str = "", query: str = "", requeue: int = 65534) -> SimpleNamespace:
        entries = [f"SPANK_{CONTROL_VARIABLE}={query}"] if query else []
        job = self._runtime.table(comment=comment, requeue=requeue, spank_job_env=self._runtime.table(*entries))
        answer = self._runtime.globals().slurm_job_submit(job, None, 0)
        return SimpleNamespace(answer=answer, comment=job.comment, requeue=job.requeue)


@pytest.fixture
def controller() -> Controller:
    return Controller()


def test_jobs_without_options_are_left_alone(controller: Controller) -> None:
    done = controller.submit("my own words")
    assert (done.answer, done.comment, done.requeue, controller.told) == (0, "my own words", 65534, [])


def test_options_go_before_the_users_comment(controller: Controller) -> None:
    done = controller.submit("mine", "sweep=a&checkpoint=USR1")
    assert (done.answer, done.comment, done.requeue) == (0, "explsched:sweep=a&checkpoint=USR1 mine", 1)


def test_what_sxbatch_said_already_may_be_said_again(controller: Controller) -> None:
    comment = "explsched:sweep=a&checkpoint=USR1&stages=1/1/1/1 mine"
    assert controller.submit(comment, "checkpoint=USR1").comment == comment
    assert controller.told == []


def test_contradictions_are_refused(controller: Controller) -> None:
    assert controller.submit("explsched:sweep=a", "sweep=b").answer == -1
    assert controller.submit("", "sweep=a&checkpoint=USR1", requeue=0).answer == -1
    assert "give them in one place" in controller.told[0]
    assert "--expl-checkpoint=USR1 with --no-requeue" in controller.told[1]


def test_a_template_without_the_placeholder_is_refused() -> None:
    with pytest.raises(ValueError, match="job_options"):
        job_submit_script("return slurm.SUCCESS")
