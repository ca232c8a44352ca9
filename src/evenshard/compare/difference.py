"""The records of a diff: what moves between two answers, what changes, and what that saves."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.compare.times import StepTimes
from evenshard.placement.parts import Span
from evenshard.planner.output_order import OrderChange
from evenshard.utils.messages import count_text
from evenshard.utils.units import size_text


@dataclass(frozen=True)
class PartMove:
    """Rows and columns of a table that go to a device which lacks them.

    Attributes:
        table: its name.
        rows, columns: rows and columns that move.
        from_device, to_device: a device that has them in the old answer, and one that needs them in the new one.
        weight_bytes, state_bytes: bytes that move: weights, and optimizer state.
    """

    table: str
    rows: Span
    columns: Span
    from_device: int
    to_device: int
    weight_bytes: int
    state_bytes: int

    @property
    def num_bytes(self) -> int:
        """Weights and optimizer state together."""
        return self.weight_bytes + self.state_bytes


@dataclass(frozen=True)
class PairTraffic:
    """What one device sends another."""

    from_device: int
    to_device: int
    num_bytes: int


@dataclass(frozen=True)
class DeviceTraffic:
    """What a device sends and receives."""

    device: int
    out_bytes: int
    in_bytes: int


@dataclass(frozen=True)
class Traffic:
    """All that moves.

    Attributes:
        moved_bytes: weights and optimizer state.
        busiest_bytes: the most that a device sends, or receives.
        seconds: time of the transfer over a link; None if its speed is unknown.
        pairs: devices that exchange something, by id.
        devices: those that send or receive, by id.
    """

    moved_bytes: int
    busiest_bytes: int
    seconds: float | None
    pairs: tuple[PairTraffic, ...]
    devices: tuple[DeviceTraffic, ...]


@dataclass(frozen=True)
class Renaming:
    """Other ids for the devices of the new answer, with which less moves. Devices that differ keep theirs.

    Attributes:
        new_names: the old device that each device of the new answer should be.
        traffic: traffic that remains then.
    """

    new_names: tuple[int, ...]
    traffic: Traffic


@dataclass(frozen=True)
class ChangedTable:
    """A table whose shape differs: its weights cannot move.

    Attributes:
        table: its name.
        what: differs, such as "num_rows 100 -> 200".
    """

    table: str
    what: str


@dataclass(frozen=True)
class Resharded:
    """A table that is sharded in another way.

    Attributes:
        table: its name.
        old_type, new_type: its sharding types.
    """

    table: str
    old_type: str
    new_type: str


@dataclass(frozen=True)
class Rekept:
    """A table whose weights are kept otherwise.

    Attributes:
        table: its name.
        old_storage, new_storage: compute kernels, with the load factors of caches.
        to_host_bytes, to_device_bytes: weights and optimizer state that go from a device to its host, and back; those
            that go to other devices or hosts are moves.
    """

    table: str
    old_storage: str
    new_storage: str
    to_host_bytes: int
    to_device_bytes: int


@dataclass(frozen=True)
class Difference:
    """The difference between an old answer and a new one.

    Attributes:
        equal: whether both place the same tables in the same way on the same machine, so that there is no move to make.
        old_num_devices, new_num_devices: devices of the two answers.
        moves: pieces that go to another device, in the order of the new answer's tables.
        kept_bytes: bytes that stay, weights and optimizer state.
        traffic: bytes that move.
        renaming: saves some or all of that; None where none does.
        added, removed: tables that only the new answer has, or the old one.
        changed: tables whose shape differs.
        resharded: tables that are sharded in another way.
        rekept: tables whose weights are kept otherwise.
        reordered: pooled collections whose output has another order.
        times: predicted, before and after.
        notes: notes on the comparison; a clause each.
    """

    equal: bool
    old_num_devices: int
    new_num_devices: int
    moves: tuple[PartMove, ...]
    kept_bytes: int
    traffic: Traffic
    renaming: Renaming | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedTable, ...]
    resharded: tuple[Resharded, ...]
    rekept: tuple[Rekept, ...]
    reordered: tuple[OrderChange, ...]
    times: StepTimes
    notes: tuple[str, ...]

    @property
    def is_of_same_tables(self) -> bool:
        """Whether both answers place the same tables, so that their times can be compared."""
        return not (self.added or self.removed or self.changed)

    @property
    def largest_moves(self) -> list[PartMove]:
        """The moves, those of most bytes first."""
        return sorted(self.moves, key=lambda one: -one.num_bytes)

    @property
    def moved_text(self) -> str:
        """What moves, such as 2 GB of 3 tables."""
        tables = len({move.table for move in self.moves})
        return f"{size_text(self.traffic.moved_bytes)} of {count_text(tables, 'table')}"

    @property
    def only_in_one(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The tables that only one of the answers has, with what became of them in a word."""
        return tuple((word, names) for word, names in (("Added", self.added), ("Removed", self.removed)) if names)

    @property
    def resharded_by_type(self) -> dict[tuple[str, str], list[str]]:
        """The tables that are sharded in another way, by their old and their new type."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.resharded:
            found.setdefault((one.old_type, one.new_type), []).append(one.table)
        return found
