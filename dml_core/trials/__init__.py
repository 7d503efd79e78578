"""One trial of a sweep: what decides its numbers."""
