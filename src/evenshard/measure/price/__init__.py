"""What a placement costs: one price of what a device looks up, by a device model or a learned model."""
