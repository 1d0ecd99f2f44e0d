"""From options to the plan of a run: what `plan` prints and `fit` follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dpfedc.cli.options import DEFAULT_EPSILON, Trust
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dpfedc.clustering.run_plan import Federation, RunPlan
    from dpfedc.settings import PrivacyTarget


def privacy_settings(
    *,
    epsilon: float | None,
    no_noise: bool = False,
    delta: float,
    trust: Trust,
    min_survivors: int | None,
    colluding_sites: int | None,
    sampling_probability: float,
) -> dict[str, Any]:
    """Return the estimator's settings on privacy, or say which options exclude each other."""
    if no_noise and epsilon is not None:
        raise InvalidInput(f"--no-noise and --epsilon exclude each other, got --epsilon {epsilon}")
    if trust is not Trust.SECURE_AGGREGATION:
        together = {"--min-survivors": min_survivors, "--colluding-sites": colluding_sites}
        for option, value in together.items():
            if value is not None:
                raise InvalidInput(
                    f"{option} needs --trust secure-aggregation, got --trust {trust}"
                )
    chosen = DEFAULT_EPSILON if epsilon is None else epsilon
    return {
        "epsilon": None if no_noise else chosen,
        "delta": delta,
        "trust": str(trust),
        "min_survivors": min_survivors,
        "colluding_sites": colluding_sites or 0,
        "sampling_probability": sampling_probability,
    }


def planned(
    settings: Mapping[str, Any], n_features: int, records_per_site: npt.NDArray[np.int64]
) -> tuple[RunPlan, Federation, PrivacyTarget | None]:
    """Return the plan that the estimator makes from these settings, and what it is made from."""
    from dpfedc.clustering.registry import method_named
    from dpfedc.clustering.run_plan import Federation
    from dpfedc.settings import PrivacyTarget

    facts, target = Federation(n_features, records_per_site), None
    if settings["epsilon"] is not None:
        names = {f.name for f in fields(PrivacyTarget)}
        target = PrivacyTarget(**{name: settings[name] for name in names})
    return method_named("dp-fedc").plan(settings, facts, target), facts, target
