"""Servers in the background: the Prefect server, the MLflow server and one worker."""
