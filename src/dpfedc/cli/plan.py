"""`dpfedc plan`: what a run would do and promise, before any data are touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfedc.cli.cluster_options import (
    AUTO,
    Clusters,
    ClusterShape,
    KRange,
    Prototypes,
    Shape,
    cluster_settings,
)
from dpfedc.cli.console import print_paragraphs, print_path
from dpfedc.cli.options import (
    ColludingSites,
    Delta,
    Epsilon,
    MinSurvivors,
    Quality,
    SamplingProbability,
    SchemaFile,
    SitesPerPerson,
    Trust,
    Unit,
    WhatIsProtected,
    WhoIsTrusted,
    count_option,
    flag_option,
    privacy_settings,
)
from dpfedc.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from dpfedc.clustering.run_plan import Federation, RunPlan
    from dpfedc.settings import PrivacyTarget
    from dpfedc.tables.schema import Schema
    from dpfedc.verdict.verdict import Verdict


def plan(
    records: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="How many records there are, or persons with --unit person: of all --sites "
            "together (10000), or of each site (100,250,80).",
            show_default=False,
        ),
    ],
    clusters: Clusters,
    features: Annotated[
        int | None,
        count_option("How many columns of numbers a record has.", show_default="the schema's"),
    ] = None,
    schema: SchemaFile = None,
    sites: Annotated[
        int | None,
        count_option("How many sites share the records evenly.", show_default=False),
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = 1e-5,
    trust: WhoIsTrusted = Trust.LOCAL,
    min_survivors: MinSurvivors = None,
    colluding_sites: ColludingSites = None,
    unit: WhatIsProtected = None,
    sites_per_person: SitesPerPerson = None,
    sampling_probability: SamplingProbability = 1.0,
    k_range: KRange = None,
    shape: ClusterShape = Shape.AUTO,
    prototypes: Prototypes = None,
    rounds: Annotated[
        int | None,
        count_option("Rounds of the search for clusters.", show_default="chosen by the planner"),
    ] = None,
    sites_per_round: Annotated[
        int | None, count_option("How many sites take part in a round.", show_default="all")
    ] = None,
    quality: Quality = False,
    bound_declared: Annotated[
        bool,
        flag_option(
            "--bound-declared",
            "The length of the longest record will be declared (`fit --norm-bound`), so that no "
            "budget is spent on finding it out.",
        ),
    ] = False,
    scale_columns: Annotated[
        bool,
        flag_option("--scale-columns", "All columns will be brought to like spread, as by `fit`."),
    ] = False,
    save_plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the privacy plan as JSON, for `dpfedc account`.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, flag_option("--json", "Print one JSON object: verdict, predictions, privacy_plan.")
    ] = False,
) -> None:
    """Say what a private run would do, what it would promise, and whether it is worth it.

    Only the numbers given here are used: no data are read. The verdict (usable, rough or useless)
    comes from rehearsals: the run as planned, on invented clusters of these numbers.
    """
    from dpfedc.clustering.plan_text import plan_in_words
    from dpfedc.clustering.registry import method_named
    from dpfedc.clustering.run_plan import Federation
    from dpfedc.tables.schema import Schema
    from dpfedc.verdict.kept import kept_verdict
    from dpfedc.verdict.verdict import verdict_in_words

    if (features is None) == (schema is None):
        raise InvalidInput("either --features or --schema must be given, and not both")
    table = None if schema is None else Schema.read(schema)
    sizes = records_per_site(records, sites)
    settings = {
        **privacy_settings(
            epsilon=epsilon,
            delta=delta,
            trust=trust,
            min_survivors=min_survivors,
            colluding_sites=colluding_sites,
            sampling_probability=sampling_probability,
        ),
        "unit": str(unit or (table.unit if table else Unit.RECORD)),
        "sites_per_person": sites_per_person or (table.sites_per_person if table else 1),
        **cluster_settings(clusters, k_range, shape, prototypes),
        "n_rounds": "auto" if rounds is None else rounds,
        "sites_per_round": sites_per_round,
        "norm_bound": 1.0 if bound_declared else "auto",
        "scale": "columns" if scale_columns else True,
        "quality": quality,
    }
    if save_plan is not None:
        from dpfedc.report.output_files import require_plan_path

        require_plan_path(save_plan)
    least = 2 if clusters == AUTO else clusters
    require_feasible(int(sizes.sum()), len(sizes), least, sites_per_round, sampling_probability)
    n_features = features if table is None else len(table.features)
    layout = None if table is None else table.layout
    run_plan, facts, target = planned(settings, Federation(n_features or 1, sizes, layout))
    verdict = kept_verdict(method_named("dp-fedc"), settings, facts, run_plan)
    if json:
        print(json_text(verdict, run_plan, table))
    else:
        told = verdict_in_words(verdict, table)
        print_paragraphs(plan_in_words(run_plan, facts, target, told))
    if save_plan is not None and run_plan.privacy is not None:
        save_plan.parent.mkdir(parents=True, exist_ok=True)
        save_plan.write_text(run_plan.privacy.to_json() + "\n", encoding="utf-8")
        if not json:
            print_path("Privacy plan", save_plan)


def json_text(verdict: Verdict, plan: RunPlan, schema: Schema | None) -> str:
    """Return the plan as one JSON object."""
    import json

    from dpfedc.privacy.accountant import plan_epsilon
    from dpfedc.verdict.verdict import column_stds

    privacy = plan.privacy
    content = {
        "verdict": verdict.word,
        "expected": {
            **{n: v for n, v in verdict.as_plain().items() if n not in ("word", "again")},
            "column_std": column_stds(verdict, schema),
        },
        "n_rounds": plan.n_rounds,
        "epsilon": None if privacy is None else plan_epsilon(privacy),
        "delta": None if privacy is None else privacy.delta,
        "privacy_plan": None if privacy is None else json.loads(privacy.to_json()),
    }
    return json.dumps(content, indent=1, allow_nan=False)


def records_per_site(text: str, n_sites: int | None) -> npt.NDArray[np.int64]:
    """Return the records of each site: those given, or one number split evenly."""
    import numpy as np

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidInput(f"--records must be whole numbers >= 1, got {text!r}")
    counts = [int(part) for part in parts]
    if len(counts) > 1:
        if n_sites not in (None, len(counts)):
            raise InvalidInput(
                f"--records for each site must fit --sites {n_sites}, got {len(counts)} numbers"
            )
        return np.asarray(counts)
    if n_sites is None:
        raise InvalidInput("--records with one number needs --sites, got none")
    if counts[0] < n_sites:
        raise InvalidInput(f"every site must have a record, got {counts[0]} for {n_sites} sites")
    return np.bincount(np.arange(counts[0]) % n_sites)


def require_feasible(
    n_records: int, n_sites: int, n_clusters: int, sites_per_round: int | None, probability: float
) -> None:
    """Say which numbers contradict each other."""
    from dpfedc.settings import require_integer, require_number

    if n_records < n_clusters:
        raise InvalidInput(f"--records must be >= --clusters {n_clusters}, got {n_records}")
    if sites_per_round is not None:
        require_integer("--sites-per-round", sites_per_round, least=1, most=n_sites)
    require_number("--sampling-probability", probability, above=0, most=1)


def planned(
    settings: Mapping[str, Any], facts: Federation
) -> tuple[RunPlan, Federation, PrivacyTarget | None]:
    """Return the plan that the estimator makes from these settings, and what it is made from."""
    from dpfedc.clustering.registry import method_named
    from dpfedc.settings import PrivacyTarget

    target = None
    if settings["epsilon"] is not None:
        names = settings.keys() & {f.name for f in fields(PrivacyTarget)}
        target = PrivacyTarget(**{name: settings[name] for name in names})
    return method_named("dp-fedc").plan(settings, facts, target), facts, target
