"""A site's ledger: what it has ever released, under a cap that its owner set once."""

from dpfedc.privacy.ledger.caps import BasicCap, GaussianCap
from dpfedc.privacy.ledger.chain import Damaged, Head, RowsLost, Unusable
from dpfedc.privacy.ledger.ledger_rows import Recovery
from dpfedc.privacy.ledger.site_ledger import Ledger
from dpfedc.privacy.ledger.totals import StageCount, Totals

__all__ = [
    "BasicCap",
    "Damaged",
    "GaussianCap",
    "Head",
    "Ledger",
    "Recovery",
    "RowsLost",
    "StageCount",
    "Totals",
    "Unusable",
]
