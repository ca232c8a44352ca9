"""Calibration: fits the constants of simulated devices and links to measurements."""
