"""Model files: round trips, damaged and foreign files, and no pickle, ever."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedc import DPFedC
from dpfedc.errors import DataUnavailable, InvalidInput
from dpfedc.model_file import FORMAT, ClusterModel
from dpfedc.settings import Penalty
from dpfedc.summary.choice_of_k import ChoiceOfK, KPoint
from dpfedc.tables.schema import Schema


def example(**changes):
    fields = {
        "directions": np.eye(3, 4),
        "center": np.array([0.5, 0.0, -1.0, 2.0]),
        "scale": 1.5,
        "centers": np.arange(12.0).reshape(3, 4) / 10,
        "by_membership": False,
        "penalty": Penalty(0.7, 0.1, 0.2),
        "steps": 20,
        "nonnegative": True,
        "feature_names": ("a", "b", "ü", "d"),
        "about": {"method": "dp-fedc", "stamps": ["no noise"]},
    }
    return ClusterModel(**{**fields, **changes})


def same(one, other):
    for name in one.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        elif name == "view":
            np.testing.assert_equal(dict(b), dict(a))
        else:
            assert a == b, name
    return True


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scale": None, "centers": None, "by_membership": True, "feature_names": None},
        {"directions": np.eye(3, 5), "constant": 0.5},
        {"directions": np.eye(3, 4, dtype=np.float32), "center": np.zeros(4, np.float32)},
        {
            "sizes": np.array([40.0, -3.5, 0.0]),
            "size_errors": np.full(3, 7.25),
            "center_errors": np.where(np.eye(3, 4) > 0, np.inf, 0.125),
            "within": 0.375,
            "names": {0: "the young", 2: "ältere"},
        },
        {"sizes": np.ones(3), "within": -0.01},
        {"longest": 2.0},
        {
            "prototypes": np.arange(20.0).reshape(5, 4),
            "groups": np.array([0.0, 0, 1, 2, 2]),
            "by_prototype": True,
            "choice": ChoiceOfK(3, 0.125, 0.1, (KPoint(3, 0.5, 0.25), KPoint(4, None, None))),
        },
    ],
)
def test_a_model_survives_the_file(tmp_path, changes):
    model = example(**changes)
    path = tmp_path / "model.npz"
    model.write(path)
    assert same(model, ClusterModel.read(path))


EARLIER = {
    "format": "dpfedc-model-1", "scale": 1.5, "by_membership": False, "constant": 0.0,
    "penalty": {"orthogonality": 0.7}, "steps": 20, "nonnegative": True,
    "feature_names": ["a", "b", "c", "d"], "about": {"method": "dp-fedc"},
}  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [None, {"column": [{"name": "x", "kind": "number", "range": [0, 8], "missing": "indicator"}]}],
)
def test_models_of_earlier_formats_are_read(tmp_path, schema):
    """They have no sizes and no errors; those of tables are of the second format."""
    schema = None if schema is None else Schema.of(schema)
    m = 4 if schema is None else len(schema.features)
    head, arrays = dict(EARLIER), {"directions": np.eye(3, m), "center": np.zeros(m)}
    arrays["centres"] = np.arange(3.0 * m).reshape(3, m) / 10
    if schema is not None:
        head |= {"format": "dpfedc-model-2", "schema": schema.to_json()}
        head["feature_names"] = schema.features
        arrays |= {"column_mean": np.full(m, 0.25), "column_factor": np.full(m, 2.0)}
    path = tmp_path / "model.npz"
    np.savez(path, head=np.array(json.dumps(head)), **arrays)
    model = ClusterModel.read(path)
    np.testing.assert_array_equal(model.centers, arrays["centres"])
    assert (model.scale, model.penalty.orthogonality, model.steps) == (1.5, 0.7, 20)
    assert model.schema == schema
    for name in ("sizes", "size_errors", "center_errors", "within"):
        assert getattr(model, name) is None
    assert model.names == {}
    assert model.center_interval() is None
    model.write(path)  # in the format of today
    assert same(model, ClusterModel.read(path))
    with np.load(path) as again:
        assert json.loads(str(again["head"]))["format"] == FORMAT


def of_prototypes(**changes):
    fields = {"prototypes": np.ones((4, 4)), "groups": np.array([0.0, 1, 1, 2])}
    return example(**{**fields, "by_prototype": True, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": np.array([0.0, 1, 2, 3])},
        {"groups": np.array([0.0, 1, 1, 1])},
        {"groups": np.array([0.0, 0.5, 1, 2])},
        {"groups": np.array([0.0, 2, 1, 1])},
        {"groups": np.array([0.0, 1, np.nan, 2])},
        {"groups": None},
        {"prototypes": None},
        {"prototypes": np.ones((3, 4))},
        {"prototypes": np.ones((4, 5))},
        {"choice": ChoiceOfK(2, 0.5, 0.1, (KPoint(2, 0.5, 0.1),))},
    ],
)
def test_prototypes_that_cannot_make_the_clusters_are_refused(changes):
    assert of_prototypes().by_prototype
    with pytest.raises(InvalidInput, match=r"must (be|have)"):
        of_prototypes(**changes)


SETTINGS = [
    {"epsilon": None},
    {"epsilon": None, "n_rounds": "auto", "shape": "any", "n_prototypes": 6},
    {"epsilon": 50.0, "n_rounds": "auto", "n_clusters": "auto", "k_range": (2, 5), "shape": "any"},
    {"epsilon": None, "refine_rounds": 0},
    {"epsilon": None, "constant_feature": 0.5},
    {"epsilon": None, "variant": "published"},
    {"epsilon": 8.0, "norm_bound": 15.0},
    {"epsilon": 8.0, "norm_bound": 15.0, "refine_rounds": 0, "constant_feature": 0.5},
    {"epsilon": 8.0, "norm_bound": 15.0, "refine_rounds": 0, "subspace": 1},
    {"epsilon": 50.0, "variant": "published", "extra_steps": 0, "gradient_bound": 0.5},
]


@pytest.mark.filterwarnings("ignore:cluster.* too few records:dpfedc.errors.UtilityWarning")
@pytest.mark.filterwarnings("ignore:the number of clusters is not:dpfedc.errors.UtilityWarning")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_fitted_model_predicts_the_same_after_the_file(blobs, tmp_path, settings, dtype):
    X, _, sites = blobs
    X = abs(X).astype(dtype)
    settings = {"n_clusters": 3, "n_rounds": 8, **settings}
    model = DPFedC(random_state=0, **settings).fit(X, sites=sites)
    path = tmp_path / "any.name"
    model.model_.write(path)
    read = ClusterModel.read(path)
    assert same(model.model_, read)
    promise = read.about["privacy"]
    if model.privacy_ is None:
        assert promise is None
    else:
        assert promise == model.privacy_.as_plain()
        assert promise["epsilon"] <= settings["epsilon"]
    np.testing.assert_array_equal(read.labels(X), model.labels_)
    np.testing.assert_array_equal(read.memberships(X), model.transform(X))
    np.testing.assert_array_equal(read.cluster_centers, model.cluster_centers_)


def test_centers_are_given_in_data_units():
    model = example(nonnegative=False)
    np.testing.assert_allclose(model.cluster_centers, model.center + 1.5 * model.centers)
    assert example(nonnegative=True).cluster_centers.min() == 0
    np.testing.assert_array_equal(example(centers=None).cluster_centers, np.eye(3, 4))


def test_intervals_reach_two_standard_deviations_to_either_side():
    errors = np.full((3, 4), 0.1)
    errors[2] = np.inf
    model = example(nonnegative=False, center_errors=errors)
    least, most = model.center_interval()
    np.testing.assert_allclose(most[:2] - model.cluster_centers[:2], 1.96 * 0.1 * 1.5)
    np.testing.assert_allclose(model.cluster_centers[:2] - least[:2], 1.96 * 0.1 * 1.5)
    assert np.isnan(least[2]).all()
    assert np.isnan(most[2]).all()
    assert np.nanmin(example(center_errors=errors).center_interval()[0]) == 0  # declared >= 0
    assert example(centers=None, center_errors=errors).center_interval() is None


class Trap:
    """Unpickling this is what must never happen."""

    sprung = False

    def __reduce__(self):
        return (setattr, (Trap, "sprung", True))


def npz_bytes(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def zip_bytes(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def trapped_array():
    array = np.empty(1, dtype=object)
    array[0] = Trap()
    return array


def npy_bytes(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def head(**changes):
    fields = {"format": FORMAT, "scale": 1.0, "penalty": {}, "feature_names": None, "about": {}}
    return np.array(json.dumps({**fields, **changes}))


PARTS = {"directions": np.eye(3, 4), "center": np.zeros(4)}
PICKLES = {
    "a pickle as head": npz_bytes(head=trapped_array(), **PARTS),
    "a pickle among the arrays": npz_bytes(head=head(), **{**PARTS, "center": trapped_array()}),
    "a pickle beside the arrays": npz_bytes(head=head(), **PARTS, more=trapped_array()),
    "a pickle in the archive": zip_bytes({"head.npy": pickle.dumps(Trap()), "x": b""}),
    "a bare pickle": pickle.dumps(Trap()),
    "an object array": npy_bytes(trapped_array()),
}
FOREIGN = {
    "nothing": b"",
    "text": b"centres,1,2\n",
    "an array": npy_bytes(np.ones(3)),
    "an empty archive": zip_bytes({}),
    "another archive": zip_bytes({"readme.txt": b"hello"}),
    "another npz": npz_bytes(X=np.ones((3, 2))),
    "no head": npz_bytes(**PARTS),
    "a head that is no text": npz_bytes(head=np.ones(3), **PARTS),
    "a head that is no JSON": npz_bytes(head=np.array("{"), **PARTS),
    "a head that is a number": npz_bytes(head=np.array("7"), **PARTS),
    "a head that is a list": npz_bytes(head=np.array("[]"), **PARTS),
    "an empty head": npz_bytes(head=np.array("{}"), **PARTS),
    "another version": npz_bytes(head=head(format="dpfedc-model-99"), **PARTS),
    "an unknown field": npz_bytes(head=head(surprise=1), **PARTS),
    "an unknown array": npz_bytes(head=head(), **PARTS, surprise=np.ones(2)),
    "an unknown penalty": npz_bytes(head=head(penalty={"strength": 1}), **PARTS),
    "a negative penalty": npz_bytes(head=head(penalty={"orthogonality": -1}), **PARTS),
    "a scale that is text": npz_bytes(head=head(scale="big"), **PARTS),
    "a scale of zero": npz_bytes(head=head(scale=0), **PARTS),
    "no steps": npz_bytes(head=head(steps=0), **PARTS),
    "centre and directions that differ": npz_bytes(head=head(), **{**PARTS, "center": np.ones(5)}),
    "flat directions": npz_bytes(head=head(), **{**PARTS, "directions": np.ones(4)}),
    "whole numbers": npz_bytes(head=head(), **{**PARTS, "center": np.zeros(4, int)}),
    "texts for numbers": npz_bytes(head=head(), **{**PARTS, "directions": np.full((3, 4), "1")}),
    "steps beyond any number": npz_bytes(
        head=np.array(str(head()).replace('"about"', '"steps": 1e999, "about"')), **PARTS
    ),
    "too few names of features": npz_bytes(head=head(feature_names=["a", "b"]), **PARTS),
    "names of features that are numbers": npz_bytes(head=head(feature_names=[1, 2, 3, 4]), **PARTS),
    "names that are a text": npz_bytes(head=head(names="abc"), **PARTS),
    "a name of no cluster": npz_bytes(head=head(names={"x": "abc"}), **PARTS),
    "an about that is a list": npz_bytes(head=head(about=["stamps"]), **PARTS),
    "a schema that is a number": npz_bytes(head=head(schema=7), **PARTS),
    "a head that nests without end": npz_bytes(head=np.array("[" * 100_000), **PARTS),
    "other centres": npz_bytes(head=head(), **PARTS, centers=np.ones((2, 4))),
}


@pytest.mark.parametrize("content", PICKLES.values(), ids=PICKLES)
def test_no_pickle_is_ever_loaded(tmp_path, content):
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"model\.npz is not a model file written by dpfedc"):
        ClusterModel.read(path)
    assert not Trap.sprung


def test_the_trap_works():
    """Otherwise the test above could not fail."""
    pickle.loads(pickle.dumps(Trap()))
    sprung, Trap.sprung = Trap.sprung, False
    assert sprung


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "model.npz"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"model\.npz is not a model file written by dpfedc"):
        ClusterModel.read(path)


def test_every_cut_file_is_refused(tmp_path):
    path = tmp_path / "model.npz"
    example().write(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 23):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="not a model file"):
            ClusterModel.read(path)


@given(st.data())
def test_a_changed_bit_is_noticed_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("model") / "model.npz"
    model = example()
    model.write(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        read = ClusterModel.read(path)
    except InvalidInput:
        return
    assert same(model, read)  # a date or a flag of the archive


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataUnavailable, match=r"no such model file: .*nowhere\.npz"):
        ClusterModel.read(tmp_path / "nowhere.npz")


def test_a_folder_is_no_model(tmp_path):
    with pytest.raises(InvalidInput, match="not a model file"):
        ClusterModel.read(tmp_path)


def test_nothing_is_written_of_a_model_that_cannot_be(tmp_path):
    with pytest.raises(TypeError):
        example(about={"why": object()}).write(tmp_path / "model.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": -1.0}, "scale must be > 0, got -1.0"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"centers": np.ones((3, 2))}, r"centers must have shape \(3, 4\), got \(3, 2\)"),
        ({"constant": 0.5}, r"directions must have shape \(3, 5\), got \(3, 4\)"),
        ({"sizes": np.ones(4)}, r"sizes must have shape \(3,\), got \(4,\)"),
        ({"size_errors": np.ones(2)}, r"size_errors must have shape \(3,\), got \(2,\)"),
        ({"center_errors": np.ones((3, 2))}, r"center_errors must have shape \(3, 4\)"),
        ({"names": {3: "none"}}, "a cluster with a name must be from 0 to 2, got 3"),
        ({"names": {0: ""}}, "name must be 1 to 60 printable characters"),
    ],
)
def test_a_model_checks_its_parts(changes, message):
    with pytest.raises(InvalidInput, match=message):
        example(**changes)


def test_a_record_is_compared_in_the_columns_that_it_has():
    """A gap at the mean would draw a record to whichever centre is near the mean there."""
    schema = Schema.of({"column": [
        {"name": name, "kind": "number", "range": [-1, 1]} for name in ("a", "b")]})  # fmt: skip
    centers = np.array([[0.5, 0.9], [0.2, 0.0]])
    view = {"column_mean": np.zeros(2), "column_factor": np.ones(2)}
    model = ClusterModel(
        centers, np.zeros(2), None, centers, by_membership=False, schema=schema, view=view
    )
    assert model.labels(np.array([[0.5, np.nan], [0.5, 0.0], [np.nan, 0.8]])).tolist() == [0, 1, 0]
