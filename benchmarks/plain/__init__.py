"""Scripts as people write them without a pipeline: what the sweeps are measured against."""
