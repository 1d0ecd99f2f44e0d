"""Cluster data that may not be pooled: differentially private federated clustering."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dpfedc import theory
    from dpfedc.estimators.dp_fedc import DPFedC, stack_sites
    from dpfedc.estimators.federated_kmeans import DPLloyd, FederatedKMeans
    from dpfedc.estimators.table_encoder import TableEncoder
    from dpfedc.research.rivals.coreset_kmedian import CoresetKMedian
    from dpfedc.research.rivals.fuzzy_cmeans import FederatedFuzzyCMeans
    from dpfedc.research.rivals.k_fed import KFed
    from dpfedc.research.rivals.kmeans_parallel import KMeansParallel
    from dpfedc.tables.schema import Schema

_HOMES = {
    "DPFedC": "dpfedc.estimators.dp_fedc",
    "stack_sites": "dpfedc.estimators.dp_fedc",
    "DPLloyd": "dpfedc.estimators.federated_kmeans",
    "FederatedKMeans": "dpfedc.estimators.federated_kmeans",
    "Schema": "dpfedc.tables.schema",
    "TableEncoder": "dpfedc.estimators.table_encoder",
    "CoresetKMedian": "dpfedc.research.rivals.coreset_kmedian",
    "FederatedFuzzyCMeans": "dpfedc.research.rivals.fuzzy_cmeans",
    "KFed": "dpfedc.research.rivals.k_fed",
    "KMeansParallel": "dpfedc.research.rivals.kmeans_parallel",
}
__all__ = [
    "CoresetKMedian",
    "DPFedC",
    "DPLloyd",
    "FederatedFuzzyCMeans",
    "FederatedKMeans",
    "KFed",
    "KMeansParallel",
    "Schema",
    "TableEncoder",
    "__version__",
    "stack_sites",
    "theory",
]


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import; `import dpfedc` and `dpfedc --help` do without.
    if name == "theory":
        return import_module("dpfedc.theory")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpfedc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
