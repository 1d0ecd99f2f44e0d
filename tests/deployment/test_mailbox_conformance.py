"""What every mailbox must do, whoever is killed, sends nonsense, comes or goes.

A new kind of mailbox is added to `WORLDS`, with a world that starts and ends its parts.
"""

import os
import threading
import time
from functools import partial

import pytest

from dpfedc.deployment.control import answered, refused
from dpfedc.deployment.mailbox import https_site, letters, post_office
from dpfedc.deployment.mailbox.operator_side import BAD_SIGNATURE
from dpfedc.deployment.messages import Refusal
from support.mailboxes import PATIENCE, HttpsWorld, InBackground, quickly, wait_until
from support.nats_worlds import NatsWorld
from support.planting import plant

WORLDS = {
    "https": HttpsWorld,
    "https, signed calls": partial(HttpsWorld, signed=True),
    "nats": NatsWorld,
}
NAMES = ("berlin", "geneva", "lisbon")


@pytest.fixture(params=WORLDS, scope="module")
def shared_world(request, tmp_path_factory):
    """Return a federation with all of its sites there, which a test leaves as it was."""
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        world = WORLDS[request.param](tmp_path_factory.mktemp("world"), NAMES)
        world.start_server()
        for name in NAMES:
            world.start_site(name, echoed(name))
        yield world
        world.close()


@pytest.fixture(params=WORLDS)
def world(request, tmp_path, monkeypatch):
    """Return a federation whose server is there; sites are started by the test."""
    quickly(monkeypatch)
    world = WORLDS[request.param](tmp_path, NAMES)
    world.start_server()
    yield world
    world.close()


@pytest.fixture
def operator(shared_world):
    return shared_world.operator()


def echoed(name):
    """Return an honest site's answers: what it was asked, and by whom it is answered."""
    return lambda request: answered(name.encode() + b" heard " + request)


def heard(requests):
    return {name: name.encode() + b" heard " + request for name, request in requests.items()}


class Slow:
    """A site that answers when it is told to, and counts how often it was asked."""

    def __init__(self, name):
        self._answer_of = echoed(name)
        self.n_asked, self.go = 0, threading.Event()

    def __call__(self, request):
        self.n_asked += 1
        assert self.go.wait(PATIENCE)
        return self._answer_of(request)

    def is_asked(self, times=1):
        wait_until(lambda: self.n_asked >= times, what="a request")


class TestExchange:
    @pytest.mark.parametrize("size", [0, 1, 5_000_000])
    def test_every_site_gets_its_own_bytes_and_answers_come_back_as_they_are(self, operator, size):
        requests = {name: os.urandom(size) for name in NAMES}
        assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_some_sites_may_be_asked_and_others_not(self, operator):
        assert operator.exchange({}, PATIENCE) == {}
        requests = {"geneva": b"only you"}
        assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_the_same_request_twice_is_answered_twice(self, operator):
        for _ in range(2):
            requests = dict.fromkeys(NAMES, b"again")
            assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_every_delivery_is_told(self, operator):
        told = []
        operator.on_delivery = told.append
        operator.exchange(dict.fromkeys(NAMES, b"12345"), PATIENCE)
        assert sorted(delivery.site for delivery in told) == [*NAMES]
        assert all(d.seconds > 0 and d.n_sent > 5 and d.n_received > 5 for d in told)

    def test_who_is_there_is_known(self, operator):
        assert operator.online() == dict.fromkeys(NAMES, True)

    def test_a_name_that_is_not_enrolled_is_left_out(self, operator):
        requests = {"nowhere": b"x", "berlin": b"y"}
        assert operator.exchange(requests, 0.3) == heard({"berlin": b"y"})

    def test_several_operators_at_once_get_what_they_asked_for(self, shared_world, operator):
        """Each of these has the same sites, and one request is the same for both."""
        other = shared_world.operator()
        for n in range(10):
            mine = {name: b"same" if name == "berlin" else b"mine %d" % n for name in NAMES}
            theirs = {name: b"same" if name == "berlin" else b"other %d" % n for name in NAMES}
            at_once = InBackground(other.exchange, theirs, PATIENCE)
            assert operator.exchange(mine, PATIENCE) == heard(mine)
            assert at_once.result() == heard(theirs)

    def test_nothing_is_kept_afterwards(self, shared_world, operator):
        operator.exchange(dict.fromkeys(NAMES, b"x" * 1000), PATIENCE)
        assert shared_world.counts()["bytes"] == 0


class TestSitesThatAreAway:
    def test_a_site_that_is_away_is_left_out(self, world):
        for name in NAMES[1:]:
            world.start_site(name, echoed(name))
        operator = world.operator()
        requests = dict.fromkeys(NAMES, b"x")
        assert operator.exchange(requests, 1.0) == heard(dict.fromkeys(NAMES[1:], b"x"))
        assert operator.online() == {"berlin": False, "geneva": True, "lisbon": True}

    def test_a_site_that_is_killed_is_gone_when_its_last_connection_is(self, world, monkeypatch):
        """A proxy has the connections of its sites: there only time tells."""
        if world.signed:
            monkeypatch.setattr(post_office, "PRESENT_S", 0.5)
        world.start_site("berlin", echoed("berlin"))
        operator, soon = world.operator(), time.monotonic() + post_office.PRESENT_S / 3
        assert operator.online()["berlin"]
        world.stop_site("berlin")
        wait_until(lambda: not operator.online()["berlin"])
        assert world.signed or time.monotonic() < soon

    def test_a_site_that_works_or_calls_again_is_there(self, world, monkeypatch):
        monkeypatch.setattr(post_office, "ANSWER_S", 0.1)
        monkeypatch.setattr(https_site, "BEAT_S", 0.1)
        monkeypatch.setattr(https_site, "HASTE_S", 0.01)
        at_work = Slow("berlin")
        world.start_site("berlin", at_work)
        world.start_site("geneva", echoed("geneva"))
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, PATIENCE)
        at_work.is_asked()
        operator, end = world.operator(), time.monotonic() + 2
        while time.monotonic() < end:
            assert operator.online() == {"berlin": True, "geneva": True, "lisbon": False}
        at_work.go.set()
        assert asked.result() == heard({"berlin": b"x"})

    def test_a_refusal_passes_as_one(self, world):
        world.start_site("berlin", lambda _: refused(Refusal("not today")))
        assert world.operator().exchange({"berlin": b"x"}, PATIENCE) == {
            "berlin": Refusal("not today")
        }

    def test_a_site_that_is_killed_at_work_is_sent_its_request_again(self, world):
        before = Slow("berlin")
        world.start_site("berlin", before)
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, PATIENCE)
        before.is_asked()
        world.stop_site("berlin")
        world.start_site("berlin", echoed("berlin"))
        assert asked.result() == heard({"berlin": b"x"})
        before.go.set()

    def test_a_site_at_work_is_not_sent_its_request_again(self, world, monkeypatch):
        monkeypatch.setattr("dpfedc.deployment.mailbox.https_site.BEAT_S", 0.02)
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        operator = world.operator()
        asked = InBackground(operator.exchange, {"berlin": b"x"}, PATIENCE)
        slow.is_asked()
        other = world.operator()
        second = InBackground(other.exchange, {"berlin": b"y"}, PATIENCE)
        wait_until(lambda: world.counts()["letters"] == 2, what="both letters")
        slow.go.set()
        assert (asked.result(), second.result()) == (
            heard({"berlin": b"x"}),
            heard({"berlin": b"y"}),
        )
        assert slow.n_asked == 2

    def test_a_site_that_is_told_to_stop_answers_first(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, PATIENCE)
        slow.is_asked()
        stopping = InBackground(world.told_to_stop, "berlin")
        slow.go.set()
        stopping.result()
        assert asked.result() == heard({"berlin": b"x"})

    def test_a_site_that_has_answered_stops_at_once(self, world, monkeypatch):
        """It waits for its next letter with the call that brought the answer."""
        world.start_site("berlin", echoed("berlin"))
        world.operator().exchange({"berlin": b"x"}, PATIENCE)
        stopping = InBackground(world.told_to_stop, "berlin")
        stopping.result()


class TestServerAndOperatorThatAreAway:
    def test_a_server_that_forgot_is_told_again(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        world.start_site("geneva", echoed("geneva"))
        requests = dict.fromkeys(("berlin", "geneva"), b"x" * 100_000)
        asked = InBackground(world.operator().exchange, requests, PATIENCE)
        slow.is_asked()
        world.stop_server()
        world.start_server()
        slow.go.set()
        assert asked.result() == heard(requests)

    def test_a_server_that_comes_late_is_waited_for(self, world):
        world.stop_server()
        world.start_site("berlin", echoed("berlin"), there=False)
        operator = world.operator()
        assert operator.online() == dict.fromkeys(NAMES, False)
        asked = InBackground(operator.exchange, {"berlin": b"x"}, PATIENCE)
        wait_until(lambda: world.told["berlin"], what="a complaint")
        world.start_server()
        assert asked.result() == heard({"berlin": b"x"})

    def test_without_a_server_a_round_ends_at_its_deadline(self, world):
        world.stop_server()
        assert world.operator().exchange({"berlin": b"x"}, 0.2) == {}

    def test_an_operator_that_asks_again_gets_the_same(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        assert world.operator().exchange({"berlin": b"x"}, 0.3) == {}
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, PATIENCE)
        slow.go.set()
        assert asked.result() == heard({"berlin": b"x"})

    def test_an_answer_that_comes_too_late_does_not_keep_its_site(self, world):
        """Nor does a long one, of which the server wants no byte."""
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        operator = world.operator()
        assert operator.exchange({"berlin": b"x" * 5_000_000}, 1.0) == {}
        slow.is_asked()
        slow.go.set()
        assert operator.exchange({"berlin": b"y"}, PATIENCE) == heard({"berlin": b"y"})


OTHER = b"dpfedc answer of somebody else"
WRONG_REPLIES = {
    "of another request": lambda right, me, name, request, answer: right(
        me, name, request + b"!", answer
    ),
    "of another site": lambda right, me, name, request, answer: right(
        me, "geneva", request, answer
    ),
    "with other content": lambda right, *given: right(*given) + b"!",
    "without a signature": lambda right, me, name, request, answer: bytes(64) + answer,
    "empty but for a byte": lambda right, *given: b"!",
    "shorter than a signature": lambda right, *given: right(*given)[:63],
    "cut short": lambda right, *given: right(*given)[:-1],
}


class TestWrongAnswers:
    @pytest.mark.parametrize("wrong", WRONG_REPLIES)
    def test_an_answer_with_a_bad_signature_is_called_that(self, world, monkeypatch, wrong):
        """It neither ends the exchange nor keeps the others from it."""

        def bug(right, me, name, request, answer):
            if name != "berlin":
                return right(me, name, request, answer)
            return WRONG_REPLIES[wrong](right, me, name, request, answer)

        for name in NAMES:
            world.start_site(name, echoed(name))
        operator, requests = world.operator(), dict.fromkeys(NAMES, b"x")
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, letters.reply, bug)
            got = operator.exchange(requests, PATIENCE)
        assert got == {**heard(requests), "berlin": Refusal(BAD_SIGNATURE)}
        assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_one_bad_answer_before_a_good_one_costs_nothing(self, world):
        """As while a key is exchanged."""
        n_wrong = 0

        def bug(right, *given):
            nonlocal n_wrong
            n_wrong += 1
            return right(*given)[::-1] if n_wrong == 1 else right(*given)

        world.start_site("berlin", echoed("berlin"))
        operator = world.operator()
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, letters.reply, bug)
            assert operator.exchange({"berlin": b"x"}, PATIENCE) == heard({"berlin": b"x"})

    @pytest.mark.parametrize("content", [b"", b"\x07", b"\xff" * 100])
    def test_what_is_signed_and_no_reply_is_a_refusal(self, world, content):
        world.start_site("berlin", lambda _: content)
        world.start_site("geneva", echoed("geneva"))
        got = world.operator().exchange({"berlin": b"x", "geneva": b"y"}, PATIENCE)
        assert isinstance(got["berlin"], Refusal)
        assert got["geneva"] == heard({"geneva": b"y"})["geneva"]

    def test_an_answer_that_is_too_long_is_not_taken(self, world):
        n_asked = 0

        def long(_):
            nonlocal n_asked
            n_asked += 1
            return answered(b"x" * 2_000_000)

        world.start_site("berlin", long)
        world.start_site("geneva", echoed("geneva"))
        operator = world.operator(most_answer=1000)
        requests = {"berlin": b"x", "geneva": b"y"}
        assert operator.exchange(requests, 1.5) == heard({"geneva": b"y"})
        assert n_asked == 1
        assert "berlin" in world.refused()
        wait_until(lambda: any("too long" in text for text in world.told["berlin"]))
        assert operator.exchange({"geneva": b"z"}, PATIENCE) == heard({"geneva": b"z"})

    def test_without_the_check_an_answer_to_another_request_is_taken(self, world):
        """What the check is worth: the same attack without it."""
        world.start_site("berlin", echoed("berlin"))
        with pytest.MonkeyPatch.context() as patch:
            plant(patch, letters.reply, WRONG_REPLIES["of another request"])
            patch.setattr(letters, "is_signature", lambda *_: True)
            got = world.operator().exchange({"berlin": b"x"}, PATIENCE)
        assert got == heard({"berlin": b"x"})


class TestWhoIsEnrolled:
    def test_a_site_that_is_enrolled_meanwhile_takes_part(self, world):
        world.new_site("madrid")
        world.start_site("madrid", echoed("madrid"), there=False)
        wait_until(lambda: world.told["madrid"], what="a complaint")
        assert not world.is_connected("madrid")
        requests = {"madrid": b"x"}
        asked = InBackground(world.operator().exchange, requests, PATIENCE)
        world.enrol("madrid")
        assert asked.result() == heard(requests)

    def test_a_site_that_is_removed_is_cut_and_the_others_go_on(self, world):
        slow = Slow("lisbon")
        for name in ("berlin", "geneva"):
            world.start_site(name, echoed(name))
        world.start_site("lisbon", slow)
        operator = world.operator()
        asked = InBackground(operator.exchange, dict.fromkeys(NAMES, b"x"), 2.0)
        slow.is_asked()
        world.told["berlin"].clear()
        world.remove("berlin")
        wait_until(lambda: world.told["berlin"], what="the end of its connection")
        assert not world.is_connected("berlin")
        slow.go.set()
        asked.result()
        requests = dict.fromkeys(NAMES, b"y")
        assert operator.exchange(requests, 1.0) == heard(dict.fromkeys(NAMES[1:], b"y"))
        assert operator.online() == {"geneva": True, "lisbon": True}

    def test_nothing_of_a_site_that_was_removed_counts(self, world):
        """Not even an answer that it had sent before."""
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, 1.0)
        slow.is_asked()
        world.remove("berlin")
        slow.go.set()
        assert asked.result() == {}

    def test_removed_and_enrolled_again_with_the_same_key(self, world):
        """In 0.1.0 the server could never be started again after this."""
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        world.start_site("geneva", echoed("geneva"))
        operator = world.operator()
        requests = {"berlin": b"x", "geneva": b"x"}
        other = world.operator()
        asked = InBackground(operator.exchange, requests, PATIENCE)
        slow.is_asked()
        world.remove("berlin")
        wait_until(lambda: "berlin" not in other.online(), what="its removal")
        world.enrol("berlin")
        wait_until(lambda: "berlin" in other.online(), what="its return")
        slow.go.set()
        assert asked.result() == heard(requests)
        world.stop_server()
        world.start_server()
        assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_removed_and_enrolled_again_in_one_breath(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        asked = InBackground(world.operator().exchange, {"berlin": b"x"}, PATIENCE)
        slow.is_asked()
        world.remove("berlin")
        world.enrol("berlin")
        slow.go.set()
        assert asked.result() == heard({"berlin": b"x"})

    def test_a_key_is_exchanged_while_a_request_is_on_its_way(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        world.start_site("geneva", echoed("geneva"))
        requests = {"berlin": b"x", "geneva": b"x"}
        operator = world.operator()
        asked = InBackground(operator.exchange, requests, PATIENCE)
        slow.is_asked()
        world.new_site("berlin", "next")
        world.enrol("berlin", "next")
        slow.go.set()
        assert asked.result() == heard(requests)
        assert operator.exchange(requests, PATIENCE) == heard(requests)

    def test_certificates_are_renewed_while_a_request_is_on_its_way(self, world):
        slow = Slow("berlin")
        world.start_site("berlin", slow)
        world.start_site("geneva", echoed("geneva"))
        requests = {"berlin": b"x", "geneva": b"x"}
        operator = world.operator()
        asked = InBackground(operator.exchange, requests, PATIENCE)
        slow.is_asked()
        world.renew()
        world.stop_site("geneva")  # it shakes hands with the new server
        world.start_site("geneva", echoed("geneva"))
        slow.go.set()
        assert asked.result() == heard(requests)
        for mailbox in (operator, world.operator()):
            assert mailbox.exchange(requests, PATIENCE) == heard(requests)
            assert mailbox.online()["berlin"]
