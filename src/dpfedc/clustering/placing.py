"""The planner's rule for placing: which stages find where records lie, and for what share."""

from __future__ import annotations

import math
from types import SimpleNamespace

from dpfedc.clustering.bound import Bound, Radius
from dpfedc.clustering.column_spread import column_stages
from dpfedc.clustering.mean_and_scale import Mean, Scale
from dpfedc.clustering.run_plan import Federation
from dpfedc.clustering.stage import Stage
from dpfedc.tables.layout import NUMBER, Group

COLUMNS = "columns"
"""The setting `scale` by which every column gets a range and a spread of its own, as in a table."""
SHARES = {"scale": 0.01, "ranges": 0.05, "spread": 0.1}
"""Of the budget, counted in mu^2; the stages of the clustering itself share the rest."""
ALL_RANGES_SHARE = 0.15
"""Where no range at all is known: with less, half of some columns was cut off."""
LINE_SCALE_FACTOR = 2.0
"""On a line the outer clusters are twice as far out as the mean distance, and must not be clipped
together."""
PLACING = (
    (0.01, ((0.01, 0.01), (0.01, 0.01), (0.01, 0.05))),
    (0.025, ((0.02, 0.02), (0.02, 0.06))),
    (0.1, ((0.03, 0.03), (0.03, 0.08))),
    (0.4, ((0.05, 0.05), (0.05, 0.1))),
    (1.5, ((0.1, 0.2),)),
    (math.inf, ((0.05, 0.1),)),
)
"""Shares of the histogram and of the mean in each pass that looks for the records, by the share
that a histogram needs at most. With many records a pass is cheap. With very few there is but one,
and where it finds nothing all else is in vain: such a run is refused before it begins, or ends with
the histogram."""
STANDS_OUT = 0.125
"""A histogram must show a bin with this share of the records..."""
STANDS_OUT_BY = 5.3
"""...which is so many standard deviations of the noise (`beyond_noise`)."""
BOUND_SHARE = 0.02
"""Bins with a smaller share of the records are taken for outliers."""


def placing(
    choices: SimpleNamespace, facts: Federation, has_bound: bool, kappa: float
) -> tuple[list[Stage], dict[str, float]]:
    """Return the stages after which records have a mean and a scale, and their shares."""
    layout, of_columns = facts.layout, SHARES
    if layout is None and choices.scale == COLUMNS:
        layout = tuple(Group(NUMBER, i, 1, 1.0, auto=True) for i in range(facts.n_features))
        of_columns = {**SHARES, "ranges": ALL_RANGES_SHARE}
    if layout is not None:
        columns = column_stages(layout)
        return columns, {stage.name: of_columns[stage.name] for stage in columns}
    # What a histogram costs in which a bin with some of the records stands out from the noise.
    one = kappa / (choices.n_clusters * math.sqrt(facts.n_features))
    needed = (STANDS_OUT_BY * one / STANDS_OUT) ** 2
    passes = next(shares for most, shares in PLACING if needed <= most)
    stages: list[Stage] = []
    shares: dict[str, float] = {}

    def add(stage: Stage, share: float) -> None:
        stages.append(stage)
        shares[stage.name] = share

    if has_bound:
        passes = (passes[-1],)
    elif not choices.center:
        passes = passes[:1]
    for i, (of_histogram, of_mean) in enumerate(passes, start=1):
        around, number = ("data_mean", f"-{i}") if i > 1 else ("origin", "")
        if not has_bound:
            bound = Bound(min_share=BOUND_SHARE, around=around, name=f"bound{number}")
            add(bound, of_histogram)
        if choices.center:
            add(Mean(around, name=f"mean{number}"), of_mean)
    if choices.center and choices.scale and needed <= PLACING[1][0]:
        add(Radius(min_share=BOUND_SHARE), passes[0][0])
    if choices.scale:
        line = facts.n_features == 1
        add(Scale(LINE_SCALE_FACTOR) if line else Scale(), SHARES["scale"])
    return stages, shares
