"""The listening socket of a server that stops, at whatever moment: nothing is left open."""

import asyncio
import gc
import socket
import ssl
import warnings

import pytest

from dpfedc.deployment.mailbox.door import Door, bound_socket
from dpfedc.deployment.mailbox.refused_callers import RefusedCallers


async def stopped_after(n_turns, bound, refused, speaks):
    """Call a door, and stop it after so many turns of the loop."""
    door = Door(bound, asyncio.Protocol, refused, lambda _: None)
    door.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving = asyncio.ensure_future(door.serve())
    await asyncio.sleep(0)
    with socket.create_connection(bound.getsockname()) as caller:
        if speaks:
            caller.sendall(b"x")
        for _ in range(n_turns):
            await asyncio.sleep(0)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving


@pytest.mark.parametrize("speaks", [False, True])
@pytest.mark.parametrize("n_turns", range(12))
def test_a_caller_is_let_go_whenever_the_door_is_closed(tmp_path, n_turns, speaks):
    refused = RefusedCallers(tmp_path)
    bound = bound_socket("127.0.0.1", 0)
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(stopped_after(n_turns, bound, refused, speaks))
        gc.collect()
    bound.close()
    refused.close()
    assert [str(w.message) for w in left_open] == []
