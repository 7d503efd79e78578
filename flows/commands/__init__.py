"""The commands of `dml`: each file declares its own.

A command imports its libraries inside its function, so that `dml --help` answers at once.
"""
