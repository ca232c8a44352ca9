"""What an answer says, once as facts, and how a terminal, Markdown and a page show it."""
