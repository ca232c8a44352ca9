"""An answer in about ten lines, as Python shows it: times, the slowest and fullest device, how tables are sharded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.highlights.comparison import best_rival
from evenshard.planner.highlights.memory import fullest_device, is_offloaded
from evenshard.planner.highlights.setting import assumed_groups, assumed_lookups_texts, tables_and_machine
from evenshard.planner.highlights.step import slowest_device, step_headline
from evenshard.sharders.catalog import label_of
from evenshard.utils.messages import printable
from evenshard.utils.units import decimals, ms_text, size_text

_INDENT = 10
"""Width of the first word of a line."""


def brief_text(answer: PlacementAnswer) -> str:
    """The lines, without a break at the end."""
    title = f"{tables_and_machine(answer.request)}, batch {answer.request.batch_size:,}"
    return "\n".join([f"PlacementAnswer: {title}", *(f"  {word:{_INDENT}}{text}" for word, text in _lines(answer))])


def _lines(answer: PlacementAnswer) -> Iterator[tuple[str, str]]:
    yield "time", step_headline(answer)
    slowest, digits = slowest_device(answer), decimals(answer.predicted_ms)
    times = [one.predicted_total_ms for one in answer.devices]
    if answer.num_devices > 1:
        ends = dict.fromkeys(f"{time_ms:.{digits}f}" for time_ms in (min(times), max(times)))
        yield "devices", f"{' to '.join(ends)} ms, the slowest is device {slowest}"
    one = answer.devices[slowest]
    exchange_ms = one.predicted_total_ms - one.predicted_fwd_compute_ms - one.predicted_bwd_compute_ms
    parts = {"forward": one.predicted_fwd_compute_ms, "exchange": exchange_ms, "backward": one.predicted_bwd_compute_ms}
    shares = " + ".join(f"{name} {value:.{digits}f}" for name, value in parts.items())
    yield "slowest", f"{shares} = {one.predicted_total_ms:.{digits}f} ms"
    full = fullest_device(answer)
    yield "memory", f"device {full.device}, the fullest: {size_text(full.most_bytes)} of {size_text(full.limit_bytes)}"
    ways = Counter(answer.type_of_table.values())
    yield "sharded", ", ".join(f"{count:,} {way}" for way, count in ways.most_common())
    if is_offloaded(answer):
        kernels = Counter(storage.kernel for storage in answer.storage_of_table.values())
        yield "kept", ", ".join(f"{count:,} {kernel}" for kernel, count in kernels.most_common())
    if (rival := best_rival(answer)) is not None and rival.predicted_ms is not None:
        yield "others", f"the best of them, {label_of(rival.sharder)}: {ms_text(rival.predicted_ms)} ms"
    warnings = [*assumed_lookups_texts(answer), *answer.memory_warnings, *answer.warnings]
    counts = {"note": len(answer.notes), "assumption": len(assumed_groups(answer)), "warning": len(warnings)}
    said = ", ".join(f"{count} {word}{'s' * (count > 1)}" for word, count in counts.items() if count)
    yield "more", f".summary(), .to_frame(), .save_report(path){f'; {said}' if said else ''}"
    if warnings:
        more = f" ({len(warnings) - 1} more)" if len(warnings) > 1 else ""
        yield "warning", f"{printable(warnings[0]).rstrip('.')}{more}"
