"""Rows of a study's table, one per sharder, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief
from evenshard.sharders.catalog import HEURISTICS, SHARDERS
from evenshard.sharders.simple import SINGLE_COST

SINGLE_COSTS = tuple(one.name for one in SHARDERS if one.is_privileged)
EXTERNAL = tuple(one.name for one in SHARDERS if not one.needs and one.package and not one.is_full_space)
AUTOSHARD = ("autoshard", "autoshard_cost_greedy")
# Rows of sharders with several settings.
VARIANTS = {"dreamshard": ("dreamshard_argmax", "dreamshard"), "evenshard": ("evenshard", "evenshard_measured")}
# Rows that need DreamShard's networks and the cost model.
LEARNED = tuple(name for one in SHARDERS if one.name in VARIANTS for name in VARIANTS.get(one.name, (one.name,)))
SUFFIX = "_transferred"
TRANSFERRED = ("dreamshard_transferred", "evenshard_transferred")
SEARCH = "random_search"

# The rows of each study.
ROWS = {
    "dlrm": (*HEURISTICS, *SINGLE_COSTS, *EXTERNAL, SEARCH, *LEARNED),
    "mixed": (*HEURISTICS, *SINGLE_COSTS, *EXTERNAL, SEARCH, "autoshard", *LEARNED),
    "generalize": (*HEURISTICS, "dreamshard", "evenshard", *TRANSFERRED),
    "autoshard": (*HEURISTICS, SINGLE_COST, "dreamshard", "evenshard", *AUTOSHARD),
}
# Rows that measured the test tables, or placements of the test tasks.
PRIVILEGED_ROWS = (*SINGLE_COSTS, SEARCH, "evenshard_measured")
# Modules that a row needs; without its module a row is omitted, and the study reports it.
NEEDS = {one.name: one.package for one in SHARDERS if one.package}


def left_out(study: str, skip: Sequence[str]) -> dict[str, str]:
    """Return the rows of the study that this run leaves out, with the reason."""
    unknown = next((name for name in skip if name not in ROWS[study]), None)
    if unknown is not None:
        raise BadConfig(f"--skip: {brief(unknown)} is not a row of the study. Its rows are {', '.join(ROWS[study])}.")
    out = dict.fromkeys(skip, "skipped")
    for name in ROWS[study]:
        if name in NEEDS and not _is_installed(NEEDS[name]):
            out.setdefault(name, f"needs {NEEDS[name]}, which is not installed")
    return out


def rows(study: str, out: Iterable[str]) -> tuple[str, ...]:
    """Return the rows of a run."""
    without = set(out)
    return tuple(name for name in ROWS[study] if name not in without)


def _is_installed(module: str) -> bool:
    return find_spec(module) is not None
