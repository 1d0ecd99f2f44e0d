"""Verdicts on plans, kept on the disk: the same plan is not rehearsed twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc.clustering.method import Method, Settings
from dpfedc.clustering.run_plan import Federation, RunPlan
from dpfedc.errors import DPFedCError
from dpfedc.verdict.verdict import Verdict, expected_verdict
from dpfedc.whole_files import write_whole


def kept_verdict(method: Method, given: Settings, facts: Federation, plan: RunPlan) -> Verdict:
    """Return the verdict on a plan, from an earlier rehearsal if there was one.

    What is kept follows from public facts alone. A folder that cannot be used is done without.
    """
    path = _folder() / f"{_key(method, given, facts, plan)}.json"
    try:
        if not path.is_file():
            raise FileNotFoundError(path)
        return Verdict.from_plain(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, DPFedCError):
        verdict = expected_verdict(method, given, facts, plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(verdict.as_plain()).encode())
    except OSError:
        pass
    return verdict


def _folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(given).is_absolute():  # as the standard for it says
        given = os.path.join(os.path.expanduser("~"), ".cache")
    return Path(given) / "dpfedc" / "verdicts"


def _key(method: Method, given: Settings, facts: Federation, plan: RunPlan) -> str:
    """Return what the verdict depends on, as a digest; with the code's version, and its content."""
    content: Mapping[str, Any] = {
        "version": version("dpfedc"),
        "code": _code(),
        "method": method.name,
        "given": {name: _plain(value) for name, value in sorted(given.items())},
        "facts": (facts.n_features, facts.n_records, facts.n_sites, repr(facts.layout)),
        "stages": repr(plan.stages),
        "privacy": None if plan.privacy is None else plan.privacy.to_json(),
    }
    return hashlib.sha256(json.dumps(content, default=repr).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _code() -> str:
    """Return the age of the rehearsing code: a changed rule makes verdicts anew."""
    package = Path(__file__).parents[1]
    files = [*(package / "verdict").glob("*.py"), *(package / "clustering").glob("*.py")]
    return str(max(file.stat().st_mtime_ns for file in files))
