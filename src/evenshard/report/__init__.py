"""Reports of an answer in the terminal, in Markdown and as a page."""
