"""The study of hot rows: its tasks are of the kind that they are said to be, and its tables say what was measured."""

from __future__ import annotations

from benchmarks.scripts.hot_rows import BATCH_SIZE, KINDS, TABLES, TOLD, table_of, tasks_of
from evenshard.sharders.catalog import HEURISTICS
from evenshard.tables.hot_rows import hot_rows_together


def test_tasks_are_of_their_kind_and_of_unseen_tables() -> None:
    for together in KINDS.values():
        tasks = tasks_of(together, 2, seed=7)
        assert len(tasks) == 2 and all(len(task.tables) == TABLES for task in tasks)
        shares = [hot_rows_together(table, BATCH_SIZE) for task in tasks for table in task.tables]
        assert max(shares) == together and (together or not any(shares))  # type: ignore[type-var]


def test_both_tables_by_hand() -> None:
    """Two tasks: evenshard takes 4 and 2 ms, the best rule 5 and 3; its second answer is outside the interval."""
    of_rules = {name: (9.0, 9.0) for name in HEURISTICS} | {HEURISTICS[0]: (5.0, 3.0)}
    ms = of_rules | {"dreamshard": (4.0, 3.0), TOLD: (4.0, 2.0), "not told": (4.0, 2.0)}
    predicted = [{"low": 0.9, "predicted": 1.0, "high": 1.1}, {"low": 1.1, "predicted": 1.2, "high": 1.3}]
    rows = [
        {"kind": "scattered", "task": f"test-{number}", "sharder": name, "ms": one[number], **predicted[number]}
        for name, one in ms.items()
        for number in range(2)
    ]
    first, second = (block.splitlines() for block in table_of(rows).split("\n\n"))
    assert first[1].split() == [
        "scattered",
        "4.00",
        "3.50",
        "3.00",
        "3.00",
        "-25.0",
        "+-",
        "0.0",
        "-14.3",
        "+-",
        "28.0",
    ]
    assert second[1].split() == ["scattered", "told", "1.00", "1.10", "1.20", "-9", "/", "+9", "1", "of", "2"]
