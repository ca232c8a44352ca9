"""Decisions after measuring: promote a model, compare loops, retrain."""
