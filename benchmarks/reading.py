"""Reading a CSV file into one matrix, beside pyarrow's own reader.

python benchmarks/reading.py [--rows N] [--columns M] [--repeats R] [--output FOLDER]

A file of random numbers is written to a temporary folder, once plain and once with a column of
words, in quotes, of which a few are not closed. Each reading is a process of its own. Time is that
of the reading alone, best of R, over the floor: pyarrow's when it is told that all columns are
numbers (by itself it tries other types first). Memory is the peak (ru_maxrss) less what the process
had after its imports, over the bytes of the matrix.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measuring import machine, write_json

READERS = {
    "dpfedc": """
from dpfedc.tables import arrow_lines
from dpfedc.tables.sources import DataSource
def read():
    return len(DataSource(path).load(names).X)
""",
    "dpfedc, by a schema": """
from dpfedc.tables import arrow_lines
from dpfedc.tables.schema import Schema
from dpfedc.tables.sources import DataSource
columns = [{"name": name, "kind": "number", "range": [-9, 9]} for name in names]
def read():
    return len(DataSource(path).load(Schema.of({"column": columns})).X)
""",
    "dpfedc without pyarrow": """
from dpfedc.tables import text_files
from dpfedc.tables.sources import DataSource
text_files._fast = lambda *_: None
def read():
    return len(DataSource(path).load(names).X)
""",
    "pyarrow": """
import pyarrow.csv
def read():
    return pyarrow.csv.read_csv(path).num_rows
""",
    "pyarrow, told the types": """
import pyarrow.csv
types = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.float64()))
def read():
    return pyarrow.csv.read_csv(path, convert_options=types).num_rows
""",
}
FLOOR = "pyarrow, told the types"
MEASURE = """
import json, resource, sys, time
path, names = sys.argv[1], json.loads(sys.argv[2])
{reader}
unit = 1 if sys.platform == "darwin" else 1024
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
before, start = peak(), time.perf_counter()
rows = read()
seconds = time.perf_counter() - start
print(json.dumps({{"seconds": seconds, "bytes": peak() - before, "rows": rows}}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--slow", action="store_true", help="also without pyarrow (minutes)")
    parser.add_argument("--output", type=Path, default=Path("results/bench"))
    given = parser.parse_args()
    shape = given.rows, given.columns
    with tempfile.TemporaryDirectory() as folder:
        plain, quoted = Path(folder) / "plain.csv", Path(folder) / "quoted.csv"
        write(plain, quoted, *shape)
        jobs = [("pyarrow", plain), (FLOOR, plain), ("dpfedc", plain), ("dpfedc", quoted)]
        jobs.append(("dpfedc, by a schema", plain))
        jobs += [("dpfedc without pyarrow", plain)] * given.slow
        runs = {f"{name}, {path.stem}": [] for name, path in jobs}
        for _ in range(given.repeats):  # in turn, as the machine may be shared
            for name, path in jobs:
                runs[f"{name}, {path.stem}"].append(measured(name, path, given.columns))
        size = plain.stat().st_size
    floor = min(run["seconds"] for run in runs[f"{FLOOR}, plain"])
    table = given.rows * given.columns * 8
    found = {}
    megabytes = f"{size / 1e6:.0f} MB of text, {table / 1e6:.0f} MB of numbers"
    print(f"{given.rows:,} x {given.columns}, {megabytes}")
    for name, many in runs.items():
        assert all(run["rows"] == given.rows for run in many), name
        seconds, peak = (min(run[key] for run in many) for key in ("seconds", "bytes"))
        found[name] = {
            "seconds": seconds, "over_floor": seconds / floor,
            "peak_bytes": peak, "over_table": peak / table,
        }  # fmt: skip
        print(
            f"{name:34} {seconds:7.2f} s = {seconds / floor:5.2f} x the floor;"
            f" peak {peak / 1e6:5.0f} MB = {peak / table:4.2f} x the matrix"
        )
    content = {"machine": machine(), "shape": shape, "file_bytes": size, "readings": found}
    write_json(given.output / "reading.json", content)


def write(plain: Path, quoted: Path, n_rows: int, n_columns: int) -> None:
    """Write the numbers, and again with words and a lone quote in every 100,000th row or so."""
    rng = np.random.default_rng(0)
    names = [f"c{j}" for j in range(n_columns)]
    with plain.open("w") as first, quoted.open("w") as second:
        first.write(",".join(names) + "\n")
        second.write(",".join([*names, "ward"]) + "\n")
        for start in range(0, n_rows, 10_000):
            rows = rng.standard_normal((min(10_000, n_rows - start), n_columns)).tolist()
            lines = [",".join(map(repr, row)) for row in rows]
            first.write("\n".join(lines) + "\n")
            lines = [f'{line},"ward {i % 9}"' for i, line in enumerate(lines)]
            if start % 100_000 == 0:
                lines[-1] += '"'
            second.write("\n".join(lines) + "\n")


def measured(reader: str, path: Path, n_columns: int) -> dict[str, float]:
    """Return seconds, peak bytes and rows of one reading in a process of its own."""
    code = MEASURE.format(reader=READERS[reader])
    names = json.dumps([f"c{j}" for j in range(n_columns)])
    command = [sys.executable, "-c", code, str(path), names]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
