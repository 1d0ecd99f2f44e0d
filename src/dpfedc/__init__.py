"""Cluster data that may not be pooled: differentially private federated clustering."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["DPFedC", "__version__", "stack_sites"]

if TYPE_CHECKING:
    from dpfedc.estimators.dp_fedc import DPFedC, stack_sites


def __getattr__(name: str) -> Any:
    # scikit-learn takes a second to import; `import dpfedc` and `dpfedc --help` do without.
    if name in ("DPFedC", "stack_sites"):
        from dpfedc.estimators import dp_fedc

        return getattr(dp_fedc, name)
    raise AttributeError(f"module 'dpfedc' has no attribute {name!r}")
