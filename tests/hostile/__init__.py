"""Hostile input: strings, files and surroundings that a stranger chooses."""
