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
        "link model behind the all-to-all times: a name of `evenshard hardware`, a YAML file of calibrate-link, or "
        "auto: a simulated device's own, else ethernet_25g",
    )
    optimizer: str = knob(
        "sgd",
        "optimizer that updates the weights in the backward pass: sgd, rowwise_adagrad, adagrad, adam, ... FBGEMM's "
        "CPU kernels lack adam",
    )
    num_batches: int = knob(4, "distinct input batches that the repeats cycle through", range=COUNT)
    warmup: int = knob(2, "untimed forward and backward passes at the start of a visit", range=COUNT_OR_NONE)
    repeats: int = knob(3, "timed passes of a visit; their median counts", range=COUNT)
    visits: int = knob(
        3,
        "times each placement is measured, seconds or minutes apart; the median of the visits counts. A neighbour on "
        "the machine disturbs for seconds on end, which more repeats in a row would all catch",
        range=COUNT,
    )
    recorded_batch: str | None = knob(
        None,
        "DLRM batch file whose lookups are replayed; null draws lookups that match each table's pooling factor and "
        "reuse histogram",
    )
    keep_cache_warm: bool = knob(
        False, "keep the GPU's L2 as the pass before left it; else every pass begins with a flush"
    )
    controls: int = knob(
        2, "placements that are measured again and again, spread over the run, to know the noise", range=COUNT_OR_NONE
    )
    control_repeats: int = knob(4, "times each control is measured, each time like any other placement", range=COUNT)
    noise: float = knob(
        0.0,
        "relative standard deviation that a simulated device adds to its times; real hardware has its own",
        range=NOT_NEGATIVE,
    )
    expect_transport: str = knob(
        "",
        "refuse exchanges between GPUs over another network than this one of NCCL's: ib (RoCE, too), socket or a "
        "plugin's name; empty for any",
        flag="--expect-transport",
    )
    timeout_s: float = knob(
        120.0, "seconds after which a silent device ends a run of several", range=Range(1, 1_000_000)
    )
    seed: int = knob(0, "seed of drawn lookups, of simulated noise and of the order of measuring")

    def __post_init__(self) -> None:
        from evenshard.placement.memory import optimizer_problem

        check_knobs(self, "measure.")
        chosen = self.hardware_name
        if bool(chosen.device) != bool(chosen.kind.device):  # a real device may differ from the local one
            raise BadConfig(f"hardware is {brief(self.hardware)}. Use one of {CHOICES}.")
        object.__setattr__(self, "hardware", str(chosen))
        object.__setattr__(self, "expect_transport", self.expect_transport.lower())
        if self.expect_transport and not chosen.kind.runs_kernels:
            raise BadConfig(f"{self.hardware} exchanges nothing over a network. Leave --expect-transport out.")
        if problem := optimizer_problem(self.optimizer):
            raise BadConfig(f"measure.{problem}. Choose one of these.")
        if self.noise and not chosen.kind.is_simulated:
            raise BadConfig(f"measure.noise is {self.noise}, but {self.hardware} has its own. Make it 0.")

    @property
    def hardware_name(self) -> HardwareName:
        """Return ``hardware``, parsed."""
        return HardwareName.parse(self.hardware)
