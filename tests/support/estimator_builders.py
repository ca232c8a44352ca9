"""An estimator as it was fitted to simulated:h100 once: a fit takes seconds."""

from __future__ import annotations

from typing import Any

FIT: dict[str, Any] = {
    "command": "evenshard export-estimator -o estimator.json",
    "fitted_to": "the device model of simulated:h100: random placements of random tables",
    "hardware": "simulated:h100",
    "distinct_share": 0.14536350207869292,
    "new_share": 0.3843125637145141,
    "l2_bytes": 44564480.0,
    "host_gb_s": 50.0,
    "dense_ms": 0.0013826,
    "intra": {"own_ns": 0.0030581039755351682, "slowest_ns": 0.0, "shared_ns": 0.0},
    "inter": {"own_ns": 0.026041666666666668, "slowest_ns": 0.0, "shared_ns": 0.0},
    "exchange": {
        "latency_us": 10.0,
        "node_latency_us": 15.0,
        "forward_share": 1.0,
        "index_bytes": 8,
        "length_bytes": 4,
        "lookup_weight_bytes": 4,
    },
    "compute": {
        "table_wise": {
            "forward": {
                "call": 0.023243,
                "shard": 0.010405,
                "lookups": 0.010142,
                "sorted": 3.8709e-05,
                "requests": 0.018584,
                "row_bytes": 0.0002116,
                "missed_bytes": 4.2284e-05,
                "output_bytes": 0.00024128,
            },
            "backward": {
                "call": 0.12238,
                "lookups": 0.080066,
                "sorted": 0.0031133,
                "requests": 0.12672,
                "distinct": 0.15731,
                "repeated": 1.0903,
                "distinct_bytes": 9.7833e-05,
                "missed_bytes": 3.4774e-05,
                "output_bytes": 0.00018102,
                "gradient_bytes": 2.3207e-05,
                "missed_gradient_bytes": 0.00017567,
            },
        },
        "row_wise": {
            "forward": {
                "call": 0.002088,
                "bags": 0.21797,
                "requests": 0.038697,
                "row_bytes": 5.1859e-05,
                "distinct_bytes": 0.00074186,
                "output_bytes": 0.00028455,
                "missed_gradient_bytes": 0.00019616,
            },
            "backward": {
                "call": 0.10399,
                "bags": 0.099983,
                "lookups": 0.16493,
                "sorted": 0.0036946,
                "requests": 0.084276,
                "repeated": 1.2991,
                "distinct_bytes": 0.00080296,
                "missed_bytes": 1.4725e-05,
                "missed_gradient_bytes": 3.552e-05,
            },
        },
        "table_row_wise": {
            "forward": {
                "call": 0.028027,
                "shard": 0.01374,
                "sorted": 8.5421e-05,
                "requests": 0.01975,
                "missed_bytes": 0.00012704,
                "output_bytes": 0.00023966,
                "gradient_bytes": 6.7422e-05,
                "missed_gradient_bytes": 0.00013556,
            },
            "backward": {
                "call": 0.11664,
                "shard": 0.013055,
                "lookups": 0.25804,
                "sorted": 0.00061339,
                "repeated": 0.55319,
                "output_bytes": 7.7745e-06,
                "missed_gradient_bytes": 0.00054305,
            },
        },
        "data_parallel": {
            "forward": {
                "call": 0.03246,
                "requests": 0.0087751,
                "repeated": 0.24228,
                "row_bytes": 4.4813e-06,
                "gradient_bytes": 0.00026419,
            },
            "backward": {
                "call": 0.10057,
                "lookups": 0.12648,
                "requests": 0.14862,
                "repeated": 5.5003,
                "gradient_bytes": 0.00015,
                "dense_bytes": 0.0013826,
            },
        },
    },
    "kernels": {
        "fused_uvm_caching": {
            "forward": {
                "lookups": 1.9535,
                "read_ms": 1.3439e-05,
                "distinct_ms": 0.0013252,
                "missed_ms": 1.0316,
                "state_ms": 0.0065842,
            },
            "backward": {"lookups": 0.112},
        },
        "fused_uvm": {"forward": {"distinct_ms": 1.9047}, "backward": {"distinct_ms": 1.1661}},
    },
    "error": {
        "sets_of_tables": 9,
        "placements": 45,
        "median_percent": 3.6,
        "p90_percent": 8.4,
        "mean_rank_correlation": 0.967,
    },
}
