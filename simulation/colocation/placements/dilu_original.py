"""Dilu's resourcing-complementary placement as its authors publish it (ASPLOS 2025, large-scale simulation)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.colocation.placements.best_fit import as_declared, filled, part_of_split
from simulation.colocation.placements.by_kind import PlaceByKind
from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import GpuShare, Instance


@dataclass(frozen=True, slots=True)
class DiluOriginal(PlaceByKind):
    """Fill active GPUs before new ones; where several GPUs of one node are needed, the first node that has them.

    * inference: see `BestFit.inference`.
    * llm-inference: the active GPU with the smallest score; else split over active GPUs of one node, the fullest memory
      first; else the first new GPU.
    * training: all its GPUs on one node, on active ones if some node can; else on active and new ones.

    What the original leaves open: "first" is by index, and on a node with more candidates than a training needs the
    smallest scores win.

    Defects of the original that are not repeated: a delete there handles one GPU only and subtracts a list for a
    training (here `GpuLoads` gives back all); its live scheduler places an LLM on an active GPU by an attribute that
    does not exist, and by worst fit (this is the rule of its simulator).
    """

    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        for place in (self._whole_on_active, self._split, self._whole_on_new):
            shares = place(instance, loads)
            if shares is not None:
                return shares
        return None

    def _split(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        part, need_mib = part_of_split(instance), sum(instance.memory_mib)
        free_mib = np.where(loads.active & self.fit.open_to(part, loads), loads.capacity_mib - loads.memory_mib, 0)
        most_mib = np.zeros(len(loads.nodes), dtype=np.int64)
        np.maximum.at(most_mib, loads.node, free_mib)
        sum_mib = np.bincount(loads.node, weights=free_mib, minlength=len(loads.nodes))
        # Where one GPU had the memory it was the limit that did not fit: that is no case for a split.
        enough = np.flatnonzero((sum_mib >= need_mib) & (most_mib < need_mib))
        if not enough.size:
            return None
        here = np.flatnonzero(loads.node == enough[0])
        return filled(part, need_mib, here[np.argsort(-loads.memory_mib[here], kind="stable")], free_mib)

    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        feasible, active = self.fit.feasible(instance, loads), loads.active
        for candidates in (feasible & active, feasible):
            per_node = np.bincount(loads.node[candidates], minlength=len(loads.nodes))
            enough = np.flatnonzero(per_node >= instance.gpus)
            if enough.size:
                here = candidates & (loads.node == enough[0])
                used = self.fit.best(here & active, instance, loads)
                gpus = np.concatenate([used, np.flatnonzero(here & ~active)])
                return as_declared(instance, gpus[: instance.gpus])
        return None
