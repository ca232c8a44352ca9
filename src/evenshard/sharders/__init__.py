"""Sharders, which turn a task into a placement: one module or folder per method."""
