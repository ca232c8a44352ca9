"""Count the lines of src, the files that one command executes code from, and cycles of imports between files.

A file counts where a function or the body of a class runs, on import or later. A file that only imports others, or
declares constants, does not count. Imports for type checkers count as imports, but for those of the package root, which
looks its names up when they are used. Exit code 1 above a limit. The limits only go down.
"""

from __future__ import annotations

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/evenshard"
COMMAND = ("place", "mlperf_dlrm_v2", "--devices", "8", "--hardware", "h100")
MOST_LINES = 51_400
MOST_FILES = 77

# Every module, class body and function that runs is a call; none of their lines is traced.
_TRACED = """
import sys, threading
files = set()
def note(frame, event, argument):
    if frame.f_code.co_name != "<module>":
        files.add(frame.f_code.co_filename)
sys.settrace(note)
threading.settrace(note)
from evenshard.cli import main
code = main(sys.argv[1:])
sys.settrace(None)
print(*sorted(files), sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def lines_of_source() -> int:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=SOURCE, capture_output=True, text=True, check=True).stdout
    return sum(len(path.read_bytes().splitlines()) for line in listed.splitlines() if (path := SOURCE / line).exists())


def executed_files() -> set[Path]:
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, *COMMAND], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"evenshard {' '.join(COMMAND)} failed:\n{done.stderr}")
    found = {path for line in done.stderr.splitlines() if (path := Path(line)).is_relative_to(SOURCE)}
    if not found:
        sys.exit(f"no file of {SOURCE} was executed: evenshard is imported from another folder. Unset PYTHONPATH.")
    return found


def cycle_of_imports() -> list[str]:
    """Return the modules of one cycle, the first one again at the end; empty if there is none."""
    graph = grimp.build_graph("evenshard", exclude_type_checking_imports=False, cache_dir=None)
    graph.remove_module("evenshard")
    sorter = TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules})
    try:
        sorter.prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def main() -> int:
    counts = (
        ("lines in src/evenshard", lines_of_source(), MOST_LINES),
        (f"files that `evenshard {' '.join(COMMAND)}` executes", len(executed_files()), MOST_FILES),
    )
    for what, count, most in counts:
        print(f"{what}: {count:,} of at most {most:,}")
    cycle = cycle_of_imports()
    print(f"cycles of imports: {' <- '.join(cycle) or 'none'}")
    return int(bool(cycle) or any(count > most for _, count, most in counts))


if __name__ == "__main__":
    sys.exit(main())
