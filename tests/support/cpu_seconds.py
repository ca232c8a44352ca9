"""CPU seconds of each test file: the plugin that measures them, and the record that ``make check`` reads.

A test's CPU seconds are those of its process and of the child processes that ended during the test, its fixtures
included. A server that several tests share counts in the file whose test stops it. Programs that the suite starts and
never waits for are not counted.

``pytest --record-cpu-seconds`` writes the CPU seconds of the files that ran into ``RECORD``: for each file those of its
fast, slow and nightly tests, and for each suite (fast, all) those of the start of its processes and the collection.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from support.repository import ROOT

RECORD = ROOT / "tests/cpu_seconds.json"
NAME, START = "cpu_seconds", "start and collection"


# CPU seconds of ranks, which are children of another process (``support.ranks``).
of_forks = 0.0


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process, of its children that ended, and of ranks."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + of_forks


class Meter:
    """Measures each test where it runs, and sums up the files where the reports arrive."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.files: dict[str, Counter[str]] = {}
        self.of_processes = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.started = _cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            suite = next((name for name in ("nightly", "slow") if item.get_closest_marker(name)), "fast")
            report.user_properties = [*report.user_properties, (NAME, [suite, _cpu_seconds() - self.started])]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == NAME and report.when == "teardown":
                suite, seconds = value
                self.files.setdefault(report.nodeid.partition("::")[0], Counter())[suite] += seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.of_processes += getattr(node, "workeroutput", {}).get(NAME, 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        own = _cpu_seconds()
        if (output := getattr(self.config, "workeroutput", None)) is not None:
            output[NAME] = own
            return
        # The controller's children are the workers, which have reported their own seconds.
        self.of_processes += os.times().user + os.times().system if self.of_processes else own
        if self.config.getoption("record_cpu_seconds"):
            self._record()

    @property
    def of_tests(self) -> float:
        return sum(seconds.total() for seconds in self.files.values())

    def _record(self) -> None:
        files = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        for file, seconds in self.files.items():
            files.setdefault(file, {}).update({suite: round(value, 1) for suite, value in seconds.items()})
        start = files.pop(START, {})
        if self.config.args_source == pytest.Config.ArgsSource.TESTPATHS:
            suite = "fast" if "not slow" in self.config.getoption("markexpr") else "all"
            start[suite] = round(self.of_processes - self.of_tests, 1)
        record = {START: start, **{file: files[file] for file in sorted(files) if (ROOT / file).exists()}}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        slowest = sorted(self.files.items(), key=lambda item: -item[1].total())[:10]
        terminalreporter.section("CPU seconds of the slowest files")
        for file, seconds in slowest:
            terminalreporter.write_line(f"{seconds.total():8.1f}  {file}")
        terminalreporter.write_line(
            f"{self.of_tests:8.1f}  all tests; {self.of_processes:.1f} with start and collection"
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-cpu-seconds", action="store_true", help=f"write CPU seconds into {RECORD.name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter(config), NAME)
