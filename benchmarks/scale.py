"""A million sites on one machine: seconds and memory of a fit on memory-mapped records.

python benchmarks/scale.py --folder FOLDER [--times 1.0] [--shapes many-small few-large]

Two shapes, 4 GB each as float32 with m = 100: 1,000,000 sites of 10 records, and 1,000 sites of
10,000. The file is made in FOLDER (on a disk, not in memory) and removed afterwards. k = 20,
R = 20, 1,000 sites a round, epsilon 20 (secure aggregation), one BLAS thread. Seconds are those of
the whole fit: calibration, the passes over all records before and after the rounds, the labels.
Memory is anonymous memory (RssAnon), sampled every 5 ms, less what there was before the fit: pages
of the mapped file do not count, the site ids handed to the fit were there before. Then seconds per
round against the number of sites at a fixed number of sites a round, 10 records a site. --times 0.1
makes everything ten times smaller, sites a round included. Writes scale.json.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from measuring import AnonymousPeak, machine, timed, write_json
from threadpoolctl import threadpool_limits

from dpfedc import DPFedC
from dpfedc.errors import BudgetWarning, UtilityWarning

M, K, ROUNDS, PER_ROUND = 100, 20, 20, 1_000
SHAPES = {"many-small": (1_000_000, 10), "few-large": (1_000, 10_000)}
CHUNK = 100_000


def make_records(path: Path, n: int) -> None:
    """Write n records in K clusters, a chunk at a time."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((K, M), dtype=np.float32)
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, M))
    for first in range(0, n, CHUNK):
        rows = min(CHUNK, n - first)
        noise = rng.standard_normal((rows, M), dtype=np.float32)
        mapped[first : first + rows] = centers[rng.integers(K, size=rows)] + noise
    mapped.flush()


def measured(path: Path, n_sites: int, per_site: int, per_round: int) -> dict[str, Any]:
    """Return seconds and memory of one fit on the first records of the file."""
    X = np.load(path, mmap_mode="r")[: n_sites * per_site]
    sites = np.repeat(np.arange(n_sites, dtype=np.int32), per_site)
    ends: list[float] = []

    def on_round(entry: Any, _: int) -> None:
        if entry.stage == "factorisation":
            ends.append(time.perf_counter())

    model = DPFedC(
        K,
        epsilon=20.0,
        delta=0.01 / len(X),
        trust="secure-aggregation",
        n_rounds=ROUNDS,
        sites_per_round=min(per_round, n_sites),
        refine_rounds=0,
        subspace=None,
        random_state=0,
        on_round=on_round,
    )
    with warnings.catch_warnings(), AnonymousPeak() as memory:
        warnings.simplefilter("ignore", UtilityWarning)
        warnings.simplefilter("ignore", BudgetWarning)
        seconds, _ = timed(lambda: model.fit(X, sites=sites))
    # The first round follows other work: the time between two ends is that of a round.
    per_round_s = statistics.median(np.diff(ends).tolist())
    result = {
        "sites": n_sites,
        "records_per_site": per_site,
        "sites_per_round": min(per_round, n_sites),
        "mapped_gib": X.nbytes / 2**30,
        "seconds": seconds,
        "seconds_per_round": per_round_s,
        "anonymous_growth_mib": memory.growth_mib,
    }
    print(
        f"  {n_sites:9,d} sites x {per_site:6,d}: fit {seconds.wall:8.2f} s wall, "
        f"{seconds.cpu:.2f} s processor; {1e3 * per_round_s:8.2f} ms a round; "
        f"{memory.growth_mib:8.1f} MiB beyond the {result['mapped_gib']:.2f} GiB mapped",
        flush=True,
    )
    return result


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--folder", type=Path, required=True, help="where the records are put")
    parser.add_argument("--times", type=float, default=1.0, help="size, as a multiple of the above")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    per_round = max(int(PER_ROUND * given.times), 2)
    sizes = {name: (max(int(n * given.times), 2), each) for name, (n, each) in SHAPES.items()}
    shapes, against_sites = {}, []
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as name, threadpool_limits(limits=1):
        path = Path(name) / "records.npy"
        make_records(path, max(n * each for n, each in sizes.values()))
        print("warm-up, for the imports")
        measured(path, max(per_round, 50), 10, per_round)
        for shape in given.shapes:
            print(shape)
            shapes[shape] = measured(path, *sizes[shape], per_round)
        if "many-small" in shapes:
            print("a round against the number of sites")
            for share in (0.001, 0.01, 0.1):
                n_sites = max(int(sizes["many-small"][0] * share), per_round)
                against_sites.append(measured(path, n_sites, 10, per_round))
            against_sites.append(shapes["many-small"])
    content = {"times": given.times, "shapes": shapes, "against_sites": against_sites}
    write_json(given.output / "scale.json", {**content, "machine": machine()})


if __name__ == "__main__":
    main()
