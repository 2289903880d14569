"""One function for the price of a symmetry, whatever the symmetry."""

from numbers import Integral
from typing import Any

from sklearn.utils import Bunch
from sklearn.utils.validation import check_is_fitted


def invariance_gap(estimator: Any, *, n_draws: Any = "auto", random_state: Any = 0) -> Bunch:
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
        Fitted: one of the symmetrised or of the invariance-abiding estimators. A mean-field fit
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
    An estimator takes part by a method ``_invariance_gap(n_draws=..., random_state=...)``.

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
    ask = getattr(estimator, "_invariance_gap", None)
    if ask is None:
        raise TypeError(
            f"{type(estimator).__name__} has no variational posterior with a known symmetry: "
            "invariance_gap takes the fitted variational estimators of skbayes_sym (of a pipeline, "
            "its last step)."
        )
    check_is_fitted(estimator)
    if n_draws != "auto" and not (isinstance(n_draws, Integral) and int(n_draws) >= 1):
        raise ValueError(f"n_draws must be 'auto' or a positive integer, got {n_draws!r}.")
    return ask(n_draws=n_draws, random_state=random_state)
