"""Terminal output: results on stdout, progress and log lines on stderr.

Results are printed without colours, and names in them are never read as Rich markup. Work of more than 3 s shows its
percentage and the time left on a terminal. If stderr is not a terminal, it logs lines instead.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, TYPE_CHECKING, TypeVar

from evenshard.base.messages import without_credentials
from evenshard.base.units import ms_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Item = TypeVar("Item")
# Seconds until the first report of progress, and between two log lines if stderr is not a terminal.
SAY_AFTER_S, LOG_EVERY_S = 3.0, 10.0
# Characters per line of a table.
_WIDEST = 240
log = logging.getLogger(__name__)
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def plain_console(file: IO[str] | None, least_width: int = 0) -> Console:
    """Return a console without markup on ``file`` (None for stdout), at least ``least_width`` wide."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            """Ignore the broken pipe: Rich would exit with 1, but the command decides its exit code."""
            raise BrokenPipeError

    console = PlainConsole(file=file, highlight=False, markup=False, emoji=False)
    if console.width < least_width:
        console.width = least_width
    return console


def plain_grid(*heads: str, texts: Sequence[str] = ()) -> Table:
    """Return a table without borders; ``heads`` are the headers of its first columns, which are right-aligned numbers.

    Args:
        texts: headers of the other columns, which are left-aligned texts.
    """
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    for head in texts:
        grid.add_column(head)
    return grid


def print_whole(console: Console, grid: Table) -> None:
    """Print a table at full width, so that a narrow terminal wraps lines instead of cutting numbers."""
    width, console.width = console.width, max(console.width, _WIDEST)
    console.print(grid)
    console.width = width


def progress(items: Collection[Item], description: str) -> Iterator[Item]:
    """Yield the items while a progress bar on stderr, or log lines if it is no terminal, show the progress."""
    from rich import progress as bars
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or _QUIET.get():
        yield from _log_progress(items, description)
        return
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    done = (bars.BarColumn(), bars.TaskProgressColumn(), bars.MofNCompleteColumn())
    with bars.Progress(bars.TextColumn("{task.description}"), *done, *times, console=console, transient=True) as bar:
        yield from bar.track(items, description=description)


@contextmanager
def without_progress() -> Iterator[None]:
    """Keep stderr silent within the block, except for warnings."""
    ours = logging.getLogger("evenshard")
    level, token = ours.level, _QUIET.set(True)
    ours.setLevel(logging.WARNING)
    try:
        yield
    finally:
        ours.setLevel(level)
        _QUIET.reset(token)


@contextmanager
def best_so_far() -> Iterator[Callable[[float, float], None] | None]:
    """Show the progress and best step time (ms) of a search on stderr; log one line if it is not a terminal."""
    if _QUIET.get():
        yield None
        return
    if not sys.stderr.isatty():
        line = threading.Timer(SAY_AFTER_S, log.info, ("searching; Ctrl-C returns the best placement so far",))
        line.daemon = True
        line.start()
        try:
            yield None
        finally:
            line.cancel()
        return
    from rich.console import Console

    start = time.monotonic()
    with Console(stderr=True).status("searching") as status:

        def show(ms: float, done: float) -> None:
            passed_s = time.monotonic() - start
            if passed_s >= SAY_AFTER_S and done > 0:
                left = f"about {passed_s * (1 - done) / done:,.0f} s left"
                best = f"best so far {ms_text(ms)} ms of embedding work per step (Ctrl-C returns it)"
                status.update(f"{done:.0%} searched, {left}, {best}")

        yield show


def _log_progress(items: Collection[Item], description: str) -> Iterator[Item]:
    due = time.monotonic() + SAY_AFTER_S
    for number, item in enumerate(items):
        if time.monotonic() > due:
            due = time.monotonic() + LOG_EVERY_S
            log.info("%s: %d of %d (%.0f %%)", description, number, len(items), 100 * number / len(items))
        yield item


class _WithoutCredentials(logging.Formatter):
    """Formatter of log records that hides credentials, including those in records of libraries."""

    def format(self, record: logging.LogRecord) -> str:
        return without_credentials(super().format(record))


def log_to_stderr() -> None:
    """Log to stderr with the time of day; from other libraries, only warnings and errors (FBGEMM logs a lot)."""
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutCredentials("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("evenshard").setLevel(logging.INFO)
    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # logs every retry
    logging.captureWarnings(True)
    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # MLflow's handlers would not hide credentials
