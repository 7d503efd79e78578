"""Studies: a question, its arms, their search spaces, and the trials that follow from these."""
