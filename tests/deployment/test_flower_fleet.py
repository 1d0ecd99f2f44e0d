"""What goes over the wire: who may call, what a call may do, and whose answer an answer is."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from flwr.supercore.fab import Fab

from dpfedc.deployment.control import answered, opened, refused
from dpfedc.deployment.flower import fleet_client, fleet_server, transport
from dpfedc.deployment.flower.fleet_client import ConnectionLost, NotAdmitted, attend
from dpfedc.deployment.flower.transport import verified
from dpfedc.deployment.messages import Refusal
from dpfedc.errors import InvalidInput
from support.fleet import PATIENCE, Fleet


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path, ("berlin", "geneva"))
    yield made
    made.close()


def test_each_site_gets_its_own_request_and_its_answer_comes_back_under_its_name(fleet):
    for name in ("berlin", "geneva"):
        fleet.answering(name, lambda request: answered(request[::-1]))
    replies = fleet.transport.exchange({"berlin": b"abc", "geneva": b"def"}, PATIENCE)
    assert replies == {"berlin": b"cba", "geneva": b"fed"}


def test_a_refusal_arrives_as_one(fleet):
    fleet.answering("berlin", lambda _: refused("not \x1b[2Jtoday"))
    replies = fleet.transport.exchange({"berlin": b"?"}, PATIENCE)
    assert replies == {"berlin": Refusal("not  [2Jtoday")}


def test_a_site_that_does_not_answer_is_left_out_at_the_deadline(fleet, monkeypatch):
    """The clock stands still until berlin has answered; then it goes on by naps alone."""
    now, heard = [0.0], []
    fleet.transport.on_answer = heard.append

    def sleep(seconds):
        if heard:
            now[0] += seconds
        else:
            time.sleep(seconds)

    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    fleet.answering("berlin", answered)
    requests = {"berlin": b"?", "geneva": b"?"}
    assert fleet.transport.exchange(requests, PATIENCE) == {"berlin": b"?"}
    assert heard == ["berlin"]
    assert PATIENCE <= now[0] < PATIENCE + 1


def test_an_answer_after_the_deadline_is_not_taken(fleet):
    with fleet.client("berlin").session() as session:
        with fleet.store.exchange() as mailbox:
            mailbox.push(session.node.node_id, b"one", ttl=60)
            envelope, request = session.fetch()
        with pytest.raises(ConnectionLost):
            session.send(envelope, request, answered(b"late"))
        with fleet.store.exchange() as mailbox:
            two = mailbox.push(session.node.node_id, b"two", ttl=60)
            session.send(*session.fetch(), answered(b"in time"))
            ((request_id, fields),) = mailbox.pull({two})
    assert request_id == two
    assert opened(fields["answer"]) == b"in time"


def test_a_request_that_nobody_waits_for_is_not_handed_out(fleet):
    with fleet.client("berlin").session() as session:
        with fleet.store.exchange() as mailbox:
            mailbox.push(session.node.node_id, b"forgotten", ttl=60)
        assert session.fetch() is None


def test_a_site_that_starts_anew_in_a_round_is_asked_again(fleet):
    def lose_it():
        with fleet.client("berlin").session() as session:
            ready.set()
            while session.fetch() is None:
                time.sleep(0.01)
        fleet.answering("berlin", answered)

    ready = threading.Event()
    threading.Thread(target=lose_it, daemon=True).start()
    assert ready.wait(PATIENCE)
    assert fleet.transport.exchange({"berlin": b"?"}, PATIENCE) == {"berlin": b"?"}


def test_a_site_that_was_late_is_asked_again(fleet, monkeypatch):
    """Flower gives its request up while it looks gone; it has only been slow to report."""
    from flwr.server.superlink.linkstate import sql_linkstate as linkstate

    state, now, fetched = fleet.store.state, linkstate.now, threading.Event()
    look = state.get_message_res

    def look_too_late(*args):
        assert fetched.wait(PATIENCE)
        state.get_message_res = look
        late = timedelta(seconds=3 * fleet_client.HEARTBEAT_S)
        with monkeypatch.context() as patch:
            patch.setattr(linkstate, "now", lambda: now() + late)
            return look(*args)

    def reply(request):
        fetched.set()
        return answered(request)

    state.get_message_res = look_too_late
    fleet.answering("berlin", reply, n_requests=2)
    assert fleet.transport.exchange({"berlin": b"?"}, PATIENCE) == {"berlin": b"?"}


def test_a_killed_site_can_come_back_at_once(fleet):
    """It left no word; the server would otherwise refuse it until its heartbeat is overdue."""
    with fleet.client("berlin").session() as killed:
        with pytest.raises(NotAdmitted, match="another process uses this key"):
            fleet.client("berlin").session().__enter__()
        with fleet.client("berlin").session(killed.node.node_id) as session:
            assert session.node.node_id == killed.node.node_id


def test_a_site_works_on_through_lost_connections_until_it_is_told_to_stop(fleet, tmp_path):
    client, told, stop = fleet.client("berlin"), [], threading.Event()
    call, troubles = client._call, [ConnectionLost("the line is dead")]

    def unsteady(what, request):
        if what == "PushMessages" and troubles:
            raise troubles.pop()
        return call(what, request)

    client._call = unsteady
    how = {"folder": tmp_path, "tell": told.append, "stop": stop}
    site = threading.Thread(target=attend, args=(client, answered), kwargs=how, daemon=True)
    site.start()
    assert fleet.transport.exchange({"berlin": b"?"}, PATIENCE) == {"berlin": b"?"}
    stop.set()
    site.join(PATIENCE)
    assert not site.is_alive()
    lost = "the line is dead; trying again in 1 seconds"
    assert told == ["connected to testserver", lost, "connected to testserver"]
    assert not fleet.transport.online()["berlin"]


def test_no_other_api_of_flower_is_served(fleet):
    fleet_calls = {"/v1/fleet/" + name for name in (
        "register-node", "activate-node", "deactivate-node", "unregister-node", "push-messages",
        "send-node-heartbeat", "pull-messages", "get-run", "get-fab", "push-object", "pull-object",
        "confirm-message-received",
    )}  # fmt: skip
    from fastapi.routing import iter_route_contexts

    served = {context.path for context in iter_route_contexts(fleet.web.app.routes)}
    assert served == fleet_calls
    from flwr.superlink.routers.control import router as control

    others = [route.path for route in control.routes]
    assert "/v1/control/start-run" in others
    for path in [*others, "/v1/runtime/acquire-task", "/docs", "/openapi.json"]:
        reply = fleet.web.post(path, headers={"content-type": "application/protobuf"})
        assert reply.status_code == 404, path


def test_a_key_that_is_not_enrolled_is_refused_and_cannot_enrol_itself(fleet):
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    stranger = fleet.client("stranger")
    with pytest.raises(NotAdmitted, match=r"must enrol site\.pub"):
        stranger.session().__enter__()
    public = public_key_to_bytes(fleet.key("stranger").public_key())
    with pytest.raises(ConnectionLost):
        stranger._call("RegisterNode", RegisterNodeFleetRequest(public_key=public))
    assert "stranger" not in fleet.transport.online()


def test_a_removed_site_is_refused_from_the_next_call_on(fleet):
    with fleet.client("berlin").session() as session:
        assert session.fetch() is None
        fleet.folder.remove("berlin")
        assert list(fleet.transport.online()) == ["geneva"]
        with pytest.raises(NotAdmitted, match="no longer enrolled"):
            session.fetch()


def test_a_site_with_a_wrong_clock_is_told_so(fleet, monkeypatch):
    from flwr.supernode import node_auth_http_interceptor as headers

    now = headers.now
    monkeypatch.setattr(headers, "now", lambda: now() + timedelta(hours=1))
    with pytest.raises(NotAdmitted, match="clocks differ"):
        fleet.client("berlin").session().__enter__()


def test_one_site_cannot_fetch_the_requests_of_another(fleet):
    with (
        fleet.client("berlin").session() as berlin,
        fleet.client("geneva").session() as geneva,
        fleet.store.exchange() as mailbox,
    ):
        mailbox.push(berlin.node.node_id, b"for berlin", ttl=60)
        assert geneva.fetch() is None
        geneva.node = berlin.node
        with pytest.raises(NotAdmitted):
            geneva.fetch()
        assert berlin.fetch()[1] == b"for berlin"


def forged(fleet, *, signed_by):
    """Have geneva answer for berlin, knowing all there is to know; return what is made of it."""
    with (
        fleet.client("berlin").session() as berlin,
        fleet.client("geneva").session() as geneva,
        fleet.store.exchange() as mailbox,
    ):
        request_id = mailbox.push(berlin.node.node_id, b"?", ttl=60)
        envelope, request = berlin.fetch()
        geneva._client._key = fleet.key(signed_by)
        geneva.send(envelope, request, answered(b"forged"))
        ((answers, fields),) = mailbox.pull({request_id})
        assert answers == request_id
        return verified(fields, request, fleet.key("berlin").public_key())


def test_one_site_cannot_speak_for_another(fleet):
    """Flower takes a reply from any enrolled caller that knows the request; the signature tells."""
    assert forged(fleet, signed_by="geneva") is None


def test_the_forger_is_stopped_by_the_signature_alone(fleet):
    """Else the test before could pass because Flower refuses the forgery."""
    assert forged(fleet, signed_by="berlin") == b"forged"


def test_what_is_no_message_of_ours_is_no_answer(fleet, monkeypatch):
    with fleet.client("berlin").session() as session, fleet.store.exchange() as mailbox:
        request_id = mailbox.push(session.node.node_id, b"?", ttl=60)
        fetched = session.fetch()
        monkeypatch.setattr(fleet_client, "RECORD", "something else")
        session.send(*fetched, answered(b"!"))
        assert list(mailbox.pull({request_id})) == [(request_id, {})]
    key = fleet.key("berlin").public_key()
    for fields in ({}, {"answer": "text", "signature": b""}, {"answer": b"\0!"}):
        assert verified(fields, b"?", key) is None


def test_an_answer_counts_when_all_of_it_has_come(fleet):
    with fleet.client("berlin").session() as session, fleet.store.exchange() as mailbox:
        request_id = mailbox.push(session.node.node_id, b"?", ttl=60)
        fetched = session.fetch()
        call, seen = session._client._call, []

        def watched(what, message):
            if what == "PushObject":
                seen.append(list(mailbox.pull({request_id})))
            return call(what, message)

        session._client._call = watched
        session.send(*fetched, answered(b"whole"))
        assert seen == [[], [], []]
        ((_, fields),) = mailbox.pull({request_id})
    assert opened(fields["answer"]) == b"whole"


def test_no_code_is_fetched_let_alone_run(fleet, tmp_path):
    """A coordinator puts a bundle of code into the run; the site answers and never looks at it."""
    marker = tmp_path / "code ran"
    code = f"open({str(marker)!r}, 'w')\n".encode()
    state, created = fleet.store.state, fleet.store.state.create_run
    state.create_run = lambda *args, **more: created(
        "x/y", "1.0", state.store_fab(Fab("", code, {})), *args[3:], **more
    )
    fleet.answering("berlin", answered)
    assert fleet.transport.exchange({"berlin": b"?"}, PATIENCE) == {"berlin": b"?"}
    allowed = {
        "ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PullObject",
        "ConfirmMessageReceived", "PushMessages", "PushObject",
    }  # fmt: skip
    assert {what for _, what in fleet.calls} <= allowed
    assert not marker.exists()


def test_a_call_that_is_too_long_is_refused_before_it_is_read(fleet, monkeypatch):
    monkeypatch.setattr(fleet_server, "MAX_BYTES", 1000)

    def status(content):
        return fleet.web.post("/v1/fleet/pull-messages", content=content).status_code

    assert status(b"x" * 1001) == 413
    assert status(iter([b"of unknown length"])) == 413
    assert status(b"x" * 1000) == 415


def test_a_port_that_is_taken_is_named(tmp_path):
    with fleet_server.bound_socket("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port}: Address already in use"):
            fleet_server.bound_socket("127.0.0.1", port)
