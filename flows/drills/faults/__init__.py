"""The faults of the drills, by what they hit."""
