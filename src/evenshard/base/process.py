"""The current process: environment variables, threads, memory limit, and a clean end on SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn

# Exit code of a process that SIGTERM ended, as shells report it: 143.
TERMINATED = 128 + signal.SIGTERM
CONTROL_GROUP = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread within the block; no effect if torch has not been imported.

    Measurements on CPU use one core. Training uses one thread because the networks are small: more threads gain little
    on an idle machine, and wait for each other on a busy machine.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the block, and restore them after it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def on_sigterm(do: Callable[[], None]) -> AbstractContextManager[None]:
    """Call ``do``, which may raise, on SIGTERM within the block; no effect outside the main thread."""
    return _handle_signal(signal.SIGTERM, do)


@contextmanager
def delay_sigterm() -> Iterator[None]:
    """Delay SIGTERM until the end of the block, because an exception could leave a library in a bad state."""
    heard: list[bool] = []
    try:
        with on_sigterm(lambda: heard.append(True)):
            yield
    finally:
        if heard:
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def signal_socket() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield two connected sockets; the first receives a byte as soon as a signal with a handler arrives.

    A thread that reads from it notices SIGTERM at once. Python's handler runs only when the main thread's current call,
    such as a kernel, has ended.
    """
    ours, written = socket.socketpair()
    with ours, written:
        written.setblocking(False)
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False) if is_main else -1
        try:
            yield ours, written
        finally:
            if is_main:
                signal.set_wakeup_fd(before)


def terminate() -> NoReturn:
    """Exit with the code of SIGTERM after running ``finally`` blocks; further SIGTERMs have no effect.

    Python drops exceptions that are raised in a weakref callback or a finalizer. If it drops this exception, the
    process sends itself SIGTERM again.
    """
    ignore_sigterm()
    error, report = SystemExit(TERMINATED), sys.unraisablehook

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_value is not error:
            report(dropped)
            return
        sys.unraisablehook = report
        signal.signal(signal.SIGTERM, lambda number, frame: terminate())
        # Later, because Python also drops exceptions that are raised in this hook.
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()

    sys.unraisablehook = send_again
    raise error


def ignore_sigterm() -> None:
    """Ignore SIGTERM from now on, for a process that is already ending."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def on_interrupt(do: Callable[[], None]) -> AbstractContextManager[None]:
    """Call ``do`` on the first Ctrl-C within the block; the second Ctrl-C raises KeyboardInterrupt as usual."""
    before = signal.getsignal(signal.SIGINT)

    def once() -> None:
        signal.signal(signal.SIGINT, before)
        do()

    return _handle_signal(signal.SIGINT, once)


@contextmanager
def _handle_signal(number: signal.Signals, do: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, lambda number, frame: do())
    try:
        yield
    finally:
        signal.signal(number, before)


def machine_bytes() -> int:
    """Return the memory of the machine, or the memory limit of this process's control group if that is lower."""
    return min((os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()))


def _limits() -> Iterator[int]:
    """Yield the memory limits of the process's control group and its parents; in a container, these may be hidden."""
    if not OWN_GROUPS.exists():
        return
    for line in OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # control groups, version 2
            top, name = CONTROL_GROUP, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = CONTROL_GROUP / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            limit = folder / name
            if limit.exists() and limit.read_text().strip().isdigit():  # not "max"
                yield int(limit.read_text())
