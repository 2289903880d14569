"""Loss by ignoring a symmetry, whatever the symmetry."""

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.pipelines import fitted_attribute, unwrap
from skbayes_sym.base.posteriors import MatrixPosterior, MeanFieldGaussian
from skbayes_sym.linear.low_rank import LowRankGaussian
from skbayes_sym.numerics.arguments import draw_seed, short_repr
from skbayes_sym.numerics.random import Estimate, generator_from
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
    r"""Nats that a fitted variational estimator loses by ignoring its model's symmetry.

    For a compact group G (permutations, sign flips, rotations) of transformations that leave
    likelihood and prior unchanged, and the posterior q that was fitted,

    .. math:: \mathrm{gap}(q) = KL[q \,\|\, q_G] = I(g; w) \ge 0, \qquad
              \mathrm{ELBO}(q_G) = \mathrm{ELBO}(q) + \mathrm{gap}(q),

    with :math:`q_G` the average of q over the group. Translations have no uniform distribution;
    there the gap is how far the best posterior that abides by the symmetry beats the best
    mean-field one, at the same hyperparameters.

    Parameters
    ----------
    estimator : estimator
        Fitted: one of the symmetrised or of the invariance-abiding estimators, or a pipeline or
        search around one. A mean-field fit
        (``symmetry=None``) gets the gap of its posterior under its model's whole group (all
        rotations of a factorisation): what symmetrising it after training would give back.
    n_draws : int or "auto", default="auto"
        Posterior draws of the average, where there is one. "auto" takes 1000 of a network, fewer
        for layers of more than 30 units, and 256 of a factorisation, fewer for large matrices.
        One or two may have no standard error: it is nan then.
    random_state : int, RandomState instance or None, default=0
        Source of the draws.

    Returns
    -------
    Bunch
        ``value`` in nats; ``standard_error``, its Monte Carlo error (0 where nothing is drawn);
        ``kind``, "KL at this posterior" or "difference of optima"; ``side``, on which side of the
        gap the value lies in expectation: "exact", "lower" or "upper". ("lower" is proved but for
        rotations of more than three components, where it rests on a conjecture:
        :ref:`matrix_factorization`.)

    Raises
    ------
    ValueError
        If ``n_draws`` isn't a number of draws.
    TypeError
        If the estimator has no posterior of that kind.
    NotFittedError
        If it hasn't been fitted.

    See Also
    --------
    SymmetrizedVIRegressor : Permutations and sign flips of hidden units.
    BayesianLinearRegressor : Translations of the weights of a linear model.
    SymVIMatrixFactorization : Rotations of factors, or their flips and exchanges.

    Notes
    -----
    Looked up by ``posterior_`` and ``symmetry_``. Layers of up to 10 units are summed over
    exactly; wider ones have a lower bound, from 64 permutations a draw.

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
    known = _KNOWN.get(type(fitted_attribute(model, "posterior_")))
    if known is None:
        raise TypeError(
            f"{type(model).__name__} has no variational posterior with a known symmetry: "
            "invariance_gap takes the fitted variational estimators of skbayes_sym."
        )
    is_count = isinstance(n_draws, Integral) and not isinstance(n_draws, bool)
    if not (n_draws >= 1 if is_count else isinstance(n_draws, str) and n_draws == "auto"):
        raise ValueError(
            f"n_draws must be 'auto' or an int of at least 1, got {short_repr(n_draws)}."
        )
    generator = generator_from(draw_seed(random_state))
    with one_thread(), torch.no_grad():
        gap, posterior = known(model)
        number = None if isinstance(n_draws, str) else int(n_draws)
        estimate = gap.estimate(posterior, number, generator=generator)
    kind = "difference of optima" if known is _translation_gap else "KL at this posterior"
    return Bunch(**estimate._asdict(), kind=kind, side=gap.side)


def _unit_gap(model: Any) -> tuple[UnitGap, MeanFieldGaussian]:
    group = model.symmetry_
    widest = max((table.widest for table in unit_tables(group)), default=0)
    permanent: PermanentEstimate = Exact()
    if widest > 10:
        permanent = ExactUpTo(10, Importance(64))
    return UnitGap(group, permanent), model.posterior_


def _of_rows(model: Any) -> tuple[Gap[RowPosterior], MatrixPosterior]:
    if "elbo_" not in vars(model):
        raise TypeError(
            f"solver={model.solver!r} has no variational posterior: invariance_gap takes fits "
            "with solver='vi'."
        )
    # A diagonal covariance is diagonal along these axes only, and finite groups act along them.
    posterior = model.posterior_.rotated(model.axes_)
    kind = {"is_isotropic": posterior.is_isotropic, "is_elementwise": posterior.is_elementwise}
    return row_gap(model.symmetry_, **kind), posterior


def _translation_gap(model: Any) -> tuple[TranslationGap, LowRankGaussian]:
    optima = None
    if "log_evidence_" not in vars(model):  # only with a normal likelihood the posterior tells
        optima = Estimate(model.symmetry_gap_, model.symmetry_gap_std_error_)
    return TranslationGap(model.symmetry_, optima), model.posterior_


# By the posterior's kind; the group, ``symmetry_``, tells more within it.
_KNOWN: dict[type, Callable[[Any], tuple[Gap[Any], Any]]] = {
    MeanFieldGaussian: _unit_gap,
    MatrixPosterior: _of_rows,
    LowRankGaussian: _translation_gap,
}
