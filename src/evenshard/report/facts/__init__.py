"""The highlights of an answer: the slowest device, what decides it, the best rival, what would help.

The terminal summary and the page show the same things; both take them from here.
"""
