"""The losses, one module each, and their registry."""
