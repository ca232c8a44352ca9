"""What does a placement really cost? One module per way to find out; ``open_hardware`` is the door.

Imports nothing beyond the standard library, numpy and torch (FBGEMM inside functions), so that a bare GPU box
that has only torch can measure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from evenshard.costs import PlacementCost, combine_visits
from evenshard.errors import BadConfig
from evenshard.measure.hardware import Hardware, MeasureConfig
from evenshard.placement import Placement
from evenshard.tasks import PlacementTask

HARDWARE = ("auto", "cpu", "cuda")


def open_hardware(config: MeasureConfig) -> Hardware:
    """The hardware that ``config.hardware`` names: ``auto`` is CUDA where there is a GPU, else the CPU.

    Raises:
        BadConfig: if the name is unknown, or CUDA is asked for where there is none.
    """
    import torch

    from evenshard.measure.fbgemm import FbgemmHardware

    for name, least in (("num_batches", 1), ("warmup", 0), ("repeats", 1), ("visits", 1)):
        if getattr(config, name) < least:
            raise BadConfig(f"measure.{name} is {getattr(config, name)}. Make it at least {least}.")
    if config.hardware not in HARDWARE:
        raise BadConfig(f"hardware is {config.hardware!r}. Use one of {', '.join(HARDWARE)}.")
    has_gpu = torch.cuda.is_available()
    if config.hardware == "cuda" and not has_gpu:
        raise BadConfig(
            "hardware is cuda, but torch finds no CUDA GPU here. Use cpu or auto, or install the cuda extra."
        )
    use_gpu = has_gpu if config.hardware == "auto" else config.hardware == "cuda"
    return FbgemmHardware(config, torch.device("cuda" if use_gpu else "cpu"))


def measure_all(
    hardware: Hardware,
    jobs: Sequence[tuple[Hashable, PlacementTask, Placement]],
    config: MeasureConfig,
    track: Callable[[list[int]], Iterable[int]] = iter,
) -> list[PlacementCost]:
    """Measures placements in ``config.visits`` passes and combines the visits of each.

    Args:
        jobs: (group, task, placement). Jobs of one group are measured right after each other, in random order, so that
            slow drift hits all that will be compared alike; the groups take turns in the order given.
        track: wraps the list of steps, for a progress bar.

    Returns:
        One cost per job.
    """
    rng = np.random.default_rng(config.seed)
    groups: dict[Hashable, list[int]] = {}
    for number, (group, _, _) in enumerate(jobs):
        groups.setdefault(group, []).append(number)
    schedule = [
        int(number) for _ in range(config.visits) for members in groups.values() for number in rng.permutation(members)
    ]
    visits: list[list[PlacementCost]] = [[] for _ in jobs]
    for number in track(schedule):
        _, task, placement = jobs[number]
        visits[number].append(hardware.measure(task, placement))
    return [combine_visits(own) for own in visits]


__all__ = ["HARDWARE", "Hardware", "MeasureConfig", "measure_all", "open_hardware"]
