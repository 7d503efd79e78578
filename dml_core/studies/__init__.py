"""Studies: a question, its arms, what is tuned for each, and which trials that makes."""
