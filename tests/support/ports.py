"""A port for a server that starts later."""

import socket
import sys


def reserved_port():
    """Return a port of this machine, and a socket that keeps it until the socket is closed.

    A port that is only looked up may be given to somebody else before the server starts, or while
    it is away. Linux gives a port that is bound and not listened on to nobody who asks for any
    port, but does give it to a server that asks for this one.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port = keeper.getsockname()[1]
    if sys.platform != "linux":  # the server would be refused
        keeper.close()
    return port, keeper
