"""Measurements on trained models: test scores, embeddings, gradients and cost of a step."""
