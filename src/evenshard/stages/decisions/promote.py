"""Promotion: a contest on held-out tasks decides whether the alias ``champion`` moves to a candidate.

The first champion needs no contest. If the alias is moved by another process while the contest is measured, it stays
where it was put: the decision was about the champion before.
"""

from __future__ import annotations

import json
import logging
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from evenshard.measure.config import MeasureConfig
from evenshard.measure.cost_dataset import load_costs, save_costs
from evenshard.measure.hardware import open_hardware
from evenshard.measure.journal import Journal
from evenshard.placement.tasks import load_tasks
from evenshard.planner.model import REGISTERED, learned_model_of
from evenshard.planner.serving import served_code
from evenshard.sharders.convex_search.sharder import SearchConfig
from evenshard.sharders.models import PlacementModel
from evenshard.stages.decisions.contest import Contest, contest
from evenshard.stages.decisions.promotion import Decision, PromotionRules, decide
from evenshard.tables.files import load_tables
from evenshard.tracking.registry import (
    REGISTERED_COST,
    REGISTERED_POLICY,
    ModelVersion,
    champion,
    download_model,
    model_version,
    newest_version,
    register_folder,
    set_champion,
    version_of_files,
)
from evenshard.utils.atomic import atomic_path
from evenshard.utils.errors import BadConfig, BadFile
from evenshard.utils.installation import how_to_train
from evenshard.utils.json_files import finite
from evenshard.utils.provenance import Lineage

PROMOTION_REPORT, COSTS, JOURNAL = "promotion.json", "promotion_costs.parquet", ".promotion.journal"
log = logging.getLogger(__name__)


class PromotionOutcome(StrEnum):
    """How a promotion ends."""

    PROMOTED = "promoted"
    ALREADY = "already the champion"
    REFUSED = "refused"


@dataclass(frozen=True)
class PromoteInputs:
    """``candidate``: a folder or ``models:/evenshard-cost/7``; None for the newest version.

    ``tasks``: whose test side is held out; ``costs``: of earlier runs, whose controls tell the noise between runs.
    """

    tables: Path
    tasks: Path
    candidate: str | None = None
    costs: tuple[Path, ...] = ()


@dataclass(frozen=True)
class PromoteOutputs:
    """``report``: folder of promotion.json and promotion_costs.parquet."""

    report: Path


@dataclass(frozen=True)
class Promotion:
    """What happened.

    Attributes:
        outcome: see ``PromotionOutcome``.
        reason: one clause about the candidate.
        candidate: folder or URI of the candidate.
        champion: models:/name/version that it met; empty where there was none.
        champion_now: likewise, afterwards.
        decision: None where nothing was measured.
        contest: likewise.
    """

    outcome: PromotionOutcome
    reason: str
    candidate: str
    champion: str
    champion_now: str
    decision: Decision | None = None
    contest: Contest | None = None


def promote(
    inputs: PromoteInputs,
    outputs: PromoteOutputs,
    measure: MeasureConfig,
    search: SearchConfig,
    rules: PromotionRules,
    lineage: Lineage,
) -> Promotion:
    """Compares the candidate with the champion, moves the alias if that is due, and writes the report.

    Raises:
        BadInput: if a file, a model or a setting cannot be used, or MLflow cannot be reached.
        InfeasibleTask: if neither can place any held-out task.
        MeasurementFailed: if a kernel fails.
    """
    before = champion(REGISTERED_COST)
    version = _candidate_version(inputs.candidate)
    where = version.uri if version is not None else str(inputs.candidate)
    model = learned_model_of(where, measure.hardware)
    known = "" if before is None else before.uri
    if before is None:
        now = _crown(where, version)
        done = Promotion(PromotionOutcome.PROMOTED, "there was no champion", where, known, now)
    elif version is not None and version.version == before.version:
        done = Promotion(PromotionOutcome.ALREADY, "there is no other model to compare it with", where, known, known)
    else:
        done = _contested(inputs, outputs, (where, version, model), before, measure, search, rules, lineage)
    _write(done, outputs.report / PROMOTION_REPORT)
    if done.contest is not None:  # not before: MLflow may be away when the alias is to move
        (outputs.report / JOURNAL).unlink()
    return done


def _candidate_version(candidate: str | None) -> ModelVersion | None:
    """The registered version that is meant; None for a folder."""
    if candidate is None:
        newest = newest_version(REGISTERED_COST)
        if newest is None:
            raise BadConfig(
                f"MLflow has no version of {REGISTERED_COST} yet. Train one with {how_to_train()}, or name a folder."
            )
        return newest
    if not candidate.startswith(REGISTERED):
        return None
    version = model_version(candidate)
    if version.name != REGISTERED_COST:
        raise BadConfig(f"{candidate}: only a version of {REGISTERED_COST} can become the champion. Name one.")
    return version


def _contested(
    inputs: PromoteInputs,
    outputs: PromoteOutputs,
    candidate: tuple[str, ModelVersion | None, PlacementModel],
    before: ModelVersion,
    measure: MeasureConfig,
    search: SearchConfig,
    rules: PromotionRules,
    lineage: Lineage,
) -> Promotion:
    where, version, model = candidate
    held = learned_model_of(before.uri, None)  # whatever it was trained on, it is what places tables today
    if held.digest == model.digest:
        return Promotion(PromotionOutcome.REFUSED, "its files are the champion's", where, before.uri, before.uri)
    pool = load_tables(inputs.tables)
    split = load_tasks(inputs.tasks, pool)
    if not split.test:
        raise BadFile(inputs.tasks, "has no test tasks", "Write some with `evenshard generate-tables`.")
    earlier = [load_costs(path, pool) for path in inputs.costs]
    with closing(open_hardware(measure)) as hardware, Journal(outputs.report / JOURNAL) as journal:
        learned, timed = model.trained_on, hardware.provenance
        if (learned.hardware, learned.optimizer) != (timed.hardware, timed.optimizer):
            log.warning(
                "the candidate was trained on %s with %s and is compared on %s with %s",
                learned.hardware,
                learned.optimizer,
                timed.hardware,
                timed.optimizer,
            )
        found = contest(model, held, split, search, hardware, measure, journal, earlier)
    save_costs(found.measured, outputs.report / COSTS, lineage)
    decision = decide(found.tasks, found.noise, model.trained_on.num_measured, held.trained_on.num_measured, rules)
    if not decision.promote:
        return Promotion(PromotionOutcome.REFUSED, decision.reason, where, before.uri, before.uri, decision, found)
    now = champion(REGISTERED_COST)
    if now is None or now.version != before.version:
        change = "was removed" if now is None else f"became {now.uri}"
        reason = f"the champion {change} in the meantime. Promote again"
        return Promotion(PromotionOutcome.REFUSED, reason, where, before.uri, now.uri if now else "", decision, found)
    crowned = _crown(where, version)
    return Promotion(PromotionOutcome.PROMOTED, decision.reason, where, before.uri, crowned, decision, found)


def _crown(where: str, version: ModelVersion | None) -> str:
    """Moves the alias, and that of the version that is its policy; a folder is registered first."""
    if version is None:
        version, policy = register_folder(Path(where), served_code())
    else:
        with download_model(version.uri) as folder:
            policy = version_of_files(REGISTERED_POLICY, folder, version.run_id)
    if policy is not None:
        set_champion(REGISTERED_POLICY, policy.version)
    set_champion(REGISTERED_COST, version.version)
    return version.uri


def as_json(promotion: Promotion) -> dict[str, Any]:
    """What promotion.json holds; numbers that are none are null."""
    contested = promotion.contest
    content = {
        "outcome": promotion.outcome.value,
        "reason": promotion.reason,
        "candidate": promotion.candidate,
        "champion": promotion.champion,
        "champion_now": promotion.champion_now,
        "decision": None if promotion.decision is None else asdict(promotion.decision),
        "noise": None if contested is None else asdict(contested.noise),
        "hardware": None if contested is None else contested.measured[0].provenance.hardware,
        "tasks": [] if contested is None else [asdict(one) for one in contested.tasks],
    }
    cleaned: dict[str, Any] = finite(content)
    return cleaned


def _write(promotion: Promotion, path: Path) -> None:
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(as_json(promotion), indent=1, allow_nan=False) + "\n")
