"""Text of a machine comparison for the terminal: the best machines, a line for each machine, and assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TextIO

from evenshard.base.console import plain_console, plain_grid, print_whole
from evenshard.base.messages import count_text, printable
from evenshard.base.units import decimals, ms_text, pct_text, size_text
from evenshard.planner.answer import fullest_device
from evenshard.planner.what_if.answer import Best, WhatIfAnswer
from evenshard.planner.what_if.machines import CONTIGUOUS
from evenshard.planner.what_if.option import SAMPLES_OF_COST, PredictedInterval, WhatIfOption
from evenshard.price.hardware import is_simulated
from evenshard.report.step_facts import device_error_text, warning_texts
from evenshard.report.table_facts import assumed_groups

# Reminder that groups change the training result.
STEPS_OF_THEIR_OWN = (
    "between two syncs, each group updates its own replicas from its share of the batch. Learning rate and AdaGrad's "
    "sums therefore act differently than in one group. arXiv 2508.03854 corrects this with a momentum-scaled row-wise "
    "AdaGrad."
)


def print_what_if(found: WhatIfAnswer, file: TextIO | None = None) -> None:
    """Print the options and their conclusions to a file, by default stdout, with colors only on terminals."""
    console = plain_console(file)
    for word, best in _bests(found):
        console.print(best_text(found, word, best), style="bold")
    if found.question.max_step_ms is not None and found.cheapest_in_time is None:
        console.print(
            f"No machine with a price takes at most {ms_text(found.question.max_step_ms)} ms for "
            f"{'a step' if found.has_dense else 'the embedding work of a step'}.",
            style="bold",
        )
    for line in stops_texts(found):
        console.print(line, style="bold")
    console.print(heading(found))
    console.print()
    grid = plain_grid(*_heads(found), texts=[""])
    grid.columns[0].justify = "left"
    for one in found.options:
        grid.add_row(*_cells(found, one), marks(found, one), style=None if one.fits else "dim")
    print_whole(console, grid)
    console.print()
    if any(best.equals for _, best in _bests(found)):
        console.print("A question mark means that predictions cannot tell this machine from the best.", style="dim")
    for line in notes(found):
        console.print(line, style="dim")


def stops_texts(found: WhatIfAnswer) -> Iterator[str]:
    """Yield, for each hardware, the number of devices above which more do not pay; nothing without whole steps."""
    for fewer, more in found.stops if found.has_dense else ():
        name = short_name(fewer.hardware)
        if more is None:
            yield f"{name}: more devices pay, up to all {fewer.num_devices:,} that were compared."
            continue
        times = more.num_devices / fewer.num_devices
        gained = more.samples_per_s.value / fewer.samples_per_s.value
        yield (
            f"{name}: more than {fewer.num_devices:,} devices do not pay. With {times:.3g} times as many, samples/s "
            f"grow {gained:.2f} times."
        )


def heading(found: WhatIfAnswer) -> str:
    """Return the batch size and the hardware that the times apply to, as text."""
    asked = found.question
    where = "over all devices" if asked.batch_size else "on each device"
    kinds = dict.fromkeys(one.hardware for one in found.options)
    models = [printable(kind) for kind in kinds if is_simulated(kind)]
    said = f" Device models, not GPUs: {', '.join(models)}." if models else ""
    text = (
        f"Batch {asked.batch_size or asked.batch_per_device:,} {where}.{said} Times are predicted, with 90 % intervals."
    )
    if found.has_dense:
        return text
    return f"{text} Times are of embedding work alone; --dense or --dense-ms adds the dense part of a step."


def machine_name(one: WhatIfOption) -> str:
    """Return a name such as 16 x h100 with 40 GB and, if there are several groups, their size."""
    name = _devices_text(one)
    return name if one.num_groups == 1 else f"{name} in {one.num_groups:,} groups of {one.group_size:,}"


def _devices_text(one: WhatIfOption) -> str:
    memory = "" if one.memory_cap_gb is None else f" with {one.memory_cap_gb:g} GB"
    return f"{one.num_devices:,} x {short_name(one.hardware)}{memory}"


def short_name(hardware: str) -> str:
    """Return the hardware without "simulated:", because the heading says so."""
    return printable(hardware.rpartition(":")[2])


def best_text(found: WhatIfAnswer, word: str, best: Best) -> str:
    """Return the best option, and options that predictions cannot tell apart from it."""
    one = best.option
    worth = f"{interval_text(one.samples_per_s)} samples/s"
    if word != "fastest":
        assert one.cost is not None, "the cheapest option has a price"
        worth = f"{interval_text(one.cost)} {_currency(found)} per 10^9 samples".replace("  ", " ")
    text = f"{word}: {machine_name(one)}, {worth}"
    if best is found.cheapest_in_time and one.step_ms.high > (found.question.max_step_ms or 0.0):
        text += f", but its interval reaches {ms_text(one.step_ms.high)} ms"
    equals = ", ".join(map(machine_name, best.equals))
    return f"{text}. Within the uncertainty, {equals} may be better." if equals else f"{text}."


def marks(found: WhatIfAnswer, one: WhatIfOption) -> str:
    """Return the criteria by which an option is best, or (marked with ?) may be best given the uncertainty."""
    named = [word for word, best in _bests(found) if best.option is one]
    named += [f"{word}?" for word, best in _bests(found) if any(one is equal for equal in best.equals)]
    return "does not fit" if not one.fits else ", ".join(named)


def interval_text(one: PredictedInterval) -> str:
    """Format value and interval with three digits each; large numbers in thousands and millions."""
    for unit, of_unit in ((" M", 1e6), (" k", 1e3)):
        if one.value >= of_unit:
            return interval_text(one.times(1 / of_unit)).replace(" ", f"{unit} ", 1)
    digits = decimals(one.value)
    return f"{one.value:,.{digits}f} ({one.low:,.{digits}f}-{one.high:,.{digits}f})"


def notes(found: WhatIfAnswer) -> Iterator[str]:
    """Yield the machines that do not fit and why, assumptions, and warnings."""
    placed = [one for one in found.options if one.answer is not None]
    for one in found.options:
        if not one.fits:
            yield f"{machine_name(one)}: {one.problem}"
    for answer in {one.hardware: one.answer for one in placed}.values():
        if answer is not None and (text := device_error_text(answer)):
            yield f"{text}."
    yield from _question_notes(found)
    if found.has_groups:
        yield from _group_notes(found)
    said: dict[str, list[str]] = {}
    for one in placed:
        assert one.answer is not None
        for text in (*warning_texts(one.answer), *one.answer.notes):
            said.setdefault(text, []).append(machine_name(one))
    for text, machines in said.items():
        where = "" if len(machines) == len(placed) else f" ({', '.join(machines)})"
        yield f"warning: {text.rstrip('.')}{where}."
    if placed and placed[0].answer is not None:
        for group in assumed_groups(placed[0].answer):
            if group.column != "row_shares":  # depends on the placement, not on the tables alone
                yield f"assumed: {group.column} of {len(group.tables):,} tables: {group.text}."


def _question_notes(found: WhatIfAnswer) -> Iterator[str]:
    asked = found.question
    if found.has_dense:
        how = "do not overlap, so their times add up"
        if asked.overlap:
            how = f"overlap by {pct_text(100 * asked.overlap)} of the shorter time"
        if not any(found.dense_ms.values()):
            yield (
                f"The dense part is predicted from the model's dense layers. Embedding work and the dense part {how}. "
                "Intervals reach from full overlap of the all-reduces of gradients to none."
            )
        else:
            yield f"Embedding work and the dense part {how}. The dense time counts as exact."
        local = {one.batch_size / one.num_devices for one in found.options}
        if asked.dense_batch is not None:
            yield f"dense_ms is for {asked.dense_batch:,} samples on a device, and is scaled to each machine."
        elif len(local) > 1 and any(found.dense_ms.values()):
            yield (
                f"dense_ms is the same on every machine, though a device has {min(local):,.0f} to {max(local):,.0f} "
                f"samples. Give its batch (--dense-batch), or the same batch for each device (--batch-per-device)."
            )
    links = {short_name(one.hardware): one.machine.inter for one in found.options if one.machine.inter}
    if links:
        between = ", ".join(f"{printable(link)} ({kind})" for kind, link in links.items())
        yield f"Links between nodes: {between}. --inter sets another link. Communication is modelled."
    yield from _reuse_note(found)
    if found.prices is not None:
        lacking = dict.fromkeys(short_name(one.hardware) for one in found.options if one.price_per_hour is None)
        if lacking:
            yield f"No price for {', '.join(lacking)}."
        if found.prices.note:
            yield f"Prices: {printable(found.prices.note)}"


def _reuse_note(found: WhatIfAnswer) -> Iterator[str]:
    answers = [one.answer for one in found.options if one.answer is not None]
    batches = {answer.request.batch_size for answer in answers}
    if len(batches) < 2:
        return
    assumed = {one.table for one in answers[0].assumptions if one.column == "reuse_bins"}
    own = sum(table.name not in assumed for table in answers[0].request.tables)
    if own:
        yield (
            f"reuse_bins of {count_text(own, 'table')} come from the file and are used for every batch, "
            f"{min(batches):,} to {max(batches):,} samples."
        )


def _group_notes(found: WhatIfAnswer) -> Iterator[str]:
    every = found.question.sync_every
    for one in found.options:
        if one.sync is None:
            continue
        layout = "use_inter_host_allreduce=True" if one.layout == CONTIGUOUS else "TorchRec's default layout"
        yield (
            f"{machine_name(one)} ({one.layout}: {layout}): a sync averages {size_text(one.sync.bytes_of_all)} in all, "
            f"{size_text(one.sync.bytes_per_device)} on the fullest device, and takes {ms_text(one.sync.once_ms)} ms "
            f"{f'every {every:,} steps' if every > 1 else 'after each step'}."
        )
    yield f"Groups: {STEPS_OF_THEIR_OWN}"
    request = next(one.answer.request for one in found.options if one.answer is not None)
    if "adam" in {request.optimizer_of(table.name) for table in request.tables}:
        yield "DMPCollection of TorchRec 1.8 rejects Adam: the only optimizer state that it averages is AdaGrad's."


def _bests(found: WhatIfAnswer) -> list[tuple[str, Best]]:
    within = "" if found.question.max_step_ms is None else f"cheapest under {ms_text(found.question.max_step_ms)} ms"
    named = (("cheapest", found.cheapest), (within, found.cheapest_in_time), ("fastest", found.fastest))
    return [(word, best) for word, best in named if best is not None]


def _currency(found: WhatIfAnswer) -> str:
    return "" if found.prices is None else printable(found.prices.currency)


def _heads(found: WhatIfAnswer) -> Iterator[str]:
    yield "machine"
    yield "nodes"
    if found.has_groups:
        yield "group"
    yield "memory"
    yield "embeddings, ms"
    if found.has_groups:
        yield "sync, ms"
    if found.has_dense:
        yield "step, ms"
    elif found.has_groups:
        yield "with sync, ms"
    yield "samples/s"
    if found.prices is not None:
        yield f"{_currency(found)}/10^{round(math.log10(SAMPLES_OF_COST))}"
    if _has_offloaded(found):
        yield "not in device memory"


def _cells(found: WhatIfAnswer, one: WhatIfOption) -> Iterator[str]:
    yield _devices_text(one)
    yield f"{one.machine.num_nodes:,}"
    if found.has_groups:
        yield f"{one.group_size:,}"
    if one.answer is None:
        return
    yield f"{100 * fullest_device(one.answer).full:.0f} %"
    yield interval_text(one.embeddings_ms)
    if found.has_groups:
        yield "" if one.sync is None else ms_text(one.sync_ms)
    if found.has_groups or found.has_dense:
        yield interval_text(one.step_ms)
    yield interval_text(one.samples_per_s)
    if found.prices is not None:
        yield "" if one.cost is None else interval_text(one.cost)
    if _has_offloaded(found):
        tables = {offloaded.part.table for offloaded in one.answer.offloaded}
        size = sum(host.used_bytes + host.ssd for host in one.answer.host_memory)
        yield f"{size_text(size)} of {count_text(len(tables), 'table')}" if tables else "nothing"


def _has_offloaded(found: WhatIfAnswer) -> bool:
    return any(one.answer is not None and one.answer.offloaded for one in found.options)
