"""The memory of an answer in words: what is reserved and why, what the fullest device holds, where tables are kept."""

from __future__ import annotations

from collections.abc import Sequence

from evenshard.placement.storage import COMPUTE_KERNELS, FUSED, KEY_VALUE
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.device_memory import RESERVED_SHARE
from evenshard.planner.memory import NodeMemory, OffloadedPart
from evenshard.planner.request import PlacementRequest
from evenshard.utils.messages import count_text, names_text, printable
from evenshard.utils.units import ms_text, pct_text, size_text

UNCOUNTED = "CUDA context, NCCL, fragmentation"
# Shares that are worth a word: of a batch's distinct rows missed by a cache, of its device's time that this takes.
BADLY_SERVED, WORTH_A_WORD = 0.2, 0.05


def reserve_text(request: PlacementRequest) -> str:
    """What of each device is reserved, and for what; and what is counted, where that is little. Without a full stop."""
    share = request.reserved_share
    what = [pct_text(100 * share).replace(".0 ", " ")] if share else []
    what += [size_text(request.reserved_bytes)] if request.reserved_bytes else []
    uncounted = UNCOUNTED if request.dense_bytes else f"{UNCOUNTED}, the dense model (--dense-gb counts it)"
    if what:
        why = ", as TorchRec's planner does by default" if share == RESERVED_SHARE else ""
        text = f"{' and '.join(what)} of each device reserved{why}, for what is not counted: {uncounted}"
    else:
        text = f"No memory reserved for what is not counted: {uncounted}"
    if request.training_pipeline:
        return text
    return f"{text}. No training pipeline is named: of tables, weights and optimizer state alone are counted"


def is_offloaded(answer: PlacementAnswer) -> bool:
    """Whether some table is not in device memory."""
    return any(not kept.is_on_device for kept in answer.storage_of_table.values())


def kept_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Each place where tables are kept, with how many, how much and which; nothing where all are in device memory."""
    if not is_offloaded(answer):
        return []
    tables: dict[str, list[str]] = {}
    for name, kept in answer.storage_of_table.items():
        tables.setdefault(kept.kernel, []).append(name)
    return [(kernel, _kernel_text(answer, kernel, tables[kernel])) for kernel in COMPUTE_KERNELS if kernel in tables]


def _kernel_text(answer: PlacementAnswer, kernel: str, names: Sequence[str]) -> str:
    held, cached = 0, 0
    for part, size in zip(answer.parts, answer.part_memory, strict=True):
        if part.storage.kernel != kernel:
            continue
        outside = size.host_bytes + size.ssd_weights
        held += outside or len(part.devices) * (size.weights + size.optimizer_state)
        cached += (size.weights + size.cache_state) if part.storage.is_cached else 0
    count = f"{count_text(len(names), 'table')}, {size_text(held)}"
    if kernel == FUSED:
        return f"{count} in device memory"
    text = f"{count} {'on SSDs' if kernel == KEY_VALUE else 'in host memory'}"
    if cached:
        factors = sorted({answer.storage_of_table[name].load_factor for name in names})
        of = f"{factors[0]:.3g}" if len(factors) == 1 else f"{factors[0]:.3g} to {factors[-1]:.3g}"
        text += f", caches of {size_text(cached)} in device memory (load factor{'s' * (len(factors) > 1)} {of})"
    return f"{text}: {names_text(names)}"


def offload_text(answer: PlacementAnswer) -> str:
    """What tables outside of device memory take of the slowest of the devices that hold some; empty without any."""
    taken = [0.0] * answer.num_devices
    for one in answer.offloaded:
        taken[one.part.device] += one.offload_ms
    if not any(taken):
        return ""
    slowest = max((one.part.device for one in answer.offloaded), key=lambda device: _device_ms(answer, device))
    return (
        f"being outside of device memory takes {ms_text(taken[slowest])} of the {ms_text(_device_ms(answer, slowest))} "
        f"ms of device {slowest}"
    )


def badly_served(answer: PlacementAnswer) -> list[OffloadedPart]:
    """The slowest part of each table whose cache misses much and takes long; the slowest first."""
    worst: dict[str, OffloadedPart] = {}
    for one in sorted(answer.offloaded, key=lambda one: -one.offload_ms):
        takes_long = one.offload_ms >= WORTH_A_WORD * _device_ms(answer, one.part.device)
        if takes_long and one.miss_ratio is not None and one.miss_ratio >= BADLY_SERVED:
            worst.setdefault(one.part.table, one)
    return list(worst.values())


def badly_served_text(answer: PlacementAnswer, one: OffloadedPart) -> str:
    """What a cache misses, what that takes, and what would help."""
    return (
        f"{printable(one.part.table)} misses {pct_text(100 * (one.miss_ratio or 0.0))} of the distinct rows of a batch "
        f"at load factor {one.part.storage.load_factor:.3g} ({one.source}). Being there takes "
        f"{ms_text(one.offload_ms)} of the {ms_text(_device_ms(answer, one.part.device))} ms of device "
        f"{one.part.device}: give it more cache or device memory."
    )


def _device_ms(answer: PlacementAnswer, device: int) -> float:
    return answer.devices[device].predicted_total_ms


def host_texts(answer: PlacementAnswer) -> list[tuple[str, str]]:
    """Host memory and SSDs in use, of what there is; nothing where none is in use."""
    hosts, found = answer.host_memory, []
    for word, used, room in (
        ("host memory", [one.used_bytes for one in hosts], [one.room for one in hosts]),
        ("SSDs", [one.ssd for one in hosts], [one.ssd_room for one in hosts]),
    ):
        if any(used):
            found.append((word, _of_hosts(hosts, used, room)))
    return found


def _of_hosts(hosts: Sequence[NodeMemory], used: Sequence[int], room: Sequence[int]) -> str:
    fullest = max(range(len(hosts)), key=lambda node: used[node] / max(room[node], 1))
    share = used[fullest] / max(room[fullest], 1)
    where = f" on host {fullest}, the fullest of {len(hosts):,}" if len(hosts) > 1 else ""
    text = f"{size_text(used[fullest])} of {size_text(room[fullest])} used{where} ({pct_text(100 * share)})"
    return f"{text}; {size_text(sum(used))} in all" if len(hosts) > 1 else text
