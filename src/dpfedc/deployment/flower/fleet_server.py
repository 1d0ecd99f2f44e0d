"""The server process: Flower's Fleet API over TLS, for enrolled sites, and nothing else.

Flower's own server process offers its Control and Runtime APIs on the same port, without asking
who calls: anyone who reached the port could enrol a key or have code run. They are left out here;
enrolling a site or starting a run takes write access to the server's folder instead.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.flower.store import Store
from dpfedc.deployment.keys import require_private
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    from fastapi import FastAPI

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BYTES = 2**28
"""The longest call a site may make. It is read before Flower checks who calls."""

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2; those of TLS 1.3 are all good."""


def fleet_app(store: Store) -> FastAPI:
    """Return the web application: the Fleet API alone, with every site's identity checked."""
    from fastapi import FastAPI
    from flwr.supercore.error import http_error_translator
    from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
    from flwr.superlink.routers.fleet.router import router
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware

    app = FastAPI(
        openapi_url=None,
        middleware=[
            Middleware(BoundedCalls),
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
        ],
    )
    app.state.linkstate_factory = store.factory
    # With this on, a key can be admitted through the folder only, not by a call.
    app.state.enable_supernode_auth = True
    app.include_router(router)
    return app


class BoundedCalls:
    """Refuse a call whose declared length is missing or too great, before it is read."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or refuse it."""
        if scope["type"] == "http":
            length = dict(scope["headers"]).get(b"content-length", b"")
            if not length.isdigit() or int(length) > MAX_BYTES:
                await send({"type": "http.response.start", "status": 413, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)


def bound_socket(listen: str, port: int) -> socket.socket:
    """Return a socket that listens; say so if another process has the port."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((listen, port))
        bound.listen()  # binding alone would also succeed beside a server that is just starting
    except OSError as error:
        bound.close()
        raise InvalidInput(f"cannot listen on {listen} port {port}: {error.strerror}") from error
    return bound


def serve(folder: ServerFolder, *, on_ready: Callable[[], None]) -> None:
    """Serve the sites until the process is told to stop."""
    store = Store(folder)
    import uvicorn

    tls: dict[str, Any] = {}
    if not folder.insecure:
        require_private(folder.path / "server.key")
        tls = {
            "ssl_certfile": str(folder.path / "server.crt"),
            "ssl_keyfile": str(folder.path / "server.key"),
            # uvicorn's own choice would leave TLS 1.2 with nothing but CBC and SHA-1.
            "ssl_ciphers": CIPHERS,
        }
    config = uvicorn.Config(
        fleet_app(store),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=5,
        **tls,
    )
    with bound_socket(folder.listen, folder.port) as bound:
        on_ready()
        uvicorn.Server(config).run(sockets=[bound])
