"""Cost networks on shards that other people measured: errors on tables they have not seen, by number of measurements.

    python -m benchmarks.scripts.others_measurements [--truth FOLDER] [--files NAME ...] [--seeds N] > report.md

Three networks learn from the same shards: evenshard's cost model, DreamShard's cost network and NeuroShard's, by the
same number of updates each. They are judged on shards of none but tables that no training shard holds (every fifth or
twelfth table, another group for each seed), and on shards that they have not seen of tables that they have. Results are
kept in --rows, and a run goes on from there. All of it takes about an hour on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.references.neuroshard import fit_neuroshard
from benchmarks.references.others_measurements import BATCH_SIZE, TABLES, default_folder
from evenshard.measure.costs import MeasuredPlacement
from evenshard.placement.tasks import distinct_tables
from evenshard.sharders.checkpoint import Round, new_checkpoint
from evenshard.sharders.cost_model.fit import CostModelFitConfig, fit_cost_model
from evenshard.sharders.cost_model.price import predict_whole
from evenshard.sharders.dreamshard.cost_net import DreamShardCostNet
from evenshard.sharders.dreamshard.fit import CostTensors, cost_net_round, predict
from evenshard.sharders.features import FeatureNormalizer
from evenshard.sharders.training import FitConfig
from evenshard.stages.import_costs import ImportCostsConfig, read_shards
from evenshard.tables.reuse import FloatArray
from evenshard.utils.process import one_thread

Shards = Sequence[MeasuredPlacement]
DREAMSHARD_ROUNDS = 10
FEW, FEW_UPDATES, UPDATES = 200, 400, 1000


@dataclass(frozen=True)
class File:
    """A file of shards.

    Attributes:
        hardware: what they were measured on, as far as it is known.
        groups: parts of the tables, by their numbers; one of them is unseen. Fewer parts leave more shards to judge by,
            and fewer to learn from.
        sizes: measurements to learn from; of fewer shards, all.
        most: measurements to learn from where the tables may be known.
    """

    hardware: str
    groups: int
    sizes: tuple[int, ...]
    most: int


FILES = {
    "cpu_shards_4.csv": File("cpu: unknown, four processes at once", 5, (50, 200, 1000, 5000), 4500),
    "cpu_shards_8.csv": File("cpu: unknown, eight processes at once", 5, (50, 200, 1000, 5000), 4500),
    "rtx_2080_ti_shards.csv": File("cuda: RTX 2080 Ti", 12, (50, 200, 1000, 5000), 5000),
}


def evenshard(shards: Shards, num_updates: int, seed: int) -> Callable[[Shards], FloatArray]:
    """evenshard's cost model; its predictions of other shards, ms."""
    model, _ = fit_cost_model(shards, CostModelFitConfig(num_updates=num_updates, seed=seed))

    def times_ms(others: Shards) -> FloatArray:
        predicted = predict_whole(model, [(one.task, one.placement) for one in others])
        return np.array([one.predicted_ms for one in predicted])

    return times_ms


def dreamshard(shards: Shards, num_updates: int, seed: int) -> Callable[[Shards], FloatArray]:
    """DreamShard's cost network: the sum of its heads for forward and backward, ms."""
    torch.manual_seed(seed)
    tables = distinct_tables([one.task for one in shards])
    net = new_checkpoint(DreamShardCostNet(), FeatureNormalizer.fit(tables, shards[0].task.batch_size))
    generator = torch.Generator().manual_seed(seed)
    fit = FitConfig(num_updates // DREAMSHARD_ROUNDS, minibatch_size=64, learning_rate=5e-4)
    with one_thread():
        for number in range(1, DREAMSHARD_ROUNDS + 1):
            net = cost_net_round(net, shards, fit, Round(number, DREAMSHARD_ROUNDS), generator).checkpoint

    @torch.no_grad()
    def times_ms(others: Shards) -> FloatArray:
        data = CostTensors.of(others, net.normalizer)
        costs_NDC, _ = predict(net.net, data, torch.arange(len(others)))
        times_N: FloatArray = (costs_NDC[:, 0, 0] + costs_NDC[:, 0, 2]).double().numpy()
        return times_N

    return times_ms


def neuroshard(shards: Shards, num_updates: int, seed: int) -> Callable[[Shards], FloatArray]:
    """NeuroShard's compute cost network."""
    return fit_neuroshard(shards, num_updates, seed).times_ms


NETWORKS = {"evenshard": evenshard, "DreamShard": dreamshard, "NeuroShard": neuroshard}


@dataclass(frozen=True)
class Row:
    """What came of one training.

    Attributes:
        judged_on: "unseen tables" or "unseen shards".
        asked: measurements to learn from, as asked for.
        learned_from: as there were.
        predicted_ms, actual_ms: of each shard that it is judged by.
        num_tables, lookups: tables of each, and their lookups per sample.
    """

    file: str
    judged_on: str
    network: str
    seed: int
    asked: int
    learned_from: int
    predicted_ms: tuple[float, ...]
    actual_ms: tuple[float, ...]
    num_tables: tuple[int, ...]
    lookups: tuple[float, ...]

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """No two rows share it."""
        return self.file, self.judged_on, self.network, self.seed, self.asked

    @property
    def errors_percent(self) -> FloatArray:
        """Absolute errors of each shard."""
        errors: FloatArray = np.abs(np.array(self.predicted_ms) / np.array(self.actual_ms) - 1) * 100
        return errors

    @property
    def rank_correlation(self) -> float:
        """Spearman's."""
        from scipy.stats import spearmanr

        return float(spearmanr(self.predicted_ms, self.actual_ms).statistic)


def table_numbers(one: MeasuredPlacement) -> set[int]:
    """The numbers of a shard's tables, whatever their dims."""
    return {int(table.name.partition("-")[0]) for table in one.task.tables}


def split(shards: Shards, file: File, seed: int, unseen_tables: bool) -> tuple[list[MeasuredPlacement], Shards]:
    """Shards to learn from, shuffled, and those to be judged by."""
    rng = np.random.default_rng(seed)
    order = [shards[number] for number in rng.permutation(len(shards))]
    if not unseen_tables:
        return order[: file.most], order[file.most :]
    group = 1 + seed % (file.groups - 1)  # the file of the GPU has no table of group 0 in fives
    in_group = [{number % file.groups == group for number in table_numbers(one)} for one in order]
    known = [one for one, found in zip(order, in_group, strict=True) if found == {False}]
    return known, [one for one, found in zip(order, in_group, strict=True) if found == {True}]


def measure(rows_file: Path, folder: Path, names: Sequence[str], num_seeds: int) -> list[Row]:
    """All rows; those that the file has are taken from there."""
    rows = [Row(**json.loads(line)) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    done = {row.key for row in rows}
    shards_of = {}
    for name in names:
        config = ImportCostsConfig(FILES[name].hardware, BATCH_SIZE)
        shards_of[name] = read_shards(folder / name, folder / TABLES, config)
    jobs = [(seed, name, True, size) for seed in range(num_seeds) for name in names for size in FILES[name].sizes]
    jobs += [(seed, name, False, FILES[name].most) for seed in range(num_seeds) for name in names]
    for seed, name, unseen, size in jobs:
        known, judged = split(shards_of[name], FILES[name], seed, unseen)
        for network, fit in NETWORKS.items():
            judged_on = "unseen tables" if unseen else "unseen shards"
            if (name, judged_on, network, seed, size) in done:
                continue
            predicted = fit(known[:size], FEW_UPDATES if size <= FEW else UPDATES, seed)(judged)
            row = Row(
                file=name,
                judged_on=judged_on,
                network=network,
                seed=seed,
                asked=size,
                learned_from=len(known[:size]),
                predicted_ms=tuple(predicted.tolist()),
                actual_ms=tuple(one.cost.max_device_ms for one in judged),
                num_tables=tuple(len(one.task.tables) for one in judged),
                lookups=tuple(sum(table.pooling_factor for table in one.task.tables) for one in judged),
            )
            with rows_file.open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            rows.append(row)
    return [row for row in rows if row.file in names]


def report(rows: Sequence[Row]) -> str:
    """Markdown: medians over the seeds."""
    lines = []
    for name in dict.fromkeys(row.file for row in rows):
        lines += [
            f"### {name}",
            "",
            "| judged on | learned from | network | median error | 90th percentile | rank correlation | seeds |",
            "|---|---:|---|---:|---:|---:|---:|",
        ]
        of_file = sorted((row for row in rows if row.file == name), key=lambda row: (row.judged_on, row.asked))
        for judged_on, asked, network in dict.fromkeys((row.judged_on, row.asked, row.network) for row in of_file):
            own = [row for row in of_file if (row.judged_on, row.asked, row.network) == (judged_on, asked, network)]
            middle, high = (median(float(np.percentile(row.errors_percent, p)) for row in own) for p in (50, 90))
            ranks = median(row.rank_correlation for row in own)
            learned_from = round(median(row.learned_from for row in own))
            errors = f"{middle:.1f} %", f"{high:.1f} %", f"{ranks:.3f}"
            cells = (judged_on, f"{learned_from:,}", network, *errors, str(len(own)))
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", *_by_kind(of_file), ""]
    return "\n".join(lines)


def _by_kind(rows: Sequence[Row]) -> list[str]:
    """Errors of kinds of shards, by the networks that learned from the most, all seeds together."""
    lines = ["| shards, by the networks that learned from the most | judged on | shards | "]
    lines[0] += " | ".join(NETWORKS) + " |"
    lines.append("|---|---|---:|" + "---:|" * len(NETWORKS))
    for judged_on in ("unseen tables", "unseen shards"):
        most = max((row.asked for row in rows if row.judged_on == judged_on), default=0)
        own = [row for row in rows if row.judged_on == judged_on and row.asked == most]
        for kind, least_tables, most_tables, least_lookups in (
            ("1 table", 1, 1, 0.0),
            ("2 tables", 2, 2, 0.0),
            ("3 and more", 3, 99, 0.0),
            ("more than 4.1 lookups per sample", 1, 99, 4.1),
        ):
            cells, count = [], 0
            for network in NETWORKS:
                errors = [
                    error
                    for row in own
                    if row.network == network
                    for error, tables, lookups in zip(row.errors_percent, row.num_tables, row.lookups, strict=True)
                    if least_tables <= tables <= most_tables and lookups >= least_lookups
                ]
                count = max(count, len(errors))
                cells.append(f"{median(errors):.1f} %" if errors else "-")
            lines.append(f"| {kind} | {judged_on} | {count:,} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=default_folder(), help="folder of the measurements")
    parser.add_argument("--files", nargs="+", choices=FILES, default=list(FILES), help="files of shards (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each kind (default: 3)")
    parser.add_argument("--rows", type=Path, default=Path("others_measurements.jsonl"), help="results so far")
    args = parser.parse_args()
    print(report(measure(args.rows, args.truth, args.files, args.seeds)))


if __name__ == "__main__":
    main()
