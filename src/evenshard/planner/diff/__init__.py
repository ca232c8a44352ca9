"""What moves between two answers, and what that saves."""
