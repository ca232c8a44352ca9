"""An answer as one HTML page."""
