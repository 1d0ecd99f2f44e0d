"""A site's ledger: what it has ever released, under a cap that its owner set once."""

from dpfedc.privacy.ledger.caps import BasicCap, GaussianCap
from dpfedc.privacy.ledger.chain import Damaged, Head, Unusable
from dpfedc.privacy.ledger.site_ledger import Ledger, StageCount, Totals

__all__ = [
    "BasicCap",
    "Damaged",
    "GaussianCap",
    "Head",
    "Ledger",
    "StageCount",
    "Totals",
    "Unusable",
]
