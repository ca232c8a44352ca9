"""Text and Markdown of a study: a table of all settings, then each setting in full."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenshard.base.messages import text_table
from evenshard.price.hardware import measured_or_simulated

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]
LEGEND = (
    "speedup: over random; vs best: paired difference to the best heuristic",
    "drop: above networks trained for the size",
    "balance and compute speedup: as in AutoShard, without communication",
    "seed dev.: standard deviation of the mean from training to training; infeasible: tasks not placed",
)


def study_text(study: Mapping[str, Any]) -> str:
    """Format a study for the terminal: one block per setting, one row per sharder."""
    blocks = [_headline(study)]
    for name, setting in study["settings"].items():
        columns = _columns(setting)
        lines = [[title for title, _ in columns]]
        lines += [[cell(row) for _, cell in columns] for row in _rows(setting)]
        blocks.append(f"{name}: {_tasks(setting)}\n{text_table(lines, '<>')}")
        blocks += _networks(setting)
    return "\n\n".join([*blocks, "\n".join([_privileged_note(study), *LEGEND])])


def _privileged_note(study: Mapping[str, Any]) -> str:
    return f"* {measured_or_simulated(study['hardware'])} the test tables, or placements of the test tasks"


def markdown(study: Mapping[str, Any], command: str) -> str:
    """Format the report of a study: the paper's table, then all figures of each setting."""
    settings, privileged = study["settings"], _privileged_note(study).replace("*", "\\*")
    parts = [
        f"# {_headline(study)}",
        _wrap(f"Command: `{command}`, commit {study['commit'][:12]}."),
        _wrap(
            f"Mean {measured_or_simulated(study['hardware'])} ms of a step over the tasks that all rows could place, "
            f"with its 95 % interval; in parentheses the speedup over random. {privileged}."
        ),
        _markdown_table(
            ["sharder", *settings],
            [
                [_name(row), *(_paper_cell(one["sharders"].get(row["name"])) for one in settings.values())]
                for row in _rows(next(iter(settings.values())))
            ],
        ),
    ]
    parts.append(_wrap(f"Below: {'; '.join(LEGEND)}."))
    for name, setting in settings.items():
        columns = _columns(setting)
        parts += [f"## {name}", _wrap(f"{_tasks(setting)}.".capitalize())]
        cells = [[cell(row) for _, cell in columns] for row in _rows(setting)]
        parts.append(_markdown_table([title for title, _ in columns], cells))
        parts += map(_wrap, [*_networks(setting), _seconds(setting)])
    if study["left_out"]:
        left_out = "; ".join(f"{name} ({why})" for name, why in study["left_out"].items())
        parts.append(_wrap(f"Left out: {left_out}."))
    return "\n\n".join(parts) + "\n"


def _wrap(paragraph: str) -> str:
    """Wrap a paragraph at 120 columns."""
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def _headline(study: Mapping[str, Any]) -> str:
    seeds = study["num_seeds"]
    return (
        f"Study {study['study']} on {study['hardware']}, {seeds} training{'s' if seeds > 1 else ''} per learned sharder"
    )


def _tasks(setting: Mapping[str, Any]) -> str:
    best = f", best heuristic {setting['best_heuristic']}" if setting["best_heuristic"] else ""
    return f"{setting['num_common_tasks']} of {setting['num_test_tasks']} held-out tasks placed by all{best}"


def _rows(setting: Mapping[str, Any]) -> list[Row]:
    return [{"name": name, **row} for name, row in setting["sharders"].items()]


def _columns(setting: Mapping[str, Any]) -> list[Column]:
    rows = _rows(setting)
    columns: list[Column] = [
        ("sharder", _name),
        ("ms", lambda row: _number(row["mean_ms"])),
        ("95 % interval", lambda row: _ends(row["ci95_ms"])),
        ("speedup %", lambda row: _number(row["speedup_over_random_pct"], "+.1f")),
        ("vs best %", lambda row: _number(row["difference_to_best_heuristic_pct"], "+.1f")),
        ("95 % interval", lambda row: _ends(row["difference_ci95_pct"], "+.1f")),
        ("drop ms", lambda row: _number(row.get("drop_ms"), "+.3f")),
        ("drop %", lambda row: _number(row.get("drop_pct"), "+.1f")),
        ("balance", lambda row: _number(row.get("degree_of_balance"))),
        ("compute speedup", lambda row: _number(row.get("compute_speedup"))),
        ("seed dev. ms", lambda row: _number(row["seed_deviation_ms"], ".3f")),
        ("infeasible", lambda row: str(row["infeasible"])),
    ]
    return [(title, cell) for title, cell in columns if any(cell(row) != "-" for row in rows)]


def _networks(setting: Mapping[str, Any]) -> list[str]:
    """Describe each cost network in one sentence."""
    found = []
    for name, one in setting["cost_networks"].items():
        error, tau = one["median_abs_pct_error"], one["kendall_tau"]
        line = f"{name} cost network on random placements of unseen tables: median absolute error {_number(error)} %, "
        line += f"Kendall's tau {_number(tau, '.3f')}"
        if "share_in_90_pct_interval" in one:
            line += f"; {_share(one['share_in_90_pct_interval'])} within the 90 % interval"
        own = one.get("own_placements")
        if own:
            line += f", of evenshard's placements {_share(own['share_in_90_pct_interval'])}"
            line += f"; these are predicted {_number(own['predicted_above_bound_pct'])} % above the lower bound"
        found.append(line + ".")
    return found


def _seconds(setting: Mapping[str, Any]) -> str:
    """Describe the time of training and placing."""

    def list_seconds(seconds: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in seconds.items()) or "none"

    seconds = setting["seconds"]
    placing = list_seconds(seconds["placing_one_task"])
    return f"Seconds of one training: {list_seconds(seconds['training'])}; of placing one task: {placing}."


def _name(row: Row) -> str:
    return f"{row['name']} *" if row["privileged"] else str(row["name"])


def _paper_cell(row: Row | None) -> str:
    if row is None or row["mean_ms"] is None:
        return "-"
    speedup = row["speedup_over_random_pct"]
    behind = "" if speedup is None else f" ({speedup:+.1f} %)"
    return f"{_number(row['mean_ms'])} {_ends(row['ci95_ms'])}{behind}".replace(" -", "")


def _number(value: float | None, style: str = "") -> str:
    """Format a number with three or four digits unless a style is given."""
    if value is None:
        return "-"
    return format(value, style or (".3f" if abs(value) < 10 else ".2f"))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _ends(ends: Sequence[float] | None, style: str = "") -> str:
    return "-" if ends is None else f"[{_number(ends[0], style)}, {_number(ends[1], style)}]"


def _markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(titles), "---|" + "---:|" * (len(titles) - 1)]
    lines = [f"| {lines[0]} |", f"|{lines[1]}"]
    return "\n".join([*lines, *("| " + " | ".join(row).replace("*", "\\*") + " |" for row in rows)])
