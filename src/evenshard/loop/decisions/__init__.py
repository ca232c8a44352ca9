"""Decisions whether to promote a model, to retrain it, or to move a running training job to another placement."""
