"""Settings of measurements: section ``measure`` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.base.errors import BadConfig
from evenshard.base.knobs import COUNT, COUNT_OR_NONE, NOT_NEGATIVE, Range, check_knobs, knob
from evenshard.base.messages import brief
from evenshard.price.hardware import AUTO, CHOICES, HardwareName


@dataclass(frozen=True)
class MeasureConfig:
    """Section ``measure`` of params.yaml.

    Raises:
        BadConfig: if settings contradict each other.
    """

    hardware: str = knob(
        AUTO, f"hardware to measure on: {CHOICES}; h100 is short for simulated:h100", flag="--hardware"
    )
    link: str = knob(
        AUTO,
        "link model for all-to-all times: a name from `evenshard hardware`, a YAML file from calibrate-link, or auto "
        "for the simulated device's own link (ethernet_25g on real hardware)",
    )
    optimizer: str = knob(
        "sgd",
        "optimizer that updates the weights in the backward pass: sgd, rowwise_adagrad, adagrad, adam, ... FBGEMM's "
        "CPU kernels lack adam",
    )
    num_batches: int = knob(4, "number of distinct input batches; the passes cycle through them", range=COUNT)
    warmup: int = knob(2, "untimed forward and backward passes at the start of a visit", range=COUNT_OR_NONE)
    repeats: int = knob(3, "timed passes per visit; their median is the result of the visit", range=COUNT)
    visits: int = knob(
        3,
        "visits (measurements) per placement, seconds or minutes apart; their median is the result. Another process "
        "can slow the machine down for seconds, which affects all repeats of one visit",
        range=COUNT,
    )
    recorded_batch: str | None = knob(
        None,
        "DLRM batch file whose lookups are replayed; null draws lookups that match each table's pooling factor and "
        "reuse histogram",
    )
    keep_cache_warm: bool = knob(
        False, "keep the GPU's L2 cache warm between passes; if false, it is flushed before every pass"
    )
    controls: int = knob(
        2, "number of control placements, measured repeatedly during the run to estimate the noise", range=COUNT_OR_NONE
    )
    control_repeats: int = knob(4, "measurements of each control placement, each with all its visits", range=COUNT)
    noise: float = knob(
        0.0, "relative standard deviation of the noise added to simulated times; 0 on real hardware", range=NOT_NEGATIVE
    )
    expect_transport: str = knob(
        "",
        "network that NCCL must use between nodes, else the measurement is refused: ib (also RoCE), socket or a "
        "plugin's name; empty for any",
        flag="--expect-transport",
    )
    timeout_s: float = knob(
        120.0, "seconds after which a run on several devices fails if a rank hangs", range=Range(1, 1_000_000)
    )
    seed: int = knob(0, "seed of the lookups, the simulated noise and the order of measurements")

    def __post_init__(self) -> None:
        from evenshard.placement.memory import optimizer_problem

        check_knobs(self, "measure.")
        chosen = self.hardware_name
        if bool(chosen.device) != bool(chosen.kind.device):  # a real device may differ from the local one
            raise BadConfig(f"hardware is {brief(self.hardware)}. Use one of {CHOICES}.")
        object.__setattr__(self, "hardware", str(chosen))
        object.__setattr__(self, "expect_transport", self.expect_transport.lower())
        if self.expect_transport and not chosen.kind.runs_kernels:
            raise BadConfig(f"{self.hardware} does not communicate over a network. Remove --expect-transport.")
        if problem := optimizer_problem(self.optimizer):
            raise BadConfig(f"measure.{problem}. Choose one of them.")
        if self.noise and not chosen.kind.is_simulated:
            raise BadConfig(f"measure.noise is {self.noise}, but {self.hardware} is not simulated. Set it to 0.")

    @property
    def hardware_name(self) -> HardwareName:
        """Return the setting ``hardware`` as a ``HardwareName``."""
        return HardwareName.parse(self.hardware)
