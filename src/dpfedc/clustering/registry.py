"""From settings to plans: checked once, for estimators, the command line and deployed sites alike.

Settings are a mapping from names to plain values; a name that is missing has its default. Nothing
here sees a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.clustering.dp_fedc_planner import normalized_plan
from dpfedc.clustering.lloyd_planner import lloyd_plan
from dpfedc.clustering.run_plan import Choices, Federation, RunPlan
from dpfedc.clustering.stage import State
from dpfedc.errors import InvalidInput
from dpfedc.kernels.host import as_numpy
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.settings import (
    PrivacyTarget,
    require_bool,
    require_choice,
    require_integer,
    require_number,
)

Settings = Mapping[str, Any]
Float = npt.NDArray[np.float64]

LLOYD_ROUNDS = {"dp-lloyd": 5, "federated-k-means": 30}
PROVED_METHODS = ("dp-fedc", *LLOYD_ROUNDS)
"""Methods whose every release has a proved sensitivity."""
MODEL_STEPS = 50
"""Steps on a record's memberships when it is assigned to a cluster."""
DEFAULTS: Settings = {
    **{f.name: f.default for f in fields(Choices) if f.default is not MISSING},
    "norm_bound": "auto",
    "feature_ranges": None,
}


def plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python number it stands for; JSON knows no other."""
    return value.item() if isinstance(value, np.generic) else value


def left_open(value: Any, free: tuple[str | None, ...]) -> bool:
    """Return whether a setting has one of the values that leave it to the plan."""
    return (value is None or isinstance(value, str)) and value in free


def checked_ranges(ranges: Any, n_features: int) -> Float:
    """Return the least and largest values of the features, or say what was expected of them."""
    expected = f"finite numbers of shape ({n_features}, 2) with least < largest in every row"
    try:
        values = np.asarray(ranges, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"feature_ranges must hold {expected}, got {ranges!r}") from error
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
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"init must be None or an array of shape {expected}, got {init!r}"
        ) from error
    if start.shape != expected:
        raise InvalidInput(f"init must have shape {expected}, got {start.shape}")
    if not np.isfinite(start).all():
        raise InvalidInput("init must be finite, got NaN or infinity")
    return start


def checked_choices(settings: Settings, facts: Federation) -> Choices:
    """Return DP-FedC's settings, checked against the public facts where they must agree."""
    given = {**DEFAULTS, **settings}
    require_choice("update", given["update"], ("gradient", "sums-and-gram"))
    if given["update"] != "gradient" and given["extra_steps"]:
        raise InvalidInput(
            f"extra_steps must be 0 or None with update={given['update']!r}, "
            f"got {given['extra_steps']}"
        )
    for name in ("center", "scale", "nonnegative"):
        require_bool(name, given[name])
    for name, least, most, free in (
        ("n_clusters", 1, None, ()),
        ("n_rounds", 1, None, ("auto",)),
        ("refine_rounds", 0, None, ("auto",)),
        ("sites_per_round", 1, facts.n_sites, (None,)),
        ("subspace", 1, facts.n_features, (None, "auto")),
        ("membership_steps", 1, None, ()),
        ("extra_steps", 0, None, (None,)),
        ("batch_size", 1, None, ()),
        ("n_restarts", 1, None, ()),
    ):
        if not left_open(given[name], free):
            require_integer(name, given[name], least=least, most=most)
    for name, limits, free in (
        ("norm_bound", {"above": 0}, ("auto",)),
        ("constant_feature", {"least": 0}, ()),
        ("sampling_probability", {"above": 0, "most": 1}, ()),
        ("orthogonality", {"least": 0}, ("auto",)),
        ("clip_norm", {"above": 0}, ("auto",)),
        ("step", {"above": 0}, ("auto",)),
        ("momentum", {"least": 0, "below": 1}, ("auto",)),
        ("gradient_bound", {"above": 0}, (None,)),
    ):
        if not left_open(given[name], free):
            require_number(name, given[name], **limits)
    if given["constant_feature"] and not left_open(given["subspace"], (None, "auto")):
        raise InvalidInput(
            "subspace must be None or 'auto' with a constant_feature, "
            f"got {given['subspace']}: the constant is no part of a subspace"
        )
    if given["n_restarts"] > 1:
        _check_restarts(given)
    if given["feature_ranges"] is not None:
        checked_ranges(given["feature_ranges"], facts.n_features)
    init = given["init"]
    if init is not None:
        init = checked_start(init, given["n_clusters"], facts.n_features)
    names = [f.name for f in fields(Choices) if f.name not in ("init", "declared_bound")]
    chosen = {name: plain(given[name]) for name in names}
    return Choices(**chosen, declared_bound=declares_bound(given), init=init)


def _check_restarts(given: Settings) -> None:
    """Say what several starts cannot be combined with."""
    together = {
        "a given init": given["init"] is not None,
        "variant='published'": given.get("variant", "normalized") != "normalized",
        "update='sums-and-gram'": given["update"] != "gradient",
        "extra_steps": bool(given["extra_steps"]),
    }
    for what, is_given in together.items():
        if is_given:
            raise InvalidInput(f"n_restarts must be 1 with {what}, got {given['n_restarts']}")


def declares_bound(settings: Settings) -> bool:
    """Return whether the length of the longest record is given, and need not be bought."""
    bound = settings.get("norm_bound", "auto")
    return settings.get("feature_ranges") is not None or not left_open(bound, ("auto",))


def proved_plan(
    method: str,
    settings: Settings,
    facts: Federation,
    target: PrivacyTarget | None,
    *,
    privacy: PrivacyPlan | None = None,
) -> RunPlan:
    """Return the plan of a proved method; without a target it adds no noise.

    A privacy plan that was made before is taken as it is, which saves the time to make it again.
    """
    require_choice("method", method, PROVED_METHODS)
    if method == "dp-fedc":
        return normalized_plan(checked_choices(settings, facts), facts, target, privacy=privacy)
    k = require_integer("n_clusters", settings["n_clusters"], least=1)
    rounds = settings.get("n_rounds", LLOYD_ROUNDS[method])
    n_rounds = require_integer("n_rounds", rounds, least=1)
    per_round = plain(settings.get("sites_per_round"))
    if per_round is not None:
        require_integer("sites_per_round", per_round, least=1, most=facts.n_sites)
    if not left_open(settings.get("norm_bound", "auto"), ("auto",)):
        require_number("norm_bound", settings["norm_bound"], above=0)
    init = settings.get("init")
    if init is not None:
        checked_start(init, k, facts.n_features)
    return lloyd_plan(
        k,
        n_rounds,
        per_round,
        facts,
        target,
        declared_bound=declares_bound(settings),
        given_start=init is not None,
        privacy=privacy,
    )


def declared_state(method: str, settings: Settings, n_features: int) -> dict[str, Float]:
    """Return what is declared of the records, as a run's first state: place, length, start."""
    state: dict[str, Float] = {}
    if settings.get("feature_ranges") is not None:
        ranges = checked_ranges(settings["feature_ranges"], n_features)
        state["origin"] = ranges.mean(axis=1)
        state["bound"] = np.asarray(np.linalg.norm(ranges[:, 1] - ranges[:, 0]) / 2)
    elif declares_bound(settings):
        state["bound"] = np.asarray(settings["norm_bound"], dtype=np.float64)
    if method in LLOYD_ROUNDS and settings.get("init") is not None:
        state["centres"] = checked_start(settings["init"], settings["n_clusters"], n_features)
    return state


def proved_model(
    method: str,
    settings: Settings,
    plan: RunPlan,
    state: State,
    *,
    feature_names: tuple[str, ...] | None,
    about: Mapping[str, Any],
) -> ClusterModel:
    """Return the model that a proved method's state stands for."""
    if method != "dp-fedc":
        return nearest_model(state["centres"], feature_names=feature_names, about=about)
    return factorization_model(settings, plan, state, feature_names=feature_names, about=about)


def nearest_model(
    centers: Any, *, feature_names: tuple[str, ...] | None, about: Mapping[str, Any]
) -> ClusterModel:
    """Return the model that assigns to the nearest centre.

    It measures from the middle of the centres: far from them, squares would lose the digits that
    tell the centres apart.
    """
    centers = as_numpy(centers)
    middle = centers.mean(axis=0)
    return ClusterModel(
        directions=centers,
        center=middle,
        scale=None,
        centers=centers - middle,
        by_membership=False,
        feature_names=feature_names,
        about=about,
    )


def factorization_model(
    settings: Settings,
    plan: RunPlan,
    state: State,
    *,
    feature_names: tuple[str, ...] | None,
    about: Mapping[str, Any],
    steps: int = MODEL_STEPS,
) -> ClusterModel:
    """Return the model of DP-FedC's state, which may be that of an unfinished run."""
    given = {**DEFAULTS, **settings}
    constant = float(given["constant_feature"])
    scale = state.get("scale")
    done = "counts" in state
    W = as_numpy(state["W"])
    if "basis" in state:
        W = W @ as_numpy(state["basis"])
    n_features = W.shape[1] - (constant != 0 and "basis" not in state)
    return ClusterModel(
        directions=W,
        center=as_numpy(state.get("center", np.zeros(n_features))),
        scale=None if scale is None else float(scale),
        centers=as_numpy(state["best_centres"]) if done else None,
        by_membership=not (plan.refine and done),
        constant=constant,
        penalty=plan.penalty,
        steps=steps,
        nonnegative=bool(given["nonnegative"]),
        feature_names=feature_names,
        about=about,
    )
