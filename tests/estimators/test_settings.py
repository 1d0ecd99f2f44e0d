"""Every setting of every estimator is in one table: its default, its limits, and its refusal."""

import inspect
import math

import numpy as np
import pytest

from dpfedc import DPFedC
from dpfedc.errors import InvalidInput
from dpfedc.estimators.federated_kmeans import DPLloyd, FederatedKMeans
from dpfedc.research.rivals.averaged_kmeans import AveragedKMeans
from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
from dpfedc.research.rivals.fuzzy_cmeans import FederatedFuzzyCMeans
from dpfedc.research.rivals.k_fed import KFed
from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
from dpfedc.settings import (
    RUN_SETTINGS,
    require_bool,
    require_choice,
    require_integer,
    require_number,
)

ESTIMATORS = [
    DPFedC, DPLloyd, FederatedKMeans, KMeansParallel, KFed, CoresetKMedian, FederatedFuzzyCMeans,
    AveragedKMeans,
]  # fmt: skip
OUTSIDE = {"random_state", "on_round", "device", "ledger", "variant"}
"""Parameters that are no setting of a method: they say how, where and by which one it is run."""
OWN_DEFAULTS = {
    DPFedC: {"epsilon": 1.0, "trust": "local"},
    DPLloyd: {"epsilon": 1.0, "trust": "local"},
    FederatedKMeans: {"epsilon": None, "trust": "secure-aggregation"},
    KMeansParallel: {"epsilon": None},
    KFed: {"epsilon": None},
    CoresetKMedian: {"epsilon": None},
    FederatedFuzzyCMeans: {"epsilon": None},
    AveragedKMeans: {"epsilon": None},
}
"""Methods that are private by nature have an epsilon; the others are what they are without it."""
X = np.random.default_rng(0).normal(size=(20, 2))
SITES = np.arange(20) % 4
FACTS = {"n_sites": 4, "n_features": 2}


def table_of(estimator, **settings):
    """Return the estimator's constraints: those of its method, and those of every run."""
    return {**RUN_SETTINGS, **estimator(**settings)._method().settings}


def parameters(estimator):
    return inspect.signature(estimator).parameters


def test_all_estimators_are_here():
    from dpfedc.estimators.base import FederatedClusterer
    from dpfedc.research.rivals.rival import RivalClusterer

    found, waiting = set(), [FederatedClusterer]
    while waiting:
        waiting += (classes := waiting.pop().__subclasses__())
        found |= {c for c in classes if c.__module__.startswith("dpfedc.")}
    assert found - {RivalClusterer} == set(ESTIMATORS)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_parameter_is_known_and_every_setting_can_be_set(estimator):
    names, own = set(parameters(estimator)), set(estimator()._method().settings)
    assert names <= own | set(RUN_SETTINGS) | OUTSIDE
    assert own <= names


def test_the_published_variant_has_one_setting_more_which_is_taken_from_the_records():
    published = DPFedC(variant="published")._method().settings
    assert set(published) - set(parameters(DPFedC)) == {"mean_energy"}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_defaults_are_those_of_the_table(estimator):
    for name, parameter in parameters(estimator).items():
        if name in OWN_DEFAULTS[estimator]:
            expected = OWN_DEFAULTS[estimator][name]
        elif name in OUTSIDE:
            expected = "normalized" if name == "variant" else None
        else:
            expected = table_of(estimator)[name].default
        assert parameter.default == expected, name
        assert type(parameter.default) is type(expected), name
    assert not set(OWN_DEFAULTS[estimator]) - set(parameters(estimator))


def wrong_values(setting):
    """Return values beyond every limit of a setting, and of other kinds than it takes."""
    limits = setting.limits
    if setting.check is require_bool:
        return [1, None, "yes"]
    if setting.check is require_choice:
        return ["nothing of the kind", None]
    wrong = ["many", True, math.nan] + ([] if None in setting.free else [None])
    if setting.check is require_integer:
        wrong += [limits["least"] - 1, limits["least"] + 0.5]
        return wrong + ([FACTS[setting.most] + 1] if setting.most else [])
    assert setting.check is require_number
    wrong += [math.inf, -math.inf]
    wrong += [limits[name] for name in ("above", "below") if name in limits]
    wrong += [math.nextafter(limits["least"], -math.inf)] if "least" in limits else []
    return wrong + ([math.nextafter(limits["most"], math.inf)] if "most" in limits else [])


def constrained(estimator, **settings):
    """Return what has limits in the table; the rest (`init`, `feature_ranges`) the plan checks."""
    checks = (require_bool, require_choice, require_integer, require_number)
    table = table_of(estimator, **settings)
    return {n: s for n, s in table.items() if n in parameters(estimator) and s.check in checks}


def test_a_misspelt_word_is_told_which_words_are_known():
    with pytest.raises(InvalidInput, match=r"n_clusters must be .*, or 'auto', got 'atuo'"):
        table_of(DPFedC)["n_clusters"].checked("n_clusters", "atuo", None)


CASES = [(estimator, {}) for estimator in ESTIMATORS] + [(DPFedC, {"variant": "published"})]


@pytest.mark.parametrize(("estimator", "settings"), CASES)
def test_a_wrong_value_of_every_setting_is_refused_by_its_name(estimator, settings):
    found = constrained(estimator, **settings)
    assert set(parameters(estimator)) - set(found) <= OUTSIDE | {
        "init",
        "feature_ranges",
        "k_range",
    }
    for name, setting in found.items():
        for value in wrong_values(setting):
            model = estimator(**{"n_clusters": 3, **settings, name: value})
            with pytest.raises(InvalidInput, match=rf"^{name} must be .*, got ") as caught:
                model.fit(X, sites=SITES)
            assert str(value) in str(caught.value)
            assert not hasattr(model, "cluster_centers_")
