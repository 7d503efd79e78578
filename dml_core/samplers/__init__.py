"""Which images make a batch."""
