"""Placement tasks and placements: tables, devices, memory, rules, and parts of tables."""
