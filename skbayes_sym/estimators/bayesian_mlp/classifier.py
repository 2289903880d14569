"""Bayesian neural network classification with nothing to tune."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from skbayes_sym.estimators._fit.model import GivenPrior, bound_prior, layer_sizes
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.bayesian_mlp.estimator import CONSTRAINTS, PoolOfNetworks
from skbayes_sym.estimators.bayesian_mlp.parts import LabelsMembers, LabelsModes, LabelsRefitted
from skbayes_sym.estimators.bayesian_mlp.pool import Labels, Pool, linear_network
from skbayes_sym.estimators.laplace.effort import ModesEffort
from skbayes_sym.estimators.laplace.modes import FLAT, STEEP
from skbayes_sym.estimators.networks import OBJECT_CONSTRAINTS
from skbayes_sym.estimators.predictors import BayesianClassifierMixin
from skbayes_sym.inference.laplace.labels_predictive import Posteriors
from skbayes_sym.inference.laplace.member_refit import RefittedMembers
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.base import Trivial


class BayesianMLPClassifier(BayesianClassifierMixin, PoolOfNetworks):
    r"""Bayesian neural network classification with nothing to tune.

    Pools two kinds of networks and a linear model: modes of a small tanh network whose prior scales
    are set by the evidence, refined by Gaussian variational steps (MacKay 1992; Opper & Archambeau
    2009), and members of a deep ensemble of relu networks, each refitted as a linearised network
    where rows times classes allow it. How much of the logits' variance to keep, and what each kind
    counts for, is chosen by approximate leave-one-out.

    Parameters
    ----------
    hidden_layer_sizes : "auto", int or sequence of int, default="auto"
        Widths of the hidden layers of the modes' network; ``()`` is a linear model. "auto" is 20
        units, or 10 or 5 where columns are so many that 20 would take long.
    prior : "learn", float, sequence of float or Prior, default="learn"
        Prior of the weights and biases, in standardised units: the standard deviation of normals,
        one number or one per layer; or an object. "learn" is ``LayerScales(8.0, 64.0)``, one
        learned scale per layer; where labels are noisy and its evidence is higher
        ``LayerScales(8.0, 4.0)`` is taken. ``ARD(8.0, 64.0)`` learns one per column of ``X``,
        `relevance_`.
    n_modes : int, default=4
        Restarts of the small network; fewer, or none, where so many rows or weights would take
        long. Modes alone are `LaplaceClassifier`'s.
    n_members : int, default=10
        Members of the ensemble.
    likelihood : str or Likelihood, default="auto"
        Distribution of a target given the network's outputs; "auto" is the softmax of classes. The
        evidence that sets the modes knows no other.
    standardize : bool, default=True
        Whether to centre and scale the columns of ``X`` first.
    device : str, default="auto"
        "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
    random_state : int, RandomState instance or None, default=None
        Source of all randomness; the global state is left alone.
    verbose : int, default=0
        1 logs a summary to stderr, 2 also the progress.

    Attributes
    ----------
    choice_ : str
        What was fitted to data of this size, in one line.
    linear_share_, modes_share_, members_share_ : float
        What the linear model, all modes and all members count for; they add up to 1.
    linear_posterior_ : ModeMixture
        Posterior of the linear model's coefficients, in standardised units, if it counts.
    linear_variance_scale_ : float
        Factor on the variance of its logits in predictions.
    posterior_ : ModeMixture
        Refined normal laws of the modes: ``.loc`` (n_modes, P), ``.sample(n, generator=...)``,
        ``.log_prob(theta)``. Only where modes were found, like the next eight.
    variance_scale_ : float
        Factor on the variance of the logits in predictions.
    log_evidence_modes_ : ndarray of shape (n_modes,)
        Laplace's estimate of log p(y | X) of every mode, nats. They differ by more than they are
        right, so modes aren't weighed by them.
    log_evidence_ : float
        The largest of them: an estimate, no bound.
    log_evidence_curve_ : ndarray
        That mode's after every update.
    prior_scale_ : ndarray of shape (n_groups,)
        Learned prior standard deviation of every group of weights, geometric mean over the modes.
    prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
        Of every mode.
    prior_groups_ : ndarray of shape (n_groups,)
        Names of the groups.
    relevance_ : ndarray of shape (n_modes, n_features)
        Scale of the weights from every column of ``X``; only where the prior is ``ARD(...)``.
    samples_ : ndarray of shape (n_members, P')
        Weights of the ensemble's members, as trained.
    member_network_ : MLP
        The members' architecture.
    refitted_members_ : RefittedMembers
        Normal laws of the weights of the linearised members, if they were refitted.
    member_variance_scale_ : float
        Factor on the variance of their logits in predictions.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    network_ : MLP
        The modes' architecture, with ``forward(theta, x)`` and ``symmetry()``; one logit for two
        classes.
    n_iter_ : int
        Steps made.
    stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
        Why training ended.
    x_mean_, x_scale_ : ndarray of shape (n_features,)
        Standardisation of the inputs.
    device_, dtype_ : str
        Where and in which precision the model was fitted.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Their names, if ``X`` had string column names.

    See Also
    --------
    BayesianMLPRegressor : The same for numbers.
    LaplaceClassifier : The modes alone, or one mode of any network.
    DeepEnsembleClassifier : The members alone.

    Notes
    -----
    The modes take O(n_modes (n_samples P^2 + P^3)) a step and some tens of steps, however many
    classes there are; the members O(n_members min(n_samples, 2000) P') and at most 2,000, and
    O(n_members (n_samples n_classes)^3) once where they are refitted: seconds for some hundred
    rows, and beyond a thousand weights half a minute.

    Modes and members count as much as is expected after their predictions of left-out rows: a few
    rows leave each near a half, many make one of them count for nothing. The share of the linear
    model is the stacking weight beside both (Yao et al. 2018).

    References
    ----------
    MacKay (1992). The evidence framework applied to classification networks.

    Opper & Archambeau (2009). The variational Gaussian approximation revisited.

    Yao, Vehtari, Simpson & Gelman (2018). Using stacking to average Bayesian predictive
    distributions.

    Lakshminarayanan, Pritzel & Blundell (2017). Simple and scalable predictive uncertainty
    estimation using deep ensembles.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skbayes_sym import BayesianMLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = BayesianMLPClassifier(n_modes=2, n_members=1, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape, clf.posterior_.n_modes
    ((2, 3), 2)
    """

    likelihood: str | Likelihood
    refitted_members_: RefittedMembers | None = None
    variance_scale_: float
    member_variance_scale_: float
    linear_variance_scale_: float

    _parameter_constraints: dict[str, list[Any]] = {
        **CONSTRAINTS,
        "likelihood": OBJECT_CONSTRAINTS["likelihood"],
    }

    def __init__(
        self,
        hidden_layer_sizes: str | int | Sequence[int] = "auto",
        *,
        prior: GivenPrior = "learn",
        n_modes: int = 4,
        n_members: int = 10,
        likelihood: str | Likelihood = "auto",
        standardize: bool = True,
        device: str = "auto",
        random_state: Any = None,
        verbose: Any = 0,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.prior = prior
        self.n_modes = n_modes
        self.n_members = n_members
        self.likelihood = likelihood
        self.standardize = standardize
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _model(self, data: Training) -> Model:
        n_outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        given = self.hidden_layer_sizes
        if isinstance(given, str):
            effort, in_time = ModesEffort(), self._in_time(data)
            given = effort.units(data.n_rows, data.n_features, n_outputs, in_time)
        sizes = layer_sizes(given)
        network = MLP(data.n_features, sizes, n_outputs, TANH)
        # A linear model has one mode, whose scales don't run away.
        default = STEEP if sizes else LayerScales()
        prior = bound_prior(self.prior, default, network)
        return Model(network, self._likelihood(data), prior, Trivial())

    def _in_time(self, data: Training) -> Callable[[MLP], bool]:
        """Whether at least two modes of a network are found in time, where so many are asked for.

        Ten or fifty units predict as well as twenty (iris, wine, moons: within .006 nats per row).
        """
        n_modes = min(self.n_modes, 2)
        effort = ModesEffort()
        return lambda network: effort.affordable_labels(n_modes, data.n_rows, network)[0] == n_modes

    def _method(self) -> Pool:
        self._refuse_network()
        alternative = FLAT if isinstance(self.prior, str) else None
        return Pool(Labels(self.n_modes, self.n_members, alternative))

    def _make_part(
        self, name: str, device: torch.device
    ) -> LabelsModes | LabelsMembers | LabelsRefitted:
        if name == "members":
            if self.refitted_members_ is None:
                theta = torch.as_tensor(self.samples_).to(device)
                return LabelsMembers(self.member_network_, theta)
            laws = self.refitted_members_.tensors(device)
            return LabelsRefitted(self.member_network_, laws, self.member_variance_scale_)
        network, posterior, scale = self.network_, self.posterior_, self.variance_scale_
        if name == "linear":
            network = linear_network(network.n_inputs, network.n_outputs)
            posterior, scale = self.linear_posterior_, self.linear_variance_scale_
        loc, factor = (t.to(device) for t in posterior.tensors)
        return LabelsModes(network, Posteriors(loc, torch.cholesky_inverse(factor)), scale)
