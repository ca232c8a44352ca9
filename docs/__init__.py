"""What writes and builds the pages beside it; nothing of it is in the wheel."""
