"""What an answer is of, in words: machine, links, batch, optimizer, assumptions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.measure.evidence import device_text
from evenshard.measure.hardware import measured_or_simulated
from evenshard.measure.link import is_modelled
from evenshard.placement.sharding import Communication
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.request import PlacementRequest
from evenshard.tables.assumptions import Assumption
from evenshard.utils.messages import count_text, names_text, printable

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


# Column of the assumption that stands above all others, as times follow it.
LOOKUPS = "pooling_factor"


@dataclass(frozen=True)
class AssumedGroup:
    """One assumption that several tables share.

    Attributes:
        column: column of the tables, such as ``reuse_bins``.
        text: the assumed value, and why.
        tables: their names, in order.
    """

    column: str
    text: str
    tables: tuple[str, ...]


def assumed_groups(answer: PlacementAnswer) -> tuple[AssumedGroup, ...]:
    """The assumptions, those about several tables together that say the same but for their numbers."""
    found: dict[tuple[str, str], list[Assumption]] = {}
    for one in answer.assumptions:
        found.setdefault((one.column, _NUMBER.sub("#", one.text)), []).append(one)
    return tuple(
        AssumedGroup(column, _with_ranges([one.text for one in alike]), tuple(one.table for one in alike))
        for (column, _), alike in found.items()
    )


def assumed_lookups_texts(answer: PlacementAnswer) -> list[str]:
    """Sentences on tables whose lookups are assumed, and on how to give them; none if all are known."""
    groups = [group for group in assumed_groups(answer) if group.column == LOOKUPS]
    tables = tuple(name for group in groups for name in group.tables)
    if not tables:
        return []
    which = f"{count_text(len(tables), 'table')} ({names_text(tables)})"
    said, name = "; ".join(dict.fromkeys(group.text for group in groups)), printable(tables[0])
    return [
        f"The lookups per sample of {which} are assumed: {said}. Times and memory grow with them: give "
        f"pooling_factors={{{name!r}: 37.5}} (--pooling-factors {name}=37.5), or traffic."
    ]


def _with_ranges(texts: Sequence[str]) -> str:
    columns = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    ranges = iter([sorted(set(numbers), key=lambda one: float(one.replace(",", ""))) for numbers in columns])

    def span(_: re.Match[str]) -> str:
        numbers = next(ranges)
        return numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

    return _NUMBER.sub(span, texts[0])


def tables_and_machine(request: PlacementRequest) -> str:
    """How many tables are placed on what."""
    return f"{count_text(len(request.tables), 'table')} on {machine_text(request)}"


def machine_text(request: PlacementRequest) -> str:
    """The nodes, the devices and what they are."""
    machine = request.nodes
    groups = [(group.num_devices, group.hardware) for group in machine.groups]
    kinds = groups or [(machine.num_devices, request.hardware)]
    if machine.num_nodes == 1 or len(kinds) > 1:
        text = " + ".join(f"{count:,} x {printable(hardware)}" for count, hardware in kinds)
        return text if machine.num_nodes == 1 else f"{text} on {machine.num_nodes:,} nodes"
    return f"{machine.num_nodes:,} nodes x {machine.devices_per_node:,} {printable(kinds[0][1])}"


def link_text(answer: PlacementAnswer) -> str:
    """The links of the machine, and whether their times come from a model; empty where none is known."""
    machine = answer.request.nodes
    intra = machine.intra or answer.link
    if not intra:
        return ""
    how = "modelled" if is_modelled(intra) else "measured"
    if machine.num_domains == 1:
        return f"link {printable(intra)} ({how})"
    tier = "node" if machine.nodes_per_domain == 1 else f"{machine.nodes_per_domain} nodes"
    within = f"in a node, {printable(machine.inter)} between nodes"
    if machine.nodes_per_domain > 1:
        within = f"within {tier}, {printable(machine.inter)} between them"
    return f"link {printable(intra)} {within} ({how})"


def setting_text(answer: PlacementAnswer) -> str:
    """What the times are of: machine, links, batch, pipeline and optimizer."""
    request = answer.request
    model = "" if timing_word(answer) == "measured" else " (a device model, not a GPU)"
    facts = (
        machine_text(request) + model,
        link_text(answer),
        f"batch {request.batch_size:,}",
        f"pipeline {request.training_pipeline}" if request.training_pipeline else "",
        _communication_text(request.communication),
        f"optimizer {optimizer_text(request)}",
    )
    return ", ".join(fact for fact in facts if fact)


def optimizer_text(request: PlacementRequest) -> str:
    """The optimizer of the tables; of several, how many tables each has."""
    counts = Counter(request.optimizer_of(table.name) for table in request.tables).most_common()
    if len(counts) == 1:
        return counts[0][0]
    return " + ".join(f"{name} ({count_text(count, 'table')})" for name, count in counts)


def _communication_text(way: Communication) -> str:
    if way == Communication():
        return ""
    return f"exchanged as {way.forward}" if way.forward == way.backward else f"{way.forward} out, {way.backward} back"


def timing_word(answer: PlacementAnswer) -> str:
    """Measured or simulated: what times on the request's hardware are, beside the predicted ones."""
    return measured_or_simulated(answer.request.hardware)


def device_error_text(answer: PlacementAnswer) -> str:
    """What stands behind the times of a simulated device and of modelled links; empty where all is real."""
    return device_text(answer.request.hardware, answer.device_error, answer.link_error)
