"""Statistics over seeds: estimates, verdicts, claims and the history of results."""
