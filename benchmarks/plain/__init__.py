"""Scripts without a pipeline, the reference of the sweeps."""
