"""What of kfp's output reaches a terminal, and what stands in the file alone."""

from __future__ import annotations

import io

from evenshard.kubeflow.local_log import LAST_LINES, RunLog

PRINTED = """15:01:50.256 - INFO - Executing task \x1b[96m'place'\x1b[0m
15:01:50.256 - INFO - Streamed logs:

    [KFP Executor 2026-11-23 15:01:50,399 INFO]: Got executor_input:
    {
        "inputs": {
            "parameterValues": {}
        }
    }
    15:01:52 round 1: timing 16 placements
    ValueError: what went wrong
15:01:55.156 - WARNING - a disk is full
15:01:55.156 - INFO - Task \x1b[96m'place'\x1b[0m finished with status \x1b[92mSUCCESS\x1b[0m
15:01:55.157 - INFO - Task \x1b[96m'place'\x1b[0m outputs:
    page: HTML( name='page',
--------------------------------------------------------------------------------
"""


def logged(text: str, step: int = 7) -> tuple[RunLog, str, str]:
    file, shown = io.StringIO(), io.StringIO()
    log = RunLog(file, shown)
    for start in range(0, len(text), step):
        print(text[start : start + step], end="", file=log)
    return log, file.getvalue(), shown.getvalue()


def test_tasks_and_what_they_log_are_shown_and_everything_is_in_the_file() -> None:
    _, file, shown = logged(PRINTED)
    assert shown.splitlines() == [
        "15:01:50 Executing task 'place'",
        "    15:01:52 round 1: timing 16 placements",
        "15:01:55 a disk is full",
        "15:01:55 Task 'place' finished with status SUCCESS",
    ]
    assert len(file.splitlines()) == len(PRINTED.splitlines()) and "parameterValues" in file and "\x1b" not in file


def test_the_last_lines_are_those_of_people() -> None:
    log, _, _ = logged(PRINTED)
    assert "ValueError: what went wrong" in log.last_lines() and "parameterValues" not in log.last_lines()
    many, _, _ = logged("".join(f"line {number}\n" for number in range(100)))
    assert many.last_lines().splitlines() == [f"line {number}" for number in range(100 - LAST_LINES, 100)]
