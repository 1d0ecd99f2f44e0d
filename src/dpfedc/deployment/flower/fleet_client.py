"""A site's connection to the server: fetch a request, answer it, and say who answers.

The answering code is what is installed here. A Flower site would now fetch the run's bundle of
code and start it; that call does not exist in this client.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.flower import ANSWER, RECORD, REQUEST, SIGNATURE, require_flower
from dpfedc.deployment.keys import sign_answer
from dpfedc.errors import DPFedCError, InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from flwr.proto.message_pb2 import ObjectTree
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient

SHORTEST_NAP_S, LONGEST_NAP_S = 0.1, 3.0
"""How long to wait before asking again: rounds follow each other quickly, runs do not."""
PULL_TRIES = 100
TIMEOUT_S = 30.0
"""How long a call may take, as in Flower."""
HEARTBEAT_S = 10.0
"""The shortest interval that Flower takes. After twice this time a silent site counts as away."""


class ConnectionLost(DPFedCError):
    """The server cannot be reached now; trying again later makes sense."""


class NotAdmitted(InvalidInput):
    """The server knows who calls, or does not, and will not have it; trying again is no use."""


def tls_context(authority: bytes) -> ssl.SSLContext:
    """Return what a site asks of the server: a certificate of this authority that names it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority.decode("ascii"))
    return context


class FleetClient:
    """One site's calls to one server."""

    def __init__(
        self, address: str, key: EllipticCurvePrivateKey, *, authority: bytes | None
    ) -> None:
        require_flower()
        import httpx
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        self.address = address
        self._key = key
        self._calls: FleetHttpClient = FleetHttpClient.from_server_address(
            address,
            authority is None,
            authority,
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(key, key.public_key()),
            ],
        )
        # Flower's own connection goes wherever the server points it, and through any proxy that
        # the environment names, which would take plain text off this machine.
        self._calls._client.close()
        self._calls._client = httpx.Client(
            verify=True if authority is None else tls_context(authority),
            timeout=TIMEOUT_S,
            follow_redirects=False,
            trust_env=authority is not None,
        )

    def close(self) -> None:
        """Close the connection."""
        self._calls.close()

    @contextmanager
    def session(self, last_node: int = 0) -> Iterator[Session]:
        """Report for work, and keep reporting until the end.

        `last_node` is the node of the session before, which may have ended without a word: the
        server lets a node report only once it knows that it was away.
        """
        from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
        from flwr.proto.node_pb2 import Node
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        public = public_key_to_bytes(self._key.public_key())
        if last_node:
            # The server may have another store now, or know already.
            with suppress(NotAdmitted, ConnectionLost):
                self._call("DeactivateNode", DeactivateNodeRequest(node_id=last_node))
        node_id = self._call(
            "ActivateNode", ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_S)
        ).node_id
        stop = threading.Event()
        beats = threading.Thread(target=self._beat, args=(Node(node_id=node_id), stop), daemon=True)
        beats.start()
        try:
            yield Session(self, Node(node_id=node_id))
        finally:
            stop.set()
            with suppress(DPFedCError):  # the server finds out by itself
                self._call("DeactivateNode", DeactivateNodeRequest(node_id=node_id))

    def _beat(self, node: Node, stop: threading.Event) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_S)
        while not stop.wait(HEARTBEAT_S / 2):
            with suppress(DPFedCError):  # the next call for work meets the same trouble
                self._call("SendNodeHeartbeat", request)

    def _call(self, name: str, request: Any) -> Any:
        """Make a call, and say in words what went wrong."""
        import httpx

        try:
            return getattr(self._calls, name)(request)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status == httpx.codes.UNAUTHORIZED:
                raise NotAdmitted(
                    f"{self.address} does not accept this site's signature: either the clocks "
                    "differ (it must not be ahead by more than 5 seconds, nor behind by more than "
                    "5 minutes), or the key is no longer enrolled"
                ) from error
            if name == "ActivateNode" and status < httpx.codes.INTERNAL_SERVER_ERROR:
                raise NotAdmitted(
                    f"{self.address} does not admit this site's key: its operator must enrol "
                    "site.pub; if that is done, another process uses this key, or did until it was "
                    "killed a few seconds ago"
                ) from error
            raise ConnectionLost(f"{self.address} did not take a call: {status}") from error
        except (httpx.RequestError, ValueError) as error:  # also what is no message of Flower's
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise NotAdmitted(
                    f"the certificate of {self.address} must come from the authority in ca.crt and "
                    f"name this address, got another: {error}"
                ) from error
            if "WRONG_VERSION_NUMBER" in str(error):
                raise NotAdmitted(f"{self.address} does not speak TLS: {error}") from error
            raise ConnectionLost(f"{self.address} cannot be reached: {error}") from error


class Session:
    """A site at work."""

    def __init__(self, client: FleetClient, node: Node) -> None:
        self._client, self.node = client, node

    def fetch(self) -> tuple[Any, bytes] | None:
        """Return the next request, and Flower's envelope of it, if there is one."""
        from flwr.app import Message
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        response = self._client._call("PullMessages", PullMessagesRequest(node=self.node))
        if not response.messages_list:
            return None
        try:
            envelope = message_from_proto(response.messages_list[0])
            tree = response.message_object_trees[0]
        except (ValueError, IndexError, AttributeError) as error:
            raise ConnectionLost("the server sent a message that is not a request") from error
        contents = self._contents(tree, envelope.metadata.run_id)
        message_id = envelope.metadata.message_id
        self._client._call(
            "ConfirmMessageReceived",
            ConfirmMessageReceivedRequest(
                node=self.node, run_id=envelope.metadata.run_id, message_object_id=message_id
            ),
        )
        try:
            message = inflate_object_from_contents(message_id, contents)
            assert isinstance(message, Message)
            request = message.content.config_records[RECORD][REQUEST]
        except Exception as error:  # a malformed message can fail in almost any way
            raise ConnectionLost("the server sent a message that is not a request") from error
        if not isinstance(request, bytes):
            raise ConnectionLost("the server sent a message that is not a request")
        return envelope, request

    def send(self, envelope: Any, request: bytes, answer: bytes) -> None:
        """Send a signed answer."""
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.proto.message_pb2 import PushObjectRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )

        signature = sign_answer(self._client._key, request, answer)
        record = ConfigRecord({ANSWER: answer, SIGNATURE: signature})
        reply = Message(RecordDict({RECORD: record}), reply_to=envelope)
        run_id = envelope.metadata.run_id
        with no_object_id_recompute():  # Flower would make the same bytes again a dozen times
            reply.metadata.__dict__["_message_id"] = reply.object_id
            items, tree = get_all_nested_objects(reply), get_object_tree(reply)
        response = self._client._call(
            "PushMessages",
            PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
            ),
        )
        for object_id, item in items.items():
            if object_id in response.objects_to_push:
                self._client._call(
                    "PushObject",
                    PushObjectRequest(
                        node=self.node,
                        run_id=run_id,
                        session_id=response.session_id,
                        object_id=object_id,
                        object_content=item.deflate(),
                    ),
                )

    def _contents(self, tree: ObjectTree, run_id: int) -> dict[str, bytes]:
        from flwr.proto.message_pb2 import PullObjectRequest
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        contents = {}
        for item in iterate_object_tree(tree):
            request = PullObjectRequest(node=self.node, run_id=run_id, object_id=item.object_id)
            for _ in range(PULL_TRIES):  # the coordinator may still be writing it
                found = self._client._call("PullObject", request)
                if found.object_available or not found.object_found:
                    break
                time.sleep(SHORTEST_NAP_S)
            if not found.object_available:
                raise ConnectionLost("a request was withdrawn before it was fetched")
            contents[item.object_id] = found.object_content
        return contents


def attend(
    client: FleetClient,
    reply: Callable[[bytes], bytes],
    *,
    folder: Path,
    tell: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Answer the server's requests until told to stop; come back whenever the connection is lost.

    It stops between requests only: one that is charged is also answered.
    """
    pause, node_file = 1.0, folder / "node"
    while not stop.is_set():
        last_node = _last_node(node_file)
        try:
            with client.session(last_node) as session:
                node_file.write_text(str(session.node.node_id))
                tell(f"connected to {client.address}")
                pause, nap = 1.0, SHORTEST_NAP_S
                while not stop.wait(nap):
                    fetched = session.fetch()
                    if fetched is None:
                        nap = min(1.2 * nap, LONGEST_NAP_S)
                    else:
                        envelope, request = fetched
                        session.send(envelope, request, reply(request))
                        nap = SHORTEST_NAP_S
        except ConnectionLost as error:
            tell(f"{error}; trying again in {pause:g} seconds")
            stop.wait(pause)
            pause = min(2 * pause, 30.0)


def _last_node(file: Path) -> int:
    """Return the node of the session before, 0 if there is none, or if its file was cut off."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return 0
