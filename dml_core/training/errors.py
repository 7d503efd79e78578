"""Errors of trained models, apart from torch, which a driver may not have."""


class DamagedCheckpoint(ValueError):
    """A checkpoint is unusable; the message names the file and the problem."""
