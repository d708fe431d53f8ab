"""Which hyper-parameters a search tries next: what Optuna's samplers propose, or the points of a grid."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from slurm_plugin.sweeps.search_file import SearchFile, SpaceSection, Value, argument


def proposals(study: optuna.Study, file: SearchFile) -> Iterator[tuple[int, Mapping[str, Value]]]:
    """New trials: number and hyper-parameters. The study has each before it is given; without end unless of a grid."""
    distributions = {name: _distribution(one) for name, one in file.space.items()}
    if file.sampler == "grid":
        yield from _grid(study, file, distributions)
        return
    while True:
        trial = study.ask(distributions)
        yield trial.number, trial.params


def _grid(
    study: optuna.Study, file: SearchFile, distributions: dict[str, BaseDistribution]
) -> Iterator[tuple[int, Mapping[str, Value]]]:
    """A new trial for each point of the grid that none has, in the order of the seed.

    Optuna's own grid sampler takes a point for tried whose trial was begun by half, and ends by an error.
    """
    trials = study.get_trials(deepcopy=False)
    number = itertools.count(len(trials))
    tried = {_point(trial.params) for trial in trials}
    points = list(itertools.product(*(one.values for one in file.space.values())))
    for place in np.random.default_rng(file.seed).permutation(len(points)):
        params = dict(zip(file.space, points[place], strict=True))
        if _point(params) not in tried:
            study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=distributions))
            yield next(number), params


def sampler(file: SearchFile, begun: int) -> BaseSampler:
    """The sampler of a pass that finds so many trials: no pass of a search with any seed may draw what another drew."""
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    seed = int(np.random.SeedSequence([file.seed, begun]).generate_state(1)[0])
    return TPESampler(seed=seed, constant_liar=True) if file.sampler == "tpe" else RandomSampler(seed=seed)


def _distribution(one: SpaceSection) -> BaseDistribution:
    if one.values:
        return CategoricalDistribution(one.values)
    low, high = one.low or 0.0, one.high or 0.0
    if one.integer:
        return IntDistribution(int(low), int(high), log=one.log)
    return FloatDistribution(low, high, log=one.log)


def _point(params: Mapping[str, Value]) -> frozenset[tuple[str, str]]:
    """What tells the hyper-parameters of one trial from those of another, as its command does."""
    return frozenset((name, argument(value)) for name, value in params.items())
