"""One function for the price of a symmetry, whatever the symmetry."""

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.estimators.base import BayesianEstimator
from skbayes_sym.inference.layerwise.posterior import LayerwisePosterior
from skbayes_sym.inference.linear.posterior import LowRankGaussian
from skbayes_sym.inference.posteriors import MatrixPosterior, MeanFieldGaussian
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.gaps.base import Side
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Exact,
    ExactUpTo,
    Importance,
    PermanentEstimate,
)
from skbayes_sym.symmetry.gaps.rows import row_gap
from skbayes_sym.symmetry.gaps.units import UnitGap
from skbayes_sym.symmetry.units import unit_layers

_EXACT_WIDTH = 10  # units of a layer whose permanents are computed in full
_PERMUTATIONS = 64  # that estimate those of wider layers


def invariance_gap(
    estimator: BaseEstimator, *, n_draws: Any = "auto", random_state: Any = 0
) -> Bunch:
    r"""What a fitted variational estimator's posterior pays for ignoring its model's symmetry.

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
    model = innermost(estimator).model
    if isinstance(model, BayesianEstimator):
        check_is_fitted(model)
    answer = _ANSWERS.get(type(getattr(model, "posterior_", None)))
    if answer is None:
        raise TypeError(
            f"{type(model).__name__} has no variational posterior with a known symmetry: "
            "invariance_gap takes the fitted variational estimators of skbayes_sym."
        )
    if n_draws != "auto" and not (isinstance(n_draws, Integral) and int(n_draws) >= 1):
        raise ValueError(f"n_draws must be 'auto' or a positive integer, got {n_draws!r}.")
    generator = generator_from(int(check_random_state(random_state).randint(2**31 - 1)))
    with one_thread(), torch.no_grad():
        found = answer(model, None if n_draws == "auto" else int(n_draws), generator)
    return Bunch(**found.estimate._asdict(), kind=found.kind, side=found.side)


class _Answer(NamedTuple):
    estimate: Estimate
    side: Side
    kind: str = "KL at this posterior"


class _FittedUnits(Protocol):
    posterior_: MeanFieldGaussian

    @property
    def symmetry_(self) -> SymmetryGroup: ...


class _FittedRows(Protocol):
    solver: object
    posterior_: MatrixPosterior

    @property
    def symmetry_(self) -> SymmetryGroup: ...

    @property
    def axes_(self) -> Array: ...


class _FittedLinear(Protocol):
    symmetry_gap_: float

    @property
    def symmetry_gap_std_error_(self) -> float: ...


def _of_units(model: _FittedUnits, n_draws: int | None, generator: torch.Generator) -> _Answer:
    group = model.symmetry_
    widest = max((layer.n_units for layer in unit_layers(group)), default=0)
    permanent: PermanentEstimate = Exact()
    if widest > _EXACT_WIDTH:
        permanent = ExactUpTo(_EXACT_WIDTH, Importance(_PERMUTATIONS))
    gap = UnitGap(group, permanent)
    return _Answer(gap.estimate(model.posterior_, n_draws, generator=generator), gap.side)


def _of_rows(model: _FittedRows, n_draws: int | None, generator: torch.Generator) -> _Answer:
    if not hasattr(model, "elbo_"):
        raise TypeError(
            f"solver={model.solver!r} has no variational posterior: invariance_gap takes fits "
            "with solver='vi' or 'mean_field'."
        )
    # A diagonal covariance is diagonal along these axes only, and finite groups act along them.
    posterior = model.posterior_.turned(model.axes_)
    kind = {"is_isotropic": posterior.is_isotropic, "is_elementwise": posterior.is_elementwise}
    gap = row_gap(model.symmetry_, **kind)
    return _Answer(gap.estimate(posterior, n_draws, generator=generator), gap.side)


def _of_linear(model: _FittedLinear, n_draws: int | None, generator: torch.Generator) -> _Answer:
    """The bound of ``elbo_`` and that of the best mean-field posterior are both known from `fit`.

    Each row has translations of its own, and they are no compact group: no law q_G to compare with.
    """
    difference = Estimate(model.symmetry_gap_, model.symmetry_gap_std_error_)
    return _Answer(difference, "exact", "difference of optima")


def _of_layers(model: object, n_draws: int | None, generator: torch.Generator) -> _Answer:
    raise TypeError(
        "the permutation gap of a layerwise posterior isn't known: invariance_gap takes "
        "SymmetrizedVIRegressor."
    )


_ANSWERS: dict[type, Callable[[Any, int | None, torch.Generator], _Answer]] = {
    MeanFieldGaussian: _of_units,
    MatrixPosterior: _of_rows,
    LowRankGaussian: _of_linear,
    LayerwisePosterior: _of_layers,
}
