"""Deployed rounds with secure aggregation: exact sums, sites that are lost, a server that dies.

Real messages, ledgers and secrets. The noise is known and the same in every run, so that sums can
be compared to the last bit. What a server can get that does not keep to the protocol:
test_secure_rounds_hidden.py.
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from dpfedc.deployment import checkpoint, coordinator, heads
from dpfedc.deployment.messages import STEPS, Refusal, Request, StepAnswer
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.deployment.secure_aggregation.masks import BAD_BOX
from dpfedc.deployment.secure_aggregation.server_round import SecretSum
from dpfedc.deployment.secure_aggregation.site_round import SiteRound
from dpfedc.deployment.secure_steps import PARTS
from dpfedc.engine.backend import RoundLost
from dpfedc.engine.rounds import StageLost
from dpfedc.errors import InvalidInput, RoundSpent
from dpfedc.privacy.ledger import Ledger
from support import lost_rounds
from support.lost_rounds import Crashed
from support.masked_runs import (
    NAMES,
    MaskedTransport,
    OneRound,
    counts,
    lloyd,
    masked,
    sites_in,
    study,
    summed_here,
)

TRUTH = np.array([[0, 0, 0], [9, 0, 1], [0, 9, 2]])
FEDC = (("n_rounds", 2), ("subspace", 2), ("refine_rounds", 1))


def told(record):
    return [(entry.stage, entry.t, entry.n_sites, entry.lost) for entry in record.rounds]


def resumed(transport):
    """Run, and once more if there were too few answers."""
    with suppress(TooFewAnswers):
        return transport.coordinator().run()
    return transport.coordinator().run()


def is_good(model):
    apart = np.linalg.norm(model.cluster_centers[:, None] - TRUTH, axis=2)
    return apart.min(axis=0).max() < 1.0


def require_one_noise(transport):
    """Check that every site drew noise, was charged and opened once a round at most."""
    agreement = transport.agreement
    for site in transport.noise:
        charged, answered, opened = counts(transport, site)
        assert opened <= answered <= charged
        drawn = transport.noise[site].drawn
        assert drawn.keys() <= charged
        for (stage, _), draws in drawn.items():
            assert len(draws) == (2 if agreement.exchange(stage).form.symmetric else 1)
        with transport.ledger(site) as ledger:
            for stage in ledger.totals().stages:
                assert stage.n_charged <= agreement.privacy.of_stage(stage.stage).rounds_per_site


@pytest.fixture
def released(monkeypatch):
    """Return a list of all sums that a coordinator comes to know: event and grid units."""
    found, received = [], coordinator.received

    def watched(uploads, event):
        (upload,) = uploads
        found.append((event, upload.values))
        return received(uploads, event)

    monkeypatch.setattr(coordinator, "received", watched)
    return found


# The sums


@pytest.mark.parametrize("gone", [(), STEPS], ids=["nobody drops out", "somebody always does"])
@pytest.mark.parametrize(
    ("method", "settings"), [("dp-lloyd", (("n_rounds", 3),)), ("dp-fedc", FEDC)]
)
def test_released_sums_are_those_of_one_process_to_the_last_bit(
    tmp_path, released, method, settings, gone
):
    """All records in one table, and the same noise: the masks are gone without a trace."""
    transport, events, n_asked = sites_in(tmp_path, study(5, method, settings)), [], Counter()

    def drop_out(site, step, request):
        """Let each round lose another site, in another step."""
        n_asked.update([transport.now])
        number = len(n_asked)
        who = NAMES[number % 5]
        return "silent" if gone and (site, step) == (who, gone[number % 5]) else None

    transport.before = drop_out
    result = transport.coordinator(on_event=events.append).run()
    over = [event for event in events if event.done]
    assert len(released) == len(over) == transport.agreement.plan.n_rounds
    for event, (release, values) in zip(over, released, strict=True):
        assert release.n_sites == len(event.answered)
        assert values.dtype == np.uint64
        due = summed_here(transport, event.stage, event.t, event.answered)
        np.testing.assert_array_equal(values, due)
        small = np.abs(values.view(np.int64)).max() / 2.0**63
        assert small < 1e-3, "a sum that was masked would fill all bits"
    n_summed = {release.n_sites for release, _ in released}
    assert n_summed == ({4, 5} if gone else {5})
    assert is_good(result.model)
    require_one_noise(transport)


def test_masks_with_a_site_that_dropped_out_are_taken_off(tmp_path, monkeypatch):
    """Plant: they are forgotten, and the sum is no sum."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    play.uploaded(NAMES[:4])
    monkeypatch.setattr(SecretSum, "dropped", ())
    values, summed = play.opened()
    assert summed == list(NAMES[:4])
    assert (values != summed_here(transport, "lloyd", 1, summed)).all()


# Sites that are lost


def silent(transport, site):
    return "silent"


def refusing(transport, site):
    return Refusal("busy")


def killed(transport, site):
    """Start the site's process again: it gets the request, and knows nothing of the round."""
    transport.restart(site)


IN_SUM = {
    silent: {"keys": 4, "shares": 4, "upload": 4, "agree": 5, "open": 5},
    refusing: {"keys": 4, "shares": 4, "upload": 4, "agree": 5, "open": 5},
    # Keys are made anew by a process that has none. Its upload counts, once it is made.
    killed: {"keys": 5, "shares": 4, "upload": 4, "agree": 5, "open": 5},
}


@pytest.mark.parametrize("fate", IN_SUM)
def test_one_site_of_five_may_be_lost_in_every_step(tmp_path, released, fate):
    """In each of five rounds another site, before another step."""
    transport = sites_in(tmp_path, study(5, settings=lloyd(5), epsilon=100.0))

    def lose(site, step, request):
        t = transport.now[1] - 1
        return fate(transport, site) if (site, step) == (NAMES[t], STEPS[t]) else None

    transport.before = lose
    result = transport.coordinator().run()
    due = [IN_SUM[fate][step] for step in STEPS]
    assert told(result.record) == [("lloyd", t, n, False) for t, n in enumerate(due, start=1)]
    for t, n in enumerate(due, start=1):
        there = [site for i, site in enumerate(NAMES) if n == 5 or i != t - 1]
        np.testing.assert_array_equal(released[t - 1][1], summed_here(transport, "lloyd", t, there))
        for site in NAMES:
            charged, answered, _ = counts(transport, site)
            assert (("lloyd", t) in charged) == (("lloyd", t) in answered) == (site in there)
    assert is_good(result.model)
    require_one_noise(transport)


def test_a_site_that_is_killed_after_any_step_is_in_the_sum_once_its_upload_is_made(
    tmp_path, released
):
    transport = sites_in(tmp_path, study(5, settings=lloyd(5), epsilon=100.0))

    def kill(site, step):
        t = transport.now[1] - 1
        if (site, step) == (NAMES[t], STEPS[t]):
            transport.restart(site)

    transport.after = kill
    result = transport.coordinator().run()
    assert [n for _, _, n, _ in told(result.record)] == [4, 4, 5, 5, 5]
    np.testing.assert_array_equal(released[2][1], summed_here(transport, "lloyd", 3, NAMES))
    opened = {t for _, t in counts(transport, NAMES[2])[2]}
    assert opened == {1, 2, 4, 5}, "it was in the third sum, but had no share left to open it"
    assert is_good(result.model)


def test_a_site_that_dies_between_its_charge_and_its_answer_is_out_of_the_sum(
    tmp_path, released, monkeypatch
):
    """It has drawn noise, and never draws it again."""
    transport, settle = sites_in(tmp_path, study()), Ledger.settle

    def dying(ledger, run, stage, t, answer):
        if (transport.serving, t) == ("lisbon", 1):
            transport.restart("lisbon")
            raise RoundSpent("the process is gone")
        return settle(ledger, run, stage, t, answer)

    def serve(site, step, request):
        transport.serving = site

    transport.before = serve
    monkeypatch.setattr(Ledger, "settle", dying)
    result = transport.coordinator().run()
    assert told(result.record) == [("lloyd", 1, 4, False), ("lloyd", 2, 5, False)]
    others = [site for site in NAMES if site != "lisbon"]
    np.testing.assert_array_equal(released[0][1], summed_here(transport, "lloyd", 1, others))
    charged, answered, _ = counts(transport, "lisbon")
    assert charged - answered == {("lloyd", 1)}
    require_one_noise(transport)


# Too many sites that are lost

TWO = ("berlin", "geneva")
UPLOADED = {"upload": set(NAMES) - set(TWO), "agree": set(NAMES), "open": set(NAMES)}


def losing_two(transport, step, rounds):
    """Let two of five sites be killed before a step of these rounds: one more than may be."""

    def lose(site, asked, request):
        if site in TWO and asked == step and transport.now in rounds:
            transport.restart(site)

    transport.before = lose
    return transport


@pytest.mark.parametrize("step", UPLOADED)
def test_of_too_few_nothing_is_released_and_the_round_is_skipped(tmp_path, released, step):
    transport = losing_two(sites_in(tmp_path, study(settings=lloyd(3))), step, [("lloyd", 2)])
    result = transport.coordinator().run()
    assert told(result.record) == [
        ("lloyd", 1, 5, False),
        ("lloyd", 2, 0, True),
        ("lloyd", 3, 5, False),
    ]
    assert [event.t for event, _ in released] == [1, 3]
    for site in NAMES:
        charged, answered, opened = counts(transport, site)
        assert (("lloyd", 2) in charged) == (site in UPLOADED[step]), "the charge stands"
        assert charged == answered
        assert ("lloyd", 2) not in opened or (step == "open" and site not in TWO)
    require_one_noise(transport)


@pytest.mark.parametrize("step", UPLOADED)
def test_of_too_few_nothing_can_be_opened(tmp_path, step):
    """A server that takes what shares there are, and asks for a sum of those that are left."""
    transport = sites_in(tmp_path, study())
    play = OneRound(transport, tmp_path / "server")
    play.prepared()
    if step == "upload":
        for site in TWO:
            transport.restart(site)
    else:
        losing_two(transport, step, [("lloyd", 1)])
    play.uploaded()
    assert play.answers.keys() == UPLOADED[step]
    with pytest.raises(RoundLost):
        play.opened()
    if step == "upload":
        assert set(play.refused) == UPLOADED[step]
        assert set(play.refused.values()) == {"the survivors must be 4 sites at least, got 3"}
    shares = [answer for _, asked, _, answer in transport.answered if asked == "open"]
    assert (
        len(shares)
        == (3 if step == "open" else 0)
        < transport.agreement.circle("lloyd", 1).n_shares
    )


def test_a_sum_of_too_few_is_opened_if_sites_do_not_count(tmp_path, monkeypatch):
    """Plant: sites believe the server who is enough. Without colluders three signatures do."""
    agreement = study(colluding_sites=0)
    assert (agreement.privacy.min_survivors, agreement.circle("lloyd", 1).n_signatures) == (4, 3)

    def sum_of_three(name):
        transport = sites_in(tmp_path / name, agreement)
        play = OneRound(transport, tmp_path / name)
        play.prepared()
        play.uploaded(NAMES[:3])
        return transport, play.opened

    _, asked_for = sum_of_three("right")
    with pytest.raises(TooFewAnswers, match="must be 4 sites at least, got 3"):
        asked_for()
    monkeypatch.setattr(SiteRound, "_members", lambda self, what, sites, within: list(sites))
    transport, asked_for = sum_of_three("planted")
    values, summed = asked_for()
    assert summed == list(NAMES[:3])
    np.testing.assert_array_equal(values, summed_here(transport, "lloyd", 1, summed))


def test_the_spare_round_of_a_stage_of_one_takes_the_place_of_a_lost_one(tmp_path, released):
    agreement = study(settings=(("n_rounds", 2),))
    transport = losing_two(sites_in(tmp_path, agreement), "upload", [("bound", 1)])
    result = transport.coordinator().run()
    assert told(result.record)[:2] == [("bound", 1, 0, True), ("bound", 2, 5, False)]
    np.testing.assert_array_equal(released[0][1], summed_here(transport, "bound", 2, NAMES))
    first, spare = (transport.noise["oslo"].drawn["bound", t][0] for t in (1, 2))
    assert (first != spare).any(), "noise of its own"
    assert {t for stage, t in counts(transport, "oslo")[0] if stage == "bound"} == {1, 2}
    require_one_noise(transport)


@pytest.mark.parametrize("spare", [0, 1])
def test_without_a_spare_round_left_the_run_ends_in_words(tmp_path, released, spare):
    agreement = study(settings=(("n_rounds", 2),), spare_rounds=spare)
    lost = [("bound", 1), ("bound", 2)]
    transport = losing_two(sites_in(tmp_path, agreement), "agree", lost)
    words = f"stage 'bound' must have a round .* all {1 + spare} were lost.* What was charged stays"
    for _ in range(2):
        with pytest.raises(StageLost, match=words):
            transport.coordinator().run()
    assert not released
    assert counts(transport, "oslo")[0] == set(lost[: 1 + spare])
    assert not counts(transport, "oslo")[2]


def test_too_many_that_are_silent_are_waited_for(tmp_path, released):
    """A site that keeps its secrets may yet answer: the same bytes are asked for once more."""
    transport, away = sites_in(tmp_path, study()), {"agree": TWO, "open": TWO, "upload": TWO}
    transport.before = lambda site, step, _: "silent" if site in away.get(step, ()) else None
    for step in ("upload", "agree", "open"):
        for _ in range(2):
            with pytest.raises(TooFewAnswers, match=r"silent: berlin, geneva\).*can be resumed"):
                transport.coordinator().run()
        assert not released
        del away[step]
    result = transport.coordinator().run()
    assert told(result.record) == [("lloyd", 1, 5, False), ("lloyd", 2, 5, False)]
    np.testing.assert_array_equal(released[0][1], summed_here(transport, "lloyd", 1, NAMES))
    require_one_noise(transport)


def test_too_many_that_forgot_their_keys_before_the_uploads_cost_no_round(tmp_path, released):
    """Nothing has been released, so keys are made once more."""
    transport, killed_once = sites_in(tmp_path, study()), set()

    def kill(site, step, request):
        if site in TWO and step == "shares" and site not in killed_once:
            killed_once.add(site)
            transport.restart(site)

    transport.before = kill
    result = resumed(transport)
    assert told(result.record) == [("lloyd", 1, 5, False), ("lloyd", 2, 5, False)]


def test_a_site_whose_boxes_do_not_open_costs_one_round_and_is_left_out(tmp_path):
    """Neighbours refuse what they cannot open, and are charged nothing."""

    class Liar(MaskedTransport):
        def _served(self, site, request):
            reply = super()._served(site, request)
            if site == "oslo" and Request.from_bytes(request).step == "shares":
                answer = StepAnswer.from_bytes(reply)
                arrays = {**answer.arrays, PARTS: np.zeros_like(answer.arrays[PARTS])}
                reply = replace(answer, arrays=arrays).to_bytes()
            return reply

    transport = Liar(study(settings=lloyd(3)), tmp_path).with_known_noise()
    result = resumed(transport)
    assert told(result.record) == [
        ("lloyd", 1, 0, True),
        ("lloyd", 2, 4, False),
        ("lloyd", 3, 4, False),
    ]
    assert counts(transport, "berlin")[0] == {("lloyd", 2), ("lloyd", 3)}


def test_as_many_accusers_as_may_collude_have_nobody_left_out(tmp_path):
    transport = sites_in(tmp_path, study())
    lie = Refusal(BAD_BOX.format(0), for_good=True)
    transport.before = lambda site, step, _: lie if (site, step) == ("oslo", "upload") else None
    result = transport.coordinator().run()
    assert told(result.record) == [("lloyd", 1, 4, False), ("lloyd", 2, 4, False)]
    assert counts(transport, "berlin")[0] == {("lloyd", 1), ("lloyd", 2)}


def test_one_against_one_both_are_left_out_if_it_costs_the_round(tmp_path):
    """Who lies cannot be told, and a round has been lost over it."""
    transport = sites_in(tmp_path, study(6, min_survivors=4, settings=lloyd(3)))
    lie = Refusal(BAD_BOX.format(0), for_good=True)
    gone = {"madrid", "oslo"}

    def before(site, step, request):
        if step == "upload" and Request.from_bytes(request).t == 1:
            return lie if site == "geneva" else killed(transport, site) if site in gone else None
        return None

    transport.before = before
    result = resumed(transport)
    assert told(result.record)[0] == ("lloyd", 1, 0, True)
    assert [n for _, _, n, lost in told(result.record) if not lost] == [4, 4]
    assert counts(transport, "berlin")[0] == {("lloyd", 1)}


@pytest.mark.parametrize("resume", [False, True])
def test_a_dealer_of_another_seed_costs_one_round_and_is_left_out(tmp_path, monkeypatch, resume):
    """All have paid by then. Who it was is known also to a coordinator that starts again."""
    transport, right = sites_in(tmp_path, study(settings=lloyd(3))), SiteRound.shares

    def dealt(self, *args):
        seed = self._seed
        self._seed = bytes(32) if self.roster.site == 4 else seed
        boxes = right(self, *args)
        self._seed = seed
        return boxes

    monkeypatch.setattr(SiteRound, "shares", dealt)
    if resume:
        transport.before = lambda _, step, r: (
            "silent" if step == "keys" and Request.from_bytes(r).t == 2 else None
        )
        with pytest.raises(TooFewAnswers):
            transport.coordinator().run()
        transport.before = lambda *_: None
    events = []
    result = transport.coordinator(on_event=events.append).run()
    assert told(result.record) == [
        ("lloyd", 1, 0, True),
        ("lloyd", 2, 4, False),
        ("lloyd", 3, 4, False),
    ]
    assert counts(transport, "oslo")[0] == {("lloyd", 1)}
    if not resume:
        (note,) = next(e.notes for e in events if e.lost)
        assert "good shares of the secret of site 4 must be there" in note


def test_a_site_of_the_sum_that_is_silent_is_waited_for_once(tmp_path):
    """When the coordinator starts again, nobody would sign another sum."""
    transport = sites_in(tmp_path, study())
    transport.before = lambda _, step, __: "silent" if step == "agree" else None
    with pytest.raises(TooFewAnswers):
        transport.coordinator().run()
    transport.before = lambda site, step, _: (
        "silent" if site == "oslo" and step == "upload" else None
    )
    with pytest.raises(TooFewAnswers, match=r"must have 5 answers, got 4 of 5 \(silent: oslo"):
        transport.coordinator().run()
    waited = transport.coordinator().run()
    assert told(waited.record)[0] == ("lloyd", 1, 0, True)


# A coordinator that dies

ACTIONS = (
    "checkpoint", "keys", "shares", "save keys", "save upload", "upload", "heads", "save agree",
    "agree", "save open", "open", "checkpoint after",
)  # fmt: skip
"""What it writes and sends in a run of one round."""


SEEDS = (*range(5), 20)
"""The last one is of a coordinator that died after an upload came late."""


class Deaths(lost_rounds.Deaths):
    """Its writes are those of checkpoints and of the heads of ledgers."""

    def run(self, transport, **more):
        """Run until the death, or to the end."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (checkpoint, heads):
                patch.setattr(module, "write_whole", self.around(module.write_whole))
            patch.setattr(transport, "exchange", self.around(transport.exchange))
            return transport.coordinator(**more).run()


def require_same_answers(transport):
    """Check that what was asked twice was answered with the same bytes, and nothing twice."""
    answers = {}
    for site, _, request, answer in transport.answered:
        assert answers.setdefault((site, request), answer) == answer
    asked = Counter(
        (site, r.stage, r.t, r.step)
        for site, data in answers
        for r in [Request.from_bytes(data)]
        if r.step not in ("keys", "shares")
    )
    assert set(asked.values()) == {1}, "of uploads and openings there is one request a round"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    transport = sites_in(tmp_path_factory.mktemp("whole"), study(4, settings=lloyd(1)))
    never = Deaths(0, after=False)
    never.run(transport)
    assert never.done == len(ACTIONS)
    return transport.coordinator().run()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("n", range(1, len(ACTIONS) + 1), ids=ACTIONS)
def test_a_coordinator_that_dies_goes_on_without_a_second_noise(tmp_path, undisturbed, n, after):
    transport = sites_in(tmp_path, study(4, settings=lloyd(1)))
    with pytest.raises(Crashed):
        Deaths(n, after=after).run(transport)
    result = transport.coordinator().run()
    np.testing.assert_array_equal(result.model.cluster_centers, undisturbed.model.cluster_centers)
    assert told(result.record) == [("lloyd", 1, 4, False)]
    require_one_noise(transport)
    require_same_answers(transport)


def test_a_coordinator_that_dies_again_and_again_goes_on(tmp_path):
    """A few actions, and it starts from its folder once more. Two rounds take it many lives."""
    whole = sites_in(tmp_path / "whole", study(4)).coordinator().run()
    transport, n_deaths = sites_in(tmp_path / "dying", study(4)), 0
    with suppress(StopIteration):
        for life in range(100):
            with suppress(Crashed):
                Deaths(1 + life % 7, after=bool(life % 2)).run(transport)
                raise StopIteration
            n_deaths += 1
    result = transport.coordinator().run()
    assert 10 < n_deaths < 100
    np.testing.assert_array_equal(result.model.cluster_centers, whole.model.cluster_centers)
    require_one_noise(transport)
    require_same_answers(transport)


def test_an_upload_that_comes_late_does_not_hold_up_who_is_in_the_sum(tmp_path, released):
    """The site was silent when the others were asked to agree; then the coordinator died."""
    transport, late = sites_in(tmp_path, study()), {"upload": ("oslo",), "agree": NAMES}
    transport.before = lambda site, step, _: "silent" if site in late.get(step, ()) else None
    with pytest.raises(TooFewAnswers):
        transport.coordinator().run()
    late.clear()
    result = transport.coordinator().run()
    assert told(result.record) == [("lloyd", 1, 4, False), ("lloyd", 2, 5, False)]
    np.testing.assert_array_equal(released[0][1], summed_here(transport, "lloyd", 1, NAMES[:4]))
    assert ("lloyd", 1) in counts(transport, "oslo")[0], "it is charged, and in no sum"
    require_same_answers(transport)


CANCELLED = Refusal("run 123 was cancelled here", for_good=True, of_run=True)


def test_a_site_of_the_sum_that_left_while_the_coordinator_was_away_costs_the_round(tmp_path):
    """Who is in the sum was asked for, and its upload is not to be had again."""
    transport, away = sites_in(tmp_path, study()), {"agree"}
    transport.before = lambda site, step, _: "silent" if step in away else None
    with pytest.raises(TooFewAnswers):
        transport.coordinator().run()
    transport.before = lambda site, *_: CANCELLED if site == "oslo" else None
    result = resumed(transport)
    assert told(result.record) == [("lloyd", 1, 0, True), ("lloyd", 2, 4, False)]


def test_sites_that_can_never_open_a_sum_cost_the_round_and_no_more(tmp_path):
    """Two neighbours on a circle of twelve: enough sites are left to sign, but not to open."""
    agreement = study(12)
    circle = agreement.circle("lloyd", 1)
    assert circle.n_holders < 12
    transport = MaskedTransport(agreement, tmp_path).with_known_noise()

    def lose(site, step, request):
        if site in TWO and step == "open" and transport.now[1] == 1:
            transport.restart(site)

    transport.before = lose
    assert told(transport.coordinator().run().record) == [
        ("lloyd", 1, 0, True),
        ("lloyd", 2, 12, False),
    ]


def test_a_coordinator_that_forgot_its_requests_gets_no_second_noise(tmp_path, released):
    """It makes other keys, and all sites say that the round is spent."""
    transport = sites_in(tmp_path, study())
    with pytest.raises(Crashed):
        Deaths(ACTIONS.index("upload") + 1, after=True).run(transport)
    (tmp_path / "run" / "requests.json").unlink()
    events = []
    result = transport.coordinator(on_event=events.append).run()
    assert told(result.record) == [("lloyd", 1, 0, True), ("lloyd", 2, 5, False)]
    (lost,) = (event for event in events if event.lost)
    spent = "round 1 of stage 'lloyd' was charged for another request"
    assert lost.refused == dict.fromkeys(NAMES, spent)
    require_one_noise(transport)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_a_round_has_one_noise_and_one_sum_and_the_run_ends(
    tmp_path, released, seed
):
    """Sites are silent, busy or killed, and the coordinator dies, all by chance, for eight lives.

    Then nothing happens any more, and three lives must do.
    """
    chance, events, sums = np.random.default_rng(seed), [], {}
    transport = sites_in(tmp_path, study(4, settings=(("n_rounds", 2),)))
    rate = chance.choice([0.02, 0.05, 0.1])

    def before(site, step, request):
        if (drawn := chance.random()) < rate:
            return silent(transport, site)
        if drawn < 1.3 * rate:
            return refusing(transport, site)
        return killed(transport, site) if drawn < 2 * rate else None

    def after(site, step):
        if chance.random() < rate / 2:
            killed(transport, site)

    transport.before, transport.after, ended = before, after, False
    for life in range(11):
        if life == 8:
            transport.before = transport.after = lambda *_: None
        n_actions = int(chance.integers(1, 15)) if life < 8 and chance.random() < 0.6 else 0
        try:
            Deaths(n_actions, after=chance.random() < 0.5).run(transport, on_event=events.append)
            ended = True
        except StageLost:
            ended = True
        except (Crashed, TooFewAnswers):
            continue
        break
    assert ended
    for event, values in released:
        place = (event.stage, event.t)
        over = [e for e in events if e.done and not e.lost and (e.stage, e.t) == place]
        # The last one tells who is in the sum: a run that stopped before told who had answered.
        answered = [e.answered for e in over if len(e.answered) == event.n_sites][-1]
        np.testing.assert_array_equal(values, summed_here(transport, *place, answered))
        assert sums.setdefault(place, values.tobytes()) == values.tobytes()
    require_one_noise(transport)


# Cohorts


@pytest.mark.parametrize(("per_round", "survivors", "least"), [(3, 5, 3), (4, 5, 4), (5, 4, 4)])
def test_cohorts_smaller_than_the_roster_have_circles_of_their_own(
    tmp_path, released, per_round, survivors, least
):
    settings = (*lloyd(4), ("sites_per_round", per_round))
    agreement = study(6, settings=settings, min_survivors=survivors)
    transport, asked = sites_in(tmp_path, agreement), {}

    def watch(site, step, request):
        asked.setdefault(transport.now[1], set()).add(site)

    transport.before = watch
    result = transport.coordinator().run()
    assert told(result.record) == [("lloyd", t, per_round, False) for t in range(1, 5)]
    names = [site.name for site in agreement.sites]
    assert len({frozenset(sites) for sites in asked.values()}) > 1, "not always the same"
    plan, z = agreement.privacy, agreement.privacy.of_stage("lloyd").noise_multiplier
    for t, (event, values) in enumerate(released, start=1):
        circle = agreement.circle("lloyd", t)
        cohort = [names[n] for n in circle.sites]
        assert set(cohort) == asked[t]
        assert (circle.min_survivors, circle.colluding_sites) == (least, 1)
        np.testing.assert_array_equal(values, summed_here(transport, "lloyd", t, cohort))
        share = plan.noise_of_site("lloyd")
        assert share == pytest.approx(z / math.sqrt(least - 1))
        assert event.noise_std == pytest.approx(share * math.sqrt(per_round) * event.sensitivity)
    require_one_noise(transport)


def test_a_cohort_may_lose_as_many_as_its_own_circle_admits(tmp_path, released):
    settings = (*lloyd(2), ("sites_per_round", 5))
    agreement = study(6, settings=settings, min_survivors=4)
    transport = sites_in(tmp_path, agreement)
    first = [agreement.sites[n].name for n in agreement.circle("lloyd", 1).sites]
    out = first[:2]
    transport.before = lambda site, step, _: "silent" if step == "upload" and site in out else None
    with pytest.raises(TooFewAnswers, match="must have 4 answers, got 3 of 5"):
        transport.coordinator().run()
    out.pop()
    transport.before = lambda site, *_: "silent" if transport.now[1] == 1 and site in out else None
    result = transport.coordinator().run()
    assert told(result.record)[0] == ("lloyd", 1, 4, False)
    np.testing.assert_array_equal(released[0][1], summed_here(transport, "lloyd", 1, first[1:]))


def test_a_site_that_is_not_in_the_cohort_has_no_part_in_any_step(tmp_path):
    settings = (*lloyd(4), ("sites_per_round", 3))
    agreement = study(6, settings=settings, min_survivors=5)
    transport = sites_in(tmp_path, agreement)
    transport.coordinator().run()
    cohort = agreement.circle("lloyd", 1).sites
    outsider = next(s.name for n, s in enumerate(agreement.sites) if n not in cohort)
    for step in STEPS:
        _, _, data, _ = next(a for a in transport.answered if a[1] == step)
        sent = Request.from_bytes(data)
        request = Request(
            sent.run, outsider, "lloyd", 1, sent.arrays, step=step, attempt=sent.attempt
        )
        reply = transport.exchange({outsider: request.to_bytes()}, 1.0)[outsider]
        assert reply == Refusal(f"{outsider} is not in round 1 of stage 'lloyd'")


@pytest.mark.parametrize(("per_round", "colluding"), [(1, 0), (2, 2), (3, 3)])
def test_cohorts_too_small_to_hide_in_are_refused_before_the_run(per_round, colluding):
    settings = dict((*lloyd(2), ("sites_per_round", per_round)))
    with pytest.raises(InvalidInput, match=r"more survivors than|two sites or more"):
        masked(6, settings=settings, colluding_sites=colluding)
