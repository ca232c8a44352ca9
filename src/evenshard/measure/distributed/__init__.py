"""Measuring with all devices at once: one process per device, under torchrun."""
