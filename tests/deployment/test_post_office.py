"""The server's memory: whose letters reach whom, and that nothing stays."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpfedc.deployment.mailbox import post_office
from dpfedc.deployment.mailbox.post_office import PRESENT_S, PostOffice, digest_of

SITES, EXCHANGES = ("berlin", "geneva", "lisbon"), ("one", "two", "three")
sites, exchanges = st.sampled_from(SITES), st.sampled_from(EXCHANGES)
contents = st.integers(0, 2)


def letter_to(site, content):
    return f"to {site}: {content}".encode()


def kept(office):
    """Return everything that the office holds for its sites."""
    return [item for box in office._boxes.values() for item in box.waiting.values()]


class Office(RuleBasedStateMachine):
    """Sites and operators that do anything at any time, also in one another's name."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(post_office, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.patch.setattr(post_office, "ANSWER_S", 0.0)
        self.loop = asyncio.new_event_loop()
        self.office = PostOffice()
        self.office.admit(SITES)
        self.admitted = set(SITES)
        self.open = {name: self.office.open() for name in EXCHANGES}
        self.wanted = {name: {} for name in EXCHANGES}
        """What each exchange still waits for."""

    def teardown(self):
        for exchange in self.open.values():
            self.office.close(exchange)
        assert kept(self.office) == []
        assert self.office.counts()["bytes"] == 0
        self.loop.close()
        self.patch.undo()

    @rule(some=st.sets(sites))
    def admit(self, some):
        """A letter to a site that is removed waits for it to be enrolled again."""
        self.office.admit(some)
        self.admitted = some

    @rule(exchange=exchanges, site=sites, content=contents)
    def post(self, exchange, site, content):
        """An exchange has one letter for a site: the last."""
        self.office.post(self.open[exchange], site, letter_to(site, content), 100)
        self.wanted[exchange][site] = letter_to(site, content)

    @rule(site=sites, content=contents, holds=st.booleans())
    def call(self, site, content, holds):
        """A site is handed a letter of its own that it does not hold, if there is one."""
        held = {digest_of(letter_to(site, content))} if holds else set()
        item = self.loop.run_until_complete(self.office.next_letter(site, held))
        waiting = [i for i in kept(self.office) if i.site == site and i.digest not in held]
        assert (item is None) == (not waiting)
        if item is not None:
            assert item.letter.startswith(f"to {site}:".encode())
            assert item.digest not in held

    @rule(site=sites, whose=sites, content=contents, words=st.binary(min_size=1, max_size=3))
    def answer(self, site, whose, content, words):
        """A site answers; if that is another's letter there is nothing to be answered."""
        digest = digest_of(letter_to(whose, content))
        item = self.office.expected(site, digest)
        if site != whose:
            assert item is None
        if item is not None:
            self.office.deliver(item, words)
            assert self.office.expected(site, digest) is None
            for exchange, wanted in self.wanted.items():
                if wanted.get(site) == item.letter:
                    del wanted[site]
                    got = self.open[exchange].answered.get_nowait()
                    assert (got.site, got.letter, got.answer) == (site, item.letter, words)

    @rule(exchange=exchanges)
    def hang_up(self, exchange):
        self.office.close(self.open[exchange])
        self.open[exchange], self.wanted[exchange] = self.office.open(), {}

    @invariant()
    def nobody_is_told_what_others_asked_for(self):
        assert all(exchange.answered.empty() for exchange in self.open.values())

    @invariant()
    def every_letter_is_in_its_own_box_and_somebody_waits_for_it(self):
        for name, box in self.office._boxes.items():
            for digest, item in box.waiting.items():
                assert (item.site, item.digest, item.answer) == (name, digest, None)
                assert item.letter in [wanted.get(name) for wanted in self.wanted.values()]

    @invariant()
    def what_nobody_has_answered_waits_for_its_site(self):
        waiting = {item.letter for item in kept(self.office)}
        for wanted in self.wanted.values():
            for site, letter in wanted.items():
                assert site not in self.admitted or letter in waiting


TestOffice = Office.TestCase


@pytest.fixture
def office():
    made = PostOffice()
    made.admit(SITES)
    return made


def test_a_later_call_of_a_site_sends_the_one_before_home(office):
    async def both():
        first = asyncio.ensure_future(office.next_letter("berlin", ()))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(office.next_letter("berlin", ()))
        assert await first is None
        office.post(office.open(), "berlin", b"letter", 10)
        return await second

    assert asyncio.run(both()).letter == b"letter"


def test_a_site_that_is_removed_is_sent_home(office):
    async def removed():
        call = asyncio.ensure_future(office.next_letter("berlin", ()))
        await asyncio.sleep(0)
        office.admit(["geneva"])
        return await call

    assert asyncio.run(removed()) is None
    assert office.online() == {"geneva": False}


def test_who_has_called_is_there_for_a_while(office, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(post_office, "time", SimpleNamespace(monotonic=lambda: now))
    office.saw("berlin")
    office.saw("nobody")
    assert office.online() == {"berlin": True, "geneva": False, "lisbon": False}
    now += PRESENT_S + 1
    assert not any(office.online().values())


def test_an_operator_that_waits_is_told_of_the_first_answer(office):
    async def collected():
        exchange = office.open()
        office.post(exchange, "berlin", b"b", 10)
        office.post(exchange, "geneva", b"g", 10)
        waiting = asyncio.ensure_future(exchange.answered.get())
        await asyncio.sleep(0)
        office.deliver(office.expected("geneva", digest_of(b"g")), b"answer")
        return await waiting, exchange

    got, exchange = asyncio.run(collected())
    assert (got.site, got.answer) == ("geneva", b"answer")
    assert list(exchange.waiting) == ["berlin"]


def test_the_first_answer_counts_and_none_that_comes_when_nobody_waits(office):
    """Two may be on their way at once, and an exchange may end meanwhile."""
    one, two = office.open(), office.open()
    office.post(one, "berlin", b"b", 10)
    item = office.expected("berlin", digest_of(b"b"))
    office.deliver(item, b"first")
    office.deliver(item, b"second")
    assert item.answer == b"first"
    office.post(two, "berlin", b"c", 10)
    late = office.expected("berlin", digest_of(b"c"))
    office.close(two)
    office.deliver(late, b"late")
    assert late.answer is None
    assert office.n_answers == 1
