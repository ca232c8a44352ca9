"""Check the size of src and of the tests, cycles of imports, and first words of docstrings.

Of src, it counts the lines, and the files that one command executes. Of the tests, it counts the lines, and the CPU
seconds of both suites as recorded in tests/cpu_seconds.json (``make test-all FLAGS=--record-cpu-seconds``).

A file counts as executed if one of its functions or class bodies runs, on import or later, but not if it only imports
other files or declares constants. Imports for type checkers count as imports, except for those of the package root,
which looks up its names when they are used. Exit code 1 above a limit, for a cycle, or for a docstring that begins with
a question word. The limits only go down.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src/evenshard"
COMMAND = ("place", "mlperf_dlrm_v2", "--devices", "8", "--hardware", "h100")
MOST_LINES = 51_500
MOST_FILES = 77
MOST_TEST_LINES, MOST_SUPPORT_LINES = 40_000, 3_350
# CPU seconds of `make test` (fast tests) and `make test-all`.
MOST_FAST_S, MOST_ALL_S = 180, 900
RECORD = ROOT / "tests/cpu_seconds.json"
# A docstring that begins with one of these asks what the code does, instead of saying it.
QUESTION_WORDS = frozenset({"what", "how", "whether", "which", "where", "who", "why"})

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


def list_files(folder: Path, *patterns: str) -> list[Path]:
    """List the Python files of a folder that git tracks."""
    command = ["git", "ls-files", *(patterns or ("*.py",))]
    listed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    return [path for line in listed.splitlines() if (path := folder / line).exists()]


def count_lines(files: list[Path]) -> int:
    """Return the number of lines of all files."""
    return sum(len(path.read_bytes().splitlines()) for path in files)


def find_unrecorded(tests: list[Path]) -> list[str]:
    """List the test files without recorded CPU seconds, except for nightly tests and those of the image."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    names = [path.relative_to(ROOT).as_posix() for path in tests if path.name.startswith("test_")]
    other = re.compile(r"mark\.(nightly|containers)")
    return [name for name in names if name not in record and not other.search((ROOT / name).read_text("utf-8"))]


def recorded_seconds() -> tuple[float, float]:
    """Return the recorded CPU seconds of the fast tests, and of all but the nightly tests, with their start."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    start = record.pop("start and collection")
    fast, slow = (sum(of_file.get(suite, 0.0) for of_file in record.values()) for suite in ("fast", "slow"))
    return fast + start["fast"], fast + slow + start["all"]


def find_question_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of each docstring in a module that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            word = (ast.get_docstring(node) or "").partition(" ")[0].strip("`\"'.,:")
            if word.lower() in QUESTION_WORDS:
                yield node.body[0].lineno, word


def find_executed_files() -> set[Path]:
    """Run ``COMMAND`` and return the files of src whose functions or class bodies it executes."""
    done = subprocess.run(
        [sys.executable, "-c", _TRACED, *COMMAND], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"evenshard {' '.join(COMMAND)} failed:\n{done.stderr}")
    found = {path for line in done.stderr.splitlines() if (path := Path(line)).is_relative_to(SOURCE)}
    if not found:
        sys.exit(f"no file of {SOURCE} was executed: evenshard is imported from another folder. Unset PYTHONPATH.")
    return found


def find_import_cycle() -> list[str]:
    """Return the modules of one cycle, with the first module repeated at the end; empty if there is no cycle."""
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
    """Print all counts and return the exit code."""
    files, tests = list_files(SOURCE), list_files(ROOT, "tests/*.py", "components/*/tests/*.py")
    fast_s, all_s = recorded_seconds()
    counts = (
        ("lines in src/evenshard", count_lines(files), MOST_LINES),
        (f"files that `evenshard {' '.join(COMMAND)}` executes", len(find_executed_files()), MOST_FILES),
        ("lines of tests", count_lines(tests), MOST_TEST_LINES),
        ("lines in tests/support", count_lines(list_files(ROOT / "tests/support")), MOST_SUPPORT_LINES),
        ("CPU seconds of make test", round(fast_s), MOST_FAST_S),
        ("CPU seconds of make test-all", round(all_s), MOST_ALL_S),
    )
    for what, count, most in counts:
        print(f"{what}: {count:,} of at most {most:,}")
    cycle = find_import_cycle()
    print(f"cycles of imports: {' <- '.join(cycle) or 'none'}")
    questions = [
        f"{path.relative_to(ROOT)}:{line} ({word})"
        for path in files
        for line, word in find_question_docstrings(path.read_text(encoding="utf-8"))
    ]
    print(f"docstrings that begin with a question word: {', '.join(questions) or 'none'}")
    unrecorded = find_unrecorded(tests)
    print(f"test files without recorded CPU seconds: {', '.join(unrecorded) or 'none'}")
    return int(bool(cycle or questions or unrecorded) or any(count > most for _, count, most in counts))


if __name__ == "__main__":
    sys.exit(main())
