"""Where should my own tables live? Tables and rules from YAML files, with the optimizer's state counted.

    python examples/own_tables.py

The same from the command line, in this folder:

    evenshard place tables.yaml --rules rules.yaml --devices 4 --memory-cap-gb 24 --reserved-gb 4 \\
        --optimizer rowwise_adagrad -o placement.json
"""

from __future__ import annotations

from pathlib import Path

import evenshard
from evenshard.planner.rules import load_rules

HERE = Path(__file__).parent


def main() -> None:
    rules = load_rules(HERE / "rules.yaml")
    answer = evenshard.place(
        HERE / "tables.yaml",
        num_devices=4,
        memory_cap_gb=24,
        reserved_gb=4,  # activations, the dense layers, CUDA itself
        optimizer="rowwise_adagrad",  # its state takes memory: 4 bytes for each row
        **vars(rules),  # pinned=, together=, apart=, ...: the rules could stand here as well
    )

    for device, predicted in enumerate(answer.devices):
        names = [part.table for part in answer.parts if part.device == device]
        used_gb = answer.used_bytes[device] / 1024**3
        print(f"device {device}: {predicted.predicted_total_ms:.2f} ms, {used_gb:4.1f} GB: {', '.join(names)}")
    print()
    print(f"a step waits for {answer.predicted_ms:.2f} ms (90 %: {answer.low_ms:.2f} to {answer.high_ms:.2f})")
    print(f"at most {answer.gap_pct:.0f} % more than the best placement without rules, by the model")

    # Nothing is made up in silence.
    for assumption in answer.request.assumptions:
        if assumption.column == "pooling_factor":
            print(f"assumed: {assumption.table} has the pooling factor {assumption.text}")
    for warning in answer.warnings:
        print(f"beware: {warning}")


if __name__ == "__main__":
    main()
