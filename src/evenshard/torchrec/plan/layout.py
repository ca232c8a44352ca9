"""Plans of any planner in one form: placement.json, plans of evenshard and TorchRec, and layouts of checkpoints.

The metadata of a checkpoint is a pickle. It is read without running code from it.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenshard.base.documents import read_json
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.messages import brief, reason_of
from evenshard.base.typed import read_record
from evenshard.placement.nodes import Nodes
from evenshard.placement.parts import TablePart
from evenshard.placement.sharding import GRIDS, NODE_ROWS, type_among
from evenshard.planner.file import PlacementFile, read_placement
from evenshard.planner.request import PlacementRequest
from evenshard.price.hardware import HardwareName
from evenshard.torchrec.baseline.topology import require_torchrec
from evenshard.torchrec.model.fused_optimizers import AllowedReplicas
from evenshard.torchrec.model.modules import qualify_name
from evenshard.torchrec.plan.entries import CacheEntry, PlanFile, ShardEntry, TableEntry, table_entry
from evenshard.torchrec.plan.plans import parts_on_machine

if TYPE_CHECKING:
    from torchrec.distributed.types import ParameterSharding, ShardingPlan

_REMEDY = "Give placement.json, a plan of evenshard or TorchRec as JSON, or the folder of a checkpoint."


@dataclass(frozen=True)
class Layout:
    """A plan of any planner: the entries of its tables, and everything else that it states."""

    entries: Mapping[str, TableEntry]  # by the tables' names in the plan; those of checkpoints have no type and ranks
    world_size: int = 0  # 0 if the plan does not state it
    local_world_size: int = 0  # likewise
    compute_device: str = "cuda"
    replicas: AllowedReplicas = field(default_factory=AllowedReplicas)
    request: PlacementRequest | None = None  # of placement.json
    problems: tuple[str, ...] = ()  # of tables that are not among the entries
    # of a checkpoint: shapes of the optimizer states of each table; None for plans
    states: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None

    @property
    def machine(self) -> Nodes:
        """Return the ranks and nodes that the plan states, or else the fewest that its shards need."""
        entries = [entry for entry in self.entries.values() if entry.ranks]
        world_size = self.world_size or max((max(entry.ranks) for entry in entries), default=0) + 1
        in_nodes = (entry for entry in entries if entry.shards and entry.sharding_type in (*NODE_ROWS, *GRIDS))
        widths = (len(entry.ranks) // len({shard.shard_offsets[1] for shard in entry.shards}) for entry in in_nodes)
        node = self.local_world_size or next(widths, world_size)
        return Nodes(-(-world_size // node) * node, node)


def read_layout(plan: str | Path | ShardingPlan | Layout) -> Layout:
    """Read a plan of any planner; raise BadFile if its file cannot be read."""
    if isinstance(plan, Layout):
        return plan
    if not isinstance(plan, str | Path):
        modules = {path: module for path, module in plan.plan.items() if isinstance(module, Mapping)}
        return _of_torchrec({path: {name: _entry(own) for name, own in of.items()} for path, of in modules.items()})
    path = Path(plan)
    if path.name == ".metadata" or path.is_dir():
        return _read_checkpoint(path / ".metadata" if path.is_dir() else path)
    content = read_json(path, "a plan", _REMEDY)
    if isinstance(content, dict) and "shards" in content:
        return _of_placement(read_placement(path))
    if isinstance(content, dict) and "world_size" in content:
        own = read_record(PlanFile, content, path, _REMEDY)
        replicas = AllowedReplicas(own.dense_optimizer, frozenset(own.replicas_by_name))
        return Layout(own.tables, own.world_size, own.local_world_size, own.compute_device, replicas)
    modules = content.get("plan", content) if isinstance(content, dict) else content
    return _of_torchrec(read_record(dict[str, dict[str, TableEntry]], modules, path, _REMEDY))


def _of_torchrec(modules: Mapping[str, Mapping[str, TableEntry]]) -> Layout:
    entries = {qualify_name(path, name): one for path, module in modules.items() for name, one in module.items()}
    on_cpu = any(one.shards[0].placement.endswith("/cpu") for one in entries.values() if one.shards)
    return Layout(entries, compute_device="cpu" if on_cpu else "cuda")


def _entry(own: ParameterSharding) -> TableEntry:
    shards = getattr(own.sharding_spec, "shards", None) or ()
    load_factor = own.cache_params and own.cache_params.load_factor
    return TableEntry.model_construct(
        sharding_type=own.sharding_type,
        compute_kernel=own.compute_kernel,
        ranks=tuple(own.ranks or ()),
        shards=tuple(_shard(shard.shard_offsets, shard.shard_sizes, str(shard.placement)) for shard in shards),
        cache_params=load_factor and CacheEntry.model_construct(algorithm="LRU", load_factor=load_factor),
    )


def _shard(offsets: Sequence[int], sizes: Sequence[int], placement: str = "") -> ShardEntry:
    return ShardEntry.model_construct(shard_offsets=tuple(offsets), shard_sizes=tuple(sizes), placement=placement)


def _of_placement(record: PlacementFile) -> Layout:
    request = record.request
    machine, device = request.nodes, HardwareName.parse(request.hardware).kind.compute_device
    parts_of_table = defaultdict[str, list[TablePart]](list)
    for part in record.parts:
        parts_of_table[part.table].append(part)
    entries, problems = dict[str, TableEntry](), list[str]()
    for table in request.tables:
        try:
            own = parts_on_machine(parts_of_table.pop(table.name, ()), [table], machine)[table.name]
            own_type = type_among(request.limits_of(table.name).types, own, table, machine)
            entries[table.name] = table_entry(own, table, machine, device, own_type)
        except BadConfig as error:
            problems.append(str(error))
    problems += (f"table {brief(name)} has shards, but is not among the tables. Remove it." for name in parts_of_table)
    ranks = machine.num_devices, machine.devices_per_node
    return Layout(entries, *ranks, device, AllowedReplicas.of(request), request, tuple(problems))


# Checkpoints ----------------------------------------------------------------------------------------------------------

_WEIGHT = re.compile(r"(?:(?P<path>.*)\.)?embedding(?:_bag)?s\.(?P<table>[^.]+)\.weight(?:\.(?P<state>.+))?")


class _Metadata(pickle.Unpickler):
    """Reader of a checkpoint's metadata that calls only the constructors of its records."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the metadata; raise BadConfig for all other objects."""
        if module in ("torch", "torch.serialization", "pathlib") or module.startswith("torch.distributed.checkpoint."):
            found = super().find_class(module, name)
            is_record = isinstance(found, type) and found.__module__ == module
            if is_record or (module, name) == ("torch.serialization", "_get_layout") or type(found).__name__ == "dtype":
                return found
        raise BadConfig(f"it contains {module}.{name}")


def _read_checkpoint(path: Path) -> Layout:
    require_torchrec()
    try:
        with path.open("rb") as file:
            found = _Metadata(file).load().state_dict_metadata
    except Exception as error:  # a broken pickle may fail in any way
        raise BadFile(path, f"is not the metadata of a checkpoint ({reason_of(error)})", _REMEDY) from None
    entries, states = dict[str, TableEntry](), defaultdict[str, dict[str, tuple[int, ...]]](dict)
    for key, tensor in found.items():
        named = _WEIGHT.fullmatch(key)
        if named is None or not hasattr(tensor, "chunks"):
            continue
        if named["state"]:
            states[named["table"]][named["state"]] = tuple(tensor.size)
        else:
            shards = tuple(_shard(chunk.offsets, chunk.sizes) for chunk in tensor.chunks)
            entries[qualify_name(named["path"] or "", named["table"])] = TableEntry.model_construct(
                sharding_type="", compute_kernel="", ranks=(0,) * len(shards), shards=shards
            )
    if not entries:
        raise BadFile(path, "has no tables of TorchRec", _REMEDY)
    return Layout(entries, states=states)
