"""Promotion: a comparison on held-out tasks decides whether the alias ``champion`` moves to a candidate.

The first champion needs no comparison. If another process moves the alias during the comparison, the promotion is
refused, because the decision was about the earlier champion.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenshard.base.console import plain_console, plain_grid
from evenshard.base.documents import replace_non_finite
from evenshard.base.errors import BadConfig, BadFile
from evenshard.base.installation import how_to_train
from evenshard.base.messages import printable
from evenshard.base.outputs import write_text
from evenshard.base.provenance import Lineage
from evenshard.base.units import ms_text
from evenshard.loop.commands import PromoteInputs
from evenshard.loop.decisions.promotion import Decision, ModelComparison, compare_models, decide
from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs, save_costs
from evenshard.measure.journal import Journal
from evenshard.measure.local_hardware import open_hardware
from evenshard.placement.tasks import load_tasks
from evenshard.planner.pricing import REGISTERED, load_learned_model
from evenshard.price.hardware import measured_or_simulated
from evenshard.sharders.cost_model.sharder import SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.tables.files import load_tables
from evenshard.tracking import registry
from evenshard.tracking.pyfunc import build_serving_code

PROMOTION_REPORT, COSTS, JOURNAL = "promotion.json", "promotion_costs.parquet", ".promotion.journal"
log = logging.getLogger(__name__)


class PromotionOutcome(StrEnum):
    """Outcome of an attempt to make a candidate the champion."""

    PROMOTED = "promoted"
    ALREADY = "already the champion"
    REFUSED = "refused"


_WIDTH = 120  # minimum width of the printed table, characters
_STYLES = {
    PromotionOutcome.PROMOTED: "bold green",
    PromotionOutcome.ALREADY: "bold",
    PromotionOutcome.REFUSED: "bold red",
}


@dataclass(frozen=True)
class Promotion:
    """Result of comparing a candidate with the champion."""

    outcome: PromotionOutcome
    reason: str  # one clause about the candidate
    candidate: str  # folder or URI
    champion: str  # models:/name/version before the promotion; empty if there was none
    champion_now: str  # the same after the promotion
    decision: Decision | None = None  # None without measurements
    comparison: ModelComparison | None = None  # None without measurements


def promote(
    inputs: PromoteInputs, report: Path, measure: MeasureConfig, search: SearchConfig, lineage: Lineage
) -> Promotion:
    """Compare the candidate with the champion, move the alias if the candidate wins, and write the report.

    Args:
        report: folder of promotion.json and promotion_costs.parquet.

    Raises:
        BadInput: if a file, a model or a setting cannot be used, or MLflow cannot be reached.
        InfeasibleTask: if neither model can place any held-out task.
        MeasurementFailed: if a kernel fails.
    """
    before = registry.champion(registry.REGISTERED_COST)
    version = _candidate_version(inputs.candidate)
    where = version.uri if version is not None else str(inputs.candidate)
    model = load_learned_model(where, measure.hardware)
    known = "" if before is None else before.uri
    done = Promotion(PromotionOutcome.REFUSED, "", where, known, known)
    if before is None:
        done = _make_champion(done, "there was no champion", version)
    elif version is not None and version.version == before.version:
        done = replace(done, outcome=PromotionOutcome.ALREADY, reason="there is no other model to compare it with")
    else:
        held = load_learned_model(before.uri, None)  # accept any hardware: this model is in use
        if held.digest == model.digest:
            done = replace(done, reason="its files are identical to the champion's")
        else:
            found = _compare_with_champion(inputs, report, model, held, measure, search, lineage)
            num_measured = (model.trained_on.num_measured, held.trained_on.num_measured)
            decision = decide(found.tasks, found.noise, *num_measured, inputs.tolerance_pct)
            done = _apply_decision(
                replace(done, reason=decision.reason, decision=decision, comparison=found), before, version
            )
    write_text(report / PROMOTION_REPORT, json.dumps(as_json(done), indent=1, allow_nan=False) + "\n")
    if done.comparison is not None:  # keep the journal until the alias has moved, because MLflow may be down
        (report / JOURNAL).unlink()
    return done


def _candidate_version(candidate: str | None) -> registry.ModelVersion | None:
    """Return the candidate's version in MLflow; None if the candidate is a folder."""
    if candidate is None:
        newest = registry.find_newest_version(registry.REGISTERED_COST)
        if newest is None:
            raise BadConfig(
                f"MLflow has no version of {registry.REGISTERED_COST} yet. Train one with {how_to_train()}, or name a "
                "folder."
            )
        return newest
    if not candidate.startswith(REGISTERED):
        return None
    version = registry.model_version(candidate)
    if version.name != registry.REGISTERED_COST:
        raise BadConfig(f"{candidate}: only a version of {registry.REGISTERED_COST} can become the champion. Name one.")
    return version


def _compare_with_champion(
    inputs: PromoteInputs,
    report: Path,
    model: PlacementModel,
    held: PlacementModel,
    measure: MeasureConfig,
    search: SearchConfig,
    lineage: Lineage,
) -> ModelComparison:
    pool = load_tables(inputs.tables)
    split = load_tasks(inputs.tasks, pool)
    if not split.test:
        raise BadFile(inputs.tasks, "has no test tasks", "Generate some with `evenshard generate-tables`.")
    earlier = [load_costs(path, pool) for path in inputs.costs]
    with closing(open_hardware(measure)) as hardware, Journal(report / JOURNAL) as journal:
        learned, timed = model.trained_on, hardware.provenance
        if (learned.hardware, learned.optimizer) != (timed.hardware, timed.optimizer):
            text = "the candidate was trained on %s with optimizer %s, but is measured on %s with optimizer %s"
            log.warning(text, learned.hardware, learned.optimizer, timed.hardware, timed.optimizer)
        found = compare_models(model, held, split, search, hardware, measure, journal, earlier)
    save_costs(found.measured, report / COSTS, lineage)
    return found


def _apply_decision(done: Promotion, before: registry.ModelVersion, version: registry.ModelVersion | None) -> Promotion:
    """Promote if the decision is positive, unless another process moved the alias during the comparison."""
    if done.decision is None or not done.decision.promote:
        return done
    now = registry.champion(registry.REGISTERED_COST)
    if now is None or now.version != before.version:
        change = "was removed" if now is None else f"became {now.uri}"
        reason = f"the champion {change} during the comparison. Promote again"
        return replace(done, reason=reason, champion_now="" if now is None else now.uri)
    return _make_champion(done, done.reason, version)


def _make_champion(done: Promotion, reason: str, version: registry.ModelVersion | None) -> Promotion:
    """Move the alias ``champion`` of the cost model and its policy; register the model first if it is a folder."""
    if version is None:
        version, policy = registry.register_folder(Path(done.candidate), build_serving_code())
    else:
        with registry.download_model(version.uri) as folder:
            policy = registry.find_by_weights(registry.REGISTERED_POLICY, folder, version.run_id)
    if policy is not None:
        registry.set_champion(registry.REGISTERED_POLICY, policy.version)
    registry.set_champion(registry.REGISTERED_COST, version.version)
    return replace(done, outcome=PromotionOutcome.PROMOTED, reason=reason, champion_now=version.uri)


def as_json(promotion: Promotion) -> Any:
    """Return the content of promotion.json, with null for numbers that are not finite."""
    comparison = promotion.comparison
    content = {
        "outcome": promotion.outcome.value,
        **{name: getattr(promotion, name) for name in ("reason", "candidate", "champion", "champion_now")},
        "decision": None if promotion.decision is None else asdict(promotion.decision),
        "noise": None if comparison is None else asdict(comparison.noise),
        "hardware": None if comparison is None else comparison.measured[0].provenance.hardware,
        "tasks": [] if comparison is None else [asdict(task) for task in comparison.tasks],
    }
    return replace_non_finite(content)


def print_promotion(promotion: Promotion) -> None:
    """Print the result of a promotion, in colour only on a terminal."""
    console = plain_console(None, _WIDTH)
    line = f"{printable(promotion.candidate)} is {promotion.outcome.value}: {printable(promotion.reason)}."
    console.print(line, style=_STYLES[promotion.outcome], soft_wrap=True)
    decision, found = promotion.decision, promotion.comparison
    if decision is not None and found is not None:
        difference = decision.difference_pct
        grid = plain_grid()
        hardware = found.measured[0].provenance.hardware
        timed = measured_or_simulated(hardware)
        grid.add_column("model")
        for head in (f"mean {timed} ms", "tasks without a placement", "training placements"):
            grid.add_column(head, justify="right")
        for name, mean_ms, missed, learned in (
            (promotion.candidate, decision.candidate_ms, decision.num_candidate_missed, decision.candidate_measured),
            (promotion.champion, decision.champion_ms, decision.num_champion_missed, decision.champion_measured),
        ):
            grid.add_row(printable(name), ms_text(mean_ms), str(missed), f"{learned:,}")
        console.print(grid)
        if decision.num_common:
            console.print(
                f"Paired difference over {decision.num_common} held-out tasks: {difference.mean:+.2f} % "
                f"[{difference.low:+.2f}, {difference.high:+.2f}] (95 %). {decision.num_same} of them have the same "
                f"placement. Differences below {decision.noise_pct:.2f} % are noise.",
                soft_wrap=True,
            )
        console.print(f"All times are {timed} on {printable(hardware)}.", style="dim")
    if promotion.champion_now:
        console.print(f"The champion is {promotion.champion_now}.")
