"""What kfp.local prints of a run: all of it into a file, and what a user wants to know to the terminal.

Kubeflow's executor prints the inputs and outputs of every task as JSON, and colours names wherever that goes.
"""

from __future__ import annotations

import io
import re
import threading
from collections import deque
from typing import TextIO

TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# The file, in the folder of a run.
LOG = "log.txt"
# Lines of the log of a failed run that are shown at its end.
LAST_LINES = 20
_KFP = re.compile(r"(?P<time>\d\d:\d\d:\d\d)\.\d+ - (?P<level>\w+) - (?P<text>.*)")
_PROGRESS = re.compile(r"Executing task |(?:Task|Pipeline) .* finished with status ")
_OF_A_TASK = re.compile(r"\s+\d\d:\d\d:\d\d \S")
_DUMP = re.compile(r"\s*([{}\[\]\"]|$)|-+$")


class RunLog(io.TextIOBase):
    """Takes the place of stdout while a pipeline runs; its tasks may print from several threads.

    Args:
        file: gets every line, without colours.
        shown: gets the beginning and the end of tasks, what they log, and warnings.
    """

    def __init__(self, file: TextIO, shown: TextIO) -> None:
        super().__init__()
        self._file, self._shown = file, shown
        self._rest, self._last, self._lock = "", deque[str](maxlen=LAST_LINES), threading.Lock()

    def writable(self) -> bool:
        """See ``io``."""
        return True

    def write(self, text: str) -> int:
        """See ``io``."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._take(TERMINAL_COLOURS.sub("", line))
        return len(text)

    def last_lines(self) -> str:
        """The last lines that are no JSON: why a run has failed stands there."""
        return "\n".join(self._last)

    def _take(self, line: str) -> None:
        self._file.write(f"{line}\n")
        found = _KFP.match(line)
        if found is not None:
            if found["level"] != "INFO" or _PROGRESS.match(found["text"]):
                self._shown.write(f"{found['time']} {found['text']}\n")
        elif _OF_A_TASK.match(line):
            self._shown.write(f"{line}\n")
        if not _DUMP.match(line):
            self._last.append(line)
