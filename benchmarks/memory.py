"""Peak memory of one fit and of its score, in a process of its own. Started by speed.py.

python benchmarks/memory.py FOLDER     (X.npy, sites.npy and settings.json lie there)

The records are loaded and a small fit has brought in every module before the count starts. Resident
growth is VmHWM after the fit (its peak, set back before) less VmRSS before it. A second fit is
traced by tracemalloc, which counts what Python and NumPy ask for, touched or not; so is the cost of
its labels, which must not copy the records.
"""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
from cases import Case, Settings, tiny_case
from measuring import memory_mib, reset_peak
from threadpoolctl import threadpool_limits

from dpfedc.kernels.metrics import kmeans_cost


def main() -> None:
    folder = Path(sys.argv[1])
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    case = Case("", np.load(folder / "X.npy"), np.load(folder / "sites.npy"), None, settings)
    with threadpool_limits(limits=1):
        tiny_case().fit()
        reset_peak()
        before = memory_mib("VmRSS")
        case.fit()
        resident = memory_mib("VmHWM") - before
        tracemalloc.start()
        labels = case.fit().labels_
        _, traced = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        held, _ = tracemalloc.get_traced_memory()
        kmeans_cost(case.X, labels)
        cost = tracemalloc.get_traced_memory()[1] - held
    data = case.X.nbytes / 2**20
    print(
        json.dumps(
            {
                "data_mib": data,
                "resident_growth_mib": resident,
                "resident_growth_over_data": resident / data,
                "traced_peak_mib": traced / 2**20,
                "traced_peak_over_data": traced / 2**20 / data,
                "cost_peak_over_data": cost / 2**20 / data,
            }
        )
    )


if __name__ == "__main__":
    main()
