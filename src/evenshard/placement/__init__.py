"""What is asked and what is legal: tasks, constraints, parts of tables, placements."""
