"""DP-FedC as a scikit-learn estimator."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from dpfedc.clustering.method import Method
from dpfedc.clustering.registry import method_named
from dpfedc.clustering.run_plan import MAX_USABLE_NOISE, Federation, RunPlan
from dpfedc.engine.simulated import Sites
from dpfedc.errors import InvalidInput, UtilityWarning
from dpfedc.estimators.base import FederatedClusterer, OnRound
from dpfedc.settings import require_choice
from dpfedc.summary.choice_of_k import ChoiceOfK
from dpfedc.summary.cluster_quality import ClusterQuality


def stack_sites(arrays: Sequence[Any]) -> tuple[Any, npt.NDArray[np.int64]]:
    """Return (X, sites) for `fit` from one array of records per site.

    DataFrames are aligned by the names of their columns, whatever their order; one that a site does
    not have is all gaps there, which needs a schema in `fit`.

    >>> X, sites = stack_sites([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]])
    >>> sites.tolist()
    [0, 1, 1]
    """
    if any(hasattr(block, "columns") for block in arrays):
        return _stacked_frames(arrays)
    blocks = [np.asarray(block) for block in arrays]
    if not blocks:
        raise InvalidInput("stack_sites needs at least one array, got none")
    for i, block in enumerate(blocks):
        if block.ndim != 2 or len(block) == 0:
            raise InvalidInput(
                f"every site must be a non-empty 2-D array, got shape {block.shape} for site {i}"
            )
        if block.shape[1] != blocks[0].shape[1]:
            raise InvalidInput(
                f"all sites must have the same features: expected {blocks[0].shape[1]}, "
                f"got {block.shape[1]} for site {i}"
            )
    sites = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    return np.concatenate(blocks), sites


def _stacked_frames(frames: Sequence[Any]) -> tuple[Any, npt.NDArray[np.int64]]:
    import pandas as pd

    for i, frame in enumerate(frames):
        if not hasattr(frame, "columns"):
            got = f"got {type(frame).__name__} for site {i}"
            raise InvalidInput(f"all sites must be DataFrames, or none, {got}")
        if len(frame) == 0 or not frame.columns.is_unique:
            got = f"{len(frame)} rows" if len(frame) == 0 else "columns of one name"
            raise InvalidInput(
                f"every site must have rows, and columns of different names, got {got} for site {i}"
            )
    sites = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    return pd.concat(frames, ignore_index=True), sites


class DPFedC(FederatedClusterer):
    """Cluster records that lie at many sites, without pooling them.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        The number of clusters. "auto" chooses it from what is released, at a share of the same
        budget: see k_range and `choose_k_`.
    epsilon : float or None, default=1.0
        How much may be learnt about any one record from everything that leaves the sites (smaller
        is more private). None adds no noise. The published variant adds the noise that the paper
        states for this total loss, which is not a proof of it.
    delta : float, default=1e-5
        The probability with which the promise of epsilon may fail; well below 1 / n_records.
    trust : {"local", "secure-aggregation", "trusted-server"}, default="local"
        Who adds the noise, and so who must be trusted: each site on its own; the sites together,
        with the server seeing sums only; or the server.
    variant : {"normalized", "published"}, default="normalized"
        "published" is the paper's Algorithm 1 with its errors corrected.
    k_range : (int, int) or None, default=None
        The least and the largest number of clusters to choose from, with n_clusters="auto"; None
        takes 2 to 20.
    shape : {"auto", "round", "any"}, default="auto"
        "round": a record belongs to the nearest centre, or to its direction. "any": clusters are
        groups of smaller prototypes with records between them, and may have any shape. "auto" takes
        "any" for three clusters and more above 50 features, unless the search is set by hand. With
        fewer features it takes "round", but where noise is low and round clusters would cut through
        records without gaps.
    n_prototypes : int or "auto", default="auto"
        How many prototypes are made to be merged; by default two for each cluster and at least 12,
        as far as noise allows. Where it does not allow more than clusters, clusters are round.
    n_rounds : int or "auto", default="auto"
        Rounds of the factorisation. Whoever sets this, or another of its settings, gets it.
    sites_per_round : int or None, default=None
        Sites that take part in a round; None takes all.
    init : array of shape (n_clusters, n_features) or None, default=None
        Public centres to start from. They must not have been made from the data.
    random_state : int, RandomState or None, default=None
        Makes a simulated run reproducible.
    diagnostics : bool, default=False
        Track exact measures of progress in `history_` (simulation only; nothing is released).
    center : bool, default=True
        Subtract the records' mean.
    scale : bool or "columns", default=True
        Divide by the records' typical distance from their mean. With False they are taken to have
        norm at most 1, and longer ones are clipped. "columns" finds range and spread of every
        column first, with 25 % of the budget, and brings all columns to like spread: for columns in
        different units whose ranges nobody can declare. What lies far from zero and spreads little
        (years, say) is better shifted, or declared in a schema.
    norm_bound : float or "auto", default="auto"
        No record is longer than this, or is clipped to it. "auto" finds a bound by noisy histograms
        of the records' norms, measured from the origin and then from their mean, in up to three
        passes: the more records there are, the less they cost. Bins with less than 2 % of the
        records are taken for outliers.
    feature_ranges : array of shape (n_features, 2) or None, default=None
        Public least and largest values of each feature. Replaces norm_bound: lengths are then
        measured from the middle of the ranges.
    constant_feature : float, default=0.0
        A constant appended to every standardised record, so that distance counts beside direction.
    refine_rounds : int or "auto", default="auto"
        Rounds of sums and counts (Lloyd's algorithm) after the factorisation, or after the cells.
    subspace : int, "auto" or None, default="auto"
        Number of dimensions of a private subspace that clustering is confined to; None for none.
    nonnegative : bool, default=False
        Declares that no feature is negative; centres are then kept >= 0.
    membership_steps : int, default=10
        Gradient steps on the memberships in a round (Q1).
    update : {"gradient", "sums-and-gram"}, default="gradient"
        What a round releases (normalized variant): clipped gradients, with counts of records
        from 200 features on, or the two sums from which the least-squares centres follow.
    extra_steps : int or None, default=None
        Round t takes floor(extra_steps / t) + 1 steps on the centres at each site (the paper's
        Qhat). None: 0 for the normalized variant, 10 for the published one.
    sampling_probability : float, default=1.0
        The chance of a record to be in a round of the factorisation (normalized, with epsilon).
    min_survivors : int or None, default=None
        The fewest sites whose uploads arrive in a round under secure aggregation; None: all.
    colluding_sites : int, default=0
        How many sites may work with the server against the others under secure aggregation.
    batch_size : int, default=50
        Records in a mini-batch (published variant).
    orthogonality : float or "auto", default="auto"
        Weight of the penalty that makes memberships hard (rho). The normalized variant starts low
        and ends at this value, by default 1.
    clip_norm : float or "auto", default="auto"
        The most that one record may add to a round's gradient, its count included.
    step : float or "auto", default="auto"
        How far the centres move in a round. By default steps shorten in later rounds where noise is
        added, no Lloyd rounds follow and there are fewer than 200 features.
    momentum : float or "auto", default="auto"
        How much of earlier rounds' gradients is kept: the centres follow an average over about
        1 / (1 - momentum) rounds. By default 0.5 if only some sites take part in a round.
    gradient_bound : float or None, default=None
        The bound G on a gradient (published variant); needed when epsilon is set.
    centroid_steps : int or "falling", default="falling"
        Published variant: so many steps on the centres in every round, which reads "Q2 = 5" beside
        the paper's Table I; or the falling number of its figures (`extra_steps`).
    batches : {"capped", "cycling"}, default="capped"
        Published variant. "cycling" reads "the mini-batch dataset size b is set to 50" as it
        stands: a site with too few records goes round again (q = Q2 b / n_i > 1, stamped). "capped"
        makes batches smaller, so that q <= 1/2, as its Theorem 1 needs.
    batch_gradient : {"scaled", "sum"}, default="scaled"
        Published variant. "scaled" reads Assumption 3, an unbiased gradient: the batch's sum times
        n_i / b. "sum" reads Appendix E's formula for the gradient of a batch, which has no factor.
    bound_on : {"mini-batch", "record", "nothing"}, default="mini-batch"
        Published variant: what is clipped to gradient_bound. "mini-batch" enforces Assumption 2 as
        printed; "record" clips each record's part of the gradient; "nothing" only assumes it, as
        the paper does (stamped: no finite epsilon).
    membership_gradient : {"derivative", "printed"}, default="derivative"
        Published variant: the derivative of the stated objective, or Appendix E's formula for it.
    n_restarts : int, default=1
        Random starts of the factorisation, run together as one batch; the one with the least
        objective is kept. More than one needs epsilon=None: every start would be charged, and the
        choice among them would be a release of its own.
    cells : int, "auto" or None, default="auto"
        How many small cells of records are made, from whose sums and counts the server makes the
        clusters, with many starts at no cost in privacy. They take the place of the factorisation.
        "auto" takes up to eight for each cluster where noise is low and there are at most 256
        features, and else none.
    quality : bool, default=False
        Also release how good the clusters are, at 2 % of the budget: see `quality_`.
    device : str or None, default=None
        None computes with NumPy. "cpu", "cuda" or "cuda:1" moves the records to that device once
        and computes there with Torch (extra `gpu`); what is fitted is in NumPy arrays again.
    ledger : path or None, default=None
        A ledger file (`dpfedc ledger init`) that this fit is charged to before every release, by
        the rules of a deployed site. A fit that is more than is left of its cap is refused before
        the first. Needs epsilon, and not the published variant.
    on_round : callable or None, default=None
        Called after every round with its RoundRecord and the number of rounds of the whole run.

    Attributes
    ----------
    cluster_centers_ : array of shape (n_clusters, n_features)
        The centres, in the units of the data. Of merged prototypes: their means.
    prototypes_ : array of shape (n_prototypes, n_features)
        What clusters were made of, in the order of the clusters; the centres where clusters are
        not made of several.
    choose_k_ : ChoiceOfK or None
        With n_clusters="auto": the number, the curve behind it with error bars, and whether the
        choice is clear.
    quality_ : ClusterQuality or None
        With quality=True: size, cost and simplified silhouette, of each cluster and of all, with
        error bars.
    labels_ : array of shape (n_records,)
        The cluster of each record given to `fit`; equal to `predict(X)`. They stay with the sites.
    history_ : RunRecord
        What happened, round by round.
    n_iter_ : int
        The number of rounds of all stages.
    privacy_ : PrivacyGuarantee or None
        What the run promises for every record; None where nothing is proved.
    spent_ : Spent or None
        What the fits of this process on the same records would cost together in a deployment:
        n_fits, epsilon, delta, unit. The second one comes with a `BudgetWarning`. None where
        nothing is proved.
    model_ : ClusterModel
        Everything `predict` needs; can be written to a file.

    Examples
    --------
    >>> import numpy as np
    >>> from dpfedc import DPFedC
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    >>> model = DPFedC(n_clusters=3, epsilon=None, random_state=0)
    >>> model = model.fit(X, sites=np.arange(90) % 5)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    method_name = "dp-fedc"
    variant: str

    def __init__(
        self,
        n_clusters: int | str = 8,
        *,
        k_range: tuple[int, int] | None = None,
        shape: str = "auto",
        n_prototypes: int | str = "auto",
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        trust: str = "local",
        variant: str = "normalized",
        n_rounds: int | str = "auto",
        sites_per_round: int | None = None,
        init: Any = None,
        random_state: Any = None,
        diagnostics: bool = False,
        center: bool = True,
        scale: bool | str = True,
        norm_bound: float | str = "auto",
        feature_ranges: Any = None,
        constant_feature: float = 0.0,
        refine_rounds: int | str = "auto",
        subspace: int | str | None = "auto",
        nonnegative: bool = False,
        membership_steps: int = 10,
        update: str = "gradient",
        extra_steps: int | None = None,
        sampling_probability: float = 1.0,
        min_survivors: int | None = None,
        colluding_sites: int = 0,
        batch_size: int = 50,
        orthogonality: float | str = "auto",
        clip_norm: float | str = "auto",
        step: float | str = "auto",
        momentum: float | str = "auto",
        gradient_bound: float | None = None,
        centroid_steps: int | str = "falling",
        batches: str = "capped",
        batch_gradient: str = "scaled",
        bound_on: str = "mini-batch",
        membership_gradient: str = "derivative",
        n_restarts: int = 1,
        cells: int | str | None = "auto",
        quality: bool = False,
        device: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        on_round: OnRound | None = None,
    ) -> None:
        self._keep(locals())

    def _method(self) -> Method:
        return method_named("published" if self.variant == "published" else self.method_name)

    def _plan(self, sites: Sites) -> RunPlan:
        require_choice("variant", self.variant, ("normalized", "published"))
        plan = super()._plan(sites)
        warn_of_poor_results(plan, self._facts(sites))
        return plan

    def _given(self, sites: Sites) -> dict[str, Any]:
        given = super()._given(sites)
        if self.variant != "published":
            return given
        energy = float(np.einsum("ij,ij->", sites.X, sites.X, dtype=np.float64))
        return {**given, "mean_energy": energy / sites.n_sites}

    @property
    def prototypes_(self) -> npt.NDArray[Any]:
        """Return what clusters were made of, in the units of the data."""
        check_is_fitted(self)
        return self.model_.prototype_centers

    @property
    def choose_k_(self) -> ChoiceOfK | None:
        """Return how the number of clusters was chosen, if it was."""
        check_is_fitted(self)
        return self.model_.choice

    @property
    def quality_(self) -> ClusterQuality | None:
        """Return how good the clusters are, if that was asked for."""
        check_is_fitted(self)
        return self.model_.quality

    def _more_results(self, facts: Federation) -> dict[str, Any]:
        """Return what the published variant's noise comes to, in words."""
        target = self._target()
        notes = self._method().notes(self.get_params(deep=False), facts, target)
        return {"privacy_notes": list(notes)} if notes else {}


def warn_of_poor_results(plan: RunPlan, facts: Federation) -> None:
    """Warn where the noise is likely to swamp the clusters, or delta is too large to mean much."""
    if plan.privacy is None:
        return
    if plan.noise_ratio > MAX_USABLE_NOISE:
        warnings.warn(
            f"the noise is likely to swamp the clusters: its ratio to their signal is "
            f"{plan.noise_ratio:.2g}, expected below {MAX_USABLE_NOISE}. More records, fewer "
            "clusters, a larger epsilon or trust='secure-aggregation' would lower it",
            UtilityWarning,
            stacklevel=4,
        )
    if plan.privacy.delta >= 1 / facts.n_records:
        warnings.warn(
            f"delta should be well below 1 / n_records = {1 / facts.n_records:.2g}, got "
            f"{plan.privacy.delta:.2g}; {0.1 / facts.n_records:.1g} would do",
            UtilityWarning,
            stacklevel=4,
        )
