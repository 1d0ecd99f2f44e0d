"""Flower's store of messages, used directly: whoever may write to its file may start runs.

The server process answers sites over the network from this file; a run, in another process, puts
requests into it and takes answers out. A server that is restarted in the middle of a run therefore
loses nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpfedc.deployment.flower import RECORD, REQUEST, require_flower
from dpfedc.deployment.keys import read_public_key, write_private
from dpfedc.deployment.server_folder import ServerFolder
from dpfedc.errors import DPFedCError
from dpfedc.whole_files import locked

if TYPE_CHECKING:
    from flwr.server.superlink.linkstate import LinkState


@dataclass(frozen=True)
class Node:
    """An enrolled site as the store sees it; `since` changes whenever the site starts anew."""

    number: int
    online: bool
    since: str


class Store:
    """The store of one server, with its enrolled sites."""

    def __init__(self, folder: ServerFolder) -> None:
        require_flower()
        from flwr.server.superlink.linkstate import LinkStateFactory
        from flwr.supercore.object_store import ObjectStoreFactory
        from flwr.superlink.federation import NoOpFederationManager

        self._folder = folder
        database = str(folder.database)
        with locked(folder.path / "store.lock"), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Flower, about its own tools
            if not folder.database.exists():
                write_private(folder.database, b"")
            objects = ObjectStoreFactory(database)
            self.factory = LinkStateFactory(database, NoOpFederationManager(), objects)
            self.state: LinkState = self.factory.state()
        self.admit()

    def admit(self) -> None:
        """Make the store's sites those that are enrolled in the folder: no others, same keys."""
        with locked(self._folder.path / "store.lock"):
            self._admit()

    def _admit(self) -> None:
        from flwr.common.constant import NOOP_FLWR_AID
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        keys = {
            name: public_key_to_bytes(read_public_key(line))
            for name, line in self._folder.enrolled().items()
        }
        known = {}
        for info in self._infos():
            if keys.get(info.name) == info.public_key:
                known[info.name] = info.node_id
            else:
                self.state.delete_node(NOOP_FLWR_AID, info.node_id)
        for name in keys.keys() - known.keys():
            self.state.create_node(NOOP_FLWR_AID, "dpfedc", keys[name], 0, name=name)

    def nodes(self) -> Mapping[str, Node]:
        """Return the enrolled sites by name."""
        from flwr.supercore.constant import NodeStatus

        return {
            info.name: Node(
                info.node_id, info.status == NodeStatus.ONLINE, info.last_activated_at or ""
            )
            for info in self._infos()
        }

    @contextmanager
    def exchange(self) -> Iterator[Exchange]:
        """Open an exchange of messages; what is not answered before its end never will be."""
        from flwr.common.constant import NOOP_FLWR_AID, SubStatus
        from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType

        state = self.state
        run_id = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task_id = state.get_run_info(run_ids=[run_id])[0].primary_task_id if run_id else None
        if task_id is None or not state.claim_task(task_id) or not state.activate_task(task_id):
            raise DPFedCError("Flower's store did not open an exchange")
        try:
            yield Exchange(state, run_id, task_id)
        finally:
            state.finish_task(task_id, SubStatus.COMPLETED, "")
            state.cleanup_run(run_id)

    def _infos(self) -> list[Any]:
        from flwr.supercore.constant import NodeStatus

        infos = self.state.get_node_info()
        return [info for info in infos if info.status != NodeStatus.UNREGISTERED]


@dataclass(frozen=True)
class Exchange:
    """Requests to sites, and their answers, within one Flower run."""

    state: LinkState
    run_id: int
    task_id: int
    _arriving: dict[str, str] = field(default_factory=dict)
    """Answers whose content is still on its way: the request of each."""

    def keep_open(self) -> None:
        """Tell the store that somebody still waits; it closes what nobody tends for a minute."""
        self.state.acknowledge_task_heartbeat(self.task_id)

    def push(self, node: int, content: bytes, *, ttl: float) -> str:
        """Leave a request for a site, to be fetched within `ttl` seconds; return its id."""
        from flwr.app import ConfigRecord, MessageType, Metadata, RecordDict
        from flwr.app.message import make_message, remove_content_from_message
        from flwr.common.constant import SUPERLINK_NODE_ID
        from flwr.supercore.date import now
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )

        metadata = Metadata(
            run_id=self.run_id,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=now().timestamp(),
            ttl=ttl,
            message_type=MessageType.QUERY,
        )
        record = ConfigRecord({REQUEST: content})
        message = make_message(metadata, RecordDict({RECORD: record}))
        with no_object_id_recompute():  # Flower would make the same bytes again a dozen times
            message_id = message.object_id
            message.metadata.__dict__["_message_id"] = message_id
            session = self.state.start_session(self.run_id)
            stored, missing = self.state.store_message_and_object_tree(
                remove_content_from_message(message), get_object_tree(message), session
            )
            if not stored:
                raise DPFedCError(f"Flower's store did not take a request for node {node}")
            for object_id, item in get_all_nested_objects(message).items():
                if object_id in missing:
                    self.state.store_object(self.run_id, session, object_id, item.deflate())
        return message_id

    def pull(self, message_ids: set[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """Take out the answers that have arrived: the request's id, and the answer's fields.

        None instead of fields: the store gave the request up, because its site went away.
        """
        waiting = message_ids - set(self._arriving.values())
        for reply in self.state.get_message_res(waiting, self.run_id) if waiting else ():
            request_id = reply.metadata.reply_to_message_id
            if reply.has_error():
                yield request_id, None
            else:
                self._arriving[reply.metadata.message_id] = request_id
        for reply_id, request_id in tuple(self._arriving.items()):
            fields = self._fields(reply_id)
            if fields is not None:
                del self._arriving[reply_id]
                self.state.delete_messages({request_id})
                yield request_id, fields

    def _fields(self, reply_id: str) -> Mapping[str, Any] | None:
        """Return the fields of an answer, empty if it is malformed, None if not all is here."""
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

        tree = self.state.object_store.get_object_tree(reply_id)
        names = [item.object_id for item in iterate_object_tree(tree)]
        contents = {name: self.state.get_object(self.run_id, name) or b"" for name in names}
        if not all(contents.values()):
            return None
        try:
            message = inflate_object_from_contents(reply_id, contents)
            assert isinstance(message, Message)
            return message.content.config_records[RECORD]
        except Exception:  # whatever a site sent, it must not stop the run
            return {}
