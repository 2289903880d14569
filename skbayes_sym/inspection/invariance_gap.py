"""Invariance gap: what a variational posterior loses by ignoring the symmetry of its model."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.pipelines import fitted_attribute, unwrap
from skbayes_sym.base.posteriors import MatrixPosterior, MeanFieldGaussian
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.numerics.arguments import draw_seed, short_repr
from skbayes_sym.numerics.random import Estimate, generator_from
from skbayes_sym.numerics.runtime import one_thread
from skbayes_sym.symmetry.gaps.gap import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.row_gaps import row_gap
from skbayes_sym.symmetry.gaps.translations import TranslationGap
from skbayes_sym.symmetry.gaps.unit_gap import (
    Exact,
    ExactUpTo,
    Importance,
    PermanentEstimate,
    UnitGap,
)
from skbayes_sym.symmetry.gaps.unit_tables import unit_tables


def invariance_gap(
    estimator: BaseEstimator, *, n_draws: Any = "auto", random_state: Any = 0
) -> Bunch:
    r"""Estimate in nats what a variational posterior loses by ignoring its model's symmetry.

    For a compact group G (permutations, sign flips, rotations) of transformations that leave
    likelihood and prior unchanged, and for the fitted posterior q,

    .. math:: \mathrm{gap}(q) = KL[q \,\|\, q_G] = I(g; w) \ge 0, \qquad
              \mathrm{ELBO}(q_G) = \mathrm{ELBO}(q) + \mathrm{gap}(q),

    with :math:`q_G` the average of q over the group. Translations have no uniform distribution. For
    them the gap is the difference between the ELBO of the best posterior with the symmetry and that
    of the best mean-field posterior, at the same hyperparameters.

    Parameters
    ----------
    estimator : estimator
        Fitted variational estimator, or a pipeline or search around one. For a mean-field fit
        (``symmetry=None``) the result is the gap of its posterior under the whole group of the
        model (all rotations of a factorisation): the gain from symmetrising it after training.
    n_draws : int or "auto", default="auto"
        Number of posterior draws of a Monte Carlo average. "auto" is 1000 for a network, fewer for
        layers of more than 30 units, and 256 for a factorisation, fewer for large matrices. With
        one or two draws the standard error may be nan.
    random_state : int, RandomState instance or None, default=0
        Seed or generator of the draws.

    Returns
    -------
    Bunch
        value : float
            Estimate of the gap in nats.
        standard_error : float
            Monte Carlo standard error of ``value``; 0 if no draws are needed.
        kind : {"KL at this posterior", "difference of optima"}
            Definition of the gap.
        side : {"exact", "lower", "upper"}
            Side of the gap on which ``value`` lies in expectation. "lower" is proved except for
            rotations of more than three components, for which it rests on a conjecture
            (:ref:`matrix_factorization`).

    Raises
    ------
    ValueError
        If ``n_draws`` is invalid.
    TypeError
        If the estimator has no variational posterior with a known symmetry.
    NotFittedError
        If the estimator hasn't been fitted.

    See Also
    --------
    SymmetrizedVIRegressor : Permutations and sign flips of hidden units.
    BayesianLinearRegressor : Translations of the weights of a linear model.
    SymVIMatrixFactorization : Rotations of factors, or their flips and exchanges.

    Notes
    -----
    The estimator is chosen by the types of ``posterior_`` and ``symmetry_``. Layers of up to 10
    units are summed over exactly. Wider layers have a lower bound from 64 permutations per draw.

    References
    ----------
    Gelberg et al. (2024), Theorem 4.1; Moore (2016), eq. 4; Kurle et al. (2022), eq. 10.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor, invariance_gap
    >>> gap = invariance_gap(BayesianLinearRegressor().fit(*load_diabetes(return_X_y=True)))
    >>> round(gap.value, 1), gap.kind
    (2.9, 'difference of optima')
    """
    model = unwrap(estimator).model
    if isinstance(model, BayesianEstimator):
        check_is_fitted(model)
    make_gap = _GAPS_BY_POSTERIOR.get(type(fitted_attribute(model, "posterior_")))
    if make_gap is None:
        raise TypeError(
            f"{type(model).__name__} has no variational posterior with a known symmetry: "
            "invariance_gap takes the fitted variational estimators of skbayes_sym."
        )
    n_draws = _check_n_draws(n_draws)
    generator = generator_from(draw_seed(random_state))
    with one_thread(), torch.no_grad():
        gap, posterior = make_gap(model)
        estimate = gap.estimate(posterior, n_draws, generator=generator)
    kind = "KL at this posterior"
    if make_gap is _make_translation_gap:
        kind = "difference of optima"
    return Bunch(**estimate._asdict(), kind=kind, side=gap.side)


def _check_n_draws(n_draws: Any) -> int | None:
    """Number of draws, or None for "auto"."""
    if isinstance(n_draws, str) and n_draws == "auto":
        return None
    is_integer = isinstance(n_draws, Integral) and not isinstance(n_draws, bool)
    if not is_integer or n_draws < 1:
        raise ValueError(
            f"n_draws must be 'auto' or an int of at least 1, got {short_repr(n_draws)}."
        )
    return int(n_draws)


def _make_unit_gap(model: Any) -> tuple[UnitGap, MeanFieldGaussian]:
    """Gap under exchanges and sign flips of hidden units."""
    group = model.symmetry_
    widest = max((table.widest for table in unit_tables(group)), default=0)
    permanent: PermanentEstimate = Exact()
    if widest > 10:
        permanent = ExactUpTo(10, Importance(64))
    return UnitGap(group, permanent), model.posterior_


def _make_row_gap(model: Any) -> tuple[Gap[RowPosterior], MatrixPosterior]:
    """Gap of a matrix factorisation under rotations, flips or exchanges of its components."""
    if not hasattr(model, "elbo_"):
        raise TypeError(
            f"solver={model.solver!r} has no variational posterior: invariance_gap takes fits "
            "with solver='vi'."
        )
    # A diagonal covariance is diagonal only along the model's axes, and finite groups act along
    # them.
    posterior = model.posterior_.rotated(model.axes_)
    gap = row_gap(
        model.symmetry_,
        is_isotropic=posterior.is_isotropic,
        is_elementwise=posterior.is_elementwise,
    )
    return gap, posterior


def _make_translation_gap(model: Any) -> tuple[TranslationGap, LowRankGaussian]:
    """Gap of a linear model under translations of its weights."""
    optima = None
    # The posterior determines the gap only for a normal likelihood, which has an evidence.
    if not hasattr(model, "log_evidence_"):
        optima = Estimate(model.symmetry_gap_, model.symmetry_gap_std_error_)
    return TranslationGap(model.symmetry_, optima), model.posterior_


_GAPS_BY_POSTERIOR: dict[type, Callable[[Any], tuple[Gap[Any], Any]]] = {
    MeanFieldGaussian: _make_unit_gap,
    MatrixPosterior: _make_row_gap,
    LowRankGaussian: _make_translation_gap,
}
