"""torchrun whose processes part after their imports: it imports torch and FBGEMM once, not once for each of them."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch


def torchrun(num_processes: int, script: str, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs ``torchrun --standalone --nproc-per-node N SCRIPT ARGS``: its own agent, elastic store and signals."""
    command = [sys.executable, __file__, "--standalone", "--nproc-per-node", str(num_processes), script, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


class _Parted(subprocess.Popen):  # type: ignore[type-arg]
    """A process that goes on from here where another Python would start."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], **more: Any) -> None:
        super().__init__(args, preexec_fn=partial(_run, args, env), **more)


def _run(args: Sequence[str], env: Mapping[str, str]) -> None:
    """Python's command line in this process, which then ends."""
    atexit._clear()
    os.closerange(3, 4096)  # torchrun's; one of them tells it that the process has started
    for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [one for one in args[1:] if one != "-u"]
    code: Any = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import fbgemm_gpu  # noqa: F401
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    runpy.run_path(sys.argv[4], run_name="imports")
    with patch.object(subprocess_handler, "Popen", _Parted):
        run.main(sys.argv[1:])
