"""The terminal: answers on stdout as they are, progress and log lines on stderr.

Names in an answer are never read as markup, and numbers get no colours. Long work shows a bar on a terminal, and a log
line now and then elsewhere.
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
LOG_EVERY_S = 10.0
# Seconds of silence after which a search says that it runs.
SAY_AFTER_S = 3.0
# Characters of a table's line.
_WIDEST = 240
log = logging.getLogger(__name__)
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def plain_console(file: IO[str] | None, least_width: int = 0) -> Console:
    """A console on ``file``, None: on stdout; at least so many characters wide, which a narrower terminal wraps."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            """Leave the exit code to the command: Rich would exit with 1."""
            raise BrokenPipeError

    console = PlainConsole(file=file, highlight=False, markup=False, emoji=False)
    if console.width < least_width:
        console.width = least_width
    return console


def plain_grid(*heads: str, texts: Sequence[str] = ()) -> Table:
    """A table without lines, columns two spaces apart; those of ``heads`` are numbers, flush right.

    Args:
        texts: heads of the columns behind them, which are words, flush left.
    """
    from rich.table import Table

    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    for head in texts:
        grid.add_column(head)
    return grid


def print_whole(console: Console, grid: Table) -> None:
    """Prints a table in its own width: a narrow terminal wraps its lines, and no number loses digits."""
    width, console.width = console.width, max(console.width, _WIDEST)
    console.print(grid)
    console.width = width


def progress(items: Collection[Item], description: str) -> Iterator[Item]:
    """Yields the items under a progress bar on stderr; if stderr is not a terminal, logs a line every ten seconds."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal or _QUIET.get():
        yield from _log_progress(items, description)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(items, description=description)


@contextmanager
def without_progress() -> Iterator[None]:
    """Keep stderr silent within the block, warnings apart."""
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
    """Show on stderr how far a search is and its best step time, ms; elsewhere than on a terminal, log one line."""
    if _QUIET.get():
        yield None
        return
    if not sys.stderr.isatty():
        line = threading.Timer(SAY_AFTER_S, log.info, ("searching; Ctrl-C takes the best placement so far",))
        line.daemon = True
        line.start()
        try:
            yield None
        finally:
            line.cancel()
        return
    from rich.console import Console

    with Console(stderr=True).status("searching") as status:
        yield lambda ms, done: status.update(
            f"{done:.0%} searched, best so far {ms_text(ms)} ms of embedding work per step (Ctrl-C takes it)"
        )


def _log_progress(items: Collection[Item], description: str) -> Iterator[Item]:
    last = time.monotonic()
    for number, item in enumerate(items):
        if time.monotonic() - last > LOG_EVERY_S:
            last = time.monotonic()
            log.info("%s: %d of %d", description, number, len(items))
        yield item


class _WithoutCredentials(logging.Formatter):
    """Formats log records without credentials, those of libraries too."""

    def format(self, record: logging.LogRecord) -> str:
        return without_credentials(super().format(record))


def log_to_stderr() -> None:
    """Our own log lines go to stderr with the time; other libraries are heard from WARNING on (FBGEMM tells a lot)."""
    handler = logging.StreamHandler()
    handler.setFormatter(_WithoutCredentials("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("evenshard").setLevel(logging.INFO)
    for chatty in ("mlflow", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # of each retry
    logging.captureWarnings(True)
    os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")  # its own handlers would pass ours by
