"""What an answer says, once as facts, and how a terminal, a notebook, Markdown and a page show it."""
