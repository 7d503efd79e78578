"""Speed and memory, as ratios to what people would use instead, measured in one run."""
