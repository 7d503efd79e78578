"""`dml doctor`: checks everything that a run needs."""
