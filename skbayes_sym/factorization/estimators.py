"""Matrix factorisation with a posterior that knows its rotations (Moore 2016)."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch

from skbayes_sym.base.progress import RUN_CONSTRAINTS, FitProgress
from skbayes_sym.base.requirements import refuse_parameters, require_attributes
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions, fit_context
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.factorization.entry_sites import is_normal, set_noise_scale
from skbayes_sym.factorization.factor_model import FactorModel, resolve_symmetry
from skbayes_sym.factorization.fit import Factorization, FactorizationDefaults
from skbayes_sym.factorization.hyperpriors import FactorPrior
from skbayes_sym.factorization.predict import EntryPredictionMixin
from skbayes_sym.factorization.ratings import is_entry_list
from skbayes_sym.factorization.solvers import MAP, VI, Gibbs, Solver
from skbayes_sym.factorization.sparse_entries import Coordinates
from skbayes_sym.factorization.training import (
    LabelledEntries,
    MatrixTrainingData,
    extend_state,
    merge_entries,
    read_entries,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood, TargetLikelihood
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.models.likelihoods.registry import SupportedLikelihoods
from skbayes_sym.symmetry.group import SymmetryGroup

SOLVERS: dict[str, Solver] = {"vi": VI(), "map": MAP(), "gibbs": Gibbs()}


def is_entry_likelihood(likelihood: Likelihood) -> bool:
    """Whether entries can follow a likelihood: targets, two classes or ordered classes."""
    if isinstance(likelihood, TargetLikelihood):
        return likelihood.n_outputs_per_target == 1
    return likelihood.kind in ("bernoulli", "ordinal")


LIKELIHOODS = SupportedLikelihoods(
    is_entry_likelihood, {"ordinal": Ordinal(torch.zeros(1, dtype=torch.float64))}
)
OFFSETS = {
    True: (True, True), "rows": (True, False), "columns": (False, True), False: (False, False),
}  # fmt: skip
# Beyond these ratios of scales in the data squares leave the range of the arithmetic.
_SCALE_RANGE = 1e-6, 1e6
# Where the noise starts, in units of the spread of the observed entries; and where the prior's
# scales are learned, since a prior held wide needs more room.
_INITIAL_NOISE = 0.5
_INITIAL_NOISE_LEARNED = 0.88
_NOISE_RANGE = 1e-3, 1e2
_LATENT_NOISE = 0.75  # variance of the noise that turns factors into labels: their unit is free


@dataclass(eq=False, repr=False)
class SymVIMatrixFactorization(EntryPredictionMixin):
    r"""Factorise a ratings-like matrix by symmetrised variational inference.

    .. math:: x_{ij} = \text{mean} + \text{scale} \cdot
        (a_i + b_j + u_i^\top v_j / \sqrt{k} + \text{noise}),
        \qquad (u_i, a_i) \sim N(m_U, \Lambda_U^{-1}),
        \; (v_j, b_j) \sim N(m_V, \Lambda_V^{-1}) .

    The rows of U and V can be rotated and reflected together without changing X. Mean-field
    inference ignores this and switches components off. The average of the posterior over the
    orthogonal group has a higher bound, by the symmetry gap, and keeps them.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number k of factors, at most the smaller side of the matrix. "auto" takes ten, or the
        smaller side: a learned prior shrinks those that aren't needed.
    offsets : bool or {"rows", "columns"}, default=True
        Whether rows and columns have offsets, which are learned in the same ascent and counted in
        the same bound.
    likelihood : str or Likelihood, default="gaussian"
        Distribution of an entry given the factors: "gaussian", "student_t" (heavy tails),
        "ordinal", "poisson", "negative_binomial", "bernoulli", or an object: any likelihood of one
        output, in scaled units. "ordinal" takes the distinct values for labels in their order (an
        ordered probit with learned cut points). Of counts the factors give the log of the mean, of
        two classes the log odds. "gibbs" takes "gaussian" only.
    solver : {"vi", "map", "gibbs"} or Solver, default="vi"
        "vi" is the method. "map", the most probable factors, and "gibbs", draws from the posterior,
        are baselines. Objects have settings, such as ``VI(symmetry=None)``, plain mean-field
        inference, ``VI(covariance="diag")`` and ``Gibbs(n_draws=500)``
        (`skbayes_sym.factorization.solvers`).
    noise_std : "learn" or float, default="learn"
        Standard deviation of the noise in the units of ``X`` (scale of "student_t"); "learn"
        maximises the ELBO over it.
    prior : {"learn", "ard"} or float, default="learn"
        Prior of the rows of U and of V. "learn" gives each side a mean and a full covariance, under
        a normal-Wishart prior; "ard" a mean and a scale for every component and side. A number is
        the standard deviation of every entry, in scaled units, around 0. "map" takes a word for 1.
    implicit : bool or {"rows", "columns"}, default=False
        Whether to take as features which entries were observed at all, of rows, of columns or of
        both (the implicit part of SVD++). It helps where people rate what they like.
    columns : "auto", tuple of str or dict, default="auto"
        Columns of a frame that hold a list of entries: a tuple ``(rows, columns, values)`` or
        ``(rows, columns, values, weights)``, or a dict with any of the keys "row", "column",
        "value", "weight" and "time". "auto", and what a dict leaves out, goes by well-known names
        such as "userId", "movie_id" and "rating"; weights are used only if they are named. A frame
        without such columns is a matrix.
    context : str or tuple of str, optional
        Further columns of such a frame that say when, where or how an entry was made, such as
        ("hour", "device"). They have linear effects, whose scale is learned; words and missing
        values are encoded. Entries without context are predicted in the average one.
    standardize : bool or {"center", "scale"}, default=True
        Whether to subtract the mean of the observed entries and to divide by their standard
        deviation; a word is one of the two. Counts and classes are taken as they are.
    max_iter : int, default=300
        Sweeps over all rows and columns; "gibbs" throws the first quarter away.
    tol : float or None, default=1e-4
        Sweeps end when ten of them raise the mean ELBO by less than this many nats per observed
        entry; None, and "gibbs", make all.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1" and so on. "auto" uses CUDA if it is available and the computation
        is large enough to benefit.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of all random numbers. None uses fresh entropy at every call. NumPy's and
        torch's global random states are never used or changed.
    verbose : int, default=0
        0 logs nothing above level DEBUG, 1 logs a summary to stderr, 2 also logs progress.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_columns)
        ``E[V]' / sqrt(k)`` in scaled units: rows are orthogonal, in decreasing norm, the largest
        loading of each positive.
    components_cov_ : ndarray of shape (n_columns, n_components, n_components)
        Their posterior covariance, column by column.
    posterior_ : MatrixPosterior
        ``posterior_.rows.mean``, ``.rows.cov``, ``.columns.mean``, ``.columns.cov``: the Gaussian
        rows of U and V in scaled units, up to a common rotation.
    symmetry_ : Orthogonal or Units
        The group of the rows of U and V that the posterior is averaged over, or all that the prior
        has.
    axes_ : ndarray of shape (n_components, n_components)
        Axes, one a row, along which covariances have their form, and components flip and change
        places.
    noise_std_ : float
        Standard deviation of the noise in the units of ``X`` (scale of "student_t"; latent, of
        "ordinal"); counts and two classes have none.
    prior_scale_ : ndarray of shape (2, n_components)
        Prior standard deviations of the components of U and of V along their own axes, in scaled
        units.
    row_offsets_, column_offsets_ : ndarray of shape (n_rows,) and (n_columns,)
        Posterior means of the offsets in the units of ``X`` (latent ones of counts). A constant may
        sit in either, in the factors' means, or in ``mean_``: only sums mean something.
    row_labels_, column_labels_ : ndarray of shape (n_rows,) and (n_columns,)
        Labels of a list of entries or a frame.
    n_observed_ : int
        Entries that were observed.
    classes_ : ndarray of shape (n_classes,)
        Class labels, of likelihoods of classes.
    context_coef_, context_coef_cov_ : ndarray of shape (n_effects,) and (n_effects, n_effects)
        Posterior mean and covariance of the effects of the context, in the units of ``X`` (latent
        of counts) per standard deviation of a column as it was encoded.
    cut_points_ : ndarray of shape (n_classes - 1,)
        Latent cut points between the labels; of "ordinal" only.
    elbo_ : float
        Symmetrised evidence lower bound, nats: `elbo_mean_field_` + `symmetry_gap_`. It bounds log
        p(X observed) at the learned noise, up to Monte Carlo error. Beyond k = 3 that rests on a
        conjecture (:ref:`matrix_factorization`); outputs of labels and counts are treated as
        normal. Of "vi" only.
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
    mean_, scale_ : float
        Centring and scaling of the entries; ``mean_`` of counts is the log of their mean, of two
        classes the log odds.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Reason why training stopped.
    device_, dtype_ : str
        Device and floating-point precision of the fit.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if all column names of ``X`` are strings.

    See Also
    --------
    skbayes_sym.model_selection.EntryKFold : Splits the observed entries.
    skbayes_sym.model_selection.cross_validate_entries : Scores a model on held-out entries.

    Notes
    -----
    A sweep costs O(N k^2 + (n + m) k^3) for N observed entries; no array is ever n x m. Where few
    components are switched off, held-out errors gain little by the symmetry; a full covariance
    often matters more.

    Corrected against the paper: the matrix inside the gap isn't symmetrised, and its integral isn't
    approximated from the wrong side. As printed, the "ELBO" exceeds the log evidence.

    References
    ----------
    Moore (2016). Symmetrized variational inference. NIPS Workshop on Advances in Approximate
    Bayesian Inference. http://approximateinference.org/2016/accepted/Moore2016.pdf

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

    n_components: int | str = "auto"
    _: KW_ONLY
    offsets: bool | str = True
    likelihood: str | Likelihood = "gaussian"
    solver: str | Solver = "vi"
    noise_std: str | float = "learn"
    prior: str | float = "learn"
    implicit: bool | str = False
    columns: Any = "auto"
    context: Any = None
    standardize: bool | str = True
    max_iter: int = 300
    tol: float | None = 1e-4
    device: str = "auto"
    random_state: Any = None
    verbose: Any = 0

    _final_attributes = ("elbo_", "elbo_mean_field_", "elbo_std_error_", "symmetry_gap_")

    _effort: ClassVar[FactorizationDefaults] = FactorizationDefaults()

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "offsets": ["boolean", StrOptions({"rows", "columns"})],
        "likelihood": [StrOptions(LIKELIHOODS.keys()), HasMethods("log_prob")],
        "solver": [StrOptions(set(SOLVERS)), HasMethods("solve")],
        "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither")],
        "prior": [StrOptions({"learn", "ard"}), Interval(Real, 0, None, closed="neither")],
        "implicit": ["boolean", StrOptions({"rows", "columns"})],
        "columns": [StrOptions({"auto"}), tuple, list, dict],
        "context": [str, tuple, list, None],
        "standardize": ["boolean", StrOptions({"center", "scale"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "device": RUN_CONSTRAINTS["device"],
        "random_state": ["random_state"],
        "verbose": RUN_CONSTRAINTS["verbose"],
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

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
            a frame as it was read (``columns``); its rows and columns are labels, sorted in
            `row_labels_` and `column_labels_`. Ids that are integers, integral floats or text are
            the same label. An entry that is listed twice was observed twice. A fourth part, or a
            column of weights that ``columns`` names, says how often an entry counts. Masked values
            of a masked array are missing.
        y : None
            Ignored.
        row_features : array-like, sparse matrix or DataFrame of shape (n_rows, n_features)
            What else is known of the rows; it moves their prior means. A frame is aligned by its
            index, or by a column such as "userId", and words and missing values are encoded; an
            array is in the order of `row_labels_`. A frame may have rows without entries: they are
            predicted from it.
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
        with self._fit_environment():
            return self._fit(X, row_features, column_features)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in more entries: sweeps go on from the posterior of the earlier ones.

        Where entries have grown by half, or settings have changed, sweeps begin anew, because
        components that a small table lost never come back otherwise. All parts together cost two or
        three fits, and the bound is that of one `fit` (within 5 nats on ten simulated tables).

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_rows, n_columns), or list of entries
            As in `fit`. An entry that an earlier call gave is replaced; lists may have new rows and
            columns.
        y : None
            Ignored.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        UserWarning
            If the fit before was by `fit`, which keeps no entries: this begins anew.
        """
        self._validate_params()
        refuse_parameters(self, ["context"], "a stream keeps no context of entries", "fit")
        stream: LabelledEntries | None = vars(self).get("_stream_")
        if self.__sklearn_is_fitted__() and stream is None:
            warn_user("fit keeps no entries to add to: partial_fit begins anew.", UserWarning)
        if stream is not None and not is_entry_list(X, self.columns):
            self._check_matrix(X, reset=False)
        with self._fit_environment():
            entries = merge_entries(stream, read_entries(self, X)[0])
            # These may change without beginning anew.
            stay = {"tol", "max_iter", "device", "random_state", "verbose"}
            parameters = self.get_params(deep=False).items()
            settings = repr({name: value for name, value in parameters if name not in stay})
            n = int(np.sum(~np.isnan(entries[2])))
            begun = self._stream_start_ if stream is not None else (0, settings)
            goes_on = n < self._effort.growth * begun[0] and begun[1] == settings
            self._fit(entries, warm_from=stream if goes_on else None)
            self._stream_ = entries
            self._stream_start_ = begun if goes_on else (n, settings)
        return self

    def _fit(
        self, X: Any, row_features: Any = None, column_features: Any = None,
        warm_from: LabelledEntries | None = None,
    ) -> Self:  # fmt: skip
        data = MatrixTrainingData.open(self, X, row_features, column_features)
        model = self._make_model(data)
        warm = None
        is_the_same = warm_from is not None and (
            len(self.components_) == model.n_components
            and not self.implicit  # whose directions change
            and (data.classes is None or np.array_equal(data.classes, self.classes_))
        )
        unit = self.scale_ / data.scale if is_the_same else 0.0
        if warm_from is not None and 1e-100 < unit < 1e100:
            labels = (np.unique(warm_from[0]), np.unique(warm_from[1]))
            warm = extend_state(self.predictor(), data, labels, unit)
        method = Factorization(self._solver(), self.max_iter, self.tol, warm)
        progress = FitProgress(
            data.callback_arguments, lambda fitted: fitted.attributes(data, model)
        )
        with self._keep_on_interrupt(progress):
            self._set_fit(method.fit(data, model, progress).attributes(data, model))
        return self

    def _n_factors(self, smaller: int) -> int:
        """Number of components of a matrix whose smaller side has this length."""
        k = self.n_components
        return min(self._effort.components, smaller) if isinstance(k, str) else int(k)

    def _make_model(self, data: MatrixTrainingData) -> FactorModel:
        """State what is believed, in scaled units."""
        smaller = min(data.shape)
        k = self._n_factors(smaller)
        if k > smaller:
            n, m = data.shape
            raise ValueError(
                f"n_components={k} must be at most min(n_samples={n}, n_features={m}) = {smaller}: "
                f"n_samples = {n}, n_features = {m}."
            )
        prior = self.prior
        if isinstance(prior, str) and not self._solver().learns_prior:
            prior = 1.0
        likelihood = self._make_likelihood(data, isinstance(prior, str))
        spread = data.spread
        (low, high) = _SCALE_RANGE
        unit = "standard deviations of the observed entries"
        noise = self.noise_std if isinstance(self.noise_std, str) else self.noise_std / data.scale
        for name, value in {"prior": prior, "noise_std": noise}.items():
            if not isinstance(value, str) and not low <= value <= high:
                raise ValueError(
                    f"{name}={vars(self)[name]:g} is {value:.3g} {unit}, which must lie between "
                    f"{low:g} and {high:g}: give it in the units of X, or use 'learn'."
                )
        rows, columns = (
            None if side is None else torch.as_tensor(side[1], device=data.device)
            for side in data.features
        )
        return FactorModel(
            Coordinates(k, *OFFSETS[self.offsets]),
            likelihood,
            FactorPrior(prior, (rows, columns)),
            data.shape,
            (float((_NOISE_RANGE[0] * spread) ** 2), float((_NOISE_RANGE[1] * spread) ** 2)),
            0.0 if likelihood.scales_targets else data.mean,
        )

    def _entry_likelihood(self) -> Likelihood:
        """The likelihood by name, or the object, at any parameters."""
        likelihood = self._likelihood_parameter
        if isinstance(likelihood, str):
            named = LIKELIHOODS[likelihood]
            if not (named.scales_targets and hasattr(named, "learn")):
                why = f"{likelihood=} has no such noise"
                refuse_parameters(self, ["noise_std"], why, "likelihood='gaussian'")
            return named
        why = f"{likelihood=} has parameters of its own"
        refuse_parameters(self, ["noise_std"], why, "likelihood='gaussian'")
        members = (
            "n_params",
            "approximate_expected_log_prob",
            "predictive",
            "n_outputs_per_target",
            "scales_targets",
        )
        remedy = "skbayes_sym.models has some, and Likelihood the members of one's own."
        require_attributes(likelihood, members, parameter="likelihood", remedy=remedy)
        if not is_entry_likelihood(likelihood):
            raise ValueError(
                f"{likelihood=} doesn't go with SymVIMatrixFactorization, whose entries are "
                "numbers, counts, two classes or classes in an order, each of one output."
            )
        return likelihood  # type: ignore[no-any-return]

    def _make_likelihood(self, data: MatrixTrainingData, learns_prior: bool) -> Likelihood:
        """At the parameters where learning starts, in scaled units."""
        likelihood = self._entry_likelihood()
        if self.likelihood == "ordinal" and data.classes is not None:
            if len(data.classes) == 1:
                raise ValueError(
                    "likelihood='ordinal' needs two labels at least, got only "
                    f"{data.classes[0]:g}: use likelihood='gaussian'."
                )
            codes = torch.as_tensor(data.observed.values.astype(np.int64))
            weights = torch.as_tensor(data.weights)
            return Ordinal.from_class_frequencies(
                codes, weights, max(len(data.classes), 2), _LATENT_NOISE**0.5
            )
        if data.classes is not None and len(data.classes):
            likelihood.n_outputs(len(data.classes))  # may refuse them
        if not isinstance(self.noise_std, str):
            return set_noise_scale(likelihood, self.noise_std / data.scale, learn=False)
        start = (_INITIAL_NOISE_LEARNED if learns_prior else _INITIAL_NOISE) * data.spread
        # With nothing to learn from normal noise stays where it starts.
        learns = len(data.observed.values) > 0 or not is_normal(likelihood)
        return set_noise_scale(likelihood, start, learn=learns)

    def _entries_likelihood(self) -> Likelihood:
        if self._likelihood_parameter == "ordinal":
            return Ordinal(
                torch.zeros(len(self.classes_) - 1, dtype=torch.float64), _LATENT_NOISE**0.5
            )
        likelihood = self._entry_likelihood()
        if likelihood.n_params and not len(self._predictor_["params"]):  # its scale was given
            return set_noise_scale(likelihood, self.noise_std_ / self.scale_, learn=False)
        return likelihood

    def _solver(self) -> Solver:
        """The solver by name, or the object itself."""
        if isinstance(self.solver, str):
            return SOLVERS[self.solver]
        remedy = "skbayes_sym.factorization.solvers.Solver says what each of them does."
        members = ("learns_prior", "group", "solve")
        require_attributes(self.solver, members, parameter="solver", remedy=remedy)
        return self.solver

    def _set_columns(self, labels: Array) -> None:
        """Set what `validate_data` sets for a matrix: the number of columns, names in words."""
        self.n_features_in_ = len(labels)
        if labels.dtype.kind == "U":
            self.feature_names_in_: Array = labels.astype(object)
        else:
            self.__dict__.pop("feature_names_in_", None)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The group of the rows of U and V that the prior has; the whole of it if none was used."""
        n_rows = sum(len(side.mean) for side in self.posterior_)
        solver = self._solver()
        symmetry = solver.symmetry if isinstance(solver, VI) else None
        return resolve_symmetry(symmetry or "auto", self.prior, n_rows, len(self.components_))

    @property
    def axes_(self) -> Array:
        """Axes (k, k) along which covariances were fitted and components flip and change places."""
        return self._rotation_
