"""Answers in words, and as a terminal, Markdown and a page show them."""
