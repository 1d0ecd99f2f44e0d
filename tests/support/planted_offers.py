"""Plants extreme numbers into agreements, within bounds on memory and processor time.

Run as a process of its own; it prints how many were planted, refused and taken. A limit that is
passed ends it.
"""

import json
import resource
import sys

from dpfedc.deployment.agreement import Agreement
from dpfedc.deployment.terms import terms
from dpfedc.errors import InvalidInput
from dpfedc.tables.schema import Schema
from support.deployment import agreed

MAX_BYTES, MAX_SECONDS = 500 * 2**20, 60
"""Beyond what the imports take, and for all plants together: any one of them must be cheap."""
EXTREMES = (
    0, -1, 1, 1e-300, 1e-9, 1e9, 10**6, 10**12, 2**63, 1e150, 1e300, 10**400, True, None, "1", [1],
)  # fmt: skip
SETTINGS = {
    "n_clusters": 3, "n_rounds": 4, "sites_per_round": 2, "init": [[0.0] * 3, [1.0] * 3, [2.0] * 3],
    "norm_bound": 12.0, "constant_feature": 0.5, "refine_rounds": 2, "membership_steps": 5,
    "orthogonality": 0.5, "clip_norm": 0.1, "step": 8.0, "momentum": 0.5,
    "sampling_probability": 0.5,
}  # fmt: skip
SCHEMA = Schema.of(
    {
        "person": "id",
        "sites_per_person": 2,
        "column": [
            {"name": "a", "kind": "number", "range": [0, 9], "typical": [2, 3], "weight": 0.5},
            {"name": "b", "kind": "number", "range": [1, 9], "transform": "log"},
            {"name": "c", "kind": "category", "values": ["x", "y"], "typical": [0.5, 0.5]},
        ],
    }
)


def agreements():
    """Yield one of each kind, with every number set that can be."""
    yield agreed("dp-fedc", settings=SETTINGS, epsilon=5.0)
    yield agreed(
        "dp-fedc", settings={"subspace": 2, "refine_rounds": 0, "feature_ranges": [[0, 9]] * 3}
    )
    lloyd = ("n_rounds", "sites_per_round", "init", "norm_bound")
    yield agreed("dp-lloyd", settings={name: SETTINGS[name] for name in lloyd}, noise="secure")
    table = {"schema": SCHEMA, "features": SCHEMA.features, "unit": "person", "sites_per_person": 2}
    yield agreed("dp-fedc", settings={"cells": 5, "refine_rounds": 2}, **table)


def numbers_in(content, place=()):
    """Yield the places of all numbers in what a JSON holds."""
    if isinstance(content, (dict, list)):
        # What is in a list is of one kind: its last entry stands for all.
        keys = content if isinstance(content, dict) else range(len(content))[-1:]
        for key in keys:
            yield from numbers_in(content[key], (*place, key))
    elif isinstance(content, (int, float)) and not isinstance(content, bool):
        yield place


def planted(text, place, value):
    """Return the agreement's text with another value in one place."""
    content = at = json.loads(text)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def limit():
    """Allow so much more memory than there is now, and so much time."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MAX_BYTES, now + MAX_BYTES))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    seconds = int(used) + MAX_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def main():
    texts = [agreement.to_json() for agreement in agreements()]
    for text in texts:
        terms(Agreement.from_json(text))  # what is loaded late is loaded now
    limit()
    taken, refused, places = 0, 0, set()
    for text in texts:
        for place in numbers_in(json.loads(text)):
            places.add(place[0])
            for value in EXTREMES:
                print(place, str(value)[:20], file=sys.stderr, flush=True)
                try:
                    agreement = Agreement.from_json(planted(text, place, value))
                    assert agreement.digest
                    agreement.verified()
                    taken += 1
                except InvalidInput:
                    refused += 1
    print(json.dumps({"taken": taken, "refused": refused, "fields": sorted(places)}))


if __name__ == "__main__":
    main()
