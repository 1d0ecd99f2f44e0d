"""How a coordinator makes an agreement: from a plan in TOML and the sites that will take part."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpfedc.clustering.registry import method_named, proved_methods
from dpfedc.clustering.run_plan import Federation
from dpfedc.deployment.agreement import DEPLOYED_TRUSTS, NOISES, Agreement, Site
from dpfedc.deployment.limits import MAX_SECONDS
from dpfedc.deployment.secure_aggregation.circle import least_survivors, usual_survivors
from dpfedc.errors import InvalidInput
from dpfedc.settings import PrivacyTarget, require_choice, require_integer, require_number
from dpfedc.tables.schema import Schema

TABLES = {
    "run": (
        "name",
        "coordinator",
        "method",
        "clusters",
        "k_range",
        "shape",
        "prototypes",
        "quality",
        "features",
        "schema",
        "seed",
    ),
    "privacy": (
        "epsilon",
        "delta",
        "trust",
        "min_survivors",
        "colluding_sites",
        "unit",
        "sites_per_person",
        "noise",
        "norm_bound",
        "feature_ranges",
    ),
    "rounds": ("rounds", "sites_per_round", "deadline", "min_answers", "spare_rounds"),
}
REQUIRED = ("name", "coordinator", "clusters", "epsilon", "delta")
SETTINGS = {
    "clusters": "n_clusters",
    "k_range": "k_range",
    "shape": "shape",
    "prototypes": "n_prototypes",
    "quality": "quality",
    "rounds": "n_rounds",
    "sites_per_round": "sites_per_round",
    "norm_bound": "norm_bound",
    "feature_ranges": "feature_ranges",
}
DEADLINE = 300.0
"""Seconds for a round if the plan does not say."""
COLLUDING_SITES = 1
"""That secure aggregation tolerates if the plan does not say: with none, every site could take its
own share of the noise off again."""
MANY = 10**6
"""Records of a site that nobody has asked yet."""
SPARE_ROUNDS = 1
"""Of a stage of one round: without it, sites that crash in that round end the run."""


def proposed(
    *,
    method: str,
    settings: Mapping[str, Any],
    features: Sequence[str],
    sites: Sequence[Site],
    schema: Schema | None = None,
    epsilon: float,
    delta: float,
    trust: str = "local",
    min_survivors: int | None = None,
    colluding_sites: int = 0,
    unit: str = "record",
    sites_per_person: int = 1,
    spare_rounds: int = SPARE_ROUNDS,
    **terms: Any,
) -> Agreement:
    """Return the agreement on a run, planned here; `terms` are the other fields of an agreement."""
    sizes = np.array([site.n_records for site in sites], dtype=np.int64)
    facts = Federation(len(features), sizes, None if schema is None else schema.layout)
    target = PrivacyTarget(
        epsilon,
        delta,
        trust=trust,
        min_survivors=min_survivors,
        colluding_sites=colluding_sites,
        unit=unit,
        sites_per_person=sites_per_person,
        spare_rounds=spare_rounds,
    )
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
    """Return the agreement that a plan in `folder` proposes to these sites."""
    said = read_plan(text, n_sites=len(sites), folder=folder)
    return proposed(**said, sites=sites, receipt_key=receipt_key)


def read_plan(text: str, *, n_sites: int, folder: Path = Path()) -> dict[str, Any]:
    """Return what a plan in `folder` says, as `proposed` takes it, checked without any site.

    [run] has name, coordinator, clusters, and features or the path of a schema, perhaps method and
    seed; [privacy] epsilon
    and delta, perhaps trust, min_survivors, colluding_sites, unit, sites_per_person, noise,
    norm_bound and feature_ranges; [rounds], which
    may be missing, rounds, sites_per_round, deadline, min_answers (half of a round's sites if it
    does not say) and spare_rounds (1, or 0); [settings] what else the method has.
    """
    settings, given = _tables(text)
    schema, unit, most_sites = (
        _schema(given, folder),
        given.get("unit"),
        given.get("sites_per_person"),
    )
    chosen = {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}
    per_round = require_integer(
        "sites_per_round", given.get("sites_per_round", n_sites), least=1, most=n_sites
    )
    sharing = _sharing(given, n_sites)
    said = dict(
        method=given.get("method", "dp-fedc"),
        settings={**settings, **chosen},
        features=given["features"] if schema is None else schema.features,
        schema=schema,
        unit=unit or (schema.unit if schema else "record"),
        sites_per_person=most_sites or (schema.sites_per_person if schema else 1),
        noise=given.get("noise", "secure"),
        seed=given.get("seed", 0),
        deadline=given.get("deadline", DEADLINE),
        min_answers=given.get("min_answers", _usual_answers(sharing, per_round)),
        spare_rounds=given.get("spare_rounds", SPARE_ROUNDS),
        **sharing,
        **{name: given[name] for name in REQUIRED if name != "clusters"},
    )
    _check(said, n_sites)
    return said


def _tables(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the method's settings, and all else that a plan says."""
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
    return settings, given


def _check(said: Mapping[str, Any], n_sites: int) -> None:
    """Refuse what no number of records can make good, before any site is asked for it."""
    features = said["features"]
    if isinstance(features, str) or not isinstance(features, Sequence) or not features:
        raise InvalidInput(f"features must be a list of columns, got {features!r}")
    names = ("epsilon", "delta", "trust", "unit", "sites_per_person", "spare_rounds")
    PrivacyTarget(**{name: said[name] for name in names})
    require_choice("method", said["method"], proved_methods())
    require_choice("noise", said["noise"], NOISES)
    require_integer("seed", said["seed"], least=0, most=2**63 - 1)
    require_number("deadline", said["deadline"], above=0, most=MAX_SECONDS)
    method, layout = method_named(said["method"]), said["schema"] and said["schema"].layout
    method.require_deployed(said["settings"])
    sizes = np.full(n_sites, MANY, dtype=np.int64)
    method.checked(said["settings"], Federation(len(features), sizes, layout))


def _sharing(given: Mapping[str, Any], n_sites: int) -> dict[str, Any]:
    """Return who is trusted with what; only secure aggregation has survivors and colluders."""
    trust = require_choice("trust", given.get("trust", "local"), DEPLOYED_TRUSTS)
    if trust == "local":
        for name in ("min_survivors", "colluding_sites"):
            if name in given:
                raise InvalidInput(f"{name} must go with trust secure-aggregation, got local")
        return {"trust": trust}
    if "min_answers" in given:
        raise InvalidInput(
            "min_answers must not be given with secure aggregation: min_survivors says it"
        )
    if n_sites < 2:
        raise InvalidInput("secure aggregation must have two sites or more, got one")
    colluding = require_integer(
        "colluding_sites", given.get("colluding_sites", COLLUDING_SITES), least=0, most=n_sites - 1
    )
    usual = usual_survivors(n_sites, colluding)
    least = least_survivors(n_sites, colluding)
    survivors = require_integer(
        "min_survivors", given.get("min_survivors", usual), least=least, most=n_sites
    )
    return {"trust": trust, "min_survivors": survivors, "colluding_sites": colluding}


def _usual_answers(sharing: Mapping[str, Any], per_round: int) -> int:
    """Return how many answers a round needs if the plan does not say: half, or the survivors."""
    return int(min(sharing.get("min_survivors", (per_round + 1) // 2), per_round))


def _schema(given: Mapping[str, Any], folder: Path) -> Schema | None:
    if "schema" not in given:
        return None
    if "features" in given:
        raise InvalidInput("the plan must have a schema or features, got both")
    if not isinstance(given["schema"], str):
        raise InvalidInput(f"schema must be the path of a schema, got {given['schema']!r}")
    return Schema.read(folder / given["schema"]).for_site()
