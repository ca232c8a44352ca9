"""Diff of two answers: the rows and columns that move, in bytes, and the step time that the move saves.

``placement.moves`` computes the moves of one table. If two placements differ only in device ids, renaming the devices
avoids all moves. One model predicts both step times for the new request; without a model, the answers' own times are
compared.

Legend: D devices, O devices of the old answer, N devices of the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from evenshard.base.errors import BadConfig, InfeasibleTask
from evenshard.base.messages import count_text
from evenshard.base.process import one_thread
from evenshard.base.typed import check_arguments
from evenshard.base.units import gb_to_bytes
from evenshard.placement.memory import SGD, part_memory
from evenshard.placement.moves import PartOverlap, device_kinds, larger_machine, match_devices, shape_changes
from evenshard.placement.parts import Span, TablePart, whole_part
from evenshard.placement.placement import check_sharding
from evenshard.planner.answer import PlacementAnswer, match_earlier_placement, model_lineage
from evenshard.planner.difference import (
    OWN_FIGURES,
    ChangedTable,
    DeviceTraffic,
    Difference,
    PairTraffic,
    PartMove,
    Renaming,
    Resharded,
    StepTimes,
    StorageChange,
    Traffic,
)
from evenshard.planner.intervals import compute_difference_interval
from evenshard.planner.output_order import order_changes, output_orders
from evenshard.planner.pricing import errors_of, hardware_of_devices, part_costs, price_parts, reprice_answer
from evenshard.planner.rules import Rules
from evenshard.price.evidence import device_text, widest
from evenshard.search.lower_bound import lower_bound_ms
from evenshard.search.space import SearchSpace
from evenshard.sharders.model import Model
from evenshard.tables.table import Table


@check_arguments()
def diff(
    old: PlacementAnswer, new: PlacementAnswer, model: Model | None = None, link_gb_s: float | None = None
) -> Difference:
    """Compare two answers: the moves, and the step time that they save.

    If both have the same tables, ``model`` predicts both placements for the new answer's request; otherwise, the
    answers' own times are used. A device sends and receives at ``link_gb_s`` in each direction.
    """
    of_old = {table.name: table for table in old.request.tables}
    of_new = {table.name: table for table in new.request.tables}
    shared = {name: table for name, table in of_new.items() if name in of_old}
    changed = tuple(
        ChangedTable(name, what) for name, table in shared.items() if (what := shape_changes(of_old[name], table))
    )
    earlier = match_earlier_placement(old, new.request)
    movable, optimizer_of = [of_new[name] for name in earlier.parts_of_table], earlier.optimizer_of
    overlaps = list(earlier.list_overlaps(movable, new.parts_of_table, new.request.nodes))
    moves = _list_moves(overlaps, range(new.num_devices))
    kept_bytes = sum(overlap.num_bytes * overlap.num_kept for overlap in overlaps)
    same_tables = len(movable) == len(of_old) == len(of_new)
    times, notes = step_times(old, new, model if same_tables else None)
    if other := [table.name for table in movable if table.name not in optimizer_of]:
        before, now = old.request.optimizer_of(other[0]), new.request.optimizer_of(other[0])
        of = "" if len(other) == len(movable) else f" of {count_text(len(other), 'table')}"
        notes = (*notes, f"the optimizer changed from {before} to {now}: no optimizer state{of} is counted")
    return Difference(
        equal=same_tables and old.request.nodes == new.request.nodes and set(old.parts) == set(new.parts),
        old_num_devices=old.num_devices,
        new_num_devices=new.num_devices,
        moves=moves,
        kept_bytes=kept_bytes,
        traffic=_traffic(moves, link_gb_s),
        renaming=_best_renaming(overlaps, old, new, link_gb_s),
        added=tuple(name for name in of_new if name not in of_old),
        removed=tuple(name for name in of_old if name not in of_new),
        changed=changed,
        resharded=tuple(
            Resharded(table.name, old.type_of_table[table.name], new.type_of_table[table.name])
            for table in movable
            if old.type_of_table[table.name] != new.type_of_table[table.name]
        ),
        rekept=tuple(_list_storage_changes(old, new, movable, overlaps, optimizer_of)),
        reordered=order_changes(*(output_orders(one.request, one.parts_of_table) for one in (old, new))),
        times=times,
        notes=(*notes, *new.notes),
    )


# Overlaps of old and new parts ----------------------------------------------------------------------------------------


def _list_storage_changes(
    old: PlacementAnswer,
    new: PlacementAnswer,
    tables: Sequence[Table],
    overlaps: Sequence[PartOverlap],
    optimizer_of: Mapping[str, str],
) -> Iterator[StorageChange]:
    crossing: Counter[str] = Counter()  # bytes of each table between devices and their hosts
    of_name = {table.name: table for table in tables}
    for overlap in overlaps:
        was, now = old.storage_of_table[overlap.table], new.storage_of_table[overlap.table]
        if was.is_on_device != now.is_on_device:
            part = replace(of_name[overlap.table], num_rows=overlap.rows.size, embedding_dim=overlap.columns.size)
            whole = whole_part(part, storage=now if was.is_on_device else was)
            optimizer = optimizer_of.get(overlap.table, SGD)
            outside = part_memory(whole, part, num_devices=1, batch_size=1, optimizer=optimizer, pipeline="")
            num_bytes = outside.host_bytes + outside.ssd_weights
            crossing[overlap.table] += num_bytes * len(set(overlap.reach) & set(overlap.new_devices))
    for table in tables:
        was, now = old.storage_of_table[table.name], new.storage_of_table[table.name]
        if was != now:
            out, back = was.is_on_device and not now.is_on_device, now.is_on_device and not was.is_on_device
            size = crossing[table.name]
            yield StorageChange(table.name, str(was), str(now), size if out else 0, size if back else 0)


def _list_moves(overlaps: Sequence[PartOverlap], name_of_new: Sequence[int]) -> tuple[PartMove, ...]:
    """Return the copies of parts to devices that lack them; replicas of the old placement take turns as the source."""
    return tuple(
        PartMove(
            table=overlap.table,
            rows=overlap.rows,
            columns=overlap.columns,
            from_device=overlap.old_devices[name % len(overlap.old_devices)],
            to_device=name,
            weight_bytes=overlap.weight_bytes,
            state_bytes=overlap.state_bytes,
        )
        for overlap in overlaps
        for name in (name_of_new[device] for device in overlap.new_devices)
        if name not in overlap.reach
    )


# Bytes ---------------------------------------------------------------------------------------------------------------


def _traffic(moves: Sequence[PartMove], link_gb_s: float | None) -> Traffic:
    pairs: Counter[tuple[int, int]] = Counter()
    for move in moves:
        pairs[move.from_device, move.to_device] += move.num_bytes
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for (sender, receiver), num_bytes in pairs.items():
        sent[sender] += num_bytes
        received[receiver] += num_bytes
    busiest = max((*sent.values(), *received.values()), default=0)
    return Traffic(
        moved_bytes=pairs.total(),
        busiest_bytes=busiest,
        seconds=None if link_gb_s is None else busiest / gb_to_bytes(link_gb_s),
        pairs=tuple(PairTraffic(*pair, pairs[pair]) for pair in sorted(pairs)),
        devices=tuple(
            DeviceTraffic(device, sent[device], received[device]) for device in sorted(sent.keys() | received.keys())
        ),
    )


def _best_renaming(
    overlaps: Sequence[PartOverlap], old: PlacementAnswer, new: PlacementAnswer, link_gb_s: float | None
) -> Renaming | None:
    """Return the renaming of devices that moves the fewest bytes; None if the current ids move as few."""
    names = match_devices(
        overlaps, device_kinds(new.task), larger_machine(old.request.nodes, new.request.nodes)
    ).tolist()
    if names == sorted(names):
        return None
    new_names = tuple(names[: new.num_devices])
    return Renaming(new_names, _traffic(_list_moves(overlaps, new_names), link_gb_s))


def rename_devices(answer: PlacementAnswer, names: Sequence[int], model: Model) -> PlacementAnswer:
    """Rename the devices of an answer, and predict its times again.

    Tables that are cut by rows keep the order of their rows over devices, which TorchRec requires.

    Raises:
        BadConfig: if a name is not a device of the answer.
    """
    if sorted(names) != list(range(answer.num_devices)):
        raise BadConfig(
            f"the new ids {', '.join(map(str, names))} include devices of the old placement that the new placement "
            f"({answer.num_devices} devices) does not have. Map the ranks when the job starts."
        )
    parts = tuple(part for of_table in answer.parts_of_table.values() for part in _rename_parts(of_table, names))
    old_names = sorted(range(len(names)), key=lambda device: names[device])
    measured = answer.measured
    if measured is not None:
        measured = replace(measured, devices=tuple(measured.devices[device] for device in old_names))
    return replace(reprice_answer(answer, parts, model), measured=measured, measured_ms=answer.measured_ms)


def _rename_parts(parts: Sequence[TablePart], names: Sequence[int]) -> Iterator[TablePart]:
    by_columns: dict[Span, list[TablePart]] = {}
    for part in parts:
        by_columns.setdefault(part.columns, []).append(part)
    for of_columns in by_columns.values():
        homes = [tuple(sorted(names[device] for device in part.devices)) for part in of_columns]
        if len(of_columns) > 1:
            homes.sort()
        for part, devices in zip(of_columns, homes, strict=True):
            yield replace(part, devices=devices)


# Times ---------------------------------------------------------------------------------------------------------------


@one_thread()
def step_times(old: PlacementAnswer, new: PlacementAnswer, model: Model | None) -> tuple[StepTimes, tuple[str, ...]]:
    """Return the step times of two answers, predicted by ``model`` (or as recorded if it is None), and notes."""
    if model is None:
        unlike = tuple(_list_unlike_inputs(old, new))
        tables = frozenset(() if unlike else old.request.tables)
        alike = [table.name for table in new.request.tables if table in tables]
        errors = widest(old.device_error, new.device_error), widest(old.link_error, new.link_error)
        pipelines = old.request.training_pipeline, new.request.training_pipeline
        saves = compute_difference_interval(old, new, pipelines, alike, errors)
        steps = old.predicted_ms, new.predicted_ms, saves.ms, saves.low_ms, saves.high_ms
        times = StepTimes(OWN_FIGURES, *steps, new.lower_bound_ms)
        hardware = f"{old.request.hardware}, {new.request.hardware}"
        return times, (*unlike, *_note_device_error(device_text(hardware, *errors)))
    costs = part_costs(new.request, model)
    same_machine = old.request.nodes == new.request.nodes
    # Memory, rules and links of the new machine do not apply to the old one.
    of_old = replace(new.request, caps_bytes=old.request.caps_bytes, machine=old.request.machine, rules=Rules())
    costs_of_old = costs if same_machine else part_costs(of_old, model)
    before, _ = price_parts(of_old, model, costs_of_old, costs_of_old.predict(old.parts))
    after, _ = price_parts(new.request, model, costs, costs.predict(new.parts))
    bound_ms = min(lower_bound_ms(SearchSpace(costs), after.predicted_ms), after.predicted_ms)
    notes = [f"{change}; both times are predicted with the new value" for change in _list_load_changes(old, new)]
    if same_machine:
        try:
            check_sharding(costs.task, old.parts)
        except InfeasibleTask as error:
            notes.append(f"the old placement is no longer legal: {error}")
    kernels, links = map(widest, errors_of(of_old, model, before), errors_of(new.request, model, after))
    hardware = ", ".join((model.hardware, *hardware_of_devices(new.request)))
    alike = [table.name for table in new.request.tables]
    saves = compute_difference_interval(before, after, (costs.pipeline,) * 2, alike, (kernels, links))
    steps = before.predicted_ms, after.predicted_ms, saves.ms, saves.low_ms, saves.high_ms
    times = StepTimes(model.source, *steps, bound_ms)
    return times, (*notes, *_note_device_error(device_text(hardware, kernels, links)))


def _note_device_error(device: str) -> Iterator[str]:
    if device:  # both times have this error, so it does not change the difference in per cent
        yield f"{device}, for both placements"


def _list_load_changes(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    found = []
    if old.request.batch_size != new.request.batch_size:
        found.append(f"the batch size changed from {old.request.batch_size:,} to {new.request.batch_size:,}")
    before = {table.name: (table.pooling_factor, table.reuse_bins) for table in old.request.tables}
    now = {table.name: (table.pooling_factor, table.reuse_bins) for table in new.request.tables}
    count = sum(before[name] != now[name] for name in before.keys() & now.keys())
    if count:
        found.append(f"the pooling factors or histograms of {count_text(count, 'table')} changed")
    return found


def _list_unlike_inputs(old: PlacementAnswer, new: PlacementAnswer) -> list[str]:
    found = [f"{change}; each file's time is for its own value" for change in _list_load_changes(old, new)]
    digests = [model_lineage(answer).get("sha256") for answer in (old, new)]
    if digests[0] is None or digests[0] != digests[1]:
        found.append("the files' times are from different models")
    return found
