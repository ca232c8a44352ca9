"""The highlights of an answer: the slowest device, what decides it, the best rival, what would help.

The terminal summary and the page show the same things; both take them from here.
"""

from __future__ import annotations

from evenshard.planner.highlights.advice import advice
from evenshard.planner.highlights.comparison import (
    asked_text,
    best_rival,
    not_compared_text,
    rival_difference,
    rival_text,
    whole_tables_text,
)
from evenshard.planner.highlights.memory import (
    badly_served,
    badly_served_text,
    fullest_device,
    host_texts,
    is_offloaded,
    kept_texts,
    offload_text,
    reserve_text,
)
from evenshard.planner.highlights.names import names_text
from evenshard.planner.highlights.near import near_texts
from evenshard.planner.highlights.placed import costliest, placed_parts, sharded_tables
from evenshard.planner.highlights.setting import (
    LOOKUPS,
    assumed_groups,
    assumed_lookups_texts,
    device_error_text,
    link_text,
    machine_text,
    may_cut,
    optimizer_text,
    setting_text,
    tables_and_machine,
    timing_word,
)
from evenshard.planner.highlights.step import (
    EMBEDDING_WORK,
    STEP_PARTS,
    bound_text,
    predicted_step_times,
    slowest_device,
    step_headline,
)
from evenshard.planner.highlights.ways import sharding_texts, where_text

__all__ = [
    "EMBEDDING_WORK",
    "LOOKUPS",
    "STEP_PARTS",
    "advice",
    "asked_text",
    "assumed_groups",
    "assumed_lookups_texts",
    "badly_served",
    "badly_served_text",
    "best_rival",
    "bound_text",
    "costliest",
    "device_error_text",
    "fullest_device",
    "host_texts",
    "is_offloaded",
    "kept_texts",
    "link_text",
    "machine_text",
    "may_cut",
    "names_text",
    "near_texts",
    "not_compared_text",
    "offload_text",
    "optimizer_text",
    "placed_parts",
    "predicted_step_times",
    "reserve_text",
    "rival_difference",
    "rival_text",
    "setting_text",
    "sharded_tables",
    "sharding_texts",
    "slowest_device",
    "step_headline",
    "tables_and_machine",
    "timing_word",
    "where_text",
    "whole_tables_text",
]
