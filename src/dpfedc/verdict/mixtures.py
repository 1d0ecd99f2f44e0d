"""Invented records of known clusters: what a rehearsal runs on. No data are seen.

A reference mixture has clusters of equal size, round, as wide in every direction as in any other
(above 50 columns: in 50 random ones), with centres from a normal law. Its separation is the mean
distance of a centre to the next, in standard deviations of a cluster. In a table a number lies well
inside its range, and a cluster has a favourite value of every category. A released mixture has
the centres, the sizes and the spread that a run released; where clusters are made of prototypes,
its records lie around these and along the lines that join them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.method import Settings, checked_ranges, declares_bound
from dpfedc.clustering.run_plan import Federation
from dpfedc.kernels.column_view import unseen
from dpfedc.kernels.merge_tree import shortest_trees
from dpfedc.model_file import ClusterModel
from dpfedc.tables.layout import GAPS, NUMBER, SHARES, Layout

Float = npt.NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], tuple[Float, npt.NDArray[np.int64]]]

SEPARATIONS = {"near": 4.0, "middling": 6.0, "far": 9.0}
"""At 4 neighbours touch, at 9 there are gaps between them."""
FAVOURITE = {"near": 0.5, "middling": 0.7, "far": 0.9}
"""The share of a cluster's favourite value of a category."""
WIDE_DIRECTIONS = 50
"""Real records with hundreds of columns do not differ in hundreds of independent ways."""
OFFSET = 2.0
"""Columns whose place is not declared have a mean so many spreads away from zero."""
SPREAD_IN_RANGE = 0.35
"""The spread of a number whose range is declared, in halves of that range."""
MEAN_SQUARE = 0.6
"""The mean squared length of records whose typical length is 1 / 1.3: how they are scaled."""
LEAST_WITHIN = 0.05
"""No cluster is narrower than this, in mean squared length, whatever noise says."""
SAMPLE = 2000
"""Places that tell how far those of a cluster are from its centre."""


@dataclass(frozen=True)
class Mixture:
    """A law of records with known clusters."""

    name: str
    n_clusters: int
    draw: Draw
    """Draws so many records, as the stages get them, and the cluster of each."""


def reference_mixture(name: str, given: Settings, facts: Federation, *, seed: int) -> Mixture:
    """Return a mixture of the plan's columns and clusters, at one of the SEPARATIONS."""
    k, rng = int(given["n_clusters"]), np.random.default_rng([seed, facts.n_features])
    layout = facts.layout
    m = facts.n_features if layout is None else sum(g.kind == NUMBER for g in layout)
    centers = _apart(k, m, SEPARATIONS[name], rng)
    turned = _directions(m, rng)
    # What all records have in every column together: the spread within, and that of the centres.
    spread = math.sqrt(len(turned) / max(m, 1) + float(centers.var(axis=0).mean() if m else 0))
    signs = rng.choice([-1.0, 1.0], size=m)
    if given.get("nonnegative"):  # centres below zero would be moved to it
        signs = np.abs(signs)
    favourites = rng.random((k, 0 if layout is None else len(layout)))

    def draw(n: int, rng: np.random.Generator) -> tuple[Float, npt.NDArray[np.int64]]:
        y = rng.permutation(np.arange(n) % k)
        Z = (centers[y] + rng.standard_normal((n, len(turned))) @ turned) / spread
        if layout is None:
            return _placed(Z, signs, given), y
        return _table(Z, signs, layout, favourites[y], FAVOURITE[name], rng), y

    return Mixture(name, k, draw)


def released_mixture(model: ClusterModel, layout: Layout | None) -> Mixture | None:
    """Return the mixture that a model describes, if it tells enough of its clusters."""
    if model.centers is None or (model.scale is None and model.within is None):
        return None
    k, m = model.centers.shape
    shares = np.full(k, 1 / k)
    if model.sizes is not None and (model.sizes > 0).any():
        shares = np.maximum(model.sizes, 0) / np.maximum(model.sizes, 0).sum()
    within = model.within
    if within is None:
        within = MEAN_SQUARE - float(shares @ (model.centers**2).sum(axis=1))
    turned = _directions(m, np.random.default_rng(m))
    place, least = _places(model), LEAST_WITHIN
    if model.by_prototype:
        some = np.random.default_rng(m)
        y = some.choice(k, size=SAMPLE, p=shares)
        # Much of the spread within a cluster is that of its prototypes.
        within -= float(((place(y, some) - model.centers[y]) ** 2).sum(axis=1).mean())
        least *= k / len(model.prototype_centers)
    width = math.sqrt(max(within, least) / len(turned))
    scale, values = model.scale or 1.0, model.cluster_centers

    def draw(n: int, rng: np.random.Generator) -> tuple[Float, npt.NDArray[np.int64]]:
        y = rng.choice(k, size=n, p=shares)
        Z = place(y, rng) + width * rng.standard_normal((n, len(turned))) @ turned
        X = np.asarray(unseen(model.center + scale * Z, model.view), dtype=np.float64)
        for group in layout or ():
            some = X[:, group.features]
            if group.kind == SHARES:
                some[:] = _one_of(values[y][:, group.features], rng)
            elif group.kind == GAPS:
                some[:] = 0.0
            elif not group.auto:
                np.clip(some, -1.0, 1.0, out=some)
        return X, y

    return Mixture("released", k, draw)


def _places(model: ClusterModel) -> Callable[[npt.NDArray[np.int64], np.random.Generator], Float]:
    """Return what draws the places around which records of given clusters lie."""
    centers = np.asarray(model.centers, dtype=np.float64)
    if not model.by_prototype or model.prototypes is None or model.groups is None:
        return lambda y, _: centers[y]
    groups = model.groups.astype(np.int64)
    prototypes = np.asarray(model.prototypes, dtype=np.float64)
    tree = shortest_trees(prototypes, groups)
    pairs = np.concatenate([tree, tree[:, ::-1]])
    near = [pairs[pairs[:, 0] == i, 1] for i in range(len(groups))]
    near = [some if len(some) else np.array([i]) for i, some in enumerate(near)]
    own = [np.flatnonzero(groups == c) for c in range(len(centers))]

    def places(y: npt.NDArray[np.int64], rng: np.random.Generator) -> Float:
        start = np.array([rng.choice(own[c]) for c in y.tolist()])
        toward = np.array([rng.choice(near[i]) for i in start.tolist()])
        # Half of the way to the next one, and as far to the other side.
        part = rng.uniform(-0.5, 0.5, size=(len(y), 1))
        return np.asarray(prototypes[start] + part * (prototypes[toward] - prototypes[start]))

    return places


def _apart(k: int, m: int, separation: float, rng: np.random.Generator) -> Float:
    """Return centres from a normal law, at this mean distance to the next one."""
    centers = rng.standard_normal((k, m))
    if k == 1 or m == 0:
        return centers
    gaps = np.linalg.norm(centers[:, None] - centers, axis=2)
    np.fill_diagonal(gaps, np.inf)
    return np.asarray(centers * (separation / gaps.min(axis=1).mean()))


def _directions(m: int, rng: np.random.Generator) -> Float:
    """Return the orthogonal directions (rows) in which records differ within a cluster."""
    if m <= WIDE_DIRECTIONS:
        return np.eye(m)
    basis, _ = np.linalg.qr(rng.standard_normal((m, WIDE_DIRECTIONS)))
    return np.asarray(basis.T)


def _placed(Z: Float, signs: Float, given: Settings) -> Float:
    """Return records of spread 1 where they were declared to be."""
    if given.get("feature_ranges") is not None:
        least, most = checked_ranges(given["feature_ranges"], Z.shape[1]).T
        half = (most - least) / 2
        return np.asarray((least + most) / 2 + np.clip(SPREAD_IN_RANGE * Z, -1, 1) * half)
    X = Z + OFFSET * signs
    if declares_bound(given):
        X *= float(given["norm_bound"]) / np.linalg.norm(X, axis=1).max()
    return X


def _table(
    Z: Float,
    signs: Float,
    layout: Layout,
    favourites: Float,
    share: float,
    rng: np.random.Generator,
) -> Float:
    """Return encoded records of a table; `favourites` point at each record's values."""
    X = np.zeros((len(Z), sum(group.width for group in layout)))
    number = iter(range(Z.shape[1]))
    for i, group in enumerate(layout):
        if group.kind == NUMBER:
            column = next(number)
            middle, spread = group.typical or (0.0, SPREAD_IN_RANGE)
            X[:, group.start] = np.clip(middle + spread * Z[:, column], -1, 1)
            if group.auto:
                X[:, group.start] = Z[:, column] + OFFSET * signs[column]
        elif group.kind == SHARES:
            chances = np.full((len(Z), group.width), (1 - share) / max(group.width - 1, 1))
            favourite = (favourites[:, i] * group.width).astype(np.int64)
            chances[np.arange(len(Z)), favourite] = share if group.width > 1 else 1.0
            X[:, group.features] = _one_of(chances, rng)
    return X


def _one_of(chances: Float, rng: np.random.Generator) -> Float:
    """Return rows with a 1 at a place drawn by the row's chances."""
    steps = np.cumsum(np.maximum(chances, 0), axis=1)
    steps /= np.maximum(steps[:, -1:], 1e-12)
    place = (rng.random((len(chances), 1)) > steps).sum(axis=1)
    return np.asarray(np.eye(chances.shape[1])[np.minimum(place, chances.shape[1] - 1)])
