"""What no placement that a task allows is predicted to take less than."""
