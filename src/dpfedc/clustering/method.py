"""What a method is: settings with one table of constraints, a plan, and a model of its last state.

Estimators, the command line, the coordinator and deployed sites all plan through a `Method`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.clustering.stage import State
from dpfedc.errors import InvalidInput
from dpfedc.kernels.column_view import VIEW, unseen
from dpfedc.kernels.devices import as_numpy
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import PrivacyTarget, Setting, enumerated, left_open, plain
from dpfedc.tables.layout import NUMBER

if TYPE_CHECKING:
    from dpfedc.model_file import ClusterModel
    from dpfedc.tables.schema import Schema

Settings = Mapping[str, Any]
Target = PrivacyTarget | None
"""What a run may spend; without one it adds no noise."""
Plan = PrivacyPlan | None
Float = npt.NDArray[np.float64]


OUTSIDE = 1.0
"""A centre may lie so far outside a declared range, in halves of it, before it is doubted: with
many columns at the edge of their ranges, noise takes some a little over it."""
BY_SCHEMA = (
    "init", "center", "scale", "norm_bound", "feature_ranges", "constant_feature", "nonnegative",
)  # fmt: skip
"""Settings that speak of features as they stand, and so not of a table's columns."""


class Method(ABC):
    """A clustering method that can be planned from public facts.

    `settings` is the one table of what may be set, with defaults and limits. `proved` says that
    every release it makes with a target is charged and proved.
    """

    name: str
    settings: Mapping[str, Setting]
    proved: bool = True
    reads_tables: bool = False
    """Whether it knows what to do with columns that a schema describes."""

    def checked(self, given: Settings, facts: Federation) -> SimpleNamespace:
        """Return all settings, defaults filled in, or say what was expected of one of them.

        Names that are not in the table are not this method's business, and are left out.
        """
        if facts.layout is not None:
            self._require_table(given)
        chosen = {
            name: setting.checked(name, given.get(name, setting.default), facts)
            for name, setting in self.settings.items()
        }
        return SimpleNamespace(**{name: plain(value) for name, value in chosen.items()})

    def _require_table(self, given: Settings) -> None:
        """Say which settings a schema takes the place of."""
        if not self.reads_tables:
            raise InvalidInput(f"schema must be None for {self.name}, which takes numbers alone")
        self.require_left_out(given, BY_SCHEMA, "a schema, which describes columns")

    def require_left_out(self, given: Settings, names: Iterable[str], beside: str) -> None:
        """Say which of some settings cannot stand beside another."""
        for name in names:
            default = self.settings[name].default if name in self.settings else None
            value = given.get(name, default)
            if not (value is default or (np.isscalar(value) and value == default)):
                raise InvalidInput(f"{name} must be left out with {beside}")

    def cluster_range(self, given: Settings, facts: Federation) -> tuple[int, int]:
        """Return how many clusters there may be in the end, at least and at most."""
        choices = self.checked(given, facts)
        low, high = getattr(choices, "k_range", (choices.n_clusters, choices.n_clusters))
        return int(low), int(high)

    def require_deployed(self, given: Settings) -> None:
        """Say which settings separate sites do not know."""
        known = {name for name, setting in self.settings.items() if setting.deployed}
        if not set(given) <= known:
            raise InvalidInput(
                f"settings of {self.name} must be among {', '.join(sorted(known))}, "
                f"got {', '.join(map(str, given))}"
            )

    def work_per_record(self, given: Settings, facts: Federation) -> float:
        """Return about how many multiplications one record takes in a round."""
        choices = vars(self.checked(given, facts))
        cells = choices.get("cells")
        asked = (choices["n_clusters"], cells, choices.get("n_prototypes"))
        k = max(n for n in asked if isinstance(n, int))
        return float(k * (facts.n_features + k * choices.get("membership_steps", 1)))

    @abstractmethod
    def plan(
        self, given: Settings, facts: Federation, target: Target, privacy: Plan = None
    ) -> RunPlan:
        """Return the plan; without a target it adds no noise.

        A privacy plan that was made before is taken as it is, which saves the time to make it.
        """

    def notes(self, given: Settings, facts: Federation, target: Target) -> tuple[str, ...]:
        """Return paragraphs on privacy that a report shows where nothing is proved."""
        return ()

    def declared(self, given: Settings, facts: Federation) -> dict[str, Float]:
        """Return what is declared of the records, as a run's first state: place and length."""
        state: dict[str, Float] = {}
        if given.get("feature_ranges") is not None:
            ranges = checked_ranges(given["feature_ranges"], facts.n_features)
            state["origin"] = ranges.mean(axis=1)
            state["bound"] = np.asarray(np.linalg.norm(ranges[:, 1] - ranges[:, 0]) / 2)
        elif declares_bound(given):
            state["bound"] = np.asarray(given["norm_bound"], dtype=np.float64)
        return state

    def model(
        self,
        given: Settings,
        plan: RunPlan,
        state: State,
        *,
        feature_names: tuple[str, ...] | None,
        about: Mapping[str, Any],
    ) -> ClusterModel:
        """Return the model that a state stands for: by default the nearest of its centres."""
        return nearest_model(state, feature_names=feature_names, about=about)

    def doubts(self, given: Settings, model: ClusterModel) -> tuple[str, ...]:
        """Return what in a model contradicts what was declared."""
        away = _out_of_range(given, model)
        outside = np.flatnonzero((away > 1 + OUTSIDE).any(axis=1)).tolist()
        if not outside:
            return ()
        which = f"{'centre' if len(outside) == 1 else 'centres'} {enumerated(outside)}"
        verb = "lies" if len(outside) == 1 else "lie"
        return (f"{which} {verb} outside the declared ranges: noise has thrown them there",)


def nearest_model(
    state: State, *, feature_names: tuple[str, ...] | None, about: Mapping[str, Any]
) -> ClusterModel:
    """Return the model that assigns to the nearest centre.

    It measures from the middle of the centres: far from them, squares would lose the digits that
    tell the centres apart.
    """
    from dpfedc.model_file import ClusterModel

    centers = as_numpy(state["centers"])
    middle = centers.mean(axis=0)
    return ClusterModel(
        directions=centers,
        center=middle,
        scale=None,
        centers=centers - middle,
        by_membership=False,
        feature_names=feature_names,
        about=about,
        **measured(state),
    )


def measured(state: State) -> dict[str, Any]:
    """Return sizes, spread, and the errors of sizes and centres, as far as they were released."""
    names = ("sizes", "size_errors", "center_errors")
    found: dict[str, Any] = {name: as_numpy(state[name]) for name in names if name in state}
    if "best_cost" in state and "sizes" in state:
        found["within"] = float(state["best_cost"]) / float(state["best_records"])
    if "stability" in state:
        found["stability"] = min(max(float(state["stability"]), 0.0), 1.0)
    return found


def _out_of_range(given: Settings, model: ClusterModel) -> Float:
    """Return how far centres are from the middle of declared ranges, in halves of them."""
    if model.schema is not None:
        numbers = [g.start for g in model.schema.layout if g.kind == NUMBER and not g.auto]
        return np.asarray(np.abs(unseen(model.seen_centers, model.view)[:, numbers]))
    if given.get("feature_ranges") is None:
        return np.zeros((1, 1))
    least, most = checked_ranges(given["feature_ranges"], model.center.size).T
    return np.asarray(np.abs(model.cluster_centers - (least + most) / 2) / ((most - least) / 2))


def with_table(model: ClusterModel, state: State, schema: Schema | None) -> ClusterModel:
    """Return the model with what its columns are seen through, and their schema, if there are."""
    view = {name: as_numpy(state[name]) for name in VIEW if name in state}
    if schema is None:
        return replace(model, view=view)
    return replace(model, schema=schema, view=view, feature_names=schema.features)


def declares_bound(given: Settings) -> bool:
    """Return whether the length of the longest record is given, and need not be bought."""
    bound = given.get("norm_bound", "auto")
    return given.get("feature_ranges") is not None or not left_open(bound, ("auto",))


def checked_ranges(ranges: Any, n_features: int) -> Float:
    """Return the least and largest values of the features, or say what was expected of them."""
    expected = f"finite numbers of shape ({n_features}, 2) with least < largest in every row"
    try:
        values = np.asarray(ranges, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        got = repr(ranges)[:80]
        raise InvalidInput(f"feature_ranges must hold {expected}, got {got}") from error
    if values.shape != (n_features, 2):
        raise InvalidInput(f"feature_ranges must hold {expected}, got shape {values.shape}")
    wrong = ~(np.isfinite(values).all(axis=1) & (values[:, 0] < values[:, 1]))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidInput(f"feature_ranges must hold {expected}, got {values[i]} in row {i}")
    return values


def checked_start(init: Any, n_clusters: int, n_features: int) -> Float:
    """Return given public centres as an array, or say what was expected of them."""
    expected = (n_clusters, n_features)
    try:
        start = np.asarray(init, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"init must be None or an array of shape {expected}, got {repr(init)[:80]}"
        ) from error
    if start.shape != expected:
        raise InvalidInput(f"init must have shape {expected}, got {start.shape}")
    if not np.isfinite(start).all():
        raise InvalidInput("init must be finite, got NaN or infinity")
    return start
