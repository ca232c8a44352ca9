"""How do the networks learn? One module per training loop."""
