"""The planner's way by cells, where noise is low: see docs/decisions/0015-cells.md."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from dpfedc.clustering.least_parted import LeastParted
from dpfedc.clustering.neighbors import Neighbors
from dpfedc.clustering.prototypes_planner import merged_by
from dpfedc.clustering.record_cells import MAX_CELLS, Cells
from dpfedc.clustering.residual_lloyd import ResidualLloyd
from dpfedc.clustering.run_plan import Federation, Way
from dpfedc.clustering.stage import Stage
from dpfedc.clustering.subspace import Subspace
from dpfedc.settings import left_open

CELLS_PER_CLUSTER, MIN_CELLS, CELL_NOISE, CELL_ROUNDS = 8, 64, 0.2, 2
"""As many cells as that, if the noise in the mean of one is at most CELL_NOISE of the scale."""
MORE_DIRECTIONS = 8
"""Clusters differ along fewer directions than there are of them; these are to spare."""
DIRECTIONS_SHARE, FIRST_DIRECTIONS_SHARE = 0.05, 0.15
"""For directions of which none is left out, and for the first of many."""
LONGEST = 2.0
"""In the last round records count as far out as so many scales, so that centres are means of their
records. Before, they are clipped to one, and a few that are far out do not decide on clusters."""
CELLS_SHARE, LLOYD_ROUNDS = 0.45, 3
"""Of what is left for clustering; the rest is for the rounds that move the centres."""


def by_cells(
    choices: SimpleNamespace,
    facts: Federation,
    kappa: float,
    rest: float,
    graph: Neighbors | None = None,
) -> Way:
    """Return the way by cells: in all directions of few features, else in the first of many.

    With a graph, what is found first are prototypes: of clusters of any shape, or as a start.
    """
    k, m = choices.n_clusters, facts.n_features
    n_directions = min(m, k + MORE_DIRECTIONS) if choices.subspace else m
    if not left_open(choices.subspace, (None, "auto")):
        n_directions = int(choices.subspace)
    some = n_directions < m
    share = FIRST_DIRECTIONS_SHARE if some else DIRECTIONS_SHARE
    rest -= share
    n_cells = choices.cells
    if n_cells == "auto":
        n_cells = min(max(CELLS_PER_CLUSTER * k, MIN_CELLS), MAX_CELLS // 2)
        # The noise in a cell's mean, if all of the budget were spent on one release of one cell.
        one = kappa * math.sqrt(n_directions / m) / k
        if one > 0:
            n_cells = min(
                n_cells, int(CELL_NOISE * math.sqrt(CELLS_SHARE * rest / CELL_ROUNDS) / one)
            )
    n_cells = max(min(int(n_cells), facts.n_records), k)
    subspace = Subspace(n_directions, drops_noise=some)
    a_start = isinstance(graph, LeastParted)
    cells = Cells(max(n_cells, 1), CELL_ROUNDS, plain=not some, weighed=a_start)
    shares = {"subspace": share, "cells": CELLS_SHARE * rest}
    moving = (1 - CELLS_SHARE) * rest
    n_rounds = LLOYD_ROUNDS if choices.refine_rounds == "auto" else choices.refine_rounds
    lloyd = partial(ResidualLloyd, keeps_steps=graph is not None and not a_start)
    last = lloyd(k, 1, plain=True, longest=LONGEST, merges=n_rounds == 1)
    if n_rounds == 1:
        stages: tuple[Stage, ...] = (subspace, cells, last)
        shares["centres"] = moving
    else:
        moves = lloyd(k, n_rounds - 1, plain=not some, name="refine", merges=True)
        stages = (subspace, cells, moves, last)
        shares |= {"refine": moving * (1 - 1 / n_rounds), "centres": moving / n_rounds}
    way = Way(stages, shares, refine=True, longest=LONGEST)
    if graph is None:
        return way
    if not a_start:
        return merged_by(graph, way)
    n_places = graph.n_prototypes if graph.any_shape else 0
    last = replace(last, n_clusters=graph.n_clusters, n_places=n_places)
    return replace(way, stages=(*stages[:-1], graph, last), n_places=n_places)
