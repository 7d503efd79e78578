"""Datasets: listing, packing, splitting and reading images."""
