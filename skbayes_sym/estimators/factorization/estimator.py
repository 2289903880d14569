"""Matrix factorisation with a posterior that knows its rotations (Moore 2016)."""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import refuse, require_members
from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import ENCODE, Array, numbers_due
from skbayes_sym.estimators._fit.run import FLOATS, RUN_CONSTRAINTS, Run
from skbayes_sym.estimators._fit.scikit_learn import HasMethods, Interval, StrOptions, fit_context
from skbayes_sym.estimators.base import BayesianEstimator
from skbayes_sym.estimators.factorization.entries import observed_entries, positions
from skbayes_sym.estimators.factorization.groups import NAMES, component_group
from skbayes_sym.estimators.factorization.method import FactorFit, Factorization
from skbayes_sym.estimators.factorization.training import MatrixTraining
from skbayes_sym.inference.factorization.data import Incidence
from skbayes_sym.inference.factorization.predictive import (
    draw_moments,
    entry_means,
    entry_variances,
    row_log_densities,
    row_means,
)
from skbayes_sym.inference.factorization.problem import Factorisation
from skbayes_sym.inference.posteriors import MatrixPosterior
from skbayes_sym.inference.solvers import MAP, VI, Gibbs, MeanField, Solver
from skbayes_sym.symmetry.base import SymmetryGroup

SOLVERS: dict[str, Solver] = {
    "vi": VI(),
    "map": MAP(),
    "mean_field": MeanField(),
    "gibbs": Gibbs(),
}
_MANY_COMPONENTS = 10  # what "auto" is for matrices that have as many rows and columns


class SymVIMatrixFactorization(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator
):
    r"""Factorise a ratings-like matrix by symmetrised variational inference.

    .. math:: X = \text{mean} + \text{scale} \cdot (U V^\top / \sqrt{k} + \text{noise}),
        \qquad u_i, v_j \sim N(0, \text{prior\_scale}^2 I_k) .

    The rows of U and V can be rotated and reflected together without changing X. Mean-field
    inference must choose one orientation and pays for every component it keeps, so it switches
    components off. Averaged over the orthogonal group, the posterior gets that price back (the
    symmetry gap), the bound is higher, and components stay.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number k of factors, at most the smaller side of the matrix. "auto" takes 10, or that side
        if it is shorter.
    solver : {"vi", "map", "mean_field", "gibbs"} or Solver, default="vi"
        "vi" is the method. The others are baselines: the most probable factors, the closed-form
        mean-field optimum of a complete matrix (Nakajima et al. 2013), and Gibbs sampling, the
        posterior itself up to Monte Carlo error. Objects have settings of their own, such as
        ``VI(covariance="diag")``, ``VI(gap=...)`` and ``Gibbs(n_draws=500)``
        (`skbayes_sym.inference.solvers`).
    symmetry : str, SymmetryGroup or None, default="auto"
        Group the posterior of "vi" is averaged over; "auto" is "orthogonal".
        "signed_permutation" (k up to 14) and "sign_flip" are finite parts of it, for diagonal
        covariances; None is plain mean-field inference.
    noise_std : "learn" or float, default="learn"
        Standard deviation of the noise in the units of ``X``; "learn" maximises the ELBO over it.
    prior_scale : float, default=1.0
        Prior standard deviation of every entry of U and V, in scaled units. It isn't learned: the
        bound is highest at a prior so narrow that nothing but noise is left.
    center : bool, default=True
        Whether to subtract the mean of the observed entries first.
    scale : bool, default=True
        Whether to divide by their standard deviation first.
    max_iter : int, default=300
        Sweeps over all rows and columns; "gibbs" throws the first half away.
    tol : float or None, default=1e-4
        Sweeps end when ten of them raise the mean ELBO by less than this many nats per observed
        entry. None never stops, as "gibbs" never does.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Arithmetic of the sweeps; "auto" follows ``X``. Bounds are evaluated in float64.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_columns)
        ``E[V]' / sqrt(k)`` in scaled units, in the orientation that makes its rows orthogonal, in
        decreasing norm, the largest loading of each positive.
    components_cov_ : ndarray of shape (n_columns, n_components, n_components)
        Posterior covariance of every column of it.
    posterior_ : MatrixPosterior
        ``posterior_.rows.mean``, ``.rows.cov``, ``.columns.mean``, ``.columns.cov``: the Gaussian
        rows of U and V in scaled units. Means of U and V have a meaning only up to a common
        rotation.
    symmetry_ : Orthogonal or Units
        The group of the rows of U and V; all rotations where ``symmetry=None``.
    axes_ : ndarray of shape (n_components, n_components)
        Axes, one a row, along which the covariances have the form asked for, and along which
        components flip and change places.
    noise_std_ : float
        Standard deviation of the noise in the units of ``X``.
    elbo_ : float
        Symmetrised evidence lower bound, nats: `elbo_mean_field_` + `symmetry_gap_`. A lower bound
        on log p(X observed) at the learned noise, up to Monte Carlo error; beyond k = 3 this rests
        on the conjecture that the large-rank saddle lies above the integral it stands for. Of
        "vi" and "mean_field" only.
    elbo_mean_field_ : float
        Lower bound of the base posterior alone, exact.
    symmetry_gap_ : float
        What the average over the group adds, nats, or a lower bound on it.
    elbo_std_error_ : float
        Monte Carlo standard error of `symmetry_gap_`.
    elbo_curve_ : ndarray
        ELBO after every sweep, with the gap from a few draws.
    samples_ : ndarray of shape (n_kept, n_rows + n_columns, n_components)
        Draws of U over V, each rotated to the others; of "gibbs" only.
    n_iter_ : int
        Sweeps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why they ended.
    mean_, scale_ : float
        Centring and scaling of the entries.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of columns seen in `fit`.
    feature_names_in_ : ndarray of shape (n_columns,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    skbayes_sym.model_selection.EntryKFold : Splits the observed entries.
    skbayes_sym.model_selection.cross_validate_entries : Scores a model on held-out entries.

    Notes
    -----
    A sweep costs O(N k^2 + (n + m) k^3) for N observed entries; no array is ever n x m. The
    symmetrised bound always exceeds the plain one of the same covariance; held-out errors don't
    always follow, and a full covariance often matters more (:ref:`matrix_factorization`).

    Corrected against the paper: the matrix inside the gap isn't symmetrised, and its integral isn't
    approximated from the wrong side. As printed, the "ELBO" exceeds the log evidence.

    References
    ----------
    Moore (2016). Symmetrized variational inference. NIPS Workshop on Advances in Approximate
    Bayesian Inference.

    Nakajima, Sugiyama, Babacan & Tomioka (2013). Global analytic solution of fully-observed
    variational Bayesian matrix factorization. JMLR 14.

    Salakhutdinov & Mnih (2008). Bayesian probabilistic matrix factorization using Markov chain
    Monte Carlo. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import SymVIMatrixFactorization
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 20)) + rng.normal(size=(30, 20))
    >>> X[rng.random(X.shape) < 0.3] = np.nan
    >>> mf = SymVIMatrixFactorization(3, random_state=0).fit(X)
    >>> mean, std = mf.predict_entries([0, 1], [4, 2], return_std=True)
    >>> mean.shape, mf.transform(X).shape, bool(mf.elbo_ > mf.elbo_mean_field_)
    ((2,), (30, 3), True)
    """

    device: str
    _closing = ("elbo_", "elbo_mean_field_", "elbo_std_error_", "symmetry_gap_")

    posterior_: MatrixPosterior
    components_: Array
    components_cov_: Array
    noise_std_: float
    mean_: float
    scale_: float
    _orientation_: Array

    _parameter_constraints: dict[str, list[Any]] = {
        **RUN_CONSTRAINTS,
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "symmetry": [StrOptions(NAMES), HasMethods("act"), None],
        "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither")],
        "prior_scale": [Interval(Real, 0, None, closed="neither")],
        "center": ["boolean"],
        "scale": ["boolean"],
        "solver": [StrOptions(set(SOLVERS)), HasMethods("solve")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        solver: str | Solver = "vi",
        symmetry: str | SymmetryGroup | None = "auto",
        noise_std: str | float = "learn",
        prior_scale: float = 1.0,
        center: bool = True,
        scale: bool = True,
        max_iter: int = 300,
        tol: float | None = 1e-4,
        device: str = "auto",
        dtype: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.symmetry = symmetry
        self.noise_std = noise_std
        self.prior_scale = prior_scale
        self.center = center
        self.scale = scale
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "posterior_")

    @property
    def _n_features_out(self) -> int:
        return int(self.components_.shape[0])

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the posterior of the factors.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            NaN is missing. In a sparse matrix what isn't stored is missing, and a stored zero is an
            observed zero.
        y : None
            Ignored.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        KeyboardInterrupt
            If interrupted, after keeping the model reached so far with
            ``stop_reason_ = "interrupted"``. Any other error leaves the previous fit untouched.
        """
        with self._fitting():
            data = MatrixTraining.open(self, X)
            model = self._model(data)
            run = self._run(data)
            with self._keeping(run):
                found = self._method().fit(data, model, run)
                self._keep(data, found)
        return self

    def _model(self, data: MatrixTraining) -> Factorisation:
        """What is believed, in scaled units."""
        smaller = min(data.shape)
        k = self.n_components
        k = min(_MANY_COMPONENTS, smaller) if isinstance(k, str) else int(k)
        if k > smaller:
            n, m = data.shape
            raise ValueError(
                f"n_components={k} must be at most min(n_samples={n}, n_features={m}) = {smaller}: "
                f"n_samples = {n}, n_features = {m}."
            )
        noise, noise_range = data.noise(self.noise_std)
        return Factorisation(k, self.prior_scale, noise, noise_range)

    def _solver(self) -> Solver:
        """The solver by name, or the object itself."""
        if isinstance(self.solver, str):
            solver = SOLVERS[self.solver]
        else:
            solver = self.solver
            remedy = "skbayes_sym.inference.solvers.Solver says what each of them does."
            members = ("symmetrises", "check", "n_kept", "solve")
            require_members(solver, members, parameter="solver", remedy=remedy)
        if not solver.symmetrises and self.symmetry is not None:
            why = f"solver={self.solver!r} averages over no group"
            refuse(self, ["symmetry"], why, "solver='vi'")
        if getattr(solver, "makes_all_sweeps", False) and self.tol is not None:
            why = f"solver={self.solver!r} makes all of its sweeps"
            refuse(self, ["tol"], why, "max_iter")
        return solver

    def _method(self) -> Factorization:
        solver = self._solver()
        symmetry = self.symmetry if solver.symmetrises else None
        return Factorization(solver, symmetry, self.max_iter, self.tol)

    def _run(self, data: MatrixTraining) -> Run:
        return Run(data.begin, lambda found: found.attributes(data))

    def _keep(self, data: MatrixTraining, found: FactorFit) -> None:
        """Set all fitted attributes at once."""
        self._replace_fit(found.attributes(data))

    def _check_matrix(self, X: Any, *, reset: bool) -> Any:
        settings = {"accept_sparse": ("csr", "csc", "coo"), "ensure_all_finite": "allow-nan"}
        with numbers_due("X", ENCODE):
            return validate_data(self, X, reset=reset, dtype=FLOATS, **settings)

    def transform(self, X: Any) -> Array:
        """Posterior means of the row factors; rows may be new.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Missing entries as in `fit`.

        Returns
        -------
        ndarray of shape (n_rows, n_components)
            Given the posterior of V; 0, the prior mean, for a row with nothing observed.
        """
        check_is_fitted(self)
        return self._by_row(X, row_means)[0]

    def inverse_transform(self, X: Any) -> Array:
        """Row factors back to rows of the matrix.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_components)

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            In the units of the matrix.
        """
        check_is_fitted(self)
        factors = check_array(X, dtype=FLOATS, input_name="X")
        if factors.shape[1] != len(self.components_):
            raise ValueError(
                f"X has {factors.shape[1]} columns, but the model has {len(self.components_)} "
                "components: pass what transform returns."
            )
        return factors @ self.components_ * self.scale_ + self.mean_

    def reconstruct(self) -> Array:
        """Posterior mean of the whole training matrix, without the noise.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Dense, in the units of the matrix; `predict_entries` for matrices too large for it.
        """
        check_is_fitted(self)
        k = len(self.components_)
        if hasattr(self, "samples_"):
            n = len(self.posterior_.rows.mean)
            product = sum(draw[:n] @ draw[n:].T for draw in self.samples_) / len(self.samples_)
        else:
            product = self.posterior_.rows.mean @ self.posterior_.columns.mean.T
        return product / np.sqrt(k) * self.scale_ + self.mean_

    def predict_entries(self, rows: Any, columns: Any, return_std: bool = False) -> Any:
        """Predict single entries of the training matrix.

        Parameters
        ----------
        rows, columns : array-like of int of shape (n_entries,)
            Positions, counted from 0.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
        std : ndarray of shape (n_entries,)
            Noise included; only if ``return_std``.
        """
        check_is_fitted(self)
        posterior = self.posterior_
        i = positions(rows, len(posterior.rows.mean), "rows")
        j = positions(columns, len(posterior.columns.mean), "columns")
        if len(i) != len(j):
            raise ValueError(f"rows has {len(i)} positions and columns {len(j)}: they must match.")
        with one_thread(), torch.no_grad():
            mean, variance = (a.double().numpy() for a in self._entry_moments(i, j, return_std))
        mean = mean * self.scale_ + self.mean_
        if not return_std:
            return mean
        return mean, np.sqrt(variance * self.scale_**2 + self.noise_std_**2)

    def _entry_moments(self, i: Tensor, j: Tensor, with_variance: bool) -> tuple[Tensor, Tensor]:
        """Mean and variance in scaled units; no variance, where it costs, unless asked for."""
        u, u_cov, v, v_cov = (torch.as_tensor(a) for side in self.posterior_ for a in side)
        if hasattr(self, "samples_"):
            return draw_moments(torch.as_tensor(self.samples_), len(u), i, j)
        mean = entry_means(u, v, i, j)
        if not with_variance:
            return mean, mean.new_zeros(0)
        return mean, entry_variances((u, u_cov), (v, v_cov), i, j)

    def score(self, X: Any, y: Any = None) -> float:
        """Log density of the observed entries of rows, each row's factor integrated out.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Rows, new ones for an honest score.
        y : None
            Ignored.

        Returns
        -------
        float
            Nats per observed entry, of the entries as given: the entries of a row under a normal
            with the covariance they have given the posterior of V. 0 if nothing is observed.
        """
        check_is_fitted(self)
        log_densities, n_observed = self._by_row(X, row_log_densities)
        total = float(log_densities.sum()) - n_observed * float(np.log(self.scale_))
        return total / max(n_observed, 1)

    def _by_row(self, X: Any, function: Callable[..., Tensor]) -> tuple[Array, int]:
        """A function of rows given the columns' posterior, and how many entries were observed."""
        checked = self._check_matrix(X, reset=False)
        observed = observed_entries(checked)
        values = (observed.values.astype(np.float64) - self.mean_) / self.scale_
        observed = observed._replace(values=values)
        noise = (self.noise_std_ / self.scale_) ** 2
        with one_thread(), torch.no_grad():
            data: Incidence = observed.tensors(torch.device("cpu"), torch.float64).by_row
            columns = (torch.as_tensor(a).double() for a in self.posterior_.columns)
            result = function(data, *columns, self.prior_scale, noise).numpy()
        return result.astype(checked.dtype, copy=False), len(values)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The group of the rows of U and V; all rotations where there is none."""
        n_rows = len(self.posterior_.rows.mean) + len(self.posterior_.columns.mean)
        return component_group(self.symmetry or "auto", n_rows, len(self.components_))

    @property
    def axes_(self) -> Array:
        """Axes (k, k) along which covariances were fitted and components flip and change places."""
        return self._orientation_
