"""diffprivlib's k-means on pooled records. Run by rivals.py in its own environment.

python diffprivlib_kmeans.py FOLDER REPEATS     (X.npy and rival.json lie there)

Writes labels.npy and seconds.json into the folder.
"""

import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from diffprivlib.models import KMeans
from diffprivlib.utils import PrivacyLeakWarning


def main() -> None:
    folder, repeats = Path(sys.argv[1]), int(sys.argv[2])
    X, rival = np.load(folder / "X.npy"), json.loads((folder / "rival.json").read_text())
    bounds = (np.asarray(rival["least"]), np.asarray(rival["largest"]))
    warnings.simplefilter("ignore", PrivacyLeakWarning)
    walls, cpus = [], []
    for _ in range(repeats):
        model = KMeans(rival["n_clusters"], epsilon=rival["epsilon"], bounds=bounds, random_state=0)
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    np.save(folder / "labels.npy", model.labels_)
    (folder / "seconds.json").write_text(json.dumps({"wall": walls, "cpu": cpus}))


if __name__ == "__main__":
    main()
