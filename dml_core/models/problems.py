"""The error that a wrong choice of network raises."""


class ModelError(ValueError):
    """A network cannot be built as asked; names the knob, what was found and what to do."""
