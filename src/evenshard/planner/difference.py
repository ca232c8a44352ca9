"""Records of a diff: moves, changes and step times of two answers, and the break-even of the move."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.base.errors import BadConfig
from evenshard.base.messages import brief, count_text
from evenshard.base.units import seconds_to_ms, size_text
from evenshard.placement.parts import Span
from evenshard.planner.answer import PlacementAnswer
from evenshard.planner.output_order import OrderChange
from evenshard.planner.pricing import links_of_request
from evenshard.sharders.model import Model

OWN_FIGURES = "the files' own figures"  # name in place of a model's, for times that each answer recorded


@dataclass(frozen=True)
class PartMove:
    """Rows and columns of a table to copy from a device of the old placement to a device of the new placement."""

    table: str
    rows: Span
    columns: Span
    from_device: int
    to_device: int
    weight_bytes: int
    state_bytes: int

    @property
    def num_bytes(self) -> int:
        """Return the bytes of weights and optimizer state."""
        return self.weight_bytes + self.state_bytes


@dataclass(frozen=True)
class PairTraffic:
    """Bytes that one device sends another."""

    from_device: int
    to_device: int
    num_bytes: int


@dataclass(frozen=True)
class DeviceTraffic:
    """Bytes that a device sends and receives."""

    device: int
    out_bytes: int
    in_bytes: int


@dataclass(frozen=True)
class Traffic:
    """Weights and optimizer state that all moves send, bytes: in total, by pair of devices, and by device.

    ``busiest_bytes`` is the most that any device sends or receives; ``seconds`` is None if no bandwidth is known.
    """

    moved_bytes: int
    busiest_bytes: int
    seconds: float | None
    pairs: tuple[PairTraffic, ...]
    devices: tuple[DeviceTraffic, ...]


@dataclass(frozen=True)
class Renaming:
    """Device ids for the new placement with which fewer bytes move, and the traffic with these ids."""

    new_names: tuple[int, ...]
    traffic: Traffic


@dataclass(frozen=True)
class ChangedTable:
    """A table whose shape differs, such as "num_rows 100 -> 200", so that its weights cannot move."""

    table: str
    what: str


@dataclass(frozen=True)
class Resharded:
    """A table whose sharding type changes."""

    table: str
    old_type: str
    new_type: str


@dataclass(frozen=True)
class StorageChange:
    """A table whose compute kernel or cache load factor changes.

    Bytes are weights and optimizer state that move between a device and its own host; ``PartMove`` has all others.
    """

    table: str
    old_storage: str
    new_storage: str
    to_host_bytes: int
    to_device_bytes: int


@dataclass(frozen=True)
class StepTimes:
    """Predicted step times of both placements, by one model or as each answer recorded them (``OWN_FIGURES``).

    ``saves_ms`` is negative if the new placement is slower; ``saves_low_ms`` and ``saves_high_ms`` are the ends of its
    90 % interval. No placement that the new request allows is predicted to be faster than the lower bound.
    """

    predicted_by: str
    old_ms: float
    new_ms: float
    saves_ms: float
    saves_low_ms: float
    saves_high_ms: float
    lower_bound_ms: float


@dataclass(frozen=True)
class Difference:
    """The difference between an old answer and a new one."""

    equal: bool  # True if both place the same tables identically on the same machine
    old_num_devices: int
    new_num_devices: int
    moves: tuple[PartMove, ...]  # between devices, in the order of the new answer's tables
    kept_bytes: int  # weights and optimizer state that do not move
    traffic: Traffic
    renaming: Renaming | None  # None if no renaming of devices saves traffic
    added: tuple[str, ...]  # tables only in the new answer
    removed: tuple[str, ...]  # tables only in the old answer
    changed: tuple[ChangedTable, ...]
    resharded: tuple[Resharded, ...]
    rekept: tuple[StorageChange, ...]
    reordered: tuple[OrderChange, ...]  # pooled collections with a new output order
    times: StepTimes
    notes: tuple[str, ...]  # clauses

    @property
    def is_of_same_tables(self) -> bool:
        """Return True if both answers place the same tables, so that their times can be compared."""
        return not (self.added or self.removed or self.changed)

    @property
    def largest_moves(self) -> list[PartMove]:
        """Return the moves, largest first."""
        return sorted(self.moves, key=lambda one: -one.num_bytes)

    @property
    def moved_text(self) -> str:
        """Return the size of the moves as text, such as 2 GB of 3 tables."""
        tables = len({move.table for move in self.moves})
        return f"{size_text(self.traffic.moved_bytes)} of {count_text(tables, 'table')}"


@dataclass(frozen=True)
class Payback:
    """Break-even of a move: the number of steps whose saved time equals the transfer and the restart.

    Each step saves ``saves_ms``, negative if the new placement is slower. The ends of its 90 % interval give the
    earliest and latest break-even and the lowest and highest gain. Steps are None if the move never pays back.
    """

    steps: int
    transfer_seconds: float
    link: str
    restart_seconds: float
    saves_ms: float
    saves_low_ms: float
    saves_high_ms: float
    break_even_steps: float | None
    soonest_steps: float | None
    latest_steps: float | None
    gained_seconds: float
    gained_low_seconds: float
    gained_high_seconds: float


def payback(
    difference: Difference,
    new: PlacementAnswer,
    steps: int,
    model: Model | None = None,
    link_gb_s: float | None = None,
    restart_minutes: float = 0.0,
) -> Payback | None:
    """Return the gain of a move after a number of steps; None if the placements are equal.

    Data moves over the link of the new answer's machine, else of its model's training data; ``link_gb_s`` overrides
    both. Training stops during the transfer and for ``restart_minutes``.

    Raises:
        BadConfig: if no link is known, or the saving is unknown because the two answers have different tables.
    """
    if difference.equal:
        return None
    if not difference.is_of_same_tables:
        others = [*difference.added, *difference.removed, *(one.table for one in difference.changed)]
        raise BadConfig(
            f"the placements differ in {len(others):,} tables, such as {brief(others[0])}, so the time saved per step "
            f"is unknown. Place the current tables without moves (evenshard place TABLES --near OLD --max-move-gb 0 -o "
            f"stay.json), and compare with that file."
        )
    seconds, link = _transfer(difference, new, model, link_gb_s)
    times, restart_s = difference.times, restart_minutes * 60
    once_ms = seconds_to_ms(seconds + restart_s)
    # The largest saving per step breaks even soonest, the smallest latest.
    ends = (times.saves_ms, times.saves_low_ms, times.saves_high_ms)
    break_even, latest, soonest = (once_ms / saves if saves > 0 else None for saves in ends)
    gained, low, high = ((steps * saves - once_ms) / seconds_to_ms(1.0) for saves in ends)
    return Payback(
        steps, seconds, link, restart_s, *ends, break_even, soonest, latest, gained, low, high
    )  # fmt: skip


def _transfer(
    difference: Difference, new: PlacementAnswer, model: Model | None, link_gb_s: float | None
) -> tuple[float, str]:
    traffic = difference.traffic
    if link_gb_s is not None:
        return traffic.seconds or 0.0, f"{link_gb_s:.3g} GB/s"
    if model is None:
        raise BadConfig("without a model, the bandwidth for the move is unknown. Give it, such as --link-gb-s 50.")
    machine, links = new.request.nodes, links_of_request(new.request, model)
    # Each device has its own link between hosts. All bytes are assumed to use this link, because it is slower.
    between = links.inter
    name = machine.inter if between is not None else machine.intra or model.link
    busiest = float(traffic.busiest_bytes)
    time_ms = float(
        (between or links.intra).bytes_ms(busiest, busiest, float(traffic.moved_bytes), machine.num_devices)
    )
    return time_ms / seconds_to_ms(1.0), name or "the link of the model's training data"
