"""Speed and memory as ratios to the usual alternatives, measured in one run."""
