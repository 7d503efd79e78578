"""What a study scored over time, and which of its results counts."""
