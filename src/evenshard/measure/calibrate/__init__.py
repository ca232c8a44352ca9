"""How are the constants of simulated devices and links found? They are fitted to measurements."""
