"""The settings of measuring: section ``measure`` of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from evenshard.measure.hardware import AUTO, CHOICES, HardwareName
from evenshard.placement.memory import SGD, optimizer_problem
from evenshard.utils.errors import BadConfig
from evenshard.utils.messages import brief


@dataclass(frozen=True)
class MeasureConfig:
    """How to measure.

    Attributes:
        hardware: auto, cpu, cuda, or simulated:<profile> (a name in ``measure/profiles/`` or a YAML file); h100 is
            short for simulated:h100.
        link: the link model behind the all-to-all times: a name of ``measure/link.py``, a YAML file that
            ``evenshard calibrate-link`` wrote, or auto: a simulated device's own, else ethernet_25g.
        optimizer: sgd, rowwise_adagrad, adagrad, adam, ...: the backward pass updates the weights with it. FBGEMM's CPU
            kernels lack adam.
        num_batches: distinct input batches that the repeats cycle through.
        warmup: untimed forward and backward passes at the start of a visit.
        repeats: timed ones after them; their median counts.
        visits: times each placement is measured, seconds or minutes apart; the median of the visits counts. A
            neighbour on the machine disturbs for seconds on end, which more repeats in a row would all catch.
        recorded_batch: a DLRM batch file whose lookups are replayed; None draws lookups that match each table's pooling
            factor and reuse histogram.
        keep_cache_warm: leave what the pass before left in the GPU's L2; else it is flushed before every pass.
        controls: placements that are measured again and again, spread over the run, to know the noise.
        control_repeats: times each of them is measured (each time like any other placement).
        noise: relative standard deviation that a simulated device adds to its times; real hardware has its own.
        expect_transport: several GPUs at once: NCCL's name of the network that their exchanges must take, such as ib or
            socket; empty for any.
        timeout_s: several devices at once: seconds after which a silent device ends the run.
        seed: seed of drawn lookups, of simulated noise and of the order of measuring.

    Raises:
        BadConfig: if a setting makes no sense.
    """

    hardware: str = AUTO
    link: str = AUTO
    optimizer: str = SGD
    num_batches: int = 4
    warmup: int = 2
    repeats: int = 3
    visits: int = 3
    recorded_batch: str | None = None
    keep_cache_warm: bool = False
    controls: int = 2
    control_repeats: int = 4
    noise: float = 0.0
    expect_transport: str = ""
    timeout_s: float = 120.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if not getattr(self, name) >= least:
                raise BadConfig(f"measure.{name} is {getattr(self, name)}. Make it at least {least}.")
        chosen = self.hardware_name
        if bool(chosen.device) != bool(chosen.kind.device):  # a real device may be another one than the one here
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
        """``hardware``, parsed."""
        return HardwareName.parse(self.hardware)


_LEAST = {
    "num_batches": 1,
    "warmup": 0,
    "repeats": 1,
    "visits": 1,
    "controls": 0,
    "control_repeats": 1,
    "noise": 0,
    "timeout_s": 1,
}
