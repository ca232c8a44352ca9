"""``evenshard.what_if``: one call from tables to machines beside each other, the same as the command's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.api.place import dense_bytes_of, place
from evenshard.base.errors import BadConfig
from evenshard.base.knobs import Knob, chosen_in, knob, knobs_of
from evenshard.base.params import check_ranges
from evenshard.base.typed import check_arguments
from evenshard.base.units import bytes_to_gb
from evenshard.planner.knobs import Knobs, Training, group_knobs, groups, place_knobs
from evenshard.price.hardware import DEFAULT_HARDWARE, HardwareName

if TYPE_CHECKING:
    from evenshard.planner.what_if.answer import WhatIfAnswer
    from evenshard.planner.what_if.option import Prices


@dataclass(frozen=True)
class WhatIf:
    """The knobs of the question: machines, prices, and what a step does besides its embeddings."""

    hardware: Sequence[str] = knob(
        (),
        "kinds of hardware; h100 is short for simulated:h100, a device model (default: what the model was trained on, "
        "or simulated:h100)",
    )
    devices: Sequence[int] = knob((8,), "numbers of devices")
    memory_cap_gb: float | Sequence[float] | None = knob(
        None, "sizes of device memory, GB of 1024**3 bytes, each on every machine (default: that of the hardware)"
    )
    price: "str | Path | Prices | None" = knob(
        None, "prices by the hour, for the cost of samples: a YAML file, or Prices"
    )
    batch_size: int | None = knob(
        None,
        "samples of a step over all devices together, the same on every machine (default: 65,536, unless "
        "batch_per_device is given)",
    )
    batch_per_device: int | None = knob(
        None, "samples of a step on each device, in place of batch_size: more devices take more samples"
    )
    dense_ms: float | Mapping[str, float] = knob(
        0.0, "time of a step without its embeddings; one for all hardware, or one for each"
    )
    dense_batch: int | None = knob(
        None,
        "samples of a device for which dense_ms holds: it is scaled to those of each machine (default: it is taken as "
        "it is)",
    )
    overlap: float = knob(
        0.0,
        "share of the shorter of embeddings and dense_ms that runs beside the longer one, 0 to 1; 0 adds them up",
    )
    max_step_ms: float | None = knob(
        None, "longest step: the cheapest machine that is predicted to keep to it is named too"
    )
    devices_per_node: int | Mapping[str, int] | None = knob(
        None, "devices of a host (default: as many as its link connects, at most 8)"
    )
    nodes_per_domain: int | Mapping[str, int] = knob(1, "hosts whose devices share the link within a host")
    intra: str | Mapping[str, str] = knob("", "link within a host (default: that of the hardware)")
    inter: str | Mapping[str, str] = knob(
        "",
        "link between hosts (default: infiniband_ndr for H100 and later, infiniband_hdr for A100 and V100, "
        "ethernet_25g for others)",
    )
    model: str | Path | Mapping[str, str | Path] | None = knob(
        None, "cost model of each kind of hardware, as for evenshard.place"
    )
    group_sizes: Sequence[int] | str = knob(
        (),
        "devices that share one copy of the tables, with 2D parallelism (TorchRec's DMPCollection); all for every "
        "number that divides the devices (default: all devices share one)",
    )
    sync_every: int = knob(1, "steps from one average over the groups' weights to the next")


# Knobs of ``evenshard.place`` about one machine and its devices, or about one answer.
_OF_ONE_MACHINE = {
    *("num_devices", "nodes", "cluster", "constraints"),
    *("pinned", "forbidden", "forbidden_devices", "pinned_nodes"),
    *("near", "max_move_gb", "num_measured", "compare"),
}


def shared_knobs() -> tuple[Knob, ...]:
    """All its other knobs, which hold for every machine alike, unless ``what_if`` has its own of that name."""
    own = {one.name for one in knobs_of(WhatIf)}
    return tuple(one for one in place_knobs() if one.name not in _OF_ONE_MACHINE and one.name not in own)


@check_arguments(
    (*knobs_of(WhatIf), *shared_knobs(), *group_knobs(shared_knobs())), Prices="evenshard.planner.what_if.option"
)
def what_if(
    tables: Any,
    hardware: Sequence[str] = WhatIf.hardware,
    devices: Sequence[int] = WhatIf.devices,
    *,
    progress: Callable[[Sequence[Any]], Iterable[Any]] | None = None,
    **knobs: Any,
) -> "WhatIfAnswer":
    """Place the same tables on every kind of hardware with every number of devices and every size of memory.

    Where a machine cannot hold the tables, its option says what is missing. Where one value for all or one for each
    kind of hardware may be given, the latter is a mapping such as {"h100": 12, "a100": 25}.

    Args:
        tables: as for ``evenshard.place``.
        knobs: the fields of ``WhatIf``, each by its own name, and those of ``evenshard.place`` that hold for every
            machine (``shared_knobs``), as ``place`` takes them.
        progress: goes through a list and shows how far it is, such as ``tqdm``.

    Returns:
        The options, each with times, costs and memory, and which are the cheapest and the fastest.

    Raises:
        BadInput: if an argument cannot be used; the message says what to do.
    """
    names = {one.name for one in knobs_of(WhatIf)}
    taken = [one.name for one in shared_knobs()]
    known = {*names, *taken, *(group.name for group in groups())}
    if unknown := next((name for name in knobs if name not in known), None):
        raise BadConfig(f"{unknown} is not an argument of what_if, nor one of place that applies to every machine.")
    own = {name: value for name, value in knobs.items() if name in names}
    shared = Knobs.of({name: value for name, value in knobs.items() if name not in names}, taken)
    return _answer(tables, WhatIf(hardware=hardware, devices=devices, **own), shared, progress)


def _answer(
    tables: Any, asked: WhatIf, shared: Knobs, progress: Callable[[Sequence[Any]], Iterable[Any]] | None
) -> "WhatIfAnswer":
    from evenshard.planner.pricing import model_of, named_with_hardware
    from evenshard.planner.what_if.answer import Question, WhatIfAnswer, keep_faster_placements, sizes_of
    from evenshard.planner.what_if.machines import of_hardware, whole_machine
    from evenshard.planner.what_if.option import load_prices

    hardware, devices, model, price = asked.hardware, asked.devices, asked.model, asked.price
    batch_size, batch_per_device, dense_batch = asked.batch_size, asked.batch_per_device, asked.dense_batch
    max_step_ms = asked.max_step_ms
    if not devices:
        raise BadConfig("no number of devices is given. Give some, such as 8.")
    if batch_size is not None and batch_per_device is not None:
        raise BadConfig("batch_size is of all devices together, batch_per_device of each. Give one of the two.")
    check_ranges(
        sync_every=asked.sync_every, overlap=asked.overlap, batch_size=batch_size, batch_per_device=batch_per_device
    )
    check_ranges(dense_batch=dense_batch, max_step_ms=max_step_ms)
    if max_step_ms is not None and price is None:
        raise BadConfig(f"max_step_ms is {max_step_ms:g}, but without prices no machine is the cheapest. Add price.")
    if not hardware and not isinstance(model, Mapping):
        hardware = (named_with_hardware(model, None)[1] or DEFAULT_HARDWARE,)
    kinds = hardware or (model if isinstance(model, Mapping) else ())
    names = tuple(dict.fromkeys(str(HardwareName.parse(name)) for name in kinds))
    dense = of_hardware("dense_ms", asked.dense_ms, names)
    if lacking := [name for name in names if name not in dense]:
        raise BadConfig(f"dense_ms names no time for {lacking[0]}. Add it: {lacking[0]}=12.")
    for own_ms in dense.values():
        check_ranges(dense_ms=own_ms)
    if dense_batch is not None and not any(dense.values()):
        raise BadConfig(
            f"dense_batch is {dense_batch}, but dense_ms, the time of so many samples, is not given. Give dense_ms, or "
            "leave dense_batch out."
        )
    hosts: dict[str, dict[str, Any]] = {
        name: of_hardware(name, getattr(asked, name), names)
        for name in ("devices_per_node", "nodes_per_domain", "intra", "inter")
    }
    models = of_hardware("model", model, names)
    machines = []
    for name in names:
        host: dict[str, Any] = {what: of_kind[name] for what, of_kind in hosts.items() if name in of_kind}
        machines += [(name, whole_machine(name, count, **host)) for count in dict.fromkeys(devices)]
    given = {name: value for group in groups() for name, value in chosen_in(getattr(shared, group.name)).items()}
    question = Question(
        place=place,
        tables=tables,
        models={name: model_of(models.get(name), name) for name in names},
        prices=load_prices(price) if isinstance(price, str | Path) else price,
        batch_size=batch_size or Training.batch_size if batch_per_device is None else None,
        batch_per_device=batch_per_device,
        dense_ms=dense,
        dense_batch=dense_batch,
        overlap=asked.overlap,
        sync_every=asked.sync_every,
        knobs={**given, "dense_gb": bytes_to_gb(dense_bytes_of(tables, shared.memory.dense_gb))},
    )
    caps = asked.memory_cap_gb
    memory = sorted(set(caps)) if isinstance(caps, Sequence) else [caps]
    wanted = [
        (name, machine, size, cap)
        for name, machine in machines
        for size in sizes_of(machine, asked.group_sizes)
        for cap in memory or [None]
    ]
    options = (question.option(*one) for one in (wanted if progress is None else progress(wanted)))
    return WhatIfAnswer(tuple(keep_faster_placements(options)), question, max_step_ms)
