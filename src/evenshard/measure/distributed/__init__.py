"""Measurement on several devices at once: one process per device, under torchrun."""
