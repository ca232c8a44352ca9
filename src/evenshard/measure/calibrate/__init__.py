"""Constants of simulated devices and links, fitted to measurements."""
