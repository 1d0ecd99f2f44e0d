"""Sites on machines of their own: Flower carries the bytes, keys and certificates say whose.

Of Flower only the mailbox is used: the Fleet API, by which a site fetches requests and leaves
answers, and the store behind it. No code travels. Flower would send a bundle of code with a run
and start it at every site; here a site answers with the package that its own operator installed,
and never asks for a bundle. Flower's Control and Runtime APIs, which take code from anyone who can
reach them, are not served at all.
"""

from __future__ import annotations

import logging
import os

from dpfedc.errors import MissingExtra

RECORD, REQUEST, ANSWER, SIGNATURE = "dpfedc", "request", "answer", "signature"
"""The names under which bytes travel in a Flower message."""


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
