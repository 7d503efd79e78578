"""The losses, each a small module, and their registry."""
