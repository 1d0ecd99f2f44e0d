"""Deaths and lies at every point of a run: nothing is released twice, and no ledger is short.

A coordinator that dies and starts again must end with the model of a run that was never disturbed,
and every answer that ever left a site must have been charged there.
"""

import numpy as np
import pytest

from dpfedc.deployment import checkpoint, coordinator
from dpfedc.deployment.messages import Answer, Refusal, Request
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.engine.rounds import StageLost
from dpfedc.privacy.accountant import gaussian_epsilon
from dpfedc.privacy.ledger import GaussianCap, Ledger
from support.deployment import SIZES, MemoryTransport, agreed, new_ledger
from support.lost_rounds import Crashed, Deaths

N_ROUNDS = 4
"""Of the agreement used here: one for the bound, three of Lloyd."""
N_ACTIONS = 1 + 3 * N_ROUNDS
"""A checkpoint at the start; in each round requests, an exchange, and a checkpoint."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the centres of a run that nothing disturbed."""
    transport = MemoryTransport(agreed(), tmp_path_factory.mktemp("whole"))
    return transport.coordinator().run().model.cluster_centers


def check_ledgers(transport, *, lost=()):
    """Every ledger is whole, and what left a site is no more than what was charged there."""
    for site in SIZES:
        with transport.ledger(site) as ledger:
            ledger.verify()
            stages = ledger.totals().stages
            n_charged = sum(stage.n_charged for stage in stages)
            n_answered = sum(stage.n_answered for stage in stages)
        released = transport.released.get(site, set())
        assert len(released) <= n_answered <= n_charged <= N_ROUNDS
        rounds = {(a.stage, a.t) for a in map(Answer.from_bytes, released)}
        assert len(rounds) == len(released)  # no round was answered in two ways
        assert n_charged - n_answered == (site in lost)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("n", range(1, N_ACTIONS + 1))
def test_a_coordinator_that_dies_anywhere_ends_as_if_it_had_not(
    tmp_path, monkeypatch, whole, n, after
):
    transport = MemoryTransport(agreed(), tmp_path)
    deaths = Deaths(n, after=after)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", deaths.around(checkpoint.write_whole))
        patch.setattr(transport, "exchange", deaths.around(transport.exchange))
        with pytest.raises(Crashed):
            transport.coordinator().run()
    result = transport.coordinator().run()
    np.testing.assert_array_equal(result.model.cluster_centers, whole)
    assert len(result.record.rounds) == N_ROUNDS
    check_ledgers(transport)
    assert all(len(transport.released[site]) == N_ROUNDS for site in SIZES)
    requests = {}
    for sent in transport.sent:  # whenever a round was sent again, it was the very same bytes
        for site, data in sent.items():
            request = Request.from_bytes(data)
            assert requests.setdefault((site, request.stage, request.t), data) == data


def test_there_are_as_many_points_to_die_at_as_tested(tmp_path, monkeypatch):
    transport = MemoryTransport(agreed(), tmp_path)
    deaths = Deaths(0, after=False)
    monkeypatch.setattr(checkpoint, "write_whole", deaths.around(checkpoint.write_whole))
    monkeypatch.setattr(transport, "exchange", deaths.around(transport.exchange))
    transport.coordinator().run()
    assert deaths.done == N_ACTIONS


def test_secure_noise_is_drawn_once_however_often_the_coordinator_dies(tmp_path, monkeypatch):
    transport = MemoryTransport(agreed(noise="secure"), tmp_path)
    for n in (3, 3, 3, 3, 3):
        deaths = Deaths(n, after=True)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_whole", deaths.around(checkpoint.write_whole))
            patch.setattr(transport, "exchange", deaths.around(transport.exchange))
            try:
                transport.coordinator().run()
            except Crashed:
                continue
            break
    transport.coordinator().run()
    check_ledgers(transport)
    assert len(transport.sent) > N_ROUNDS


def test_requests_are_sent_again_as_they_were_written(tmp_path, monkeypatch):
    """Also by code that would write them in another way."""
    transport = MemoryTransport(agreed(), tmp_path)
    deaths = Deaths(2, after=True)
    with monkeypatch.context() as patch:
        patch.setattr(transport, "exchange", deaths.around(transport.exchange))
        with pytest.raises(Crashed):
            transport.coordinator().run()
    monkeypatch.setattr(coordinator, "signed", lambda *args: None)
    transport.coordinator().run()
    assert transport.sent[2] == transport.sent[1]
    assert Request.from_bytes(transport.sent[3]["berlin"]).receipt is None
    check_ledgers(transport)


def test_half_a_write_leaves_the_checkpoint_before(tmp_path, whole, monkeypatch):
    """The disk fills up, or power fails, in the middle of a file."""
    transport = MemoryTransport(agreed(), tmp_path)
    count = 0

    def torn(path, content):
        nonlocal count
        count += 1
        if count == 7:
            path.with_name(f".{path.name}.draft").write_bytes(content[: len(content) // 2])
            raise Crashed
        original(path, content)

    original = checkpoint.write_whole
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_whole", torn)
        with pytest.raises(Crashed):
            transport.coordinator().run()
    result = transport.coordinator().run()
    np.testing.assert_array_equal(result.model.cluster_centers, whole)


@pytest.mark.parametrize("exchange", range(1, N_ROUNDS + 1))
def test_a_site_that_dies_before_it_settles_has_spent_the_round(tmp_path, monkeypatch, exchange):
    """Charged, perhaps computed, never stored: the round is lost and is not computed again."""

    def dies(made):
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "settle", Deaths(1, after=False).around(Ledger.settle))
            with pytest.raises(Crashed):
                made()
        return made()  # a new process gets the same request again

    transport = MemoryTransport(agreed(), tmp_path, {("geneva", exchange): dies})
    events = []
    transport.coordinator(on_event=events.append).run()
    over = [event for event in events if event.done]
    assert "spent" in over[exchange - 1].refused["geneva"]
    assert all(len(event.answered) == 3 for i, event in enumerate(over, 1) if i != exchange)
    check_ledgers(transport, lost=("geneva",))


def test_a_site_that_dies_before_it_sends_has_its_answer_in_store(tmp_path, whole):
    """The answer is lost on the way; the coordinator, started again, gets the stored bytes."""
    agreement = agreed()
    made_once = []

    def lost(made):
        made_once.append(made())

    transport = MemoryTransport(agreement, tmp_path, {("geneva", 2): lost})
    died = Deaths(2, after=True)
    transport.exchange, exchange = died.around(transport.exchange), transport.exchange
    with pytest.raises(Crashed):
        transport.coordinator().run()
    transport.exchange = exchange
    result = transport.coordinator().run()
    np.testing.assert_array_equal(result.model.cluster_centers, whole)
    assert made_once[0] in transport.released["geneva"]
    check_ledgers(transport)


def test_a_site_that_never_answers_does_not_stop_the_others(tmp_path):
    faults = {("geneva", i): None for i in range(1, N_ROUNDS + 1)}
    transport = MemoryTransport(agreed(), tmp_path, faults)
    result = transport.coordinator().run()
    assert [entry.n_sites for entry in result.record.rounds] == [2] * N_ROUNDS
    assert {entry.n_records for entry in result.record.rounds} == {220}
    check_ledgers(transport)
    with transport.ledger("geneva") as ledger:
        assert ledger.totals().stages == ()


def test_late_and_doubled_answers_are_ignored(tmp_path):
    """An answer that comes a round late is none; the run is that of a silent site."""
    late = []

    def keep(made):
        late.append(made())

    kept = MemoryTransport(agreed(), _folder(tmp_path, "late"))
    kept.faults = {("geneva", 2): keep, ("geneva", 3): lambda made: late[0]}
    silent = MemoryTransport(agreed(), _folder(tmp_path, "silent"))
    silent.faults = {("geneva", 2): None, ("geneva", 3): None}
    events = []
    found = kept.coordinator(on_event=events.append).run().model.cluster_centers
    expected = silent.coordinator().run().model.cluster_centers
    np.testing.assert_array_equal(found, expected)
    assert "another request" in events[5].refused["geneva"]
    check_ledgers(kept)


def test_a_site_over_its_cap_refuses_and_the_rest_goes_on(tmp_path):
    agreement = agreed()
    bound = agreement.privacy.of_stage("bound")
    lloyd = agreement.privacy.of_stage("lloyd")
    spent = bound.noise_multiplier**-2 + 1.5 * lloyd.noise_multiplier**-2
    new_ledger(tmp_path, "geneva", cap=GaussianCap(gaussian_epsilon(spent**0.5, 1e-3), 1e-3))
    transport = MemoryTransport(agreement, tmp_path)
    result = transport.coordinator().run()
    assert [entry.n_sites for entry in result.record.rounds] == [3, 3, 2, 2]
    assert len(transport.released["geneva"]) == 2
    check_ledgers(transport)


def test_a_restored_ledger_is_found_out_in_the_next_round(tmp_path):
    """The operator puts back yesterday's ledger in the middle of a run."""
    agreement = agreed()
    transport = MemoryTransport(agreement, tmp_path)
    path = tmp_path / "geneva.ledger"
    backup = path.read_bytes()

    def restored(made):
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        path.write_bytes(backup)
        return made()

    transport.faults = {("geneva", 3): restored}
    events = []
    transport.coordinator(on_event=events.append).run()
    over = [event for event in events if event.done]
    assert [("geneva" in event.refused) for event in over] == [False, False, True, True]
    assert "backup" in over[2].refused["geneva"]
    assert len(transport.released["geneva"]) == 2


def test_requests_of_a_changed_agreement_are_refused_by_all(tmp_path):
    """A coordinator that alters the plan after it was accepted gets nothing."""
    accepted, changed = agreed(), agreed(epsilon=60.0)
    sites = MemoryTransport(accepted, _folder(tmp_path, "sites"))

    class Cheating(MemoryTransport):
        def exchange(self, requests, deadline_s):
            return sites.exchange(requests, deadline_s)

    cheating = Cheating(changed, _folder(tmp_path, "cheating"))
    with pytest.raises(TooFewAnswers, match="has not been accepted here"):
        cheating.coordinator().run()
    assert not sites.released
    check_ledgers(sites)


def test_a_coordinator_that_asks_twice_in_other_words_gets_one_answer(tmp_path):
    """Two folders, one agreement: the second run's other requests for a round are refused."""
    agreement = agreed()
    first = MemoryTransport(agreement, tmp_path, {("berlin", 1): None})
    first.coordinator().run()
    second = MemoryTransport(agreement, tmp_path)
    second.released = first.released
    (tmp_path / "run").rename(tmp_path / "old")
    # The receipts are others by now, and so are the requests.
    events = []
    with pytest.raises(StageLost):
        second.coordinator(on_event=events.append).run()
    reasons = [reason for event in events for reason in event.refused.values()]
    assert reasons
    assert all("another request" in reason for reason in reasons)
    check_ledgers(second)


def test_a_refusal_is_told_and_costs_nothing(tmp_path):
    transport = MemoryTransport(agreed(), tmp_path, {("berlin", 1): Refusal("closed today")})
    events = []
    transport.coordinator(on_event=events.append).run()
    assert events[1].refused == {"berlin": "closed today"}
    check_ledgers(transport)


def _folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name
