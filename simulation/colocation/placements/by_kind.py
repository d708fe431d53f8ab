"""What the two placements after Dilu share: a rule for each kind of instance, within the same bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from simulation.colocation.placements.best_fit import BestFit, as_declared
from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import GpuShare, Instance, InstanceKind
from simulation.colocation.placements.share_base import ShareBounds


@dataclass(frozen=True, slots=True)
class PlaceByKind(ABC):
    """Inference goes by `BestFit.inference`; a subclass says where LLMs and trainings go."""

    fit: BestFit = BestFit()

    @property
    def bounds(self) -> ShareBounds:
        """Sums of requests and limits that no GPU exceeds."""
        return self.fit.bounds

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        """The GPUs for an instance and what it is charged there, None if it does not fit."""
        match instance.kind:
            case InstanceKind.INFERENCE:
                return self.fit.inference(instance, loads)
            case InstanceKind.LLM_INFERENCE:
                return self._llm(instance, loads)
            case InstanceKind.TRAINING:
                return self._training(instance, loads)

    @abstractmethod
    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None: ...

    @abstractmethod
    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None: ...

    def _whole_on_active(self, llm: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        gpus = self.fit.best(self.fit.feasible(llm, loads) & loads.active, llm, loads)
        return as_declared(llm, gpus[:1]) if gpus.size else None

    def _whole_on_new(self, llm: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        gpus = np.flatnonzero(self.fit.feasible(llm, loads) & ~loads.active)
        return as_declared(llm, gpus[:1]) if gpus.size else None
