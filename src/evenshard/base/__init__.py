"""What every package stands on: errors, messages, atomic files, readers of foreign files, settings, S3."""
