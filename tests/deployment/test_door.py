"""The listening socket of a server that stops, at whatever moment: nothing is left open."""

import asyncio
import gc
import socket
import ssl
import time
import warnings
from contextlib import ExitStack

import pytest

from dpfedc.deployment.mailbox import door as door_module
from dpfedc.deployment.mailbox.door import Door, _Turns, bound_socket
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


async def besieged(bound, refused, n_callers, seconds):
    """Let callers say one byte each and wait; return how many handshakes were begun, in order."""
    door = Door(bound, asyncio.Protocol, refused, lambda _: None)
    door.context, begun, right = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), [], door._shake

    async def shake(accepted, address):
        begun.append(accepted.getpeername())
        await right(accepted, address)

    door._shake = shake
    serving = asyncio.ensure_future(door.serve())
    with ExitStack() as callers:
        called = []
        for _ in range(n_callers):
            caller = callers.enter_context(socket.create_connection(bound.getsockname()))
            caller.sendall(b"x")
            called.append(caller.getsockname())
            await asyncio.sleep(0.005)
        await asyncio.sleep(seconds)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
    return called, begun


def test_hundreds_who_wait_cost_nothing_and_the_last_is_next(tmp_path, monkeypatch):
    """All of them woke at every handshake that ended, and looked at all that were under way."""
    monkeypatch.setattr(door_module, "MAX_HANDSHAKES", 2)
    monkeypatch.setattr(door_module, "PATIENCE_S", 0.8)
    looked = []

    class Clock:
        @staticmethod
        def monotonic():
            looked.append(1)
            return time.monotonic()

    monkeypatch.setattr(door_module, "time", Clock)
    refused, bound, n_callers = RefusedCallers(tmp_path), bound_socket("127.0.0.1", 0), 100
    called, begun = asyncio.run(besieged(bound, refused, n_callers, 1.5))
    bound.close()
    refused.close()
    assert begun[:2] == called[:2]
    assert 4 <= len(begun) < 20
    assert called[-1] in begun[3:5]  # the third looked for room already when it came
    assert len(looked) < 2 * n_callers  # each is noted once, and one looks


def test_a_turn_is_never_lost():
    """Whoever gives up while it waits, or just when its turn comes."""

    async def played(n_turns):
        turns, had = _Turns(), []

        async def one(i):
            async with turns:
                had.append(i)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(i)) for i in range(6)]
        for _ in range(n_turns):
            await asyncio.sleep(0)
        tasks[5].cancel()
        tasks[3].cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
            async with turns:
                assert not turns._waiting
        return had

    for n_turns in range(12):
        assert {0, 1, 2, 4} <= set(asyncio.run(played(n_turns)))
    assert asyncio.run(played(1)) == [0, 4, 2, 1]
