"""Decisions after measuring: promote a model, retrain it, move a running training to another placement."""
