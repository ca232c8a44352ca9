"""An answer as an HTML page."""
