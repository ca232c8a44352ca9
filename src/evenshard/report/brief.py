"""An answer in about ten lines, for Python's repr."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evenshard.base.messages import count_text, printable
from evenshard.base.units import decimals, ms_text, size_text
from evenshard.planner.answer import PlacementAnswer as Answer
from evenshard.planner.answer import fullest_device, slowest_device
from evenshard.planner.baselines import baseline_label
from evenshard.report.step_facts import (
    best_baseline,
    bound_headline,
    machine_text,
    shares_ms,
    step_headline,
    warning_texts,
    worth_texts,
)
from evenshard.report.table_facts import assumed_groups, assumed_lookups_texts, is_offloaded

# Width of the first word of a line.
INDENT = 10


def brief_text(answer: Answer) -> str:
    """Return the answer in about ten lines, without a trailing newline."""
    request = answer.request
    title = f"{count_text(len(request.tables), 'table')} on {machine_text(request)}, batch {request.batch_size:,}"
    return "\n".join([f"PlacementAnswer: {title}", *(f"  {word:{INDENT}}{text}" for word, text in _lines(answer))])


def _lines(answer: Answer) -> Iterator[tuple[str, str]]:
    yield "time", step_headline(answer)
    if answer.num_devices > 1:
        yield "bound", bound_headline(answer)
    for text in worth_texts(answer):
        yield "against", text
    slowest, digits = slowest_device(answer.devices), decimals(answer.predicted_ms)
    times = [one.predicted_total_ms for one in answer.devices]
    if answer.num_devices > 1:
        ends = dict.fromkeys(f"{time_ms:.{digits}f}" for time_ms in (min(times), max(times)))
        yield "devices", f"{' to '.join(ends)} ms, the slowest is device {slowest}"
    device = answer.devices[slowest]
    parts = zip(("forward", "communication", "backward"), shares_ms(device), strict=True)
    shares = " + ".join(f"{name} {value:.{digits}f}" for name, value in parts)
    waits = f" + waits {device.predicted_wait_ms:.{digits}f}" if answer.num_devices > 1 else ""
    yield "slowest", f"{shares}{waits} = {device.predicted_total_ms + device.predicted_wait_ms:.{digits}f} ms"
    full = fullest_device(answer)
    yield "memory", f"device {full.device}, the fullest: {size_text(full.most_bytes)} of {size_text(full.limit_bytes)}"
    types = Counter(answer.type_of_table.values())
    yield "sharded", ", ".join(f"{count:,} {name}" for name, count in types.most_common())
    if is_offloaded(answer):
        kernels = Counter(storage.kernel for storage in answer.storage_of_table.values())
        yield "kept", ", ".join(f"{count:,} {kernel}" for kernel, count in kernels.most_common())
    if (baseline := best_baseline(answer)) is not None and baseline.predicted_ms is not None:
        yield "baseline", f"{ms_text(baseline.predicted_ms)} ms, {baseline_label(baseline)}"
    warnings = [*warning_texts(answer), *assumed_lookups_texts(answer), *answer.memory_warnings]
    counts = {"note": len(answer.notes), "assumption": len(assumed_groups(answer)), "warning": len(warnings)}
    said = ", ".join(count_text(count, word) for word, count in counts.items() if count)
    yield "more", f".summary(), .to_frame(), .save_report(path){f'; {said}' if said else ''}"
    if warnings:
        more = f" ({len(warnings) - 1} more)" if len(warnings) > 1 else ""
        yield "warning", f"{printable(warnings[0]).rstrip('.')}{more}"
