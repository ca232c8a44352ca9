"""The difference between two answers: what moves, and what that saves."""
