"""Estimator of matrix factorisation with a rotation-invariant posterior (Moore 2016)."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
import torch

from skbayes_sym.base.device import choose_device, choose_dtype, resolve_device
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.model_factory import give_each_target_a_scale
from skbayes_sym.base.progress import RUN_CONSTRAINTS, FitProgress
from skbayes_sym.base.requirements import refuse_parameters, require_attributes
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import HasMethods, Interval, StrOptions, fit_context
from skbayes_sym.factorization.entry_sites import is_normal, set_noise_scale
from skbayes_sym.factorization.factor_model import FactorModel, FactorState, resolve_symmetry
from skbayes_sym.factorization.fit import Factorization, FactorizationDefaults
from skbayes_sym.factorization.frames import check_columns, warn_like_entries
from skbayes_sym.factorization.hyperpriors import FactorPrior
from skbayes_sym.factorization.predict import EntryPredictionMixin
from skbayes_sym.factorization.ratings import (
    ObservedEntries,
    extract_entries,
    find_frame_labels,
    is_entry_list,
    parse_entry_list,
    warn_conflicting_values,
)
from skbayes_sym.factorization.side_features import SideFeatures
from skbayes_sym.factorization.solvers import MAP, VI, Gibbs, Solver
from skbayes_sym.factorization.sparse_entries import Coordinates
from skbayes_sym.factorization.training import (
    LabelledEntries,
    MatrixTrainingData,
    add_feature_labels,
    encode_context,
    encode_features,
    extend_state,
    merge_entries,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood, TargetLikelihood
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.models.likelihoods.registry import SupportedLikelihoods
from skbayes_sym.numerics.arguments import draw_seed
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
# Whether rows and columns have offsets, by the parameter ``offsets``.
OFFSETS = {
    True: (True, True),
    "rows": (True, False),
    "columns": (False, True),
    False: (False, False),
}
# Range of given scales, relative to the standard deviation of the entries. Beyond it, squares leave
# the range of the arithmetic.
_SCALE_RANGE = 1e-6, 1e6
# Initial noise, relative to the standard deviation of the entries. If the scales of the prior are
# learned, it is higher, because the prior is wide in the first sweeps.
_INITIAL_NOISE = 0.5
_INITIAL_NOISE_LEARNED = 0.88
# Range of the learned noise, relative to the standard deviation of the entries.
_NOISE_RANGE = 1e-3, 1e2
# Variance of the latent noise of an ordinal likelihood, whose unit is arbitrary.
_LATENT_NOISE = 0.75


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
        Number k of components, at most the smaller side of the matrix. "auto" takes ten, or the
        smaller side: a learned prior shrinks components that aren't needed.
    offsets : bool or {"rows", "columns"}, default=True
        Whether rows and columns have offsets, which are learned together with the factors and
        included in the bound.
    likelihood : str or Likelihood, default="gaussian"
        Distribution of an entry given the factors: "gaussian", "student_t" (heavy tails),
        "ordinal", "poisson", "negative_binomial", "bernoulli", or any likelihood object with one
        output, in scaled units. "ordinal" treats the distinct values as ordered classes (an ordered
        probit with learned cut points). The outputs of the factors are the log of the mean of
        counts, and the log odds of two classes. The solver "gibbs" takes "gaussian" only.
    solver : {"vi", "map", "gibbs"} or Solver, default="vi"
        "vi" is symmetrised variational inference. "map" (maximum a posteriori) and "gibbs" (draws
        from the posterior) are baselines. Objects of `skbayes_sym.factorization.solvers` have
        parameters, such as ``VI(symmetry=None)`` for plain mean-field inference,
        ``VI(covariance="diag")`` and ``Gibbs(n_draws=500)``.
    noise_std : "learn" or float, default="learn"
        Standard deviation of the noise in the units of ``X`` (scale of "student_t"); "learn"
        maximises the ELBO over it.
    prior : {"learn", "ard"} or float, default="learn"
        Prior of the rows of U and of V. "learn" learns a mean and a full covariance for each
        factor, under a normal-Wishart prior, and "ard" a mean and a scale for every component of
        each factor. A number is the standard deviation of all elements of U and V around 0, in
        scaled units. The solver "map" learns no prior and uses 1 instead.
    implicit : bool or {"rows", "columns"}, default=False
        Whether to use the pattern of observed entries as features, of rows, of columns or of both
        (the implicit part of SVD++). It helps if people rate what they like.
    columns : "auto", tuple of str or dict, default="auto"
        Columns of a frame that hold a list of entries: a tuple ``(rows, columns, values)`` or
        ``(rows, columns, values, weights)``, or a dict with any of the keys "row", "column",
        "value", "weight" and "time". With "auto", and for keys that a dict leaves out, columns are
        recognised by well-known names such as "userId", "movie_id" and "rating". Weights are used
        only if they are named. A frame without such columns is a matrix.
    context : str or tuple of str, optional
        Further columns of such a frame that describe when, where or how an entry was made, such as
        ("hour", "device"). They have linear effects, whose scale is learned. Text and missing
        values are encoded. Entries without context are predicted in the average one.
    standardize : bool or {"center", "scale"}, default=True
        Whether to subtract the mean of the observed entries and to divide by their standard
        deviation, or to do one of the two. Counts and classes are never standardised.
    max_iter : int, default=300
        Largest number of sweeps over all rows and columns. The solver "gibbs" discards the first
        quarter.
    tol : float or None, default=1e-4
        Sweeps end when ten of them raise the mean ELBO by less than this many nats per observed
        entry. With None, and with the solver "gibbs", all sweeps are made.
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
        ``E[V]' / sqrt(k)`` in scaled units. Its rows are orthogonal and in order of decreasing
        norm, and the largest loading of each is positive.
    components_cov_ : ndarray of shape (n_columns, n_components, n_components)
        Posterior covariance of the loadings of each column.
    posterior_ : MatrixPosterior
        ``posterior_.rows.mean``, ``.rows.cov``, ``.columns.mean`` and ``.columns.cov`` are the
        moments of the Gaussian rows of U and V in scaled units, up to a common rotation.
    symmetry_ : Orthogonal or Units
        Group of transformations of the rows of U and V that the posterior is averaged over. If it
        isn't averaged, it is the whole symmetry group of the prior.
    axes_ : ndarray of shape (n_components, n_components)
        Axes, one per row, in which covariances are diagonal or isotropic, and which sign flips and
        permutations of components refer to.
    noise_std_ : float
        Standard deviation of the noise in the units of ``X``. For "student_t" it is the scale and
        for "ordinal" the latent standard deviation. Counts and two classes have none.
    prior_scale_ : ndarray of shape (2, n_components)
        Prior standard deviations of the components of U and of V along their own axes, in scaled
        units.
    row_offsets_, column_offsets_ : ndarray of shape (n_rows,) and (n_columns,)
        Posterior means of the offsets in the units of ``X``, or of the latent outputs for counts. A
        constant may be part of either, of the factors' means or of ``mean_``, so that only sums of
        these are identified.
    row_labels_, column_labels_ : ndarray of shape (n_rows,) and (n_columns,)
        Labels of a list of entries or a frame.
    n_observed_ : int
        Number of observed entries.
    classes_ : ndarray of shape (n_classes,)
        Class labels, for likelihoods of classes.
    context_coef_, context_coef_cov_ : ndarray of shape (n_effects,) and (n_effects, n_effects)
        Posterior mean and covariance of the effects of the context, in the units of ``X`` (of the
        latent outputs for counts) per standard deviation of an encoded column.
    cut_points_ : ndarray of shape (n_classes - 1,)
        Latent cut points between the classes, for "ordinal" only.
    elbo_ : float
        Symmetrised evidence lower bound, nats: `elbo_mean_field_` + `symmetry_gap_`. It bounds log
        p(X observed) at the learned noise, up to Monte Carlo error. Beyond k = 3 that rests on a
        conjecture (:ref:`matrix_factorization`). For classes and counts, outputs are treated as
        normal. It exists for the solver "vi" only.
    elbo_mean_field_ : float
        ELBO of the mean-field posterior before it is averaged, exact.
    symmetry_gap_ : float
        Increase of the ELBO by the average over the group, nats, or a lower bound on it.
    elbo_std_error_ : float
        Monte Carlo standard error of `symmetry_gap_`.
    elbo_curve_ : ndarray
        ELBO after every sweep, in nats, with the gap estimated from a few draws.
    samples_ : ndarray of shape (n_kept, n_rows + n_columns, n_components)
        Draws of the rows of U, then of V, rotated to a common orientation, for "gibbs" only.
    n_iter_ : int
        Number of sweeps.
    mean_, scale_ : float
        Centre and scale of the entries. For counts ``mean_`` is the log of their mean, and for two
        classes it is the log odds.
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
    A sweep costs O(N k^2 + (n + m) k^3) for N observed entries. No array is of shape (n, m). If few
    components are switched off, the symmetry improves held-out errors little, and a full covariance
    often matters more.

    Two errors of the paper are corrected: the matrix inside the gap isn't symmetrised, and its
    integral isn't approximated from the wrong side. As printed, the "ELBO" exceeds the log
    evidence.

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

    _defaults: ClassVar[FactorizationDefaults] = FactorizationDefaults()

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
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002 (scikit-learn passes targets)
        *,
        row_features: Any = None,
        column_features: Any = None,
    ) -> Self:
        """Fit the posterior of the factors.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_rows, n_columns), or list of entries
            NaN is missing. In a sparse matrix what isn't stored is missing, and a stored zero is an
            observed zero. A list of entries is a tuple ``(rows, columns, values)`` of 1D arrays, or
            a frame as it was read (see ``columns``). Its rows and columns are labels, sorted in
            `row_labels_` and `column_labels_`. Ids that are integers, integral floats or text are
            the same label. An entry that is listed twice was observed twice. A fourth part, or a
            column of weights that ``columns`` names, gives the number of times that an entry
            counts. Masked values of a masked array are missing.
        y : None
            Ignored.
        row_features : array-like, sparse matrix or DataFrame of shape (n_rows, n_features)
            Features of the rows, which determine their prior means. A frame is aligned by its
            index, or by a column such as "userId", and text and missing values are encoded. An
            array is in the order of `row_labels_`. A frame may have rows without entries, whose
            factors are predicted from their features.
        column_features : array-like, sparse matrix or DataFrame of shape (n_columns, n_features)
            Features of the columns, in the same forms.

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
            observed, dtype = self._read_entries(X)
            data = self._prepare_data(X, observed, dtype, row_features, column_features)
            self._fit_data(data)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002 (scikit-learn's protocol)
        """Add entries to those of earlier calls and continue from the present posterior.

        If the number of entries has grown by half, or parameters have changed, the model is fitted
        anew, because components that a small table lost never come back otherwise. All parts
        together cost two or three fits, and the bound is that of one `fit` (within 5 nats on ten
        simulated tables).

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (n_rows, n_columns), or list of entries
            Entries as in `fit`. An entry that an earlier call gave is replaced. Lists may have new
            rows and columns.
        y : None
            Ignored.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        UserWarning
            If the model was fitted by `fit`, which keeps no entries. It is then fitted anew.
        """
        self._validate_params()
        refuse_parameters(self, ["context"], "a stream keeps no context of entries", "fit")
        is_fitted = self.__sklearn_is_fitted__()
        stream = None
        if is_fitted:
            stream = getattr(self, "_stream_", None)
        if is_fitted and stream is None:
            warn_user("fit keeps no entries to add to: partial_fit begins anew.", UserWarning)
        if stream is not None and not is_entry_list(X, self.columns):
            self._check_matrix(X, reset=False)
        with self._fit_environment():
            entries = merge_entries(stream, self._read_entries(X)[0])

            # Continue unless there are many more entries, or other parameters than those that may
            # change during a stream.
            exempt = {"tol", "max_iter", "device", "random_state", "verbose"}
            parameters = self.get_params(deep=False).items()
            settings = repr({name: value for name, value in parameters if name not in exempt})
            n_entries = int(np.sum(~np.isnan(entries[2])))
            n_at_start, settings_at_start = (0, settings)
            if stream is not None:
                n_at_start, settings_at_start = self._stream_start_
            continues = (
                n_entries < self._defaults.growth * n_at_start and settings == settings_at_start
            )

            observed, dtype = self._read_entries(entries)
            data = self._prepare_data(entries, observed, dtype)
            if continues:
                self._fit_data(data, stream)
                self._stream_start_ = (n_at_start, settings_at_start)
            else:
                self._fit_data(data)
                self._stream_start_ = (n_entries, settings)
            self._stream_ = entries
        return self

    def _read_entries(self, X: Any) -> tuple[ObservedEntries, torch.dtype]:
        """Read the entries of a matrix or a list, and the precision of their values."""
        check_columns(self.columns)
        if not is_entry_list(X, self.columns):
            rows, columns = find_frame_labels(X)
            checked = self._check_matrix(X, reset=True)
            if not sp.issparse(checked):
                warn_like_entries(checked)
            observed = extract_entries(checked)
            observed = observed._replace(row_labels=rows, column_labels=columns)
            return observed, choose_dtype(checked)
        observed = parse_entry_list(X, self.columns)
        if 0 in observed.shape:
            raise ValueError("a list of entries has 0 sample(s): at least one entry is required.")
        labels = observed.column_labels
        if labels is None:
            labels = np.arange(observed.shape[1])
        self._set_feature_names(labels)
        return observed, choose_dtype(observed.values)

    def _prepare_data(
        self, X: Any, observed: ObservedEntries, dtype: torch.dtype, row_features: Any = None,
        column_features: Any = None,
    ) -> MatrixTrainingData:  # fmt: skip
        """Validate and encode everything, before the first array of the fit is allocated.

        Parameters
        ----------
        X : object
            Entries as the user gave them.
        observed : ObservedEntries
            Entries that were read from ``X``.
        dtype : torch.dtype
            Precision of the fit.
        row_features, column_features : object, optional
            Features as the user gave them.

        Returns
        -------
        MatrixTrainingData
            Entries, features and context of the fit.
        """
        likelihood = self._resolve_likelihood()
        is_list = is_entry_list(X, self.columns)

        # Labels that have features but no entries are rows and columns as well.
        side_features = (
            SideFeatures.read(row_features, 0, self.columns),
            SideFeatures.read(column_features, 1, self.columns),
        )
        if is_list:
            observed = add_feature_labels(observed, side_features)

        # An entry may be listed twice in different contexts, so these are encoded before the
        # warning.
        context_encoder = None
        if self.context:
            observed, context_encoder = encode_context(observed, X, self.context, self.columns)
        if is_list:
            warn_conflicting_values(observed)
        n_entries = len(observed.values)
        n_directions = self._defaults.n_directions(n_entries)
        features = encode_features(observed, side_features, self.implicit, n_directions)

        # A sweep computes second moments at every entry and solves a system for every row and
        # column.
        k = self._n_components(min(observed.shape))
        flops = 2.0 * k**2 * n_entries + k**3 * sum(observed.shape)
        seed = draw_seed(self.random_state)
        device = choose_device(self.device, resolve_device(self.device), lambda: flops)
        data = MatrixTrainingData(
            observed=observed,
            seed=seed,
            device=device,
            dtype=dtype,
            # The target is the matrix itself, because scikit-learn's monitor scores nothing
            # without one.
            callback_arguments={"estimator": self, "X": X, "y": X, "metadata": None},
            features=features,
            context_encoder=context_encoder,
            is_list=is_list,
        )
        return data.transform_values(likelihood, self.standardize)

    def _fit_data(
        self, data: MatrixTrainingData, continued_from: LabelledEntries | None = None
    ) -> None:
        """Run the solver, from the present posterior of earlier entries if they are given."""
        model = self._make_factor_model(data)
        warm_start = None
        if continued_from is not None:
            warm_start = self._extend_posterior(data, model, continued_from)
        method = Factorization(self._solver(), self.max_iter, self.tol, warm_start)
        progress = FitProgress(
            data.callback_arguments, lambda fitted: fitted.attributes(data, model)
        )
        with self._keep_on_interrupt(progress):
            self._set_fit(method.fit(data, model, progress).attributes(data, model))

    def _extend_posterior(
        self, data: MatrixTrainingData, model: FactorModel, entries: LabelledEntries
    ) -> FactorState | None:
        """Extend the present posterior to more entries; None if the model has changed.

        ``entries`` are those of the present posterior. Implicit features change with the entries,
        so a model that has them can't be extended.
        """
        has_same_classes = data.classes is None or np.array_equal(data.classes, self.classes_)
        has_same_components = len(self.components_) == model.n_components
        if not has_same_classes or not has_same_components or self.implicit:
            return None
        ratio = self.scale_ / data.scale
        if not 1e-100 < ratio < 1e100:
            return None
        labels = (np.unique(entries[0]), np.unique(entries[1]))
        return extend_state(self.predictor(), data, labels, ratio)

    def _n_components(self, smaller_side: int) -> int:
        """Number of components for a matrix whose smaller side has this length."""
        if isinstance(self.n_components, str):
            return min(self._defaults.components, smaller_side)
        return int(self.n_components)

    def _make_factor_model(self, data: MatrixTrainingData) -> FactorModel:
        """Build the model of the entries in scaled units."""
        smaller_side = min(data.shape)
        k = self._n_components(smaller_side)
        if k > smaller_side:
            n, m = data.shape
            raise ValueError(
                f"n_components={k} must be at most min(n_samples={n}, n_features={m}) = "
                f"{smaller_side}: n_samples = {n}, n_features = {m}."
            )
        prior = self.prior
        if isinstance(prior, str) and not self._solver().learns_prior:
            prior = 1.0
        likelihood = self._initial_likelihood(data, isinstance(prior, str))

        # Given scales must leave room for squares in the arithmetic.
        low, high = _SCALE_RANGE
        scales = {"prior": prior, "noise_std": self.noise_std}
        if not isinstance(self.noise_std, str):
            scales["noise_std"] = self.noise_std / data.scale
        for name, value in scales.items():
            if not isinstance(value, str) and not low <= value <= high:
                raise ValueError(
                    f"{name}={getattr(self, name):g} is {value:.3g} standard deviations of the "
                    f"observed entries, which must lie between {low:g} and {high:g}: give it in "
                    "the units of X, or use 'learn'."
                )

        features = [
            None if side is None else torch.as_tensor(side.values, device=data.device)
            for side in data.features
        ]
        lowest_noise, highest_noise = _NOISE_RANGE
        noise_range = (
            float((lowest_noise * data.std) ** 2),
            float((highest_noise * data.std) ** 2),
        )
        # Real entries are centred. Others have an intercept.
        intercept = 0.0
        if not likelihood.scales_targets:
            intercept = data.mean
        return FactorModel(
            coordinates=Coordinates(k, *OFFSETS[self.offsets]),
            likelihood=likelihood,
            prior=FactorPrior(prior, (features[0], features[1])),
            shape=data.shape,
            noise_range=noise_range,
            intercept=intercept,
        )

    def _resolve_likelihood(self) -> Likelihood:
        """Return the likelihood by its name, or the given object, at any parameters."""
        likelihood = self._param_at_fit("likelihood")
        if isinstance(likelihood, str):
            named_likelihood = LIKELIHOODS[likelihood]
            if not (named_likelihood.scales_targets and hasattr(named_likelihood, "learn")):
                reason = f"{likelihood=} has no such noise"
                refuse_parameters(self, ["noise_std"], reason, "likelihood='gaussian'")
            return named_likelihood
        reason = f"{likelihood=} has parameters of its own"
        refuse_parameters(self, ["noise_std"], reason, "likelihood='gaussian'")
        members = (
            "n_params",
            "approximate_expected_log_prob",
            "predictive",
            "n_outputs_per_target",
            "scales_targets",
        )
        remedy = (
            "skbayes_sym.models has some, and its class Likelihood documents the members of a "
            "likelihood of your own."
        )
        require_attributes(likelihood, members, parameter="likelihood", remedy=remedy)
        likelihood = give_each_target_a_scale(likelihood, 1)
        if not is_entry_likelihood(likelihood):
            raise ValueError(
                f"{likelihood=} isn't supported by SymVIMatrixFactorization, whose entries are "
                "numbers, counts, two classes or ordered classes."
            )
        return likelihood  # type: ignore[no-any-return]

    def _initial_likelihood(self, data: MatrixTrainingData, learns_prior: bool) -> Likelihood:
        """Return the likelihood at its initial parameters, in scaled units."""
        likelihood = self._resolve_likelihood()
        classes = data.classes
        if self.likelihood == "ordinal" and classes is not None:
            if len(classes) == 1:
                raise ValueError(
                    "likelihood='ordinal' needs two labels at least, got only "
                    f"{classes[0]:g}: use likelihood='gaussian'."
                )
            codes = torch.as_tensor(data.observed.values.astype(np.int64))
            weights = torch.as_tensor(data.weights)
            n_classes = max(len(classes), 2)
            return Ordinal.from_class_frequencies(codes, weights, n_classes, _LATENT_NOISE**0.5)
        if classes is not None and len(classes):
            # It may refuse their number.
            likelihood.n_outputs(len(classes))
        if not isinstance(self.noise_std, str):
            return set_noise_scale(likelihood, self.noise_std / data.scale, learn=False)
        if learns_prior:
            initial_noise = _INITIAL_NOISE_LEARNED
        else:
            initial_noise = _INITIAL_NOISE
        # Without entries, Gaussian noise keeps its initial scale.
        learns_noise = len(data.observed.values) > 0 or not is_normal(likelihood)
        return set_noise_scale(likelihood, initial_noise * data.std, learn=learns_noise)

    def _template_likelihood(self) -> Likelihood:
        if self._param_at_fit("likelihood") == "ordinal":
            cuts = torch.zeros(len(self.classes_) - 1, dtype=torch.float64)
            return Ordinal(cuts, _LATENT_NOISE**0.5)
        likelihood = self._resolve_likelihood()
        is_noise_fixed = likelihood.n_params and not len(self._predictor_["params"])
        if is_noise_fixed:
            return set_noise_scale(likelihood, self.noise_std_ / self.scale_, learn=False)
        return likelihood

    def _solver(self) -> Solver:
        """Return the solver by its name, or the given object."""
        if isinstance(self.solver, str):
            return SOLVERS[self.solver]
        remedy = "skbayes_sym.factorization.solvers.Solver documents each of them."
        members = ("learns_prior", "group", "solve")
        require_attributes(self.solver, members, parameter="solver", remedy=remedy)
        return self.solver

    def _set_feature_names(self, labels: Array) -> None:
        """Set number and names of the columns of a list, as `validate_data` does for a matrix."""
        self.n_features_in_ = len(labels)
        if labels.dtype.kind == "U":
            self.feature_names_in_: Array = labels.astype(object)
        else:
            self.__dict__.pop("feature_names_in_", None)

    @property
    def symmetry_(self) -> SymmetryGroup:
        """The group that the posterior is averaged over; if none was used, that of the prior."""
        n_rows = len(self.posterior_.rows.mean) + len(self.posterior_.columns.mean)
        solver = self._solver()
        symmetry = None
        if isinstance(solver, VI):
            symmetry = solver.symmetry
        return resolve_symmetry(symmetry or "auto", self.prior, n_rows, len(self.components_))

    @property
    def axes_(self) -> Array:
        """Axes (k, k) of the covariances, which sign flips and permutations refer to."""
        return self._rotation_
