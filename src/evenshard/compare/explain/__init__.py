"""An explanation of why a table lives where it does."""
