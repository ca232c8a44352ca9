"""Decisions after measuring: whether to promote a model, how loops differ, when to retrain."""
