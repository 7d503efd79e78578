"""One file for each library that the pipeline talks to."""
