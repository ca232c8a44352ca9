"""What every package stands on: errors, messages, files that appear whole, readers of what others wrote, settings."""
