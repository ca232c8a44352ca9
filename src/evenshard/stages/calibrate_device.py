"""The fit of a simulated device's free constants to measured costs or to traces, and its errors before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenshard.measure.calibrate.constants import Calibration
from evenshard.measure.calibrate.device import fit_profile
from evenshard.measure.calibrate.trace import TracedShard, fit_to_calls, shard_of
from evenshard.measure.cost_dataset import load_costs
from evenshard.measure.profiles import profile_path
from evenshard.measure.simulated.gpu_profile import GpuProfile, gpu_profile
from evenshard.measure.traces.fused_calls import median_calls, without_calls
from evenshard.measure.traces.ranks import training_ranks
from evenshard.stages.observe import tables_of_devices
from evenshard.tables.files import load_tables
from evenshard.tables.table import Table
from evenshard.utils.errors import BadConfig, BadFile, BadInput
from evenshard.utils.text_table import text_table


@dataclass(frozen=True)
class CalibrateDeviceInputs:
    """What to fit to: ``costs``, or ``traces``.

    Attributes:
        tables: that the costs were measured with; of traces, those of a TorchRec plan, or of the one rank.
        costs: measured on one hardware.
        profile: name or file of the profile to start from.
        traces: of ranks of one training.
        placement: that it ran with: placement.json, or evenshard's plan for TorchRec.
    """

    tables: Path | None
    costs: tuple[Path, ...]
    profile: str
    traces: tuple[Path, ...] = ()
    placement: Path | None = None


def run(inputs: CalibrateDeviceInputs, out: Path) -> str:
    """Fits, saves the profile as ``out``, and returns the table of errors and constants to print.

    Raises:
        BadInput: if an input cannot be read or is missing, or too few shards were measured.
    """
    if bool(inputs.costs) == bool(inputs.traces):
        raise BadConfig("calibrating fits to costs or to traces. Name either: --costs or --trace.")
    return _fit_to_traces(inputs, out) if inputs.traces else _fit_to_costs(inputs, out)


def _fit_to_costs(inputs: CalibrateDeviceInputs, out: Path) -> str:
    if inputs.tables is None:
        raise BadConfig("the tables of the costs are missing. Name their file: --tables.")
    start = gpu_profile(inputs.profile)
    pool = load_tables(inputs.tables)
    calibration = fit_profile(start, [one for path in inputs.costs for one in load_costs(path, pool)])
    calibration.save(inputs.profile, out)
    title = (
        f"{calibration.num_fitted} shards of {calibration.hardware} fitted, {calibration.num_held_out} others "
        f"held out; errors on those:"
    )
    return "\n".join([title, *_report(start, inputs.profile, calibration)])


def _fit_to_traces(inputs: CalibrateDeviceInputs, out: Path) -> str:
    calls = median_calls([call for one in training_ranks(inputs.traces) for call in one.calls])
    if not calls:
        raise without_calls(inputs.traces[0])
    ranks = sorted({call.rank for call in calls})
    tables_of = _tables_of_ranks(inputs, ranks)
    of_rank = {rank: shard_of([call for call in calls if call.rank == rank], tables_of[rank]) for rank in ranks}
    shards = [shard for shard in of_rank.values() if isinstance(shard, TracedShard)]
    reasons = [f"rank {rank}: {reason}" for rank, reason in of_rank.items() if isinstance(reason, str)]
    if not shards:
        raise BadInput(
            f"no trace says what its tables take. {reasons[0]}. Name the placement that the training ran with."
        )
    start = gpu_profile(inputs.profile)
    calibration = fit_to_calls(start, shards)
    calibration.save(inputs.profile, out, "fused calls in", profile_path(inputs.profile).stem)
    judged = f"{calibration.num_held_out} others held out; errors on those" if calibration.num_held_out else (
        "none held out (that takes 4), so that nothing confirms the fit; errors on those fitted"
    )  # fmt: skip
    title = f"{calibration.num_fitted} calls on {calibration.hardware} fitted, {judged}:"
    notes = [f"Note: left out, {reason}." for reason in reasons]
    return "\n".join([title, *_report(start, inputs.profile, calibration), *notes])


def _tables_of_ranks(inputs: CalibrateDeviceInputs, ranks: Sequence[int]) -> Mapping[int, Sequence[Table]]:
    """The tables of each of the ranks."""
    if inputs.placement is None:
        if inputs.tables is None or len(ranks) > 1:
            raise BadConfig("a trace does not say which tables its rank holds. Name the file that does: --placement.")
        return {ranks[0]: load_tables(inputs.tables)}
    found = tables_of_devices(inputs.placement, inputs.tables)
    if ranks[-1] >= len(found):
        problem = f"it places tables on {len(found)} devices, a trace is of rank {ranks[-1]}"
        raise BadFile(inputs.placement, problem, "Name the placement that the training ran with.")
    return {rank: found[rank] for rank in ranks}


def _report(start: GpuProfile, name: str, calibration: Calibration) -> list[str]:
    """Tables of the errors and of the constants."""
    errors = [["absolute error, %", "median", "p90", "fitted: median", "p90"]]
    for time, after in calibration.after.items():
        before = calibration.before[time]
        percents = (before.median_percent, before.p90_percent, after.median_percent, after.p90_percent)
        errors.append([time, *(f"{percent:.1f}" for percent in percents)])
    constants = [["constant", name, "fitted", ""]]
    for constant in calibration.constants:
        remark = "at its bound: the model misses something" if constant in calibration.at_bound else ""
        values = (getattr(start, constant), getattr(calibration.profile, constant))
        constants.append([constant, *(f"{value:.5g}" for value in values), remark])
    return [text_table(errors, "<>", "  "), text_table(constants, "<>><", "  ")]
