"""A round lost at too many sites costs that round, and not the run.

A site that is killed between a charge and its answer can never answer that round: its ledger says
"spent", for ever. Shown first by killing two sites of three in one round.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfedc.deployment import checkpoint, control
from dpfedc.deployment.messages import Answer, Refusal, Request
from dpfedc.deployment.proposal import proposed_by_toml
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.deployment.site_service import SiteService
from dpfedc.deployment.terms import terms
from dpfedc.engine.rounds import StageLost
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput, Refused, RoundSpent
from dpfedc.privacy.ledger import Ledger
from dpfedc.privacy.noise import SimulatedNoise
from dpfedc.report.accounts import compared
from dpfedc.report.content import summary_sentences
from dpfedc.report.promise import recorded_plan, stage_rows
from support.deployment import (
    SIZES,
    MemoryTransport,
    agreed,
    by_site,
    new_ledger,
    node,
    records,
)
from support.lost_rounds import Crashed, CrashingSites, Deaths, centers_of, end_of, losing
from support.site_services import agreement_with, site_folder

IDS = np.repeat(np.arange(len(SIZES)), list(SIZES.values()))
TWO = ("berlin", "geneva")
FEDC = {"n_rounds": 3, "refine_rounds": 0, "subspace": 2}


def crashing(agreement, folder, lost, sites=TWO):
    """Return sites of which these crash in the rounds (stage, t)."""
    folder.mkdir(exist_ok=True)
    crashes = {(site, stage, t) for site in sites for stage, t in lost}
    return CrashingSites(agreement, folder, crashes=crashes)


def told(record):
    return [(entry.stage, entry.t, entry.n_sites, entry.lost) for entry in record.rounds]


def check_ledgers(transport):
    """Return the charges of each site, none of them beyond the plan."""
    found = {}
    for site in SIZES:
        with transport.ledger(site) as ledger:
            ledger.verify()
            stages = ledger.totals().stages
        for stage in stages:
            planned = transport.agreement.privacy.of_stage(stage.stage)
            assert stage.n_answered <= stage.n_charged <= planned.rounds_per_site
        sent = [Answer.from_bytes(data) for data in transport.released.get(site, ())]
        assert len({(a.stage, a.t) for a in sent}) == len(sent)
        found[site] = {stage.stage: stage.n_charged for stage in stages}
    return found


def test_a_lost_round_of_a_stage_of_one_is_made_up_for_by_the_spare_one(tmp_path):
    agreement = agreed(min_answers=2)
    transport, events = crashing(agreement, tmp_path, [("bound", 1)]), []
    result = transport.coordinator(on_event=events.append).run()
    assert told(result.record)[:2] == [("bound", 1, 0, True), ("bound", 2, 3, False)]
    assert len(result.record.rounds) == agreement.plan.n_rounds + 1
    assert check_ledgers(transport) == {site: {"bound": 2, "lloyd": 3} for site in SIZES}
    first, spare = (Request.from_bytes(sent["lisbon"]) for sent in transport.sent[:2])
    assert (first.t, spare.t) == (1, 2)
    uploads = [
        answer.upload.values
        for answer in map(Answer.from_bytes, transport.released["lisbon"])
        if answer.stage == "bound"
    ]
    assert len(uploads) == 2
    assert np.abs(uploads[0] - uploads[1]).max() > 0  # noise of its own
    over = [event for event in events if event.done]
    assert [event.lost for event in over] == [True, False, False, False, False]
    assert [event.number for event in over] == [1, 1, 2, 3, 4]
    assert over[0].answered == ("lisbon",)
    assert "spent" in over[0].refused["berlin"]


def test_a_stage_of_many_rounds_goes_on_without_the_lost_one(tmp_path):
    agreement = agreed(min_answers=2)
    transport = crashing(agreement, tmp_path, [("lloyd", 2)])
    result = transport.coordinator().run()
    assert told(result.record) == [
        ("bound", 1, 3, False),
        ("lloyd", 1, 3, False),
        ("lloyd", 2, 0, True),
        ("lloyd", 3, 3, False),
    ]
    assert result.record.rounds[2].moved is None
    assert check_ledgers(transport) == {site: {"bound": 1, "lloyd": 3} for site in SIZES}


@pytest.mark.parametrize(
    ("method", "more", "lost"),
    [
        ("dp-lloyd", {}, {("bound", 1), ("lloyd", 1), ("lloyd", 3)}),
        ("dp-fedc", FEDC, {("mean", 1), ("subspace", 1), ("factorisation", 2), ("centres", 1)}),
        ("dp-fedc", {"n_rounds": 1, "sites_per_round": 2}, {("factorisation", 1), ("scale", 1)}),
        ("dp-fedc", {"refine_rounds": 4, "norm_bound": 14.0}, {("centres", 1), ("centres", 4)}),
        ("dp-fedc", {"cells": 6, "refine_rounds": 1}, {("cells", 1), ("centres", 1)}),
    ],
)
def test_deployed_and_simulated_runs_lose_rounds_alike(tmp_path, method, more, lost):
    agreement = agreed(method, settings=more, min_answers=2)
    transport = crashing(agreement, tmp_path, lost, sites=SIZES)
    found = transport.coordinator().run()
    last = end_of(agreement, losing(agreement, records(), IDS, lost))
    assert {(entry.stage, entry.t) for entry in last.rounds if entry.lost} == lost
    expected = centers_of(agreement, last.state)
    np.testing.assert_allclose(found.model.cluster_centers, expected, rtol=0, atol=1e-6)
    assert told(found.record) == [(r.stage, r.t, r.n_sites, r.lost) for r in last.rounds]
    assert compared(found.record, recorded_plan(found.record)).agrees
    check_ledgers(transport)


@pytest.mark.parametrize(
    "chosen",
    [
        {"n_rounds": 1, "refine_rounds": 0},
        {"n_rounds": 6, "refine_rounds": 1},
        {"refine_rounds": 1, "cells": 6},
    ],
)
def test_the_spare_round_does_what_the_lost_one_would_have_done(tmp_path, monkeypatch, chosen):
    """Without noise, a run that used all its spare rounds is that of one that lost nothing."""
    monkeypatch.setattr(SimulatedNoise, "gaussian", lambda self, shape, std, **_: np.zeros(shape))
    agreement = agreed("dp-fedc", settings=chosen, min_answers=2)
    lost = {(name, 1) for name, spare in agreement.plan.spare_rounds.items() if spare}
    assert ("centres", 1) in lost
    whole = crashing(agreement, tmp_path / "whole", ()).coordinator().run()
    with_spares = crashing(agreement, tmp_path / "lost", lost).coordinator().run()
    np.testing.assert_array_equal(with_spares.model.cluster_centers, whole.model.cluster_centers)


def test_a_stage_that_lost_all_its_rounds_ends_the_run_for_good(tmp_path):
    agreement = agreed(min_answers=2)
    transport = crashing(agreement, tmp_path, [("bound", 1), ("bound", 2)])
    for _ in range(2):
        with pytest.raises(StageLost, match=r"stage 'bound' must have a round .* all 2 were lost"):
            transport.coordinator().run()
        assert len(transport.sent) == 2  # the second time nobody is asked
    assert check_ledgers(transport) == {site: {"bound": 2} for site in SIZES}
    many = crashing(agreement, tmp_path / "many", [("lloyd", t) for t in (1, 2, 3)])
    with pytest.raises(StageLost, match="all 3 were lost"):
        many.coordinator().run()


def test_a_run_does_without_its_quality_if_all_rounds_of_it_are_lost(tmp_path):
    """Nothing depends on it: what was found and paid for is not thrown away."""
    chosen = {"quality": True, "n_rounds": 1, "refine_rounds": 0}
    agreement = agreed("dp-fedc", settings=chosen, min_answers=2)
    transport = crashing(agreement, tmp_path, [("quality", 1), ("quality", 2)])
    done = transport.coordinator().run()
    assert done.model.quality is None
    assert done.model.centers is not None
    assert {counts["quality"] for counts in check_ledgers(transport).values()} == {2}


def test_a_silent_site_may_yet_answer_so_nothing_is_lost(tmp_path):
    agreement = agreed(min_answers=2)
    transport = crashing(agreement, tmp_path, [("bound", 1)], sites=["berlin"])
    transport.faults = {("geneva", 1): None}
    with pytest.raises(TooFewAnswers, match="can be resumed"):
        transport.coordinator().run()
    result = transport.coordinator().run()
    assert transport.sent[0] == transport.sent[1]
    assert told(result.record)[0] == ("bound", 1, 2, False)


def test_refusals_that_are_not_for_good_do_not_lose_a_round(tmp_path):
    agreement = agreed(min_answers=2)
    transport = crashing(agreement, tmp_path, ())
    transport.faults = {(site, 1): Refusal("busy") for site in SIZES}
    with pytest.raises(TooFewAnswers):
        transport.coordinator().run()
    assert not any(entry.lost for entry in transport.coordinator().run().record.rounds)


class Left(CrashingSites):
    """Sites of which lisbon refuses every round."""

    refusal = None

    def _served(self, site, request):
        return self.refusal if site == "lisbon" else super()._served(site, request)


CANCELLED = Refusal("run 123 was cancelled here", for_good=True, of_run=True)
UNDECIDED = Refusal("run 123 has not been accepted here")


@pytest.mark.parametrize(("refusal", "stops"), [(CANCELLED, 0), (UNDECIDED, 1), (None, 1)])
def test_a_site_that_left_and_one_that_crashed_do_not_hold_up_the_run(tmp_path, refusal, stops):
    """Silent or undecided sites are waited for until the operator resumes the run."""
    agreement = agreed(min_answers=2)
    transport = Left(agreement, tmp_path, crashes={("geneva", "lloyd", 2)})
    transport.refusal = refusal
    for _ in range(stops):
        with pytest.raises(TooFewAnswers, match="goes on without this round if the others still"):
            transport.coordinator().run()
    result = transport.coordinator().run()
    assert told(result.record) == [
        ("bound", 1, 2, False),
        ("lloyd", 1, 2, False),
        ("lloyd", 2, 0, True),
        ("lloyd", 3, 2, False),
    ]
    charged = check_ledgers(transport)
    assert charged["berlin"] == charged["geneva"] == {"bound": 1, "lloyd": 3}


@pytest.mark.parametrize("reply", [None, UNDECIDED])
def test_a_round_that_nobody_has_spent_waits_however_often_it_is_resumed(tmp_path, reply):
    transport = MemoryTransport(agreed(min_answers=2), tmp_path)
    transport.faults = {(site, n): reply for site in TWO for n in (1, 2, 3)}
    for _ in range(3):
        with pytest.raises(TooFewAnswers, match=r"can be resumed \(dpfedc run resume\)$"):
            transport.coordinator().run()
    assert len(set(map(str, transport.sent))) == 1
    assert not any(entry.lost for entry in transport.coordinator().run().record.rounds)


def test_a_run_that_is_closed_at_too_many_sites_costs_the_others_nothing_more(tmp_path):
    transport = MemoryTransport(agreed(min_answers=2), tmp_path)
    transport.faults = {(site, n): CANCELLED for site in TWO for n in (2, 3)}
    for _ in range(2):
        with pytest.raises(TooFewAnswers, match="closed at too many sites to go on"):
            transport.coordinator().run()
    assert check_ledgers(transport)["lisbon"] == {"bound": 1, "lloyd": 1}


def test_a_round_whose_sites_have_left_is_skipped_if_others_are_enough(tmp_path):
    """Nobody has spent it; but of the two that it asks one never answers."""
    agreement = agreed("dp-fedc", settings={"n_rounds": 6, "sites_per_round": 2}, min_answers=2)
    transport = Left(agreement, tmp_path)
    transport.refusal = CANCELLED
    found = transport.coordinator().run().record.rounds
    assert {entry.lost for entry in found} == {True, False}
    hopeless = ["lisbon" in sent and len(sent) == 2 for sent in transport.sent]
    assert [entry.lost for entry in found] == hopeless


LOST = [("bound", 1), ("lloyd", 2)]
N_ACTIONS = 1 + 3 * 5
"""A checkpoint at the start; in each of five rounds requests, an exchange, and a checkpoint."""


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory):
    """Return the result of a run that lost two rounds, under a coordinator that never died."""
    return crashing(agreed(min_answers=2), tmp_path_factory.mktemp("run"), LOST).coordinator().run()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", range(1, N_ACTIONS + 1))
def test_a_coordinator_that_dies_in_a_skip_or_a_spare_goes_on_the_same(
    tmp_path, monkeypatch, disturbed, n, after
):
    transport, deaths = crashing(agreed(min_answers=2), tmp_path, LOST), Deaths(n, after=after)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", deaths.around(checkpoint.write_whole))
        patch.setattr(transport, "exchange", deaths.around(transport.exchange))
        with pytest.raises(Crashed):
            transport.coordinator().run()
    result = transport.coordinator().run()
    np.testing.assert_array_equal(result.model.cluster_centers, disturbed.model.cluster_centers)
    assert told(result.record) == told(disturbed.record)
    check_ledgers(transport)


PLACES = [(site, stage, t) for site in SIZES for stage, n in (("bound", 2), ("lloyd", 3))
          for t in range(1, n + 1)]  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(crashes=st.sets(st.sampled_from(PLACES)), least=st.integers(1, 3))
def test_whatever_crashes_no_site_releases_more_than_planned(tmp_path_factory, crashes, least):
    agreement = agreed(min_answers=least)
    transport = CrashingSites(agreement, tmp_path_factory.mktemp("run"), crashes=crashes)
    try:
        result = transport.coordinator().run()
    except StageLost:
        result = None
    check_ledgers(transport)
    if result is not None:
        for entry in result.record.rounds:
            gone = sum((site, entry.stage, entry.t) in crashes for site in SIZES)
            assert entry.n_sites == (0 if len(SIZES) - gone < least else len(SIZES) - gone)
            assert entry.lost == (entry.n_sites == 0)


def test_a_third_attempt_is_refused_at_the_site(tmp_path):
    agreement = agreed(min_answers=2)
    transport = crashing(agreement, tmp_path, [("bound", 1), ("bound", 2)])
    with pytest.raises(StageLost):
        transport.coordinator().run()
    sent = Request.from_bytes(transport.sent[-1]["berlin"])
    third = Request(sent.run, sent.site, "bound", 3, sent.arrays, sent.receipt).to_bytes()
    with transport.ledger("berlin") as ledger:
        with pytest.raises(Refused, match="t must be"):
            node(agreement, "berlin", ledger).answer(third)
        plan = agreement.privacy
        z = plan.of_stage("bound").noise_multiplier
        with pytest.raises(Refused, match="planned for 2 releases of a site, got one more"):
            ledger.charge(agreement.digest, plan, "bound", 3, "r", noise_multiplier=z)


def test_a_site_says_by_the_first_byte_that_a_round_is_spent(tmp_path, monkeypatch):
    """What it says depends on the ledger alone: other records, the same bytes."""
    replies = []
    for name, X in (("one", None), ("other", by_site()["berlin"] * 1e9)):
        (tmp_path / name).mkdir()
        folder = site_folder(tmp_path / name, "berlin", X=X)
        agreement = agreement_with([folder])
        folder.keep(agreement)
        folder.accept(agreement.digest)
        service = SiteService(folder, allow_simulated=True)
        arrays = {"origin": np.zeros(3)}
        request = Request(agreement.digest, "berlin", "bound", 1, arrays).to_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                service.reply(request)
        service.close()
        again = SiteService(folder, allow_simulated=True)
        replies.append(again.reply(request))
        again.close()
    assert replies[0] == replies[1]
    assert replies[0][:1] == b"\x02"
    refusal = control.opened(replies[0])
    assert refusal.for_good
    assert "spent" in refusal.reason
    for plain in (Refusal("busy"), CANCELLED, refusal):
        assert control.opened(control.refused(plain)) == plain


def test_work_that_failed_after_its_charge_is_spent(tmp_path, monkeypatch):
    agreement = agreed()
    new_ledger(tmp_path, "berlin")
    request = Request(agreement.digest, "berlin", "bound", 1, {"origin": np.zeros(3)}).to_bytes()
    with Ledger.open(tmp_path / "berlin.ledger") as ledger:
        site = node(agreement, "berlin", ledger)
        with monkeypatch.context() as patch:
            patch.setattr("dpfedc.deployment.site_run.contributed", lambda *_: 1 / 0)
            with pytest.raises(RoundSpent, match="stays charged"):
                site.answer(request)
        with pytest.raises(RoundSpent, match="is spent"):
            site.answer(request)


PLAN = """
[run]
name = "study"
coordinator = "university"
method = "dp-lloyd"
clusters = 3
features = ["age", "weight", "height"]
[privacy]
epsilon = 50.0
delta = 1e-4
[rounds]
rounds = 3
"""


def test_a_plan_says_whether_there_are_spare_rounds_and_the_terms_do():
    standard = agreed()

    def planned(more):
        return proposed_by_toml(PLAN + more, sites=standard.sites, receipt_key=standard.receipt_key)

    spare, none = planned(""), planned("spare_rounds = 0\n")
    assert [r.spare_rounds for r in spare.privacy.releases] == [1, 0]
    assert [r.spare_rounds for r in none.privacy.releases] == [0, 0]
    assert spare.digest == planned("spare_rounds = 1\n").digest != none.digest
    said, unsaid = "\n".join(terms(spare)), "\n".join(terms(none))
    assert "and one more in a stage of one round if that is lost; all are paid for" in said
    assert "once, and once more if that round is lost" in said
    assert "lost" not in unsaid
    with pytest.raises(InvalidInput, match="spare_rounds must be"):
        planned("spare_rounds = 2\n")


def test_without_a_spare_round_a_lost_stage_of_one_ends_the_run(tmp_path):
    agreement = agreed(min_answers=2, spare_rounds=0)
    transport = crashing(agreement, tmp_path, [("bound", 1)])
    with pytest.raises(StageLost, match="all 1 were lost"):
        transport.coordinator().run()


def test_the_report_says_what_was_lost(tmp_path):
    transport = crashing(agreed(min_answers=2), tmp_path, [("bound", 1), ("lloyd", 3)])
    result = transport.coordinator().run()
    record = RunRecord.read(tmp_path / "run" / "run.jsonl")
    assert record.rounds == result.record.rounds
    text = " ".join(summary_sentences(record, result.model))
    assert "It took 5 rounds, of which 2 were lost (too few answers)" in text
    assert [row[1] for row in stage_rows(record)] == ["1 + 1 spare", "3"]
