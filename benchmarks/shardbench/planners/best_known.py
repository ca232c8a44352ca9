"""The best of long annealings on the simulated cluster: no planner for users, but what there is to be found."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.references.cluster_annealing import best_known
from benchmarks.shardbench.cases import BenchMachine
from benchmarks.shardbench.planners import evenshard
from evenshard.measure.simulated.cluster import SimulatedCluster
from evenshard.measure.simulated.gpu_profile import gpu_profile
from evenshard.placement.parts import TablePart
from evenshard.tables.table import Table

OWN_ORACLE = "device"


def plan(tables: Sequence[Table], machine: BenchMachine) -> Sequence[TablePart]:
    """Annealed from constructions and from evenshard's answer."""
    profile, known = gpu_profile(machine.gpu), evenshard.plan(tables, machine)
    cluster = SimulatedCluster(machine.nodes, [profile] * machine.nodes.num_devices, machine.links)
    return best_known(cluster, machine.task(tables), profile, [known]).parts
