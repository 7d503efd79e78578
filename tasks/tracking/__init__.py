"""The record in MLflow: runs, evaluation and registered models."""
