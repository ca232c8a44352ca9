"""The user-facing ``PlacementAnswer``: text for the terminal, a short repr, a data frame, and an HTML page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from evenshard.base.console import plain_console, plain_grid, print_whole
from evenshard.base.installation import require_package
from evenshard.base.messages import count_text, names_text, printable
from evenshard.base.units import bytes_to_gb, decimals, ms_text, range_text, size_text
from evenshard.planner import file as files
from evenshard.planner.answer import PlacementAnswer as Answer
from evenshard.planner.answer import fullest_device, slowest_device
from evenshard.planner.baselines import baseline_label
from evenshard.price.step import predicted_step_times
from evenshard.report import step_facts, table_facts

if TYPE_CHECKING:
    import pandas as pd

_MAX_DEVICES = 32
_NUM_SLOWEST, NUM_FULLEST = 8, 4  # devices that are shown if there are more
_MAX_SLOW_CACHES = 3  # most tables with slow caches that are named, slowest first
# Styles of the five parts of a step in a bar, in order.
_STYLES = ("magenta", "blue", "cyan", "yellow", "red")
LEAST_BAR, MOST_BAR = 4, 40
FULL, FULL_ASCII = "█", "#"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
SLOWEST, LEGEND = " *", "* slowest"
# "comms" is the communication of inputs, outputs and gradients.
_HEADS = ("device", "tables", "memory, {unit}", "full", "forward", "comms", "backward", "ms", "waits")
# The columns that narrow terminals drop, in this order; a single device never waits.
FULLNESS, WAITS = _HEADS.index("full"), _HEADS.index("waits")
INDENT = 10  # width of the first word of the lines below the table


class PlacementAnswer(Answer):
    """``evenshard.planner.answer.PlacementAnswer`` with text and HTML output. Times are ms of one training step."""

    def __eq__(self, other: object) -> bool:
        """Return True if both have equal fields, regardless of class."""
        if not isinstance(other, Answer):
            return NotImplemented
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields(self))

    __hash__ = Answer.__hash__

    def __repr__(self) -> str:
        """Return the answer in about ten lines; ``summary`` returns the whole text."""
        return brief_text(self)

    def _repr_html_(self) -> str:
        from evenshard.report.page.page import frame

        return frame(self)

    def summary(self, verbose: bool = False) -> str:
        """Return the text that ``evenshard place`` prints, or ``evenshard place -v``, without colors."""
        text = StringIO()
        print_answer(self, text, verbose=verbose)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas data frame with a row for each part, in order.

        Columns: ``table``; ``sharding_type`` and ``kernel`` as in TorchRec; ``device``, missing for replicas, which are
        on all ``devices`` (a tuple); rows and columns of the part (first index and number); ``memory_gb`` on each of
        its devices; ``alone_ms`` and ``adds_ms`` as in ``PlacedPart``.

        Raises:
            MissingPackage: if pandas is not installed.
        """
        require_package("pandas")
        import pandas as pd

        frame = pd.DataFrame(
            {
                "table": part.table,
                "sharding_type": placed.sharding_type,
                "kernel": str(part.storage),
                "device": part.devices[0] if len(part.devices) == 1 else None,
                "devices": part.devices,
                "first_row": part.rows.start,
                "num_rows": part.rows.size,
                "first_column": part.columns.start,
                "num_columns": part.columns.size,
                "memory_gb": bytes_to_gb(placed.size_bytes),
                "alone_ms": placed.alone_ms,
                "adds_ms": placed.adds_ms,
            }
            for placed in table_facts.placed_parts(self)
            for part in (placed.part,)
        )
        return frame.astype({"device": "Int64"})

    def save_report(self, path: str | Path) -> None:
        """Write the page of ``evenshard place --report`` atomically."""
        from evenshard.report.page.page import save_page

        save_page(self, Path(path))


def make_displayable(found: Answer) -> PlacementAnswer:
    """Convert an answer to the class with text and HTML output, keeping its cached properties."""
    own = object.__new__(PlacementAnswer)
    vars(own).update(vars(found))
    return own


def load_answer(path: str | Path) -> PlacementAnswer:
    """Load an answer from placement.json.

    Raises:
        BadFile: if it cannot be used; the message tells how to fix it.
    """
    return make_displayable(files.load_answer(path))


def print_answer(answer: Answer, file: TextIO | None = None, missing: str = "", verbose: bool = False) -> None:
    """Print the summary to a file, by default stdout, with colors only on terminals.

    Step time, bound and baselines come first, then devices, memory and sharding, then provenance and warnings.

    Args:
        missing: reason that TorchRec's planner, although requested, is not among the baselines.
        verbose: True to print baselines' settings, reserved memory, the meaning of the bound, and assumptions too.
    """
    console = plain_console(file)
    first, *rest = filter(None, (step_facts.whole_step_headline(answer), step_facts.step_headline(answer)))
    _print_text(console, f"{first}.", "bold")
    for line in rest:
        _print_text(console, f"{line}.")
    compared, not_compared = step_facts.baseline_text(answer), step_facts.not_compared_text(answer, missing)
    bound = [step_facts.bound_headline(answer)] if answer.num_devices > 1 else []
    for line in (*bound, *step_facts.worth_texts(answer), *([compared] if compared else [])):
        _print_text(console, f"{line}.")
    _print_text(console, not_compared or "")
    console.print()
    print_whole(console, _devices(answer, console))
    console.print()
    details = list(_details(answer))
    lines = (*_rest(answer), *_memory(answer), *_sharding(answer), *(details if verbose else []))
    for word, text, style in lines:
        _print_text(console, text, word=word, word_style=style)
    if lines:
        console.print()
    _print_text(console, f"{step_facts.setting_text(answer)}.", "dim")
    if text := step_facts.device_error_text(answer):
        unconfirmed = any(one is not None and not one.is_confirmed for one in (answer.device_error, answer.link_error))
        _print_text(console, f"{printable(text)}.", "bold yellow" if unconfirmed else "dim")
    for line in step_facts.advice(answer):
        _print_text(console, printable(line), "green")
    for note in (*table_facts.assumed_lookups_texts(answer), *answer.notes):
        _print_text(console, printable(note), "bold yellow")
    for warning in step_facts.warning_texts(answer):
        _print_text(console, f"Warning: {printable(warning)}", "bold yellow")
    if not verbose:
        more = ", ".join(dict.fromkeys(word for word, _, _ in details))
        _print_text(console, f"More with -v, or summary(verbose=True): {more}.", "dim")


def _print_text(console: Console, text: str, style: str = "", word: str = "", word_style: str = "") -> None:
    """Print wrapped text without trailing spaces; lines after a first word are indented to the text."""
    indent = INDENT if word else 0
    for number, line in enumerate(Text(text, style).wrap(console, max(console.width - indent, 20)) if text else ()):
        line.rstrip()
        console.print(Text.assemble((f"{'' if number else word:{indent}}", word_style), line), soft_wrap=True)


# Devices --------------------------------------------------------------------------------------------------------------


def shown_devices(answer: Answer) -> tuple[list[int], list[int]]:
    """Return the slowest devices and the fullest of the others; if there are few, all devices and []."""
    everyone = list(range(answer.num_devices))
    if answer.num_devices <= _MAX_DEVICES:
        return everyone, []
    slowest = sorted(everyone, key=lambda device: -answer.devices[device].predicted_total_ms)[:_NUM_SLOWEST]
    others = [device for device in everyone if device not in slowest]
    return slowest, sorted(others, key=lambda device: -answer.memory[device].full)[:NUM_FULLEST]


def _devices(answer: Answer, console: Console) -> Grid:
    slowest, fullest = shown_devices(answer)
    heads = [head.format(unit=table_facts.memory_unit(answer)[0]) for head in _HEADS]
    heads += [] if answer.measured is None else [step_facts.timing_word(answer)]
    lines = {device: _cells(answer, device) for device in (*slowest, *fullest)}
    for column in (WAITS, FULLNESS):
        if _bar_width(console.width, heads, lines.values()) < LEAST_BAR or (
            column == WAITS and answer.num_devices == 1
        ):
            for line in (heads, *lines.values()):
                del line[column]
    left = max(_bar_width(console.width, heads, lines.values()), 0)
    bars = _bars(answer, list(lines), min(left, MOST_BAR), console.options.ascii_only)
    grid = plain_grid(*heads)
    grid.add_column(LEGEND if left + len(SLOWEST) >= len(LEGEND) and answer.num_devices > 1 else "", no_wrap=True)
    marked = slowest_device(answer.devices)
    for number, (device, line) in enumerate(lines.items()):
        if number == len(slowest):
            grid.add_row()
        is_slowest = device == marked and answer.num_devices > 1
        grid.add_row(*line, bars[device].append(SLOWEST if is_slowest else ""), style="bold" if is_slowest else None)
    return grid


def _cells(answer: Answer, device: int) -> list[str]:
    one, memory = answer.devices[device], answer.memory[device]
    times = (*step_facts.shares_ms(one), one.predicted_total_ms, one.predicted_wait_ms)
    digits, unit = decimals(answer.predicted_ms), table_facts.memory_unit(answer)[1]
    return [
        str(device),
        f"{len(answer.parts_on_device[device]):,}",
        f"{memory.most_bytes / unit:.2f} / {memory.limit_bytes / unit:.4g}",
        f"{memory.full * 100:.0f} %",
        *(f"{time_ms:.{digits}f}" for time_ms in times),
        *([] if answer.measured is None else [ms_text(answer.measured_device_ms[device])]),
    ]


def _bar_width(width: int, heads: Sequence[str], lines: Iterable[Sequence[str]]) -> int:
    columns = zip(heads, *lines, strict=True)
    return width - sum(max(len(cell) for cell in column) + 2 for column in columns) - len(SLOWEST)


def _bars(answer: Answer, devices: Sequence[int], width: int, ascii_only: bool) -> dict[int, Text]:
    """Draw a bar for each device; return empty bars if there is no space, or if all would look the same."""
    bars = {device: _bar(answer, device, width, ascii_only) for device in devices}
    if width < LEAST_BAR or len({bar.plain for bar in bars.values()}) < 2:
        return {device: Text() for device in devices}
    return bars


def _bar(answer: Answer, device: int, width: int, ascii_only: bool) -> Text:
    """Draw the five phases of a device's step as one bar, whose length is exact to 1/8 of a character."""
    longest_ms = max(other.predicted_total_ms for other in answer.devices)
    times = predicted_step_times(answer.devices[device])
    share = sum(times) / longest_ms if longest_ms > 0 else 0.0
    whole, eighths = (round(share * width), 0) if ascii_only else divmod(round(share * width * 8), 8)
    full, bar, total_ms, drawn = FULL_ASCII if ascii_only else FULL, Text(), 0.0, 0
    for time_ms, style in zip(times, _STYLES, strict=True):
        total_ms += time_ms
        stop = min(round(total_ms / longest_ms * width), whole) if longest_ms > 0 else 0
        bar.append(full * (stop - drawn), style)
        drawn = stop
    return bar.append(full * (whole - drawn) + EIGHTHS[eighths], _STYLES[-1])


# Below the table ------------------------------------------------------------------------------------------------------

Line = tuple[str, str, str]  # first word, text, and the style of the word


def _rest(answer: Answer) -> Iterator[Line]:
    shown = {device for group in shown_devices(answer) for device in group}
    rest = [device for device in range(answer.num_devices) if device not in shown]
    if rest:
        counts = [len(answer.parts_on_device[device]) for device in rest]
        times = [answer.devices[device].predicted_total_ms for device in rest]
        sizes = [answer.used_bytes[device] for device in rest]
        text = (
            f"the {_NUM_SLOWEST} slowest devices and the {NUM_FULLEST} fullest of the rest. The other {len(rest)}: "
            f"{range_text(times, ms_text)} ms, {range_text(sizes, size_text)}, "
            f"{range_text(counts, '{:,}'.format)} tables."
        )
        yield "shown", text, "dim"


def _sharding(answer: Answer) -> Iterator[Line]:
    for text in step_facts.near_texts(answer):
        yield "near", text, "green"
    if answer.num_devices > 1 and not answer.request.is_whole:
        for sharding_type, text in table_facts.sharding_texts(answer):
            yield "sharded", f"{sharding_type}: {text}", "cyan"


def _memory(answer: Answer) -> Iterator[Line]:
    if answer.request.training_pipeline:
        yield "memory", table_facts.fullest_text(answer), "cyan"
    for kernel, text in table_facts.kept_texts(answer):
        yield "kernel", f"{kernel}: {text}", "cyan"
    for what, text in table_facts.host_texts(answer):
        yield "hosts", f"{what}: {text}", "cyan"
    if text := table_facts.offload_text(answer):
        yield "offload", text, "cyan"


def _details(answer: Answer) -> Iterator[Line]:
    """Yield the lines that only ``-v`` prints."""
    if text := step_facts.overlap_text(answer):
        yield "step", text, "dim"
    if answer.num_devices > 1:
        yield "bound", step_facts.bound_text(answer), "dim"
    yield "reserved", f"{table_facts.reserve_text(answer.request)}.", "dim"
    if text := step_facts.link_text(answer):
        yield "link", text.removeprefix("link "), "dim"
    for asked in step_facts.asked_texts(answer):
        yield "baseline", printable(asked), "dim"
    for one in table_facts.slow_caches(answer)[:_MAX_SLOW_CACHES]:
        yield "cache", table_facts.slow_cache_text(answer, one), "dim"
    for group in (one for one in table_facts.assumed_groups(answer) if one.column != table_facts.LOOKUPS):
        count, names = count_text(len(group.tables), "table"), names_text(group.tables)
        yield "assumed", f"{group.column} of {count}: {group.text} ({names})", "dim"


# In brief -------------------------------------------------------------------------------------------------------------


def brief_text(answer: Answer) -> str:
    """Return the answer in about ten lines, without a trailing newline."""
    request, count = answer.request, count_text(len(answer.request.tables), "table")
    title = f"{count} on {step_facts.machine_text(request)}, batch {request.batch_size:,}"
    return "\n".join([f"PlacementAnswer: {title}", *(f"  {word:{INDENT}}{text}" for word, text in _lines(answer))])


def _lines(answer: Answer) -> Iterator[tuple[str, str]]:
    if text := step_facts.whole_step_headline(answer):
        yield "step", text
    yield "time", step_facts.step_headline(answer)
    if answer.num_devices > 1:
        yield "bound", step_facts.bound_headline(answer)
    for text in step_facts.worth_texts(answer):
        yield "against", text
    slowest, digits = slowest_device(answer.devices), decimals(answer.predicted_ms)
    times = [one.predicted_total_ms for one in answer.devices]
    if answer.num_devices > 1:
        ends = dict.fromkeys(f"{time_ms:.{digits}f}" for time_ms in (min(times), max(times)))
        yield "devices", f"{' to '.join(ends)} ms, the slowest is device {slowest}"
    device = answer.devices[slowest]
    parts = zip(("forward", "communication", "backward"), step_facts.shares_ms(device), strict=True)
    shares = " + ".join(f"{name} {value:.{digits}f}" for name, value in parts)
    waits = f" + waits {device.predicted_wait_ms:.{digits}f}" if answer.num_devices > 1 else ""
    yield "slowest", f"{shares}{waits} = {device.predicted_total_ms + device.predicted_wait_ms:.{digits}f} ms"
    full = fullest_device(answer)
    yield "memory", f"device {full.device}, the fullest: {size_text(full.most_bytes)} of {size_text(full.limit_bytes)}"
    types = Counter(answer.type_of_table.values())
    yield "sharded", ", ".join(f"{count:,} {name}" for name, count in types.most_common())
    if table_facts.is_offloaded(answer):
        kernels = Counter(storage.kernel for storage in answer.storage_of_table.values())
        yield "kernels", ", ".join(f"{count:,} {kernel}" for kernel, count in kernels.most_common())
    if (baseline := step_facts.best_baseline(answer)) is not None and baseline.predicted_ms is not None:
        yield "baseline", f"{ms_text(baseline.predicted_ms)} ms, {baseline_label(baseline)}"
    warnings = [*step_facts.warning_texts(answer), *table_facts.assumed_lookups_texts(answer)]
    counts = (len(answer.notes), "note"), (len(table_facts.assumed_groups(answer)), "assumption")
    said = ", ".join(count_text(count, word) for count, word in (*counts, (len(warnings), "warning")) if count)
    yield "more", f".summary(), .to_frame(), .save_report(path){f'; {said}' if said else ''}"
    if warnings:
        more = f" ({len(warnings) - 1} more)" if len(warnings) > 1 else ""
        yield "warning", f"{printable(warnings[0]).rstrip('.')}{more}"
