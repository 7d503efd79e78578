"""Drills: a real sweep is broken on purpose, and every promise is checked afterwards."""
