"""The command that makes the models that come with the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from evenshard.cli.arguments import HARDWARE_NAME, Commands, output_flag
from evenshard.utils.messages import brief
from evenshard.utils.outputs import MODEL_FOLDER


def _bundle(args: argparse.Namespace) -> Mapping[str, Any]:
    from evenshard.measure.config import MeasureConfig
    from evenshard.measure.simulated.hardware import SimulatedHardware
    from evenshard.sharders.bundled.train import BundleConfig, train_bundle
    from evenshard.sharders.models import COST_MODEL, digest_of, save_model
    from evenshard.sharders.trained_on import TrainedOn
    from evenshard.utils.errors import BadConfig
    from evenshard.utils.provenance import git_commit

    measure = MeasureConfig(args.hardware)
    if measure.hardware_name.kind.times == "measured":
        raise BadConfig(f"--hardware is {brief(args.hardware)}. Only simulated:<profile> is fast enough for this.")
    models = [one.parent for one in args.out.parent.glob(f"*/{COST_MODEL}")]  # which do not learn from each other
    commit = git_commit(made=[args.out, *models])
    if commit.endswith("-dirty"):
        print("evenshard bundle: warning: tracked files are changed: git cannot give back what the model learned from "
              f"({commit}). Commit them first.", file=sys.stderr)  # fmt: skip
    trained = train_bundle(SimulatedHardware(measure), BundleConfig(seed=args.seed))
    trained_on = TrainedOn.of(trained.measured, commit)
    networks = (trained.dreamshard.cost_net, trained.dreamshard.policy, trained.dreamshard.normalizer)
    save_model(args.out, trained.evenshard.model, trained_on, networks)
    error = trained.evenshard.metrics.held_out_pct_error
    print(f"saved: {args.out} (held-out error {error:.2f} %, digest {digest_of(args.out)[:12]})")
    return {"held_out_pct_error": error, "num_measured": len(trained.measured)}


def add_commands(commands: Commands) -> None:
    """Declares bundle."""
    sub = commands.add(
        "bundle",
        _bundle,
        "Make the model that comes with evenshard for a simulated device.",
        "It learns from made-up tables over wide ranges, for users without a model of their own. The same command "
        "gives the same files on the same machine.",
    )
    sub.add_argument(
        "--hardware", type=HARDWARE_NAME, required=True, help="simulated:<profile>, such as simulated:h200"
    )
    sub.add_argument(
        "--out",
        **output_flag(MODEL_FOLDER),
        required=True,
        help="folder to write, such as src/evenshard/sharders/bundled/h200",
    )
    sub.add_argument("--seed", type=int, default=0, help="seed of everything (default: 0)")
