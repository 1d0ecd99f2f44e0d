"""One site that spoils rounds in secret costs the others a few, and is left out then.

Real messages, ledgers and secrets, as in test_secure_rounds.py. What one site cannot be shown to
have done does not put an honest one out for good.
"""

import json
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import ClassVar

import numpy as np
import pytest

from dpfedc.deployment.left_out import FILE, RESTS, SPOILED, LeftOut
from dpfedc.deployment.messages import Refusal, Request, StepAnswer
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.deployment.secure_aggregation import server_round, site_round
from dpfedc.deployment.secure_aggregation.masks import BAD_BOX
from dpfedc.deployment.secure_aggregation.server_round import CannotOpen
from dpfedc.deployment.secure_aggregation.site_round import SiteRound
from dpfedc.deployment.secure_steps import PARTS
from support.masked_runs import MaskedTransport, counts, lloyd, masked, sites_in, study
from support.secure_sums import Round, circle_of, some_values


def told(record):
    """Return for each round how many sites are in its sum; 0 if it was lost."""
    return [0 if entry.lost else entry.n_sites for entry in record.rounds]


def resumed(transport, n_times=2):
    """Run, and again while there are too few answers."""
    for _ in range(n_times - 1):
        with suppress(TooFewAnswers):
            return transport.coordinator().run()
    return transport.coordinator().run()


def who(transport):
    return LeftOut(transport.folder / "run", 1).read()


def deal_wrong_shares(monkeypatch, dealer):
    """Let a site deal shares of other secrets than it has committed to."""
    right, shared = SiteRound.shares, site_round.shared

    def dealt(self, *args):
        if self.roster.site == dealer:
            monkeypatch.setattr(
                site_round, "shared", lambda _, points, needed: shared(bytes(32), points, needed)
            )
        try:
            return right(self, *args)
        finally:
            monkeypatch.setattr(site_round, "shared", shared)

    monkeypatch.setattr(SiteRound, "shares", dealt)


# Shares of something else


@pytest.mark.parametrize("n_sites", [4, 5, 8])
@pytest.mark.parametrize("silent_from", ["upload", "agree", "open"])
def test_a_dealer_that_is_silent_costs_two_rounds_and_is_left_out(
    tmp_path, monkeypatch, n_sites, silent_from
):
    """It withholds its own share, so that c holders could be those who lie."""
    transport = sites_in(tmp_path, study(n_sites, settings=lloyd(5)))
    liar = transport.agreement.sites[-1].name
    deal_wrong_shares(monkeypatch, n_sites - 1)
    steps = ("upload", "agree", "open")
    silent = steps[steps.index(silent_from) :]
    transport.before = lambda site, step, _: "silent" if site == liar and step in silent else None
    result = transport.coordinator().run()
    assert told(result.record) == [0, n_sites - 1, 0, n_sites - 1, n_sites - 1]
    assert who(transport) == {n_sites - 1: SPOILED}


def test_a_stage_of_one_round_comes_out_with_its_spare(tmp_path, monkeypatch):
    """Two spoiled rounds in a row would end the run."""
    transport = sites_in(tmp_path, masked(5, settings={"n_rounds": 2}))
    deal_wrong_shares(monkeypatch, 4)
    transport.before = lambda site, step, _: "silent" if (site, step) == ("oslo", "open") else None
    events = []
    result = transport.coordinator(on_event=events.append).run()
    stages = [(entry.stage, entry.lost) for entry in result.record.rounds]
    assert stages[:2] == [("bound", True), ("bound", False)]
    assert [e.refused.get("oslo") for e in events if e.done][1] == RESTS
    assert who(transport) == {4: SPOILED}


def test_a_coordinator_that_reads_a_round_twice_counts_it_once(tmp_path):
    left_out = LeftOut(tmp_path, 1)
    for _ in range(2):
        left_out.strike(4, "lloyd 1")
        assert left_out.read() == {4: RESTS}
    assert left_out.rested()
    assert not left_out.rested()
    assert left_out.read() == {}
    left_out.strike(4, "lloyd 3")
    assert left_out.read() == {4: SPOILED}
    left_out.rested()
    assert left_out.read() == {4: SPOILED}


@pytest.mark.parametrize("step", ["upload", "agree", "open"])
def test_an_honest_site_that_drops_out_again_and_again_is_not_left_out(tmp_path, step):
    """Its shares are good: its secret comes back, and nothing is held against it."""
    transport = sites_in(tmp_path, study(settings=lloyd(5)))
    transport.before = lambda site, s, r: (
        "silent" if (site, s) == ("oslo", step) and Request.from_bytes(r).t < 5 else None
    )
    result = transport.coordinator().run()
    assert told(result.record)[-1] == 5
    assert not any(entry.lost for entry in result.record.rounds)
    assert who(transport) == {}


def test_one_that_sits_out_is_asked_if_there_are_too_few_without_it(tmp_path):
    transport = sites_in(tmp_path, study())
    (tmp_path / "run").mkdir()
    LeftOut(tmp_path / "run", 1).strike(4, "lloyd 0")
    transport.before = lambda site, step, _: "silent" if site == "berlin" else None
    assert told(transport.coordinator().run().record) == [4, 4]


def opened_without(n, missing, wrong):
    """Return what comes of a sum if sites are missing at the opening, and some shares are wrong.

    `wrong` are pairs of a holder and a dealer.
    """
    game = Round(some_values(circle_of(n)), circle_of(n)).play()
    openings = {i: dict(o) for i, o in game.openings.items() if i not in missing}
    for holder, dealer in wrong:
        share = openings[holder][dealer]
        openings[holder][dealer] = bytes([share[0] ^ 1]) + share[1:]
    with pytest.raises(CannotOpen) as caught:
        game.secret_sum().opened(game.uploads, openings)
    return caught.value


def test_a_holder_that_lies_does_not_get_an_honest_dealer_left_out():
    """If another site is missing, one wrong share is enough to lose a secret."""
    error = opened_without(5, missing=[3], wrong=[(4, 0)])
    assert (error.sites, error.dealers, error.suspects) == ([0], [], [])


def test_more_secrets_lost_than_may_collude_are_a_holders_doing():
    error = opened_without(5, missing=[0], wrong=[(4, i) for i in range(5)])
    assert (len(error.sites), error.dealers, error.suspects) == (2, [], [])


def test_a_dealer_that_was_not_there_is_suspected():
    """Of an honest one this needs a holder that lies about it, whenever it drops out."""
    error = opened_without(5, missing=[0], wrong=[(4, 0)])
    assert (error.sites, error.dealers, error.suspects) == ([0], [], [0])


def test_a_dealer_that_gives_its_own_share_is_suspected_where_it_cannot_be_proven():
    """Of six sites two may lie about it, so that six shares are too few to be sure."""
    circle, rng = circle_of(6, c=2), np.random.default_rng(0)
    assert circle.n_shares + 2 > circle.n_holders
    game = Round(some_values(circle), circle).play()
    for opening in game.openings.values():
        opening[0] = rng.bytes(16) + opening[0][16:]
    with pytest.raises(CannotOpen) as caught:
        game.opened()
    assert (caught.value.dealers, caught.value.suspects) == ([], [0])


def test_nobody_is_called_a_dealer_by_chance(monkeypatch):
    """Of 27 holders 4 lie, as the plan allows. Good sets are too rare for so few tries."""
    circle = circle_of(60, c=4, least=50)
    n, needed = circle.n_holders, circle.n_shares
    game = Round(some_values(circle), circle).play()
    assert n >= needed + 4
    openings = {i: dict(o) for i, o in game.openings.items()}
    for holder in islice(circle.neighbors(0), 4):
        share = openings[holder][0]
        openings[holder][0] = bytes([share[0] ^ 1]) + share[1:]
    monkeypatch.setattr(server_round, "MAX_TRIES", 3)
    with pytest.raises(CannotOpen) as caught:
        game.secret_sum().opened(game.uploads, openings)
    assert caught.value.sites == [0]
    assert caught.value.dealers == []
    assert caught.value.suspects == [0]  # so it sits out, and goes if it happens again


@pytest.mark.parametrize("n", [20, 60])
def test_all_that_c_liars_can_be_are_tried(n):
    """Then none of them keeps a secret from coming back, and a dealer of wrong shares is one."""
    circle = circle_of(n)
    game = Round(some_values(circle), circle).play()
    right = game.true_sum()
    for liar in circle.neighbors(0):
        openings = {i: dict(o) for i, o in game.openings.items()}
        share = openings[liar][0]
        openings[liar][0] = bytes([share[0] ^ 1]) + share[1:]
        total, liars = game.secret_sum().opened(game.uploads, openings)
        np.testing.assert_array_equal(total, right)
        assert liars <= {liar}
    rng = np.random.default_rng(0)
    for holder in circle.holders(0):
        changed = rng.bytes(16) + game.openings[holder][0][16:]
        game.openings[holder] = {**game.openings[holder], 0: changed}
    with pytest.raises(CannotOpen) as caught:
        game.opened()
    assert caught.value.dealers == [0]


# Boxes that do not open


class BadBox(MaskedTransport):
    """Its last site sends one box that is no box, to the first, and does then as it likes."""

    then: ClassVar = {}

    def _served(self, site, request):
        asked, liar = Request.from_bytes(request), self.agreement.sites[-1].name
        if site == liar and asked.t == 1 and asked.step in self.then:
            return self.then[asked.step]
        reply = super()._served(site, request)
        if site == liar and asked.t == 1 and asked.step == "shares":
            answer = StepAnswer.from_bytes(reply)
            parts = np.array(answer.arrays[PARTS])
            parts[0] = 0
            reply = replace(answer, arrays={**answer.arrays, PARTS: parts}).to_bytes()
        return reply


@pytest.mark.parametrize("n_sites", [4, 5, 6])
@pytest.mark.parametrize(
    "then",
    [
        {"upload": None},
        {"upload": Refusal("no", for_good=True)},
        {"agree": Refusal("no", for_good=True), "open": None},
        {"open": Refusal("no", for_good=True)},
    ],
    ids=["silent", "refuses", "does not agree", "does not open"],
)
def test_one_bad_box_and_silence_cost_one_round(tmp_path, n_sites, then):
    """The one who got it is believed, since the other has not done its part."""
    transport = BadBox(study(n_sites, settings=lloyd(3)), tmp_path).with_known_noise()
    transport.then = then
    result = resumed(transport)
    assert told(result.record) == [0, n_sites - 1, n_sites - 1]
    assert who(transport) == {n_sites - 1: SPOILED}
    assert ("lloyd", 3) in counts(transport, "berlin")[0]


def accusing(accused):
    return Refusal(BAD_BOX.format(accused), for_good=True)


def test_so_many_remain_as_must_survive(tmp_path):
    """The accused go first. Who is proven to have spoiled a round goes in their place."""
    left_out = LeftOut(tmp_path, 1)
    came = {0: b"", 1: b"", 2: b"", 3: None, 4: accusing(0)}
    left_out.hear(came, there=[0, 1, 2], c=1, enough=False)
    assert left_out.read() == {0: SPOILED}
    left_out.prove(4)
    assert left_out.read() == {4: SPOILED}
    assert LeftOut(tmp_path, 2).read() == {0: SPOILED, 4: SPOILED}


def test_who_is_not_there_goes_before_who_is(tmp_path):
    left_out = LeftOut(tmp_path, 1)
    came = {0: b"", 1: accusing(3), 2: accusing(0), 3: None, 4: b""}
    left_out.hear(came, there=[0, 4], c=1, enough=False)
    assert left_out.read() == {3: SPOILED}


@pytest.mark.parametrize(("there", "out"), [([1, 2], {0}), ([0, 1, 2], {0, 4})])
def test_one_who_is_not_there_has_no_say_against_its_accuser(tmp_path, there, out):
    left_out = LeftOut(tmp_path, 3)
    came = {0: None, 1: b"", 2: b"", 3: None, 4: accusing(0)}
    left_out.hear(came, there=there, c=1, enough=False)
    assert left_out.read().keys() == out


@pytest.mark.parametrize("of", [9, 10**8, 2])
def test_who_accuses_nobody_of_the_round_is_not_heard(tmp_path, of):
    left_out = LeftOut(tmp_path, 1)
    left_out.hear({0: b"", 1: b"", 2: accusing(of)}, there=[0, 1], c=0, enough=False)
    assert left_out.read() == {}


def test_a_run_that_was_begun_before_keeps_whom_it_left_out(tmp_path):
    (tmp_path / FILE).write_text(json.dumps([2]))
    left_out = LeftOut(tmp_path, 1)
    left_out.strike(1, "lloyd 2")
    assert left_out.read() == {2: SPOILED}
