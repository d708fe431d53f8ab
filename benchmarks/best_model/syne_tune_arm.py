"""One scheduler of Syne Tune, as it is, on one drawn sweep, in Syne Tune's own simulator.

Run by `rivals` with the Python of an environment that has Syne Tune, so it imports nothing of the project. Reads a
sweep as JSON from standard input, prints what was reported and when as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")
sys.stdout, _answers = sys.stderr, sys.stdout  # Syne Tune prints hints of its own

from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.backend.simulator_backend.events import OnTrialResultEvent  # noqa: E402
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback  # noqa: E402
from syne_tune.blackbox_repository.blackbox import Blackbox  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend  # noqa: E402
from syne_tune.config_space import choice, loguniform, uniform  # noqa: E402
from syne_tune.optimizer.baselines import ASHA, MOBSTER, PASHA, DyHPO, HyperTune  # noqa: E402
from syne_tune.optimizer.schedulers.searchers import model_based_searcher  # noqa: E402

Params = dict[str, float]
POLL_S = 10.0
FIRST = 8
"""Trials that model-based schedulers begin with, in the drawn order; their models choose among the others."""

_WIDE = 100.0  # a range of more than this ratio is searched on a logarithmic scale
_SCHEDULERS = {
    "asha-stopping": (ASHA, {"type": "stopping"}),
    "asha-promotion": (ASHA, {"type": "promotion"}),
    "pasha": (PASHA, {}),
    "mobster": (MOBSTER, {"type": "promotion"}),
    "hyper-tune": (HyperTune, {"type": "promotion"}),
    "dyhpo": (DyHPO, {}),
}
_BY_MODEL = ("mobster", "hyper-tune", "dyhpo")


class Drawn(Blackbox):
    """The space; the values come from the backend."""

    def _objective_function(self, configuration: Params, fidelity: object = None, seed: object = None) -> object:
        raise NotImplementedError


class Recorded(UserBlackboxBackend):
    """Gives recorded values, charges what pausing and starting again cost, and notes all that happens."""

    def __init__(self, sweep: dict[str, Any], space: dict[str, Any]) -> None:
        blackbox = Drawn(space, {"epoch": choice(list(range(1, sweep["most"] + 1)))}, ["loss", "elapsed"])
        super().__init__(blackbox, "elapsed", max_resource_attr="epochs", tuner_sleep_time=POLL_S)
        self._sweep = sweep
        self._rows = {_key(params): row for row, params in enumerate(sweep["params"])}
        self._leaving = 0
        self._since_s: dict[int, float] = {}
        self._held_s = 0.0
        self.reports: list[tuple[float, float, float]] = []
        self.end_s = 0.0

    @property
    def resource_attr(self) -> str:
        """What counts a training's progress."""
        return "epoch"

    @property
    def has_started_all(self) -> bool:
        """Whether there is no configuration left."""
        return len(self.trial_ids) >= len(self._rows)

    def held_s(self, now_s: float) -> float:
        """GPU-seconds that all trials have had."""
        return self._held_s + sum(now_s - since_s for since_s in self._since_s.values())

    def config_objectives(self, config: Params, seed: object) -> list[dict[str, float]]:
        """What the training of a configuration reports."""
        del seed
        row = self._rows[_key(config)]
        curve = zip(self._sweep["times_s"][row], self._sweep["values"][row], strict=True)
        until = int(config.get("epochs", self._sweep["most"]))
        return [{"epoch": k, "loss": v, "elapsed": t} for k, (t, v) in enumerate(curve, 1) if k <= until]

    def _run_job_and_collect_results(self, trial_id: int, config: Params | None = None) -> tuple[str, list[Params]]:
        again = trial_id in self._resource_paused_for_trial
        status, results = super()._run_job_and_collect_results(trial_id, config)
        cost_s = self._sweep["restart_s"] if again else 0.0
        if self._leaving:  # the GPU is still held by one that saves its checkpoint
            self._leaving -= 1
            cost_s += self._sweep["checkpoint_s"]
        return status, [{**result, "elapsed": result["elapsed"] + cost_s} for result in results]

    def _pause_trial(self, trial_id: int, result: Params | None) -> None:
        super()._pause_trial(trial_id, result)
        self._leaving += 1

    def _process_start_event(self, trial_id: int, time_event: float, config: Params | None = None) -> None:
        self._since_s[trial_id] = time_event
        super()._process_start_event(trial_id, time_event, config)

    def _process_on_trial_result_event(self, time_event: float, event: OnTrialResultEvent) -> None:
        self.reports.append((time_event, self.held_s(time_event), event.result["loss"]))
        super()._process_on_trial_result_event(time_event, event)

    def _process_complete_event(self, trial_id: int, time_event: float, status: str) -> None:
        self._ended(trial_id, time_event)
        super()._process_complete_event(trial_id, time_event, status)

    def _process_stop_event(self, trial_id: int, time_event: float) -> None:
        self._ended(trial_id, time_event)
        super()._process_stop_event(trial_id, time_event)

    def _ended(self, trial_id: int, time_event: float) -> None:
        if trial_id in self._since_s:
            self._held_s += time_event - self._since_s.pop(trial_id)
            self.end_s = max(self.end_s, time_event)


class Left(model_based_searcher.RandomFromSetCandidateGenerator):
    """The configurations that have not been tried; none of them where Syne Tune's own fails with a ValueError."""

    def generate_candidates_en_bulk(self, num_cands: int, exclusion_list: object = None) -> list[Params]:
        """What is left of them."""
        try:
            return list(super().generate_candidates_en_bulk(num_cands, exclusion_list))
        except ValueError:
            return []


class Patient(Tuner):
    """Goes on while trials run: when all have been started, one may still be promoted later.

    Syne Tune's own would start nobody any more, promotions neither, once its list of configurations is empty.
    """

    def _schedule_new_tasks(self, running_trials_ids: set[int]) -> None:
        try:
            super()._schedule_new_tasks(running_trials_ids)
        except StopIteration:
            if not running_trials_ids:
                raise
            self._sleep()


def main() -> None:
    """Run the scheduler that the sweep names."""
    logging.disable(logging.CRITICAL)
    sweep = json.load(sys.stdin)
    space = {name: _domain([params[name] for params in sweep["params"]]) for name in sweep["params"][0]}
    kind, options = _SCHEDULERS[sweep["scheduler"]]
    is_by_model = sweep["scheduler"] in _BY_MODEL
    points = sweep["params"][: FIRST if is_by_model else None]
    searching = {"restrict_configurations": sweep["params"], "debug_log": False, "allow_duplicates": False}
    scheduler = kind(
        {**space, "epochs": sweep["most"]},
        metric="loss",
        mode="min",
        resource_attr="epoch",
        max_resource_attr="epochs",
        grace_period=sweep["least"],
        reduction_factor=sweep["eta"],
        points_to_evaluate=points,
        search_options=searching,
        random_seed=sweep["seed"],
        **options,
    )
    model_based_searcher.RandomFromSetCandidateGenerator = Left
    backend = Recorded(sweep, space)
    propose = scheduler.searcher.get_config

    def propose_while_some_are_left(**more: object) -> Params | None:
        """None when all have been started; some searchers would make up others then."""
        found: Params | None = None if backend.has_started_all else propose(**more)
        return found

    scheduler.searcher.get_config = propose_while_some_are_left
    tuner = Patient(
        trial_backend=backend,
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=sweep["until_s"]),
        n_workers=sweep["gpus"],
        sleep_time=0,
        callbacks=[SimulatorCallback()],
        save_tuner=False,
        print_update_interval=1e9,
        results_update_interval=1e9,
        suffix_tuner_name=True,
    )
    tuner.run()
    json.dump({"reports": backend.reports, "gpu_s": backend.held_s(backend.end_s), "end_s": backend.end_s}, _answers)


def _key(params: Params) -> tuple[float, ...]:
    return tuple(float(f"{value:.9g}") for name, value in sorted(params.items()) if name != "epochs")


def _domain(values: list[float]) -> object:
    low, high = min(values), max(values)
    if low == high:
        return choice([low])
    return loguniform(low, high) if low > 0 and high / low > _WIDE else uniform(low, high)


if __name__ == "__main__":
    main()
