"""A run's model as it is sent to the sites: a plain frame, of which nothing is believed.

Only what the rounds made travels. What a model says of the run it is from, of the columns and of
the promise, a site knows from the agreement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedc.deployment.agreement import Agreement, require_name
from dpfedc.deployment.messages import MAX_MODEL_HEAD, MODEL_KIND, packed, unpacked
from dpfedc.errors import InvalidInput
from dpfedc.kernels.column_view import VIEW
from dpfedc.model_file import MEASURED, ClusterModel
from dpfedc.settings import Penalty, require_bool, require_integer, require_number
from dpfedc.summary.choice_of_k import ChoiceOfK
from dpfedc.summary.cluster_quality import ClusterQuality

MAX_SIZE = 1e150
"""Of any number; larger ones cannot be squared."""
MAX_STEPS = 1000
"""On the memberships of a record that is assigned to its cluster."""
PLAIN = (
    "scale", "by_membership", "constant", "longest", "steps", "within", "stability",
    "nonnegative", "by_prototype",
)  # fmt: skip


def model_message(agreement: Agreement, model: ClusterModel) -> bytes:
    """Return the model of a run as bytes."""
    head = {
        "kind": MODEL_KIND,
        "run": agreement.digest,
        "version": str(model.about["version"]),
        "penalty": asdict(model.penalty),
        "names": {str(c): name for c, name in model.names.items()},
        "choice": None if model.choice is None else model.choice.as_plain(),
        "quality": None if model.quality is None else model.quality.as_plain(),
        **{name: getattr(model, name) for name in PLAIN},
    }
    names = ("directions", "center", "centers", "prototypes", "groups", *MEASURED)
    arrays = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
    arrays = {n: np.asarray(values, np.float64) for n, values in {**arrays, **model.view}.items()}
    return packed(head, arrays)


def received_model(data: bytes, agreement: Agreement) -> ClusterModel:
    """Return the model in a message, refused unless it can be one of the agreement's run."""
    head, arrays = unpacked(data, most=max_bytes(agreement), most_head=MAX_MODEL_HEAD)
    expected = {"kind", "run", "version", "penalty", "names", "choice", "quality", *PLAIN}
    if set(head) != expected or head["kind"] != MODEL_KIND or head["run"] != agreement.digest:
        raise InvalidInput("a model must be of its run, with its fields and no others")
    try:
        return _received(head, arrays, agreement)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"not a model of the run: {error}") from error


def max_bytes(agreement: Agreement) -> int:
    """Return the length of the longest message that can hold a model of the run."""
    (_, k), m = agreement.cluster_range, len(agreement.features)
    n = k + _n_prototypes(agreement)
    return MAX_MODEL_HEAD + 1024 + 64 * k + 8 * (n + 1) * (3 * m + 8) + 8 * len(VIEW) * m


def _n_prototypes(agreement: Agreement) -> int:
    """Return how many prototypes the agreed stages have; 0 if clusters are made of none."""
    return max(getattr(exchange.stage, "n_prototypes", 0) for exchange in agreement.exchanges)


def _received(
    head: Mapping[str, Any], arrays: dict[str, npt.NDArray[Any]], agreement: Agreement
) -> ClusterModel:
    constant = require_number("constant", head["constant"], least=0)
    if constant != float(agreement.settings.get("constant_feature", 0.0)):
        raise InvalidInput("constant must be what was agreed, got another one")
    _check_arrays(arrays, agreement, constant)
    view = {name: arrays.pop(name) for name in VIEW if name in arrays}
    scale, within, stability = head["scale"], head["within"], head["stability"]
    return ClusterModel(
        **arrays,
        scale=None if scale is None else require_number("scale", scale, above=0, most=MAX_SIZE),
        by_membership=require_bool("by_membership", head["by_membership"]),
        constant=constant,
        longest=_longest(head["longest"], agreement),
        penalty=Penalty(**head["penalty"]),
        steps=require_integer("steps", head["steps"], least=1, most=MAX_STEPS),
        nonnegative=require_bool("nonnegative", head["nonnegative"]),
        feature_names=agreement.features,
        about=_about(agreement, require_name("version", head["version"])),
        schema=agreement.schema,
        view=view,
        within=None if within is None else require_number("within", within, least=-MAX_SIZE),
        stability=None if stability is None else require_number("stability", stability),
        names={int(c): name for c, name in head["names"].items()},
        by_prototype=require_bool("by_prototype", head["by_prototype"]),
        choice=_choice(head["choice"], agreement),
        quality=_quality(head["quality"], agreement),
    )


def _longest(value: Any, agreement: Agreement) -> float:
    """Return how long records count, which the plan fixes: 1, or what its last stage says."""
    planned = getattr(agreement.plan.stages[-1], "longest", 1.0)
    if require_number("longest", value, least=1) not in (1.0, planned):
        raise InvalidInput(f"longest must be {planned:g}, as was agreed, got {value:g}")
    return float(value)


def _choice(plain: Any, agreement: Agreement) -> ChoiceOfK | None:
    """Return how the number of clusters was chosen, which a model tells if that was agreed on."""
    low, high = agreement.cluster_range
    if (plain is None) != (low == high):
        raise InvalidInput(
            "a model must tell a choice of k where one was agreed on, and only there"
        )
    if plain is None:
        return None
    choice = ChoiceOfK.from_plain(plain)
    if choice.curve[0].n_clusters != low or choice.curve[-1].n_clusters > high:
        raise InvalidInput(f"a choice of k must be from {low} to {high}, got another range")
    return choice


def _quality(plain: Any, agreement: Agreement) -> ClusterQuality | None:
    """Return how good the clusters are, which a model may tell if that was agreed on."""
    if plain is None:
        return None
    if not agreement.settings.get("quality", False):
        raise InvalidInput("a model must have no quality unless that was agreed on")
    return ClusterQuality.from_plain(plain)


def _check_arrays(
    arrays: Mapping[str, npt.NDArray[Any]], agreement: Agreement, constant: float
) -> None:
    (low, high), m = agreement.cluster_range, len(agreement.features)
    k, n = len(arrays.get("directions", ())), _n_prototypes(agreement)
    if not low <= k <= high:
        raise InvalidInput(f"a model must have {low} to {high} clusters, got {k}")
    shapes = {
        "directions": (k, m + (constant != 0)),
        "center": (m,),
        "centers": (k, m),
        "sizes": (k,),
        "size_errors": (k,),
        "center_errors": (k, m),
        **({"prototypes": (n, m), "groups": (n,)} if n else {}),
    }
    view = [name for name in VIEW if name in agreement.exchanges[-1].broadcast]
    shapes |= dict.fromkeys(view, (m,))
    for name in ("directions", "center", *view):
        if name not in arrays:
            raise InvalidInput(f"a model must have {name}, got none")
    for name, values in arrays.items():
        if name not in shapes:
            raise InvalidInput(f"a model must have no other arrays, got {name[:80]!r}")
        if values.dtype != np.float64 or values.shape != shapes[name]:
            raise InvalidInput(f"{name} must be floats of shape {shapes[name]}, got others")
        good = np.abs(values) <= MAX_SIZE
        if name == "center_errors":
            good |= np.isposinf(values)  # of a centre that is no mean of records
        if name.endswith("_errors"):
            good &= values >= 0
        if not good.all():
            raise InvalidInput(f"{name} must be finite numbers in range, got others")


def _about(agreement: Agreement, version: str) -> dict[str, Any]:
    """Return what the coordinator's own model says of the run."""
    promise = agreement.guarantee
    return {
        "method": agreement.method,
        "version": version,
        "stamps": [] if promise.stamp is None else [promise.stamp],
        "privacy": promise.as_plain(),
        "run": agreement.digest,
    }
