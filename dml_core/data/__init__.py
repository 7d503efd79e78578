"""Images: where they come from, how they are packed, split and read."""
