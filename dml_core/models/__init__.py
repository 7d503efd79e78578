"""Trunks, heads and the embedding model made of both."""
