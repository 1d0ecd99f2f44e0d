"""Models made by hand, whose summaries are known."""

import numpy as np

from dpfedc.model_file import ClusterModel
from dpfedc.summary.choice_of_k import ChoiceOfK, KPoint
from dpfedc.tables.schema import Schema

SCHEMA = Schema.of(
    {
        "person": "id",
        "column": [
            {"name": "age", "kind": "number", "range": [0, 100], "missing": "indicator"},
            {"name": "smoker", "kind": "category", "values": ["yes", "no"]},
            {"name": "stage", "kind": "category", "values": ["I", "II", "III"]},
        ],
    }
)
CENTERS = np.array(
    # age, its gaps; smoker yes, no, other; stage I, II, III, other
    [
        [-0.4, 0.0, 0.1, 0.9, 0.0, 0.2, 0.3, 0.5, 0.0],
        [0.4, 0.0, 0.7, 0.3, 0.0, 0.2, 0.3, 0.5, 0.0],
    ]
)
"""As the schema encodes them: ages 30 and 70."""


CHOICE = ChoiceOfK(
    2, 0.25, 0.1, (KPoint(2, -0.02, 0.03), KPoint(3, 0.25, 0.05), KPoint(4, None, None))
)


def bent_model(**more):
    """Return a model of two clusters: a bow of four prototypes, and one in its middle."""
    bow = [[-2.0, 0.0], [-1.0, 2.0], [1.0, 2.0], [2.0, 0.0]]
    given = {"sizes": np.array([400.0, 100.0]), "feature_names": ("east", "north"), **more}
    return plain_model(
        np.array([[0.0, 1.0], [0.0, 0.5]]),
        prototypes=np.array([*bow, [0.0, 0.5]]),
        groups=np.array([0.0, 0, 0, 0, 1]),
        by_prototype=True,
        choice=CHOICE,
        **given,
    )


def table_model(*, centers=CENTERS, error=0.01, factor=None, **more):
    """Return a model of a table whose encoded centres are known to a standard deviation."""
    k, m = centers.shape
    factor = np.ones(m) if factor is None else factor
    given = {
        "sizes": np.array([300.0, 100.0]),
        "size_errors": np.full(k, 5.0),
        "center_errors": np.full((k, m), float(error)),
        **more,
    }
    return ClusterModel(
        directions=centers,
        center=np.zeros(m),
        scale=None,
        centers=centers * factor,
        by_membership=False,
        schema=SCHEMA,
        feature_names=SCHEMA.features,
        view={"column_mean": np.zeros(m), "column_factor": factor},
        **given,
    )


def plain_model(centers, error=None, **more):
    """Return a model of numbers as they stand."""
    errors = None if error is None else np.full(centers.shape, float(error))
    return ClusterModel(
        directions=centers,
        center=np.zeros(centers.shape[1]),
        scale=None,
        centers=centers,
        by_membership=False,
        center_errors=errors,
        **more,
    )
