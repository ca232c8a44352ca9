"""Calibration of simulated devices and links: fits of their constants to measurements."""
