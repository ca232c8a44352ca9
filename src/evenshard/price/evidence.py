"""Evidence for a simulated device: the measurements that its profile was fitted to or compared with.

The error on held-out measurements of similar calls widens the interval of a simulated time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenshard.base.knobs import Range
from evenshard.placement.memory import optimizer_problem
from evenshard.price.hardware import names_in

# With fewer measurements, a 90th percentile is not meaningful.
MIN_HELD_OUT = 10
# In logarithm: profiles from data sheets had eight of nine medians within a factor of 3.5.
UNCONFIRMED_PERCENT = 125.0
# 90th percentile of the error of kernels in different configurations, V100 and A100. The least error of a profile with
# constants from another profile, and of calls unlike the measured calls.
EXTRAPOLATED_PERCENT = 45.0
# Evidence also counts for calls with up to this factor more or fewer lookups than were measured.
LOOKUPS_SLACK = 2.0
_COUNT = Range(0, 10**9, whole=True)
_PERCENT = Range(0, 10_000)


@dataclass(frozen=True)
class Evidence:
    """Measurements of one kind that a profile was fitted to or compared with."""

    points: str  # description of the measured points
    source: str  # who measured or published them
    fitted: int  # number of measurements that the fit used
    held_out: int  # number of other measurements
    median_error_percent: float | None = None  # percentiles of the error of log time on the held-out measurements
    p90_error_percent: float | None = None
    optimizers: tuple[str, ...] = ()  # optimizers of the measured calls; empty for any
    lookups: tuple[float, float] | None = None  # least and most lookups of a measured call; None for any

    @property
    def calls(self) -> str:
        """Describe the measured calls, such as "with sgd or adam and 100 to 8,000 lookups"; empty for any."""
        return _describe_calls(self.optimizers, self.lookups or ())

    def lookups_factor(self, lookups: float) -> float:
        """Return the factor by which a number of lookups exceeds the measured range; 1 inside."""
        least, most = self.lookups or (1.0, math.inf)
        return max(least / max(lookups, 1.0), lookups / max(most, 1.0), 1.0)

    def problem(self) -> str | None:
        """Return why the evidence is impossible; None if it is valid."""
        for name in ("points", "source"):
            if not getattr(self, name).strip():
                return f"{name} is empty"
        for name in ("fitted", "held_out"):
            if problem := _COUNT.problem(getattr(self, name)):
                return f"{name} {problem}"
        if self.fitted + self.held_out == 0:
            return "fitted and held_out are both 0"
        median, p90 = self.median_error_percent, self.p90_error_percent
        for name, error in (("median_error_percent", median), ("p90_error_percent", p90)):
            if (error is None) != (self.held_out == 0):
                return f"{name} is {'missing' if error is None else 'given'}, but held_out is {self.held_out}"
            if error is not None and (problem := _PERCENT.problem(error)):
                return f"{name} {problem}"
        if median is not None and p90 is not None and median > p90:
            return "median_error_percent is above p90_error_percent"
        if problem := next(filter(None, map(optimizer_problem, self.optimizers)), None):
            return problem
        if self.lookups is not None and not 0 <= self.lookups[0] <= self.lookups[1] < math.inf:
            return "lookups are not two ascending numbers from 0"
        return None


@dataclass(frozen=True)
class DeviceError:
    """Error of a simulated device or link: the 90th percentile of its errors on ``points`` held-out measurements, %.

    ``points`` is 0 if nothing confirms the profile.
    """

    percent: float = UNCONFIRMED_PERCENT
    points: int = 0
    calls: str = ""  # calls that the error is for, such as "with adam"; empty for any

    @staticmethod
    def of(
        evidence: Sequence[Evidence],
        is_extrapolated: bool = False,
        optimizer: str | None = None,
        lookups: float | None = None,
    ) -> DeviceError:
        """Return the error from the first (most relevant) evidence for such calls with enough held-out measurements.

        A profile extrapolated from another profile needs fewer measurements, because its other constants were fitted.
        If no such calls were measured, the error is assumed. If ``optimizer`` or ``lookups`` is None, the error is the
        largest of all of them.
        """
        errors = errors_by_evidence(evidence, is_extrapolated)
        if not errors:
            return DeviceError(points=next((one.held_out for one in evidence if one.held_out), 0))
        found = [one for one in errors if optimizer is None or optimizer in (one.optimizers or (optimizer,))]
        sizes = () if lookups is None or not found else (lookups,)
        for size in sizes:
            nearest = min(found, key=lambda one: one.lookups_factor(size))
            found = [nearest] if nearest.lookups_factor(size) <= LOOKUPS_SLACK else []
        worst = max((errors[one] for one in found or errors), key=lambda error: error.percent)
        calls = _describe_calls((optimizer,) if optimizer else (), sizes)
        return worst if found else worst.assumed(calls)

    def assumed(self, calls: str) -> DeviceError:
        """Return the error that is assumed for calls that were not measured: at least this one."""
        return DeviceError(max(EXTRAPOLATED_PERCENT, self.percent), 0, calls)

    @property
    def is_confirmed(self) -> bool:
        """Return True if there are enough measurements to confirm the profile."""
        return self.points >= MIN_HELD_OUT

    def problem(self) -> str | None:
        """Return why the error is impossible; None if it is valid."""
        for name, limits in (("percent", _PERCENT), ("points", _COUNT)):
            if problem := limits.problem(getattr(self, name)):
                return f"{name} {problem}"
        return None

    @property
    def factor(self) -> float:
        """Return the multiplicative error factor that covers 90 % of times.

        The 90 % interval of log time is taken as +- the relative error e, because log(1 + e) and -log(1 - e) average to
        about e.
        """
        return math.exp(self.percent / 100)

    @property
    def is_measured(self) -> bool:
        """Return True if the factor comes from held-out measurements, False if it is assumed."""
        return self.is_confirmed and self.percent != EXTRAPOLATED_PERCENT

    def __str__(self) -> str:
        """Return text such as "90 % of times within a factor of 1.13 (40 held-out measurements)"."""
        of_calls = f" {self.calls}" * bool(self.calls)
        said = f"90 % of times{of_calls} within" if self.is_measured else "assumed accurate to"
        return f"{said} a factor of {self.factor:.3g} ({self.basis})"

    @property
    def basis(self) -> str:
        """Describe the measurements behind the factor, such as "40 held-out measurements" or "unverified"."""
        if self.is_measured:
            return f"{self.points:,} held-out measurements"
        if self.is_confirmed:
            return f"{self.points:,} held-out measurements, constants partly from another profile"
        if self.calls and not self.points:
            return f"no held-out measurements {self.calls}"
        return f"unverified: only {self.points} held-out measurements" if self.points else "unverified"


# Errors of kernels, None for real hardware, and of communication, None if it has the same error or there is none.
Errors = tuple[DeviceError | None, DeviceError | None]


def errors_by_evidence(evidence: Sequence[Evidence], is_extrapolated: bool = False) -> dict[Evidence, DeviceError]:
    """Return the error of each evidence that intervals use; see ``DeviceError.of``. Evidence for all calls is last."""
    least = EXTRAPOLATED_PERCENT if is_extrapolated else 0.0
    known = [(one, one.p90_error_percent) for one in evidence if one.p90_error_percent is not None]
    used = [(one, p90) for one, p90 in known if one.held_out >= MIN_HELD_OUT] or known[: int(is_extrapolated)]
    last = next((at for at, (one, _) in enumerate(used) if not one.calls), len(used))
    return {one: DeviceError(max(p90, least), one.held_out, one.calls) for one, p90 in used[: last + 1]}


def widest(*errors: DeviceError | None) -> DeviceError | None:
    """Return the largest error; None if there is none."""
    return max((error for error in errors if error is not None), key=lambda error: error.percent, default=None)


def _describe_calls(optimizers: Sequence[str], lookups: Sequence[float]) -> str:
    rounded = (f"{float(f'{one:.2g}'):,.0f}" for one in lookups)
    texts = [" or ".join(optimizers), f"{' to '.join(rounded)} lookups" * bool(lookups)]
    return f"with {' and '.join(filter(None, texts))}" if any(texts) else ""


def device_text(hardware: str, error: DeviceError | None, links: DeviceError | None = None) -> str:
    """Describe the accuracy of device models and link models; empty if both are None.

    ``hardware`` may list several names; the text omits those of real hardware.
    """
    if error is None:
        return "" if links is None else f"Communication model: {links}"
    simulated = (name for name in names_in(hardware) if name.kind.is_simulated)
    names = list(dict.fromkeys(name.provenance.partition(": ")[2] for name in simulated))
    kernels = f"Device model{'s' * (len(names) > 1)} {' and '.join(names)}: {error}".replace(
        "of times", "of kernel times"
    )
    if links is not None and error.is_measured and links.is_measured:
        return f"{kernels}; communication: within {links.factor:.3g} ({links.points:,})"
    return kernels if links is None else f"{kernels}; communication: {links}"


def error_factors(kernels: DeviceError | None, links: DeviceError | None, exchange_share: float) -> tuple[float, float]:
    """Return the factors of a time's 90 % interval: divide by the first, multiply by the second.

    Kernel and communication errors are assumed independent, so the squares of their shares add up. ``kernels`` is None
    for real hardware. If ``links`` is None, communication has the same error as kernels.
    """
    off = kernels.factor if kernels is not None else 1.0
    shares = ((1.0, off),) if links is None else ((1 - exchange_share, off), (exchange_share, links.factor))
    below = math.hypot(*(share * (1 - 1 / factor) for share, factor in shares))
    above = math.hypot(*(share * (factor - 1) for share, factor in shares))
    return 1 / (1 - below), 1 + above


def widen_interval(
    error: DeviceError | None,
    ms: float,
    low_ms: float,
    high_ms: float,
    links: DeviceError | None = None,
    exchange_share: float = 0.0,
) -> tuple[float, float]:
    """Widen the 90 % interval of a cost model by the errors of device and links.

    These errors are assumed independent of the cost model's, so squares add up on the log scale.
    """

    def factor(end_ms: float, off: float) -> float:
        own = abs(math.log(end_ms) - math.log(ms)) if end_ms > 0 and ms > 0 else 0.0
        return math.exp(math.hypot(own, math.log(off)) - own)

    below, above = error_factors(error, links, exchange_share)
    return low_ms / factor(low_ms, below), high_ms * factor(high_ms, above)
