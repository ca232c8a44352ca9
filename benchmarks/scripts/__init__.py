"""Fits of profiles and links, speed, and checks of many answers."""
