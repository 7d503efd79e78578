"""Takes a trained model out of a study: which one, in which format, with its model card."""
