"""Predicted step time of hypothetical changes of a placement, and the placement rules that apply to them.

Times are predicted without the rules, so that forbidden changes have a time, too. A table is identified by its position
in the request.

Legend: D devices, W windows (phases of a step after which the devices wait for each other).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from evenshard.base.errors import BadConfig
from evenshard.base.messages import names_text
from evenshard.placement.parts import Storage, TablePart
from evenshard.placement.placement import device_mask, merge_groups
from evenshard.placement.sharding import COLUMN_WISE, COLUMNS_ALONE, SHARDING_TYPES, least_limited_column_type
from evenshard.placement.task import TableLimits
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.pricing import part_costs
from evenshard.price.loads import Indices
from evenshard.price.step import collect_phases
from evenshard.price.step_time import windows
from evenshard.search.chains import chains_of
from evenshard.search.sharding_option import Choice, ShardingOption, Shards, edits_of
from evenshard.search.space import SearchSpace, choices_of, parts_of
from evenshard.sharders.model import Model
from evenshard.tables.table import MEAN

Changes = Mapping[int, Choice]  # new choices, by the position of the table


@dataclass(frozen=True)
class ChangeOutcome:
    """Outcome of a change: device times by window (phase between waits), ms, and device memory of tables, bytes."""

    windows_WD: npt.NDArray[np.float64]
    used_D: npt.NDArray[np.int64]

    @property
    def ms_D(self) -> npt.NDArray[np.float64]:
        """Return the busy time of each device in a step."""
        return np.asarray(self.windows_WD.sum(axis=0))

    @property
    def step_ms(self) -> float:
        """Return the step time."""
        return float(self.windows_WD.max(axis=1).sum())


class ChangedPlacement:
    """An answer's placement, and predictions of changes to single tables.

    Raises:
        BadConfig: if a table is sharded in a way that the search never tries, or the answer separates tables that its
            own rules keep together.
    """

    def __init__(self, answer: PlacementAnswer, model: Model) -> None:
        self.answer, self.task = answer, answer.task
        tables = self.task.tables
        free = tuple(TableLimits(types=frozenset(self.types(position))) for position in range(len(tables)))
        means_of_rows = any(tables[at].pooling == MEAN for at in self.task.row_wise_only)
        costs = part_costs(answer.request, model)
        self.costs = costs.of_task(replace(costs.task, limits=free, together=(), apart=(), means_of_rows=means_of_rows))
        self.space = SearchSpace(self.costs)
        choices = choices_of(self.space, answer.parts)
        if choices is None:
            raise BadConfig(
                "a table is sharded in a form that evenshard never produces. Give a placement of `evenshard place`."
            )
        self.choices = choices
        self._chains = chains_of(self.space, [choices])
        phases = collect_phases(self.costs.predict(answer.parts).devices)
        windows_WD = np.stack([window.total for window in windows(phases, self.costs.pipeline)])
        # Chains price all row shards of a table like its busiest, so only their differences are used: they are added
        # to the exact prediction.
        self._offset_W1D = (windows_WD - self._chains.windows_BND[:, 0])[:, None]
        self.now = ChangeOutcome(windows_WD, self._chains.used_3ND[0, 0])
        self.memory_D = np.array(self.task.room_bytes, dtype=np.int64)
        for group in map(sorted, self.task.together):
            if len(homes := {self.devices(position) for position in group}) > 1:
                names = names_text([tables[position].name for position in group])
                on = devices_text([*set().union(*homes)])
                raise BadConfig(f"tables {names} must stay together, but are on {on}. Place them again.")

    def types(self, position: int) -> tuple[str, ...]:
        """Return the sharding types to try; of those that cut only columns, only the most general that is allowed."""
        allowed = self.task.limits_of(position).types
        by_columns = least_limited_column_type(allowed, self.task.machine, COLUMN_WISE)
        return tuple(name for name in SHARDING_TYPES if name == by_columns or name not in COLUMNS_ALONE)

    # Prices -----------------------------------------------------------------------------------------------------------

    def option(self, position: int, choice: Choice | None = None) -> ShardingOption:
        """Return a table's sharding option (type, widths, storage) under a choice, by default its current choice."""
        return self.space.option(position, (choice or self.choices[position]).option)

    def devices(self, position: int, choice: Choice | None = None) -> tuple[int, ...]:
        """Return the devices that hold a part of a table under a choice, by default its current choice."""
        choice = choice or self.choices[position]
        span = self.option(position, choice).span
        return tuple(place * span + offset for place in choice.places for offset in range(span))

    def try_each(self, changes: Sequence[Changes]) -> list[ChangeOutcome]:
        """Return the outcome of each change, made alone."""
        if not changes:
            return []
        only_M = np.zeros(len(changes), dtype=np.int64)
        return self._outcomes(only_M, self._chains.list_changed_shards(only_M, edits_of(self._chains.table, changes)))

    def without(self, position: int) -> ChangeOutcome:
        """Return the outcome of removing a table."""
        chains, only_M = self._chains, np.zeros(1, dtype=np.int64)
        gone, _, _ = chains.list_shards(only_M, chains.option_NG[:, position], chains.place_NGS[:, position], -1)
        return self._outcomes(only_M, gone)[0]

    def _outcomes(self, chain_M: Indices, shards: Shards) -> list[ChangeOutcome]:
        found = self._chains.try_out(chain_M, shards)
        windows_MWD = (found.windows_BMD + self._offset_W1D).swapaxes(0, 1)
        return [ChangeOutcome(*one) for one in zip(windows_MWD, found.used_3MD[0], strict=True)]

    def parts_after(self, changes: Changes) -> list[TablePart]:
        """Return all table parts after the changes."""
        tables = self.task.tables
        choices = [changes.get(position, now) for position, now in enumerate(self.choices)]
        names = {tables[position].name for position in changes}
        stay = [part for part in self.answer.parts if part.table not in names]
        return [*stay, *(part for part in parts_of(self.space, choices) if part.table in names)]

    def add_storage_options(
        self, position: int, options: Sequence[ShardingOption], storage: Storage
    ) -> Iterator[tuple[int, ShardingOption]]:
        """Copy sharding options of a table to the search space, with other storage; yield index and copy of each."""
        shapes = dict.fromkeys((option.sharding_type, option.widths) for option in options)
        numbers = self.space.add_options(position, [(*shape, storage) for shape in shapes])
        self._chains = chains_of(self.space, [self.choices])
        for number in numbers:
            yield number, self.space.option(position, number)

    # Rules ------------------------------------------------------------------------------------------------------------

    def list_kept_together(self, position: int) -> tuple[int, ...]:
        """Return the tables that a rule keeps together with this table, including this table."""
        groups = merge_groups(len(self.task.tables), self.task.together)
        return next(group for group in groups if position in group)

    def allowed_devices(self, position: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the devices that the rules allow for a table, regardless of memory, [devices]."""
        may_D = device_mask(self.task.num_devices, self.task.limits_of(position).devices).copy()
        for group in self.task.apart:
            if position in group:
                may_D[[device for other in group if other != position for device in self.devices(other)]] = False
        return may_D


def devices_text(devices: Sequence[int]) -> str:
    """Return device ids as text in ascending order, three or more consecutive ids as "2 to 5"."""
    runs: list[list[int]] = []
    for device in sorted(devices):
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    ids = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"device{'s' if len(devices) > 1 else ''} {ids}"
