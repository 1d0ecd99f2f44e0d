"""The packages that only a deployed federation needs."""

from __future__ import annotations

import logging
import os

from dpfedc.errors import MissingExtra


def require_flower() -> None:
    """Say which extra is missing, if one is; keep Flower quiet and off the network otherwise."""
    # Flower reads these when it is imported.
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
    os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
    try:
        import flwr
    except ImportError as error:
        raise MissingExtra(
            "a federation of separate machines needs Flower: pip install 'dpfedc[flower]'"
        ) from error
    version = flwr.__version__
    if not version.startswith("1.41."):
        raise MissingExtra(f"flwr must be 1.41.x, got {version}: pip install 'dpfedc[flower]'")
    logging.getLogger("flwr").setLevel(logging.WARNING)


def require_cryptography() -> None:
    """Say which extra is missing, if one is."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingExtra(
            "keys and certificates need cryptography: pip install 'dpfedc[flower]'"
        ) from error
