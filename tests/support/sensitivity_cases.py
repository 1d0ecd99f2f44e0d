"""Random cases for the sensitivity properties: hostile records, hostile broadcasts."""

import numpy as np
from hypothesis import strategies as st

from dpfedc.clustering.bound import Bound, Radius
from dpfedc.clustering.centers import Centers, Lengths
from dpfedc.clustering.factorization import Factorization
from dpfedc.clustering.lloyd import LloydSums
from dpfedc.clustering.local_steps import LocalSteps, largest_batch_ratio
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.quality import Quality
from dpfedc.clustering.record_cells import Cells
from dpfedc.clustering.residual_lloyd import ResidualLloyd, ResidualSums
from dpfedc.clustering.subspace import Subspace
from dpfedc.clustering.sums_and_gram import SumsAndGram
from dpfedc.settings import Penalty
from support.sensitivity import Case

KINDS = ("plain", "zero", "tiny", "long", "huge", "repeated", "at the centre", "a centre")
STAGES = (
    "bound", "mean", "scale", "subspace", "one step", "sums and Gram", "lengths", "clusters",
    "nearest", "Lloyd", "radius", "residuals", "residuals in all features", "residuals by place",
    "neighbours", "quality", "quality by membership", "one step, counted",
)  # fmt: skip
LEAST_REACHED = {
    "lengths": 0.75, "sums and Gram": 0.95, "neighbours": 0.95, "quality": 0.9,
    "quality by membership": 0.9,
}  # fmt: skip
"""The part of the stated sensitivity that records of `plain_case` reach, where that is not all."""
SAMPLED = ("one step", "one step, counted", "sums and Gram")
TINY = {np.float32: 1e-25, np.float64: 1e-180}
HUGE = {np.float32: 1e25, np.float64: 1e200}
"""Their squares underflow and overflow."""
FAR = {np.float32: 3.0, np.float64: 1e4}
"""How far from the origin the centre may lie, in units of the scale: cancellation costs digits."""
FARTHER = {np.float32: 5, np.float64: 9}
"""How many powers of ten farther it may lie, where the centre is subtracted before products."""


@st.composite
def federations(draw, largest=6):
    """Return dtype, ragged sizes of sites, and what kind of record each one is."""
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    sizes = draw(st.lists(st.integers(1, largest), min_size=1, max_size=3))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=sum(sizes), max_size=sum(sizes)))
    return dtype, tuple(sizes), kinds


@st.composite
def cases(draw, name):
    """Return a case of the named stage and the number of one of its records."""
    dtype, sizes, kinds = draw(federations())
    n_features, k = draw(st.integers(1, 5)), draw(st.integers(1 + (name == "neighbours"), 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bound = 10.0 ** draw(st.integers(-3, 3))
    farther = 10.0 ** draw(st.integers(0, FARTHER[dtype]))
    state = hostile_state(rng, n_features, k, bound=bound, dtype=dtype, farther=farther)
    residuals = name.startswith("residuals")
    constant = 0.0 if residuals or name == "neighbours" else draw(st.sampled_from([0.0, 0.5]))
    clip, rho = draw(st.sampled_from([0.03, 0.1, 1.0])), draw(st.sampled_from([0.0, 0.3, 1.0]))
    stage, t = stage_of(name, k, constant=constant, clip=clip, rho=rho)
    with_subspace = ("one step", "sums and Gram", "lengths", "clusters", "residuals")
    with_subspace += ("quality by membership", "one step, counted")
    if name in with_subspace and not constant and draw(st.booleans()):
        state = with_basis(rng, state, draw(st.integers(1, n_features)), honest=draw(st.booleans()))
    state = with_centers(rng, state, constant, unit=draw(st.booleans()))
    if residuals:
        centers = state["W"] if name == "residuals" else state["centers"]
        # Single precision and short residuals: tests/clustering/test_residual_lloyd.py
        least = -1.5 if dtype == np.float32 else -3
        lengths = np.asarray(10.0 ** rng.uniform(least, 0.3, k), dtype=dtype)
        state = {**state, "centers": centers, "residual_bounds": lengths}
    if name == "neighbours":
        state["prototypes"] = state["centers"] * 10.0 ** draw(st.integers(-6, 0))
    if name.startswith("quality") or name == "residuals by place":
        length = 10.0 ** draw(st.floats(-3, 0))
        state = with_places(rng, state, stage, length, dtype)
    X = hostile_records(rng, kinds, state, bound=bound, dtype=dtype)
    q = draw(st.sampled_from([1.0, 0.5])) if name in SAMPLED else 1.0
    return Case(stage, state, X, sizes, t, q), draw(st.integers(0, sum(sizes) - 1))


def stage_of(name, k=3, *, constant=0.0, clip=0.03, rho=1.0):
    """Return a stage by its name here, and the round it is in."""
    penalty = Penalty(orthogonality=rho)
    return {
        "bound": (Bound(1.0), 1),
        "mean": (Mean(), 1),
        "scale": (Scale(), 1),
        "subspace": (Subspace(1), 1),
        "one step": (Factorization(k, 4, penalty=penalty, clip_norm=clip, constant=constant), 2),
        "one step, counted": (
            Factorization(k, 4, penalty=penalty, clip_norm=clip, constant=constant, counted=True),
            2,
        ),
        "sums and Gram": (SumsAndGram(k, 4, penalty=penalty, constant=constant), 2),
        "Lloyd": (LloydSums(k, 4), 2),
        "radius": (Radius(1.0), 1),
        "residuals": (Cells(k, 2), 2),
        "residuals in all features": (ResidualLloyd(k, 2, plain=True, longest=2.0), 2),
        "residuals by place": (ResidualLloyd(k, 1, plain=True, longest=2.0, n_places=k + 2), 1),
        "neighbours": (Neighbors(k, 1, k), 1),
        "lengths": (Lengths(k, penalty=penalty, constant=constant), 1),
        "clusters": (Centers(k, penalty=penalty, constant=constant, bounded=True), 1),
        "quality": (Quality(k, k + 2), 1),
        "quality by membership": (
            Quality(k, k, by_membership=True, penalty=penalty, constant=constant),
            1,
        ),
        "nearest": (Centers(k, n_rounds=3, refine=True, constant=constant, bounded=True), 2),
    }[name]


@st.composite
def several_steps(draw, n_parts, q):
    """Return a case with Q2 = n_parts local steps, and the number of one of its records."""
    dtype, sizes, kinds = draw(federations(largest=12))
    n_features, k = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    state = hostile_state(rng, n_features, k, bound=1.0, dtype=dtype)
    constant = draw(st.sampled_from([0.0, 0.5]))
    state = with_centers(rng, state, constant, unit=draw(st.booleans()))
    X = hostile_records(rng, kinds, state, bound=1.0, dtype=dtype)
    stage = local_steps(
        k, n_parts, sizes, q=q, constant=constant,
        ridge=draw(st.sampled_from([0.0, 0.5])), clip=draw(st.sampled_from([0.03, 0.3, 3.0])),
    )  # fmt: skip
    return Case(stage, state, X, sizes, 1, q), draw(st.integers(0, sum(sizes) - 1))


def local_steps(k, n_parts, sizes, *, q, constant=0.0, ridge=0.0, clip=0.3):
    """Return a factorisation whose first round takes n_parts local steps.

    A part that is larger than the step size allows for may expand a step: the plan sets delta
    aside for it. Here the chance of that is one in a billion.
    """
    ratio = largest_batch_ratio(np.asarray(sizes), n_parts - 1, 1, probability=q, failure=1e-9)
    return LocalSteps(
        k, 1, extra_steps=n_parts - 1, batch_ratio=ratio, constant=constant, clip_norm=clip,
        penalty=Penalty(centroid_ridge=ridge),
    )  # fmt: skip


def hostile_state(rng, n_features, k, *, bound, dtype, farther=1.0):
    """Return a broadcast that an honest server need not have made: far-off centre, any scale."""

    def vector(size):
        direction = rng.standard_normal(n_features)
        return (size * direction / np.linalg.norm(direction)).astype(dtype)

    scale, reach = bound * 2.0 ** rng.uniform(-10, 0.4), FAR[dtype] * farther
    origin = vector(bound * reach * rng.choice([0.0, rng.random()]))
    center = vector(scale * reach * rng.choice([0.0, rng.random()]))
    values = {"origin": origin, "bound": bound, "data_mean": center, "scale": scale}
    return {name: np.asarray(value, dtype=dtype) for name, value in values.items()} | {"k": k}


def with_basis(rng, state, dimensions, *, honest):
    """Return the state with a basis; a dishonest one has rows of any length, at any angle."""
    center = state["data_mean"]
    basis = rng.standard_normal((len(center), dimensions))
    basis = np.linalg.qr(basis)[0].T if honest else basis.T * rng.choice([0.1, 1.0, 3.0])
    return {**state, "basis": basis.astype(center.dtype)}


def with_centers(rng, state, constant, *, unit):
    """Return the state with centres W: unit rows, or any rows with entries of at most 1."""
    state = dict(state)
    k, center = state.pop("k"), state["data_mean"]
    width = len(state["basis"]) if "basis" in state else len(center) + (constant != 0)
    W = rng.uniform(-1, 1, (k, width)) * rng.choice([1e-4, 1.0, 1.0], (k, 1))
    W[rng.integers(k)] = W[0]
    if unit:
        W = W / np.linalg.norm(W, axis=1, keepdims=True)
    centers = rng.uniform(-1, 1, (k, len(center)))
    W, centers = W.astype(center.dtype), centers.astype(center.dtype)
    return {**state, "W": W, "centers": centers}


def with_places(rng, state, stage, length, dtype):
    """Return the state with places of clusters, some at one place, and what distances end at."""
    places = rng.uniform(-1, 1, (stage.n_places, len(state["data_mean"])))
    places[rng.integers(stage.n_places)] = places[0]
    clusters = rng.integers(0, stage.n_clusters, stage.n_places)
    told = {"places": places, "place_clusters": clusters, "distance_bound": length}
    return {**state, **{name: np.asarray(value, dtype=dtype) for name, value in told.items()}}


def hostile_records(rng, kinds, state, *, bound, dtype):
    """Return one record of each kind; long ones are clipped, huge ones have no norm."""
    center, W = state["data_mean"], state["W"]
    n_features = len(center)
    X = np.zeros((len(kinds), n_features))
    for j, kind in enumerate(kinds):
        direction = rng.standard_normal(n_features)
        X[j] = {
            "plain": center + bound * 10 ** rng.uniform(-2, 0.5) * direction,
            "zero": 0 * direction,
            "tiny": TINY[dtype] * direction,
            "long": 1e6 * bound * direction,
            "huge": HUGE[dtype] * direction,
            "repeated": X[rng.integers(j + 1)],
            "at the centre": center,
            "a centre": center + state["scale"] * np.resize(W[0], n_features),
        }[kind]
    return X.astype(dtype)


def plain_case(stage, t=1, *, n=12, n_features=3, dtype=np.float64, basis=False, q=1.0):
    """Return a case of the stage in which every record is long, and the broadcast is honest."""
    rng = np.random.default_rng(0)
    k = getattr(stage, "n_clusters", 3)
    state = hostile_state(rng, n_features, k, bound=1.0, dtype=dtype)
    if basis:
        state = with_basis(rng, state, 2, honest=True)
    state = with_centers(rng, state, getattr(stage, "constant", 0.0), unit=True)
    if isinstance(stage, ResidualSums):
        centers = state["centers"] if stage.plain else state["W"]
        state |= {"centers": centers, "residual_bounds": np.full(k, 0.5, dtype=dtype)}
    state["prototypes"] = state["centers"]
    if getattr(stage, "n_places", 0):
        state = with_places(rng, state, stage, 0.5, dtype)
    X = hostile_records(rng, ["long"] * n, state, bound=1.0, dtype=dtype)
    return Case(stage, state, X, (n // 3, n - n // 3), t, q)
