"""Matrix factorisation with a posterior that knows its rotations (Moore 2016)."""

from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np

from skbayes_sym.estimators._fit.compatibility import refuse, require_members
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import RUN_CONSTRAINTS, Run
from skbayes_sym.estimators._fit.scikit_learn import HasMethods, Interval, StrOptions, fit_context
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.factorization.choice import choose_components
from skbayes_sym.estimators.factorization.entries import (
    is_listed,
)
from skbayes_sym.estimators.factorization.groups import NAMES, component_group, group_name
from skbayes_sym.estimators.factorization.method import FactorFit, Factorization
from skbayes_sym.estimators.factorization.predictions import PredictsEntries
from skbayes_sym.estimators.factorization.stream import joined, warm_state
from skbayes_sym.estimators.factorization.training import Given, MatrixTraining, observe
from skbayes_sym.inference.factorization.likelihoods import (
    EntryLikelihood,
    Normal,
    Ordinal,
    StudentT,
)
from skbayes_sym.inference.factorization.problem import Factorisation
from skbayes_sym.inference.posteriors import MatrixPosterior
from skbayes_sym.inference.solvers import MAP, VI, Gibbs, MeanField, Solver
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.symmetry.base import SymmetryGroup

SOLVERS: dict[str, Solver] = {
    "vi": VI(),
    "map": MAP(),
    "mean_field": MeanField(),
    "gibbs": Gibbs(),
}
OFFSETS = {
    True: (True, True), "rows": (True, False), "columns": (False, True), False: (False, False),
}  # fmt: skip
_SCALE_OF_BASELINES = 1.0  # of solvers that learn no prior
# Beyond these ratios of scales in the data squares leave the range of the arithmetic.
_SCALE_RANGE = 1e-6, 1e6


class SymVIMatrixFactorization(PredictsEntries):
    r"""Factorise a ratings-like matrix by symmetrised variational inference.

    .. math:: x_{ij} = \text{mean} + \text{scale} \cdot
        (a_i + b_j + u_i^\top v_j / \sqrt{k} + \text{noise}),
        \qquad (u_i, a_i) \sim N(m_U, \Lambda_U^{-1}),
        \; (v_j, b_j) \sim N(m_V, \Lambda_V^{-1}) .

    The rows of U and V can be rotated and reflected together without changing X. Mean-field
    inference must choose one orientation, and its bound falls with every component it keeps, so it
    switches components off. Averaging the posterior over the orthogonal group raises the bound by
    the symmetry gap, and components stay.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number k of factors, at most the smaller side of the matrix. "auto" holds out a tenth of the
        entries and takes the one of 2, 5, 10 and 20 that predicts them best (some four more fits);
        the bound prefers too few.
    offsets : bool or {"rows", "columns"}, default=True
        Whether rows and columns have offsets, with means and variances learned in the same ascent
        and counted in the same bound. They aren't rotated and break no symmetry. "mean_field" has
        none.
    likelihood : {"gaussian", "student_t", "ordinal"} or StudentT, default="gaussian"
        Distribution of an entry given the factors. "student_t" (4 degrees of freedom; the object of
        `skbayes_sym.models` has its own) gives little weight to entries far off. "ordinal" takes
        the distinct values for labels in their order: an ordered probit with learned cut points,
        whose log densities are those of labels. "vi" only, but for "gaussian".
    solver : {"vi", "map", "mean_field", "gibbs"} or Solver, default="vi"
        "vi" is the method. The others are baselines: the most probable factors, the closed-form
        mean-field optimum of a complete matrix (Nakajima et al. 2013), and Gibbs sampling, the
        posterior itself up to Monte Carlo error. Objects have settings of their own, such as
        ``VI(covariance="diag")``, ``VI(gap=...)`` and ``Gibbs(n_draws=500)``
        (`skbayes_sym.inference.solvers`).
    symmetry : str, SymmetryGroup or None, default="auto"
        Group the posterior of "vi" is averaged over; "auto" is all that the prior has:
        "orthogonal", or with ``prior_scale="ard"`` "signed_permutation" (k up to 14; beyond,
        "sign_flip"), finite parts of it. None is plain mean-field inference.
    noise_std : "learn" or float, default="learn"
        Standard deviation of the noise in the units of ``X``; "learn" maximises the ELBO over it.
    prior_scale : {"learn", "ard"} or float, default="learn"
        Prior of the rows of U and of V. "learn" gives each side a mean and a full covariance, the
        normal-Wishart prior of Bayesian probabilistic matrix factorisation, and offsets their place
        in it; "ard" a mean and a scale for every component and side. A number is the standard
        deviation of every entry, in scaled units, around 0. "map" and "mean_field" learn none:
        there "learn" is 1.
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
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
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
        Standard deviation of the noise in the units of ``X`` (scale of "student_t"; of "ordinal",
        that of the latent numbers).
    prior_scale_ : ndarray of shape (2, n_components)
        Prior standard deviations of the components, along their own axes, of U and of V, in scaled
        units.
    row_offsets_, column_offsets_ : ndarray of shape (n_rows,) and (n_columns,)
        Posterior means of the offsets in the units of ``X``, where there are any. A constant may
        sit in either, in the factors' means, or in ``mean_``: only sums mean something.
    row_labels_, column_labels_ : ndarray of shape (n_rows,) and (n_columns,)
        What a list of entries or a frame calls them, if it doesn't number them.
    n_observed_ : int
        Entries that were observed.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    cut_points_ : ndarray of shape (n_classes - 1,)
        Latent numbers between them, in their order; of "ordinal" only, as ``classes_`` is.
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
    Bayesian Inference. http://approximateinference.org/2016/accepted/Moore2016.pdf

    Nakajima, Sugiyama, Babacan & Tomioka (2013). Global analytic solution of fully-observed
    variational Bayesian matrix factorization. JMLR 14.

    Salakhutdinov & Mnih (2008). Bayesian probabilistic matrix factorization using Markov chain
    Monte Carlo. ICML.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import SymVIMatrixFactorization
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + rng.normal(size=(30, 20))
    >>> X[rng.random(X.shape) < 0.3] = np.nan
    >>> mf = SymVIMatrixFactorization(2, tol=1e-3, random_state=0).fit(X)
    >>> mean, std = mf.predict_entries([0, 1], [4, 2], return_std=True)
    >>> mean.shape, mf.transform(X).shape, bool(mf.elbo_ > mf.elbo_mean_field_)
    ((2,), (30, 2), True)
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
    _laws_: Any

    _parameter_constraints: dict[str, list[Any]] = {
        **RUN_CONSTRAINTS,
        "dtype": [StrOptions({"auto", "float32", "float64"})],
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "symmetry": [StrOptions(NAMES), HasMethods("act"), None],
        "offsets": ["boolean", StrOptions({"rows", "columns"})],
        "likelihood": [StrOptions({"gaussian", "student_t", "ordinal"}), HasMethods("log_prob")],
        "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither")],
        "prior_scale": [StrOptions({"learn", "ard"}), Interval(Real, 0, None, closed="neither")],
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
        offsets: bool | str = True,
        likelihood: str | Likelihood = "gaussian",
        solver: str | Solver = "vi",
        symmetry: str | SymmetryGroup | None = "auto",
        noise_std: str | float = "learn",
        prior_scale: str | float = "learn",
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
        self.offsets = offsets
        self.likelihood = likelihood
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
    def fit(
        self, X: Any, y: Any = None, *, row_features: Any = None, column_features: Any = None
    ) -> Self:
        """Fit the posterior of the factors.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_rows, n_columns), or list of entries
            NaN is missing. In a sparse matrix what isn't stored is missing, and a stored zero is an
            observed zero. A list of entries is a tuple ``(rows, columns, values)`` of 1D arrays, or
            a frame with columns "row", "column" and "value"; rows and columns are labels, sorted
            in `row_labels_` and `column_labels_`. A fourth part, or a column "weight", says how
            often an entry counts (scikit-learn's ``sample_weight`` is of rows: repeating a row adds
            another one).
        y : None
            Ignored.
        row_features : array-like, sparse matrix or DataFrame of shape (n_rows, n_features)
            What else is known of the rows, in the order of `row_labels_`; enters their prior means
            with learned, shrunken coefficients. Rows without entries are predicted by them.
        column_features : array-like, sparse matrix or DataFrame of shape (n_columns, n_features)
            The same of the columns.

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
            data = MatrixTraining.open(self, Given(X, row_features, column_features))
            model = self._model(data)
            run = self._run(data)
            with self._keeping(run):
                found = self._method().fit(data, model, run)
                self._keep(data, found)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in more entries: sweeps go on from the posterior that they were fitted to.

        Equal to `fit` of all entries at once up to what ``tol`` leaves: with ``tol=1e-7``
        predictions differ by two thousandths of ``noise_std_``, if both are in one basin of the
        bound.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_rows, n_columns), or list of entries
            As in `fit`, without entries that were there before. Lists may have rows and columns
            that weren't.
        y : None
            Ignored.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If ``n_components="auto"``.

        Warns
        -----
        UserWarning
            If the fit before was by `fit`, which keeps no entries: this begins anew.

        Notes
        -----
        All entries are kept, 32 bytes each. A sweep costs what it does in `fit`; there are fewer.
        """
        kept = getattr(self, "_stream_", ())
        if hasattr(self, "posterior_") and not kept:
            warn_user("fit keeps no entries to add to: partial_fit begins anew.", UserWarning)
        if kept and not is_listed(X):
            self._check_matrix(X, reset=False)
        if isinstance(self.n_components, str):
            raise ValueError("partial_fit needs a number for n_components, got 'auto'.")
        with self._fitting():
            seen = joined(kept, observe(self, X)[0])
            data = MatrixTraining.open(self, Given(seen))
            model, warm = self._model(data), None
            before = getattr(self, "classes_", None)
            if kept and _same_labels(before, data.classes):
                labels = (np.unique(kept[0]), np.unique(kept[1]))
                warm = warm_state(self._fitted(), self._laws_, data, model, labels)
            found = replace(self._method(), warm=warm).fit(data, model, self._run(data))
            self._keep(data, found)
            self._stream_ = seen
        return self

    def _model(self, data: MatrixTraining) -> Factorisation:
        """What is believed, in scaled units."""
        smaller = min(data.shape)
        if isinstance(self.n_components, str):
            k = choose_components(data, lambda k: self._model_of(data, k))
        else:
            k = int(self.n_components)
        if k > smaller:
            n, m = data.shape
            raise ValueError(
                f"n_components={k} must be at most min(n_samples={n}, n_features={m}) = {smaller}: "
                f"n_samples = {n}, n_features = {m}."
            )
        return self._model_of(data, k)

    def _model_of(self, data: MatrixTraining, k: int) -> Factorisation:
        """With that many components."""
        takes = self._solver().takes
        prior_scale = self.prior_scale if takes.learned_scales else _given_scale(self)
        learns = isinstance(prior_scale, str)
        self._check_scales(data, prior_scale)
        noise, noise_range = data.noise(self.noise_std, learns)
        features = tuple(
            None if side is None else side.tensor(data.device) for side in data.features
        )
        return Factorisation(
            k, prior_scale, noise, noise_range,
            OFFSETS[self.offsets] if takes.offsets else (False, False),
            self._likelihood(data.classes), (features[0], features[1]),
        )  # fmt: skip

    def _check_scales(self, data: MatrixTraining, prior_scale: str | float) -> None:
        """Refuse standard deviations whose squares no arithmetic holds."""
        noise = self.noise_std if isinstance(self.noise_std, str) else self.noise_std / data.scale
        (low, high), unit = _SCALE_RANGE, "standard deviations of the observed entries"
        for name, value in {"prior_scale": prior_scale, "noise_std": noise}.items():
            if not isinstance(value, str) and not low <= value <= high:
                raise ValueError(
                    f"{name}={getattr(self, name):g} is {value:.3g} {unit}, which must lie between "
                    f"{low:g} and {high:g}: give it in the units of X, or use 'learn'."
                )

    def _likelihood(self, classes: Array | None) -> EntryLikelihood:
        """By name, or the degrees of freedom of a Student-t likelihood of `skbayes_sym.models`."""
        if classes is None:
            df = getattr(self.likelihood, "df", StudentT().df)
            if isinstance(df, str):
                raise ValueError(
                    f"likelihood={self.likelihood!r} learns its degrees of freedom, which a "
                    "factorisation doesn't: give df a number."
                )
            return Normal() if self.likelihood == "gaussian" else StudentT(df)
        labels = tuple(float(label) for label in classes)
        if len(labels) == 1:
            raise ValueError(
                f"likelihood='ordinal' needs two labels at least, got only {labels[0]:g}: use "
                "likelihood='gaussian'."
            )
        for name in ("noise_std", "center", "scale"):
            refuse(self, [name], "labels have no units", "likelihood='gaussian'")
        return Ordinal(labels)

    def _solver(self) -> Solver:
        """The solver by name, or the object itself."""
        if isinstance(self.solver, str):
            solver = SOLVERS[self.solver]
        else:
            solver = self.solver
            remedy = "skbayes_sym.inference.solvers.Solver says what each of them does."
            members = ("symmetrises", "takes", "check", "n_kept", "solve")
            require_members(solver, members, parameter="solver", remedy=remedy)
        why = f"solver={self.solver!r} averages over no group"
        if not solver.symmetrises and self.symmetry is not None:
            refuse(self, ["symmetry"], why, "solver='vi'")
        if getattr(solver, "makes_all_sweeps", False) and self.tol is not None:
            why = f"solver={self.solver!r} makes all of its sweeps"
            refuse(self, ["tol"], why, "max_iter")
        why = f"solver={self.solver!r} knows no"
        if not solver.takes.offsets and isinstance(self.offsets, str):
            refuse(self, ["offsets"], f"{why} offsets", "solver='vi'")
        if not solver.takes.likelihoods:
            refuse(self, ["likelihood"], f"{why} noise but the normal one", "solver='vi'")
        if not solver.takes.learned_scales and isinstance(self.prior_scale, str):
            refuse(self, ["prior_scale"], f"{why} learned scales", "solver='vi'")
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

    def _set_columns(self, labels: Array) -> None:
        """What `validate_data` sets for a matrix: the number of columns, names that are strings."""
        self.n_features_in_ = len(labels)
        if labels.dtype.kind == "U":
            self.feature_names_in_: Array = labels.astype(object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The group of the rows of U and V that the prior has; the whole of it if none was used."""
        n_rows, k = (
            len(self.posterior_.rows.mean) + len(self.posterior_.columns.mean),
            len(self.components_),
        )
        symmetry = self.symmetry or "auto"
        if isinstance(symmetry, str):
            symmetry = group_name(symmetry, k, has_scales=self.prior_scale == "ard")
        return component_group(symmetry, n_rows, k)

    @property
    def axes_(self) -> Array:
        """Axes (k, k) along which covariances were fitted and components flip and change places."""
        return self._orientation_


def _given_scale(estimator: SymVIMatrixFactorization) -> float:
    """Of solvers that can't learn it: 1 where it is "learn"."""
    scale = estimator.prior_scale
    return _SCALE_OF_BASELINES if isinstance(scale, str) else float(scale)


def _same_labels(before: Array | None, now: Array | None) -> bool:
    """Whether there are the same, or there were none."""
    if before is None or now is None:
        return before is now
    return bool(np.array_equal(before, now))
