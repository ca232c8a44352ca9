"""A placement task and its legal answers: tables, devices, memory, constraints, parts of tables, placements."""
