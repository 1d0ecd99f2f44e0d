"""How a coordinator makes an agreement: from a plan in TOML and the sites that will take part."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import Federation
from dpfedc.deployment.agreement import Agreement, Site
from dpfedc.errors import InvalidInput
from dpfedc.settings import PrivacyTarget, require_choice
from dpfedc.tables.schema import Schema

TABLES = {
    "run": ("name", "coordinator", "method", "clusters", "features", "schema", "seed"),
    "privacy": (
        "epsilon",
        "delta",
        "unit",
        "sites_per_person",
        "noise",
        "norm_bound",
        "feature_ranges",
    ),
    "rounds": ("rounds", "sites_per_round", "deadline", "min_answers"),
}
REQUIRED = ("name", "coordinator", "clusters", "epsilon", "delta")
SETTINGS = {
    "clusters": "n_clusters",
    "rounds": "n_rounds",
    "sites_per_round": "sites_per_round",
    "norm_bound": "norm_bound",
    "feature_ranges": "feature_ranges",
}
DEADLINE = 300.0
"""Seconds for a round if the plan does not say."""


def proposed(
    *,
    method: str,
    settings: Mapping[str, Any],
    features: Sequence[str],
    sites: Sequence[Site],
    schema: Schema | None = None,
    epsilon: float,
    delta: float,
    unit: str = "record",
    sites_per_person: int = 1,
    **terms: Any,
) -> Agreement:
    """Return the agreement on a run, planned here; `terms` are the other fields of an agreement."""
    sizes = np.array([site.n_records for site in sites], dtype=np.int64)
    facts = Federation(len(features), sizes, None if schema is None else schema.layout)
    target = PrivacyTarget(epsilon, delta, unit=unit, sites_per_person=sites_per_person)
    plan = method_named(method).plan(settings, facts, target)
    if plan.privacy is None:
        raise InvalidInput("a deployed run must have a privacy plan, got none")
    agreement = Agreement(
        method=method,
        settings=settings,
        features=tuple(features),
        sites=tuple(sites),
        schema=schema,
        epsilon=epsilon,
        privacy=plan.privacy,
        **terms,
    )
    if not agreement.exchanges:  # says now what a site would refuse later
        raise InvalidInput("a deployed run must have stages, got none")
    return agreement


def proposed_by_toml(
    text: str, *, sites: Sequence[Site], receipt_key: str, folder: Path = Path()
) -> Agreement:
    """Return the agreement that a plan in `folder` proposes to these sites.

    [run] has name, coordinator, clusters, and features or the path of a schema, perhaps method and
    seed; [privacy] epsilon
    and delta, perhaps unit, sites_per_person, noise, norm_bound and feature_ranges; [rounds], which
    may be missing, rounds, sites_per_round, deadline and min_answers (half of a round's sites if it
    does not say); [settings] what else the method has.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"the plan must be TOML: {error}") from error
    settings: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for table, values in tables.items():
        require_choice("a table of the plan", table, (*TABLES, "settings"))
        if not isinstance(values, dict):
            raise InvalidInput(f"{table} must be a table of the plan, got {values!r}")
        if table == "settings":
            settings = values
            continue
        for name in values:
            require_choice(f"what [{table}] says", name, TABLES[table])
        given |= values
    missing = [name for name in REQUIRED if name not in given]
    if "features" not in given and "schema" not in given:
        missing.append("schema or features")
    if missing:
        raise InvalidInput(f"the plan must say {', '.join(missing)}")
    schema, unit, most_sites = (
        _schema(given, folder),
        given.get("unit"),
        given.get("sites_per_person"),
    )
    chosen = {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}
    per_round = given.get("sites_per_round", len(sites))
    return proposed(
        method=given.get("method", "dp-fedc"),
        settings={**settings, **chosen},
        sites=sites,
        receipt_key=receipt_key,
        features=given["features"] if schema is None else schema.features,
        schema=schema,
        unit=unit or (schema.unit if schema else "record"),
        sites_per_person=most_sites or (schema.sites_per_person if schema else 1),
        noise=given.get("noise", "secure"),
        seed=given.get("seed", 0),
        deadline=given.get("deadline", DEADLINE),
        min_answers=given.get("min_answers", (per_round + 1) // 2),
        **{name: given[name] for name in REQUIRED if name != "clusters"},
    )


def _schema(given: Mapping[str, Any], folder: Path) -> Schema | None:
    if "schema" not in given:
        return None
    if "features" in given:
        raise InvalidInput("the plan must have a schema or features, got both")
    if not isinstance(given["schema"], str):
        raise InvalidInput(f"schema must be the path of a schema, got {given['schema']!r}")
    return Schema.read(folder / given["schema"]).for_site()
