"""The sweep of a study: trials on a Ray cluster, from the conductor to the worker."""
