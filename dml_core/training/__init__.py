"""The training loop and what it keeps."""
