"""Records and how they are dealt to sites: named data sets, the user's own files, partitions.

Nothing here is private or random by itself: loaders read, partitioners take their generator.
"""

from dpfedc.data.files import Table, read_table, read_tables
from dpfedc.data.load import Dataset, digits, load, mnist, tcga_mirna
from dpfedc.data.partition import by_column, dirichlet, iid, kmeans_cells, label_shards

__all__ = [
    "Dataset",
    "Table",
    "by_column",
    "digits",
    "dirichlet",
    "iid",
    "kmeans_cells",
    "label_shards",
    "load",
    "mnist",
    "read_table",
    "read_tables",
    "tcga_mirna",
]
