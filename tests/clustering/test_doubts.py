"""What cannot be found is an error that says what to declare; what looks like noise is doubted."""

import pickle

import numpy as np
import pytest

from dpfedc.clustering.bound import N_BINS, Bound
from dpfedc.clustering.centers import DOUBTFUL_SIZE, Centers, Lengths
from dpfedc.clustering.column_spread import N_BINS as COLUMN_BINS
from dpfedc.clustering.column_spread import ColumnRanges
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.mean_and_scale import MIN_SCALE, Mean, Scale
from dpfedc.clustering.method import OUTSIDE
from dpfedc.clustering.record_cells import Cells
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.residual_lloyd import ResidualLloyd
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.errors import DPFedCError, NotFound
from dpfedc.model_file import ClusterModel
from dpfedc.settings import PrivacyTarget
from dpfedc.tables.layout import Group
from dpfedc.tables.schema import Schema
from support.runs import released

LAYOUT = (
    Group("shares", 0, 2, 1.0),
    Group("number", 2, 1, 1.0, auto=True),
    Group("number", 3, 1, 1.0),
    Group("number", 4, 1, 1.0, auto=True),
)


# --- what was not found ------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0.0, 4.9, 5.0])
def test_a_bound_that_no_bin_shows_is_an_error_and_never_a_guess(most):
    counts = np.full(N_BINS, -2.0)
    counts[83] = most
    with pytest.raises(NotFound, match="no bin of the histogram holds more than 5 records") as lost:
        Bound(5.0).combine({"origin": np.zeros(3)}, released(counts), 1)
    for what in ("schema", "feature_ranges", "norm_bound", "larger epsilon"):
        assert what in str(lost.value)
    assert lost.value.features == ()


def test_noise_alone_is_not_taken_for_a_bound():
    """Once in 10,000 runs at most, as stated: never in 300."""
    stage = Bound().told(3.0, 100)
    rng = np.random.default_rng(0)
    for _ in range(300):
        with pytest.raises(NotFound):
            stage.combine({"origin": np.zeros(3)}, released(3.0 * rng.standard_normal(N_BINS)), 1)


def test_ranges_that_were_not_found_are_named():
    counts = np.zeros((2, COLUMN_BINS))
    counts[0, 400], counts[1, 300] = 50.0, 7.0
    with pytest.raises(NotFound, match=r"a range was not found: no bin .* more than 9") as lost:
        ColumnRanges(LAYOUT, 9.0).combine({}, released(counts), 1)
    assert lost.value.features == (4,)
    assert "Declare it in the schema" in str(lost.value)
    with pytest.raises(NotFound) as lost:
        ColumnRanges(LAYOUT, 60.0).combine({}, released(counts), 1)
    assert lost.value.features == (2, 4)
    names = ("sex F", "sex M", "pulse", "age", "weight")
    named = lost.value.naming(names)
    assert str(named).startswith("pulse, weight: a range was not found")
    assert named.features == (2, 4)
    assert lost.value.naming(None) is lost.value


def test_what_was_not_found_is_one_of_the_package_s_errors_and_can_be_sent():
    error = NotFound("why", [2, 4])
    assert isinstance(error, DPFedCError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.features) == ("why", (2, 4))
    assert NotFound("why").naming(["a"]).features == ()


# --- what is hopeless --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (Bound(75.0), "the length of the longest records cannot be found among 100 records"),
        (ColumnRanges(LAYOUT, 100.0), "the ranges of 2 columns cannot be found among 100 records"),
    ],
)
def test_a_threshold_that_all_records_together_do_not_pass_is_hopeless(stage, told):
    assert stage.hopeless(100).startswith(told)
    assert f"needs more than {stage.min_count:.0f} of them" in stage.hopeless(100)
    assert "Declare" in stage.hopeless(100)
    assert stage.hopeless(101) == ""


def test_most_stages_hope():
    assert Mean().hopeless(1) == Scale().hopeless(1) == Stage.hopeless(Mean(), 1) == ""


@pytest.mark.parametrize("method", ["dp-fedc", "dp-lloyd"])
def test_a_plan_is_hopeless_if_a_stage_of_it_is(method):
    method, facts = method_named(method), Federation(2, np.array([65, 65, 65]))
    target = PrivacyTarget(1.0, 1e-5)
    plan = method.plan({"n_clusters": 3}, facts, target)
    assert "among 195 records" in plan.hopeless(facts)
    assert not method.plan({"n_clusters": 3, "norm_bound": 9.0}, facts, target).hopeless(facts)
    many = Federation(2, np.full(3, 6500))
    assert not method.plan({"n_clusters": 3}, many, target).hopeless(many)
    assert not method.plan({"n_clusters": 3}, facts, None).hopeless(facts)


# --- what is doubted ---------------------------------------------------------------------------


def test_a_scale_at_its_floor_is_doubted():
    state = {"bound": np.asarray(8.0), "data_mean": np.zeros(2)}
    swamped = Scale().combine(state, released(-50.0), 1)
    (doubt,) = Scale().doubts(swamped)
    assert doubt.startswith("the scale of the records is at its floor")
    assert Scale().doubts({**swamped, "scale": np.asarray(MIN_SCALE * 8.0 * 1.01)}) == ()
    assert Scale().doubts(Scale().combine(state, released(40.0), 1)) == ()
    unbounded = Scale().combine({"data_mean": np.zeros(2)}, released(0.0), 1)
    assert Scale().doubts(unbounded) == ()


@pytest.mark.parametrize("stage", [Lengths(3), Centers(3), LloydSums(3, 1)])
def test_sizes_within_their_noise_are_doubted(stage):
    errors = np.full(3, 10.0)
    enough = 10 * DOUBTFUL_SIZE

    def doubts(*sizes):
        return stage.doubts({"sizes": np.array(sizes), "size_errors": errors})

    assert doubts(enough, 400.0, 90.0) == ()
    (doubt,) = doubts(400.0, enough - 0.1, 90.0)
    assert doubt.startswith(
        "cluster 1 holds too few records to stand out from the noise in a count"
    )
    assert "(standard deviation 10)" in doubt
    (doubt,) = doubts(-4.0, 400.0, 0.0)
    assert doubt.startswith("clusters 0 and 2 hold")
    exact = {"sizes": np.array([1.0, 1.0, 0.0]), "size_errors": np.zeros(3)}
    assert stage.doubts(exact) == ()  # without noise a small cluster is small, and no more


def test_sizes_are_doubted_once():
    """Cells are a stage before the centres, and have no say in their sizes."""
    state = {"sizes": np.array([-4.0, 400.0]), "size_errors": np.full(2, 10.0)}
    assert Cells(6, 2).doubts(state) == ()
    assert ResidualLloyd(2, 2, name="refine").doubts(state) == ()
    assert len(ResidualLloyd(2, 1, plain=True).doubts(state)) == 1
    assert len(Centers(2).doubts(state)) == 1


def test_centers_outside_declared_ranges_are_doubted():
    method = method_named("dp-fedc")
    given = {"n_clusters": 2, "feature_ranges": [[0.0, 10.0], [100.0, 300.0]]}

    def doubts(*centers, **more):
        centers = np.array(centers)
        model = ClusterModel(centers, np.zeros(2), None, centers, by_membership=False, **more)
        return method.doubts(given, model)

    edge = 5 * OUTSIDE
    assert doubts([-0.9 * edge, 200.0], [5.0, 300.0]) == ()
    (doubt,) = doubts([-1.1 * edge, 200.0], [5.0, 300.0])
    assert doubt.startswith("centre 0 lies outside the declared ranges")
    (doubt,) = doubts([99.0, 200.0], [5.0, -300.0])
    assert doubt.startswith("centres 0 and 1 lie outside")
    given = {"n_clusters": 2}
    assert doubts([-99.0, 1e9], [5.0, 3.0]) == ()


def test_numbers_of_a_table_outside_their_ranges_are_doubted():
    """Those whose range was found out in the run have none that was declared."""
    schema = Schema.of({"column": [
        {"name": "sex", "kind": "category", "values": ["F", "M"]},
        {"name": "pulse", "kind": "number", "range": "auto"},
        {"name": "age", "kind": "number", "range": [0, 100]},
    ]})  # fmt: skip
    m = len(schema.features)
    view = {
        "column_mean": np.zeros(m), "column_factor": np.full(m, 2.0),
        "column_middle": np.array([0.0] * (m - 2) + [70.0, 0.0]),
        "column_half": np.array([1.0] * (m - 2) + [30.0, 1.0]),
    }  # fmt: skip

    def doubts(*ages):
        centers = np.column_stack([np.full((2, m - 1), 9.0), 2.0 * np.array(ages)])
        model = ClusterModel(
            centers, np.zeros(m), None, centers, by_membership=False, schema=schema, view=view
        )
        return method_named("dp-fedc").doubts({"n_clusters": 2}, model)

    assert doubts(0.5, -(1 + 0.9 * OUTSIDE)) == ()
    (doubt,) = doubts(0.5, -(1 + 1.1 * OUTSIDE))
    assert doubt.startswith("centre 1 lies outside the declared ranges")
