"""Records of runs that promise privacy, made by hand."""

import json

import numpy as np

from dpfedc.engine.run_record import RoundRecord, RunRecord
from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.privacy_plan import PlannedRelease, PrivacyPlan
from dpfedc.summary.cluster_quality import quality_from
from support.summaries import plain_model, table_model

PLAN = PrivacyPlan(
    (PlannedRelease("mean", 1, 3, 1, 8.0, 1.0), PlannedRelease("fit", 4, 3, 4, 9.0, 1.0)),
    delta=1e-5,
    trust="local",
    n_sites=3,
    unit="person",
)
VERDICT = {"word": "rough", "sentences": ["Rehearsed, it scored 0.6.", "So so."], "score": 0.6}


def promised_record(stamp=SIMULATED, **results):
    """Return the record of a trial with all that one may hold."""
    promise = guarantee(PLAN, stamp).as_plain()
    rounds = [
        RoundRecord(*("fit", t, 3, 400, 0.25), diagnostics={"accuracy": 0.1 * t}, moved=0.8 / t)
        for t in range(1, 5)
    ]
    told = [
        {
            **{"stage": r.stage, "purpose": f"what {r.stage} is for", "n_rounds": r.n_rounds},
            **{"rounds_per_site": r.rounds_per_site, "noise_multiplier": r.noise_multiplier},
            "budget_share": 0.5,
        }
        for r in PLAN.releases
    ]
    return RunRecord(
        "dp-fedc",
        "1.2.3",
        {
            **{"n_clusters": 2, "n_sites": 3, "n_records": 400, "n_features": 9},
            **{"epsilon": promise["epsilon"], "random_state": 5},
        },
        (RoundRecord("mean", 1, 3, 400, 0.5), *rounds),
        () if stamp is None else (stamp,),
        {
            **{"privacy": promise, "privacy_plan": json.loads(PLAN.to_json()), "stages": told},
            **{"verdict": VERDICT, "doubts": ["a count is small"], "title": "Patients"},
            **{"command": "dpfedc fit patients.csv", "image_shape": None},
            **results,
        },
    ).with_exact(
        scores={"accuracy": 0.875, "cost": 2.5},
        pooled_kmeans={"accuracy": 0.9, "cost": 2.25},
        cluster_sizes=[310, 90],
    )


QUALITY = quality_from(
    np.array([[300.0, 60.0, 150.0], [4.0, 3.0, 2.0]]), np.array([5.0, 2.0, 5.0]), 400, 2.0
)
"""Of two clusters, the second of which does not stand out from the noise."""


def model(**more):
    """Return the model of that run."""
    about = {"stamps": [SIMULATED], "privacy": {"unit": "person"}, **more.pop("about", {})}
    return table_model(about=about, **more)


def picture_model():
    """Return a model whose centres are pictures of 3 x 4 pixels."""
    return plain_model(np.arange(24.0).reshape(2, 12), sizes=np.array([300.0, 100.0]))
