"""Searches folders of images with a study's model: its indexes, result pages, a local server."""
