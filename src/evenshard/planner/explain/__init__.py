"""Why each table lives where it does."""
