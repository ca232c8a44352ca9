"""Studies of evenshard, and the references they compare with; not part of the wheel."""
