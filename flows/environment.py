"""Sets up Prefect for a command: quiet, in this folder, on the server that is up, or on none."""

import os
from pathlib import Path


def use_quiet_prefect() -> None:
    """Points Prefect to the running server, or to a private one; call before importing it.

    Everything that Prefect writes stays in `.dml/` of this folder, and what the environment says
    already is left as it is.
    """
    from flows.servers.registry import use_running_servers

    use_running_servers()
    defaults = {
        "PREFECT_HOME": str(Path(".dml/prefect").absolute()),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # A first start makes its database, which takes 20 s here and longer on a busy machine.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DVC_NO_ANALYTICS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    for key, value in defaults.items():
        os.environ.setdefault(key, value)
