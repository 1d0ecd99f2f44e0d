"""The coordinator against the simulator, and what it makes of missing and wrong answers."""

from dataclasses import replace

import numpy as np
import pytest

from dpfedc.clustering.centers import Centers
from dpfedc.deployment.checkpoint import Checkpoint
from dpfedc.deployment.coordinator import Coordinator
from dpfedc.deployment.heads import KeptHeads
from dpfedc.deployment.keys import is_signed, new_key
from dpfedc.deployment.messages import Answer, Refusal, Request, packed, unpacked
from dpfedc.deployment.round_calls import TooFewAnswers
from dpfedc.engine.rounds import Position
from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.accountant import plan_epsilon
from dpfedc.privacy.exact_sums import Upload
from dpfedc.privacy.gate import ReleaseEvent, received
from dpfedc.privacy.noise import SIMULATED
from support.deployment import SIZES, MemoryTransport, agreed, by_site, in_one_process


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dp-lloyd", {}),
        ("federated-k-means", {"norm_bound": 12.0, "init": (9 * np.eye(3)).tolist()}),
        ("dp-fedc", {}),
        ("dp-fedc", {"scale": "columns"}),
        ("dp-fedc", {"n_rounds": 7, "sites_per_round": 2, "refine_rounds": 0}),
        ("dp-fedc", {"subspace": 2, "refine_rounds": 0, "update": "sums-and-gram"}),
        ("dp-fedc", {"feature_ranges": [[-5, 14]] * 3, "refine_rounds": 1}),
        ("dp-fedc", {"center": False, "norm_bound": 14.0, "constant_feature": 0.5}),
    ],
)
def test_separate_sites_find_what_the_simulator_finds(tmp_path, method, settings):
    agreement = agreed(method, settings=settings)
    result = MemoryTransport(agreement, tmp_path).coordinator().run()
    expected = in_one_process(agreement, by_site().values())
    np.testing.assert_allclose(
        result.model.cluster_centers, expected.cluster_centers, rtol=0, atol=1e-6
    )
    np.testing.assert_allclose(result.model.directions, expected.directions, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"refine_rounds": 0}, {"cells": 6, "n_prototypes": 6, "shape": "any"}]
)
def test_separate_sites_find_the_quality_that_the_simulator_finds(tmp_path, settings):
    agreement = agreed("dp-fedc", settings={**settings, "quality": True})
    result = MemoryTransport(agreement, tmp_path).coordinator().run()
    expected = in_one_process(agreement, by_site().values()).quality
    found = result.model.quality
    np.testing.assert_allclose(
        [(one.size.value, one.silhouette.value) for one in found.clusters],
        [(one.size.value, one.silhouette.value) for one in expected.clusters],
        atol=1e-6,
    )
    assert result.record.results["quality"] == found.as_plain()


def test_the_quality_of_exact_sums_with_secure_noise_is_within_its_bars(tmp_path):
    settings = {"quality": True, "norm_bound": 20.0, "cells": 6}
    agreement = agreed("dp-fedc", noise="secure", epsilon=200.0, settings=settings)
    model = MemoryTransport(agreement, tmp_path).coordinator().run().model
    X = np.concatenate(list(by_site().values()))
    sizes = np.bincount(model.labels(X), minlength=3)
    for one, size in zip(model.quality.clusters, sizes, strict=True):
        assert one.size.error > 0
        assert abs(one.size.value - size) <= 6 * one.size.error


def test_sampled_records_are_those_of_the_simulator(tmp_path):
    agreement = agreed(
        "dp-fedc", epsilon=4.0, settings={"sampling_probability": 0.5, "norm_bound": 12.0}
    )
    result = MemoryTransport(agreement, tmp_path).coordinator().run()
    expected = in_one_process(agreement, by_site().values())
    np.testing.assert_allclose(result.model.directions, expected.directions, rtol=0, atol=1e-6)


def test_secure_noise_finds_the_clusters(tmp_path):
    agreement = agreed(noise="secure", epsilon=100.0, settings={"n_rounds": 4})
    result = MemoryTransport(agreement, tmp_path).coordinator().run()
    truth = np.array([[0, 0, 0], [9, 0, 1], [0, 9, 2]])
    found = result.model.cluster_centers
    assert np.linalg.norm(found[:, None] - truth, axis=2).min(axis=0).max() < 1.0
    assert result.privacy.stamp is None
    assert result.record.stamps == ()


def test_results_are_written_with_their_promise(tmp_path):
    agreement = agreed("dp-fedc")
    result = MemoryTransport(agreement, tmp_path).coordinator().run()
    model = ClusterModel.read(tmp_path / "run" / "model.npz")
    record = RunRecord.read(tmp_path / "run" / "run.jsonl")
    np.testing.assert_array_equal(model.cluster_centers, result.model.cluster_centers)
    assert model.feature_names == agreement.features
    assert record.stamps == (SIMULATED,)
    assert model.about["stamps"] == [SIMULATED]
    assert record.results["privacy"]["epsilon"] == plan_epsilon(agreement.privacy)
    assert record.settings["run"] == agreement.digest
    assert len(record.rounds) == agreement.plan.n_rounds
    for entry in record.rounds:
        planned = agreement.privacy.of_stage(entry.stage)
        ratio = entry.release["noise_std"] / entry.release["sensitivity"]
        assert ratio == pytest.approx(planned.noise_multiplier * entry.n_sites**0.5)


def test_progress_is_told_round_by_round(tmp_path):
    agreement = agreed()
    transport = MemoryTransport(agreement, tmp_path)
    transport.faults = {("berlin", 2): None, ("geneva", 2): Refusal("over the cap")}
    events = []
    transport.coordinator(on_event=events.append).run()
    assert [event.number for event in events] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [event.done for event in events] == [False, True] * 4
    assert [event.stage for event in events[::2]] == ["bound", "lloyd", "lloyd", "lloyd"]
    second = events[3]
    assert second.asked == tuple(SIZES)
    assert second.answered == ("lisbon",)
    assert second.refused == {"geneva": "over the cap"}
    assert second.silent == ("berlin",)
    assert (second.t, second.n_rounds, second.total) == (1, 3, 4)


def test_sums_of_fewer_sites_are_divided_by_their_own_records(tmp_path):
    """A site that never answers is as if it had no records, for every stage's mean."""
    agreement = agreed("dp-fedc", epsilon=500.0, settings={"n_rounds": 2, "refine_rounds": 2})
    transport = MemoryTransport(agreement, tmp_path)
    n_rounds = agreement.plan.n_rounds
    transport.faults = {("berlin", i): None for i in range(1, n_rounds + 1)}
    result = transport.coordinator().run()
    X = np.concatenate([by_site()["geneva"], by_site()["lisbon"]])
    np.testing.assert_allclose(result.model.center, X.mean(axis=0), atol=0.1)
    spread = np.linalg.norm(X - X.mean(axis=0), axis=1).mean()
    assert result.model.scale == pytest.approx(1.3 * spread, rel=0.02)
    assert {entry.n_records for entry in result.record.rounds} == {180}


def test_a_round_with_fewer_records_is_not_the_best_for_that():
    """Costs are compared per record: half the records cost half as much, and are no better."""
    stage = Centers(1, n_rounds=3, refine=True, bounded=True)
    state = {
        "centers": np.zeros((1, 1)),
        "best_centers": np.full((1, 1), 0.5),
        "best_cost": np.asarray(10.0),
        "best_records": np.asarray(100.0),
        "directions": np.ones((3, 1, 1)),
    }

    def after(cost, n):
        values = np.array([[0.0, n, cost]]) * [1, 0.5, 0.5]
        event = ReleaseEvent("centres", 2, n_sites=1, n_records=n)
        return stage.combine(state, received([Upload(values)], event), 2)

    assert float(after(8.0, 50)["best_cost"]) == 10.0
    assert float(after(4.0, 50)["best_cost"]) == 4.0
    assert float(after(4.0, 50)["best_records"]) == 50.0
    assert float(after(9.0, 100)["best_cost"]) == 9.0


def test_too_few_answers_end_the_run_which_can_go_on(tmp_path):
    agreement = agreed(min_answers=2)
    whole = MemoryTransport(agreement, _folder(tmp_path, "whole")).coordinator().run()
    transport = MemoryTransport(agreement, _folder(tmp_path, "broken"))
    transport.faults = {("berlin", 3): None, ("geneva", 3): Refusal("busy")}
    with pytest.raises(TooFewAnswers, match="round 2 of stage 'lloyd' must have 2 answers, got 1"):
        transport.coordinator().run()
    again = transport.coordinator().run()
    np.testing.assert_array_equal(again.model.cluster_centers, whole.model.cluster_centers)
    assert transport.sent[2] == transport.sent[3]


def test_receipts_follow_what_sites_have_sent(tmp_path):
    agreement = agreed()
    transport = MemoryTransport(agreement, tmp_path)
    transport.faults = {("berlin", 2): None}
    transport.coordinator().run()
    rounds = [
        {site: Request.from_bytes(data) for site, data in sent.items()} for sent in transport.sent
    ]
    assert all(request.receipt is None for request in rounds[0].values())
    for requests in rounds[1:]:
        for site, request in requests.items():
            assert is_signed(request.receipt, agreement.receipt_key, agreement.digest, site)
    rows = [requests["geneva"].receipt.head.n_rows for requests in rounds[1:]]
    assert rows == sorted(set(rows))
    assert rounds[1]["berlin"].receipt == rounds[2]["berlin"].receipt


def _folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


def altered(**changes):
    """Return a fault: the answer with other fields."""

    def fault(made):
        return replace(Answer.from_bytes(made()), **changes).to_bytes()

    return fault


def with_head(**changes):
    """Return a fault: the answer with a head that no site writes."""

    def fault(made):
        head, arrays = unpacked(made())
        return packed({**head, **changes}, arrays)

    return fault


@pytest.mark.parametrize(
    "fault",
    [
        b"",
        with_head(symmetric=[[1], [1, 2]]),
        with_head(symmetric=None),
        b"garbage",
        lambda made: made()[:-3],
        altered(t=2),
        altered(stage="bound"),
        altered(site="geneva"),
        altered(run="00" * 32),
        altered(request="00" * 32),
        altered(upload=Upload(np.full((3, 4), np.nan))),
        altered(upload=Upload(np.full((3, 4), np.inf))),
        altered(upload=Upload(np.zeros((3, 5)))),
        altered(upload=Upload(np.zeros((3, 4)), 2.0)),
        altered(upload=Upload(np.zeros((3, 4), np.uint64), 1.0)),
        altered(upload=Upload(np.zeros((300, 400)))),
    ],
)
def test_a_wrong_answer_is_left_out_and_the_run_goes_on(tmp_path, fault):
    """It is as if the site had been silent in that round."""
    agreement = agreed()
    silent = MemoryTransport(agreement, _folder(tmp_path, "silent"), {("berlin", 2): None})
    wrong = MemoryTransport(agreement, _folder(tmp_path, "wrong"), {("berlin", 2): fault})
    events = []
    expected = silent.coordinator().run().model.cluster_centers
    found = wrong.coordinator(on_event=events.append).run().model.cluster_centers
    np.testing.assert_array_equal(found, expected)
    assert "berlin" in events[3].refused


def test_answers_nobody_asked_for_are_ignored(tmp_path):
    agreement = agreed(settings={"sites_per_round": 2, "n_rounds": 3})
    plain = MemoryTransport(agreement, _folder(tmp_path, "plain")).coordinator().run()

    class Chatty(MemoryTransport):
        def exchange(self, requests, deadline_s):
            replies = super().exchange(requests, deadline_s)
            first = next(iter(replies.values()))
            return {**{site: first for site in SIZES if site not in requests}, "rome": first,
                    **replies}  # fmt: skip

    chatty = Chatty(agreement, _folder(tmp_path, "chatty")).coordinator().run()
    np.testing.assert_array_equal(chatty.model.cluster_centers, plain.model.cluster_centers)


def test_the_key_and_the_folder_must_be_the_run_s_own(tmp_path):
    agreement = agreed()
    transport = MemoryTransport(agreement, tmp_path)
    transport.coordinator().run()
    other = MemoryTransport(agreed(seed=8), tmp_path)
    with pytest.raises(InvalidInput, match="must be a new folder"):
        other.coordinator().run()
    assert not other.sent
    with pytest.raises(InvalidInput, match="key must belong"):
        Coordinator(agreement, transport, tmp_path / "x", key=new_key(), heads=KeptHeads(tmp_path))


def test_a_finished_run_asks_nobody_again(tmp_path):
    agreement = agreed()
    transport = MemoryTransport(agreement, tmp_path)
    first = transport.coordinator().run()
    n_sent = len(transport.sent)
    again = transport.coordinator().run()
    assert len(transport.sent) == n_sent
    np.testing.assert_array_equal(again.model.cluster_centers, first.model.cluster_centers)


def test_a_bound_that_was_not_found_ends_the_run_however_often_it_is_tried(tmp_path):
    """Sites send what they sent before: there is no second noise, and no second charge."""
    agreement = agreed("dp-lloyd", epsilon=20.0)
    assert not agreement.plan.hopeless(agreement.facts)
    rng = np.random.default_rng(0)
    X = {name: x * 2.0 ** rng.uniform(-30, 30, (len(x), 1)) for name, x in by_site().items()}
    transport = MemoryTransport(agreement, tmp_path, X=X)
    for _ in range(2):
        with pytest.raises(NotFound, match="the length of the longest records was not found"):
            transport.coordinator().run()
        assert [len(sent) for sent in transport.released.values()] == [1, 1, 1]
        for site in SIZES:
            with transport.ledger(site) as ledger:
                assert [(s.stage, s.n_charged) for s in ledger.totals().stages] == [("bound", 1)]
    assert not (tmp_path / "run" / "model.npz").exists()


def test_a_state_of_many_arrays_is_taken_up_again(tmp_path):
    """A table's state has more arrays than any message: the run that is over sends its model."""
    state = {f"array {i}": np.full(i, 1.5) for i in range(40)}
    Checkpoint("ab" * 32, Position(3, 0, state)).save(tmp_path)
    kept = Checkpoint.load(tmp_path, "ab" * 32)
    assert kept.position.stage == 3
    assert kept.position.state.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(kept.position.state[name], values)
