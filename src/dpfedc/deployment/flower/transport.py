"""Requests out, answers in, over Flower's store: what the coordinator's rounds run on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.control import opened
from dpfedc.deployment.flower import ANSWER, SIGNATURE
from dpfedc.deployment.flower.store import Store
from dpfedc.deployment.keys import is_signed_answer, read_public_key
from dpfedc.deployment.messages import Refusal
from dpfedc.deployment.server_folder import ServerFolder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

POLL_S = 0.1
LOOK_S = 1.0
"""How often to look which sites are there; it costs more than a look for answers."""


class FlowerTransport:
    """Carries bytes to enrolled sites by name. An answer counts only with its site's signature."""

    def __init__(self, folder: ServerFolder) -> None:
        self._folder = folder
        self._store = Store(folder)
        self.on_answer: Callable[[str], None] = lambda _: None

    def online(self) -> Mapping[str, bool]:
        """Return which enrolled sites are there."""
        self._store.admit()
        return {name: node.online for name, node in self._store.nodes().items()}

    def exchange(
        self, requests: Mapping[str, bytes], deadline_s: float
    ) -> dict[str, bytes | Refusal]:
        """Send each site its request; return the replies that came before the deadline.

        A site that starts anew meanwhile, or was silent for so long that the store took it for
        gone, is sent its request again: it may have lost it, and it has the answer on its disk if
        it had given it.
        """
        keys = {name: read_public_key(line) for name, line in self._folder.enrolled().items()}
        answers: dict[str, bytes | Refusal] = {}
        asked: dict[str, str] = {}
        since: dict[str, str] = {}
        end, look = time.monotonic() + deadline_s, 0.0
        with self._store.exchange() as mailbox:
            while len(answers) < len(requests) and (now := time.monotonic()) < end:
                if now >= look:
                    look = now + LOOK_S
                    mailbox.keep_open()
                    nodes = self._store.nodes()
                    for name in requests.keys() & nodes.keys() & keys.keys() - answers.keys():
                        node = nodes[name]
                        if node.online and since.get(name) != node.since:
                            since[name] = node.since
                            request_id = mailbox.push(node.number, requests[name], ttl=end - now)
                            asked[request_id] = name
                for request_id, fields in mailbox.pull(set(asked)):
                    name = asked.pop(request_id)
                    if fields is None:
                        since.pop(name, None)  # given up; the site may be late, not gone
                        continue
                    reply = verified(fields, requests[name], keys[name])
                    if reply is not None:
                        answers[name] = reply
                        self.on_answer(name)
                time.sleep(POLL_S)
        return answers


def verified(
    fields: Mapping[str, Any], request: bytes, key: EllipticCurvePublicKey
) -> bytes | Refusal | None:
    """Return the reply that the key's holder gave to a request, None if it is not that."""
    answer, signature = fields.get(ANSWER), fields.get(SIGNATURE)
    if not isinstance(answer, bytes) or not isinstance(signature, bytes):
        return None
    return opened(answer) if is_signed_answer(key, request, answer, signature) else None
