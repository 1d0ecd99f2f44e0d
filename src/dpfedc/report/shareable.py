"""The page to share: released values and public facts of a run, and nothing else.

Its content is built anew, from the model and from the privacy plan; nothing of the run's own page
or of its record goes in that is not named here. So there is no seed in it, no id, no exact value,
no path, no site's name and no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfedc.engine.run_record import RunRecord
from dpfedc.errors import InvalidInput
from dpfedc.model_file import ClusterModel
from dpfedc.privacy.accountant import guarantee
from dpfedc.privacy.noise import SIMULATED
from dpfedc.privacy.privacy_plan import PrivacyPlan
from dpfedc.privacy.statement import privacy_statement
from dpfedc.report.content import columns_of, what_was_done
from dpfedc.report.groups import Groups, groups_of
from dpfedc.report.markup import rendered
from dpfedc.report.output_files import require_shareable_path
from dpfedc.report.page import with_subjects
from dpfedc.report.promise import promise_in_short, recorded_plan
from dpfedc.report.summary_text import Reading
from dpfedc.summary.cluster_summary import Certainty
from dpfedc.whole_files import write_whole

SHAREABLE_NAME = "shareable.html"

TRIAL = (
    "This is a trial, not a private release: a seeded generator drew its noise, and whoever knows "
    "the seed can draw it again and take it off. Use it to see what a page would look like."
)


@dataclass(frozen=True, eq=False)
class ShareableContent:
    """All that the page says. `warning` stands first; it is "" where the noise is real."""

    title: str
    warning: str
    summary: str
    reading: Reading
    groups: Groups
    privacy: tuple[str, ...]
    details: tuple[str, ...]


def shareable_content(model: ClusterModel, record: RunRecord) -> ShareableContent:
    """Return what may be shown to anybody.

    Of the record it takes the privacy plan, whether the noise was simulated, the public number of
    records, the shape of pictures, and the verdict and doubts, which follow from the plan and from
    released values.
    """
    plan = _plan(record)
    # What is not known to be real noise is taken for simulated.
    told = record.results.get("privacy") or {"stamp": SIMULATED}
    is_real = told.get("stamp") is None and SIMULATED not in record.stamps
    promise = guarantee(plan, None if is_real else SIMULATED)
    summary = model.summary()
    if Certainty.EXACT in (summary.sizes, summary.centers):
        raise InvalidInput(
            "the model must be that of the private run beside it, got one with exact values"
        )
    reading = Reading.of(summary, record.results, model.quality)
    n_clusters = len(model.directions)
    shape = record.results.get("image_shape")
    return ShareableContent(
        title=f"{n_clusters} groups of {plan.unit}s",
        warning="" if is_real else TRIAL,
        summary=what_was_done(
            plan.unit,
            n_records=int(record.settings["n_records"]),
            n_sites=plan.n_sites,
            n_clusters=n_clusters,
            columns=columns_of(model),
        ),
        reading=reading,
        groups=groups_of(
            model,
            reading.summary,
            None if shape is None else tuple(int(n) for n in shape),
        ),
        privacy=tuple(promise_in_short(promise)),
        details=tuple(privacy_statement(promise)),
    )


def write_shareable(path: Path, model: ClusterModel, record: RunRecord) -> Path:
    """Write the page to a new file, or over an earlier one of its kind, and return its path."""
    content = shareable_content(model, record)
    page = rendered(
        "shareable.html",
        content=content,
        privacy=with_subjects(content.privacy),
        details=with_subjects(content.details),
    )
    require_shareable_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, page)
    return path


def _plan(record: RunRecord) -> PrivacyPlan:
    plan = recorded_plan(record)
    if plan is not None and record.results.get("privacy") is not None:
        return plan
    lacking = "noise" if record.settings.get("epsilon") is None else "a proof"
    raise InvalidInput(
        f"a page to share must be of a run that promises privacy, got one without {lacking}"
    )
