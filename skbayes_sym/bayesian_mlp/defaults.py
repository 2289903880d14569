"""Constants behind the mixtures of networks, and the plan of their fit."""

from dataclasses import dataclass, field

from skbayes_sym.base.plan import PlannedStage, Results, Rule, TableSize, never
from skbayes_sym.base.stacking_weights import select_components
from skbayes_sym.base.training import evenly_spaced_rows
from skbayes_sym.ensemble.fit import DeepEnsemble, MemberRefitter
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import IDENTITY, MLP, RELU
from skbayes_sym.models.priors import Normal
from skbayes_sym.symmetry.group import Trivial


@dataclass(frozen=True)
class PoolDefaults:
    """Numbers behind a mixture of networks."""

    # Modes stop when the log evidence gains less than this many nats per unit of sample weight.
    mode_tol: float = 5e-6
    modes: GaussNewtonDefaults = field(default=GaussNewtonDefaults())
    # Blocks of the progress that callbacks see.
    progress_blocks: int = 500
    # Shares of the modes and of the linear model in the progress of the fit. Members have the rest.
    modes_progress: float = 0.5
    linear_progress: float = 0.01
    # Two trial members are trained first. The others are trained only if these, next to two modes,
    # gain nearly as large a share as all members must.
    n_trial_members: int = 2
    trial_progress: float = 0.2  # share of the trial in the progress of the members
    min_trial_gain: float = 0.7
    # Members have the defaults of the ensemble. Relu units under a fixed prior of 1 complement tanh
    # modes.
    member_width: int = 50
    member_rate: float = 0.03
    member_steps: int = 2000
    member_tol: float | None = 1e-3
    noise_prior_scale: float = 1.0
    # Cost of the eigenvectors of a symmetric matrix, in multiplications over m^3.
    eigenvector_cost: float = 9.0
    # Networks of one kind get weight if they gain at least this share of the other kind's gain over
    # the linear model. Leave-one-out scores of linearised networks are too rough for finer weights:
    # at 0.91 members gain 0.1 nats per row (concrete), at 0.6 to 0.8 they cost 0.03 to 0.2 (yacht,
    # airfoil, friedman1).
    min_gain: float = 0.85
    # Members that can't be refitted are used only if the held-out loss of the modes is at most this
    # share of the entropy of the classes. Otherwise they lose up to 0.5 nats per row.
    max_unexplained: float = 0.2
    # With fewer rows per column members fit any class labels, and leave-one-out is too optimistic.
    min_rows_per_column: int = 3
    refitter: MemberRefitter = field(default=MemberRefitter("loo", is_optional=True))

    def members_model(self, n_inputs: int, n_outputs: int, likelihood: Likelihood) -> Model:
        """Network and prior of the members.

        Parameters
        ----------
        n_inputs, n_outputs : int
            Size of the network.
        likelihood : Likelihood
            Likelihood of the members.
        """
        network = MLP(n_inputs, (self.member_width,), n_outputs, RELU)
        return Model(network, likelihood, Normal(1.0).bind(network.layout), Trivial())

    def ensemble(self, n_members: int, tol: float | None, *, is_classifier: bool) -> DeepEnsemble:
        """Training method of the members; those of a regression have effective noise.

        Parameters
        ----------
        n_members : int
            Number of members.
        tol : float or None
            Tolerance of their training in nats per row.
        is_classifier : bool
            Whether targets are classes.
        """
        return DeepEnsemble(
            n_members,
            self.noise_prior_scale,
            self.member_rate,
            self.member_steps,
            tol,
            has_effective_noise=not is_classifier,
            refitter=self.refitter if is_classifier else None,
        )


@dataclass(frozen=True)
class PoolSettings:
    """Settings of the user on which the plan depends.

    Parameters
    ----------
    n_modes : int
        Largest number of modes.
    n_members : int
        Largest number of ensemble members.
    network : MLP
        Network of the modes.
    members_model : Model
        Network, likelihood and prior of the members.
    fits_linear : bool, default=True
        Whether a linear model is a component of a mixture for classification.
    """

    n_modes: int
    n_members: int
    network: MLP
    members_model: Model
    fits_linear: bool = True


def plan_fit(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults = PoolDefaults()
) -> list[PlannedStage]:
    """Plan the fit of a mixture of networks.

    Parameters
    ----------
    size : TableSize
        Rows, encoded columns, outputs and classes of the training data.
    settings : PoolSettings
        Numbers of modes and members, and their networks.
    defaults : PoolDefaults
        Constants of the mixture.

    Returns
    -------
    list of PlannedStage
        Modes, the linear model, members of an ensemble and the weights.
    """
    if size.n_classes:
        return _plan_classification(size, settings, defaults)
    return _plan_regression(size, settings, defaults)


def _plan_regression(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults
) -> list[PlannedStage]:
    """Plan modes and members with few restarts first, since members rarely help in noise."""
    modes = _plan_regression_modes(size, settings, defaults)
    linear = _plan_regression_linear(size, settings, defaults)

    # Under a fixed, tiny noise level the log posterior per row never settles.
    learns_noise = bool(settings.members_model.likelihood.n_params)
    if learns_noise:
        tol = defaults.member_tol
    else:
        tol = None
    n_members = max(1, settings.n_members)
    if modes.rules:
        members = [_plan_members(n_members, tol, defaults.trial_progress)]
    elif not settings.n_members:
        members = [_plan_members(0, tol, defaults.trial_progress, (never("n_members is 0"),))]
    else:
        members = _plan_members_beside_modes(size, settings, defaults, tol)
        if linear.rules:
            members = [
                PlannedStage(
                    "members",
                    "train_members",
                    {**members[1].settings, "progress": defaults.trial_progress},
                    members[0].rules,
                )
            ]

    weights = PlannedStage(
        "weights",
        "maximise_leave_one_out_score",
        {"min_gain": defaults.min_gain},
        [
            Rule(
                lambda results: "linear model" in results,
                "there is no linear model to compare with",
            )
        ],
    )
    return [modes, linear, *members, weights]


def _plan_regression_modes(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults
) -> PlannedStage:
    """Plan the modes, unless even few of them would take too long."""
    n_modes = settings.n_modes
    rules = []
    n_affordable = defaults.modes.affordable_modes(n_modes, size.n_rows, settings.network)
    if not n_modes:
        rules = [never("n_modes is 0")]
    elif not n_affordable:
        rules = [never(f"{n_modes} modes would take too long")]
    options = {"max_modes": n_modes, "hidden_layer_sizes": settings.network.hidden_layer_sizes}
    return PlannedStage("modes", "find_modes", options, rules)


def _plan_regression_linear(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults
) -> PlannedStage:
    """Plan the linear model, unless it would take too long."""
    network = MLP(settings.network.n_inputs, (), settings.network.n_outputs, IDENTITY)
    max_iter = defaults.modes.steps
    n_residuals = size.n_rows * network.n_outputs
    cost = gauss_newton_cost(1, max_iter, n_residuals, network.layout.n_params)
    rules = []
    if cost > defaults.modes.target_work:
        rules = [never("a linear model would take too long")]
    return PlannedStage("linear model", "fit_linear", {"max_iter": max_iter}, rules)


def _plan_members(
    n_members: int, tol: float | None, progress: float, rules: tuple[Rule, ...] = ()
) -> PlannedStage:
    """Plan the training of ensemble members.

    Parameters
    ----------
    n_members : int
        Number of members.
    tol : float or None
        Tolerance of their training; None trains for all steps.
    progress : float
        Fraction of the whole fit that this stage takes.
    rules : tuple of Rule, optional
        Conditions of the stage.
    """
    settings = {"n_members": n_members, "tol": tol, "progress": progress}
    return PlannedStage("members", "train_members", settings, rules)


def _plan_members_beside_modes(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults, tol: float | None
) -> list[PlannedStage]:
    """Plan trial members, and all members if these are competitive with the modes.

    Parameters
    ----------
    size : TableSize
        Size of the table.
    settings : PoolSettings
        Parameters of the estimator that affect the plan.
    defaults : PoolDefaults
        Constants behind the plan.
    tol : float or None
        Tolerance of the members' training.
    """
    n_members = settings.n_members
    common = (
        noise_is_low(size, defaults),
        members_are_affordable(size, settings, defaults),
    )
    trial = PlannedStage(
        "trial members",
        "train_members",
        {
            "n_members": min(n_members, defaults.n_trial_members),
            "tol": tol,
            "progress": defaults.trial_progress,
            "not_more_than_modes": True,
        },
        common,
    )
    rules = (
        *common,
        trial_is_incomplete(n_members),
        trial_members_gain(defaults.min_trial_gain),
    )
    members = PlannedStage(
        "members",
        "train_members",
        {
            "n_members": n_members,
            "tol": tol,
            "progress": 1.0 - defaults.trial_progress,
            "not_more_than_modes": True,
        },
        rules,
    )
    return [trial, members]


def _plan_classification(
    size: TableSize, settings: PoolSettings, defaults: PoolDefaults
) -> list[PlannedStage]:
    """Plan modes, a linear model, and members that are refitted or needn't be."""
    n_modes, allow_label_noise = defaults.modes.affordable_classification_modes(
        settings.n_modes, size.n_rows, settings.network
    )
    rules = []
    if not settings.n_modes:
        rules = [never("n_modes is 0")]
    elif not n_modes:
        rules = [never(f"{settings.n_modes} modes would take too long")]
    options = {
        "n_modes": n_modes,
        "hidden_layer_sizes": settings.network.hidden_layer_sizes,
        "allow_label_noise": allow_label_noise,
    }
    modes = PlannedStage("modes", "find_modes", options, rules)
    has_modes = not modes.rules

    linear_rules = []
    linear_network = MLP(settings.network.n_inputs, (), settings.network.n_outputs, IDENTITY)
    n_linear, _ = defaults.modes.affordable_classification_modes(1, size.n_rows, linear_network)
    if not settings.fits_linear:
        linear_rules = [never("the mixture is to have none")]
    elif not n_linear:
        linear_rules = [never("a linear model would take too long")]
    elif has_modes and settings.network.n_layers == 1:
        linear_rules = [never("the network of the modes is linear")]
    elif not settings.n_modes:
        linear_rules = [never("n_modes is 0")]
    linear = PlannedStage("linear model", "fit_linear", {}, linear_rules)

    # Members are refitted as linearised networks. Members as trained are used only if classes
    # hardly overlap, or if there are no modes.
    member_rules: tuple[Rule, ...] = ()
    if has_modes:
        has_few_rows = size.n_rows < defaults.min_rows_per_column * size.n_columns
        is_refit_affordable = defaults.refitter.is_affordable(
            settings.n_members, size.n_rows, settings.members_model
        )
        if not settings.n_members:
            member_rules = (never("n_members is 0"),)
        elif has_few_rows:
            reason = f"there are fewer than {defaults.min_rows_per_column} rows per column"
            member_rules = (never(reason),)
        elif not is_refit_affordable:
            member_rules = (classes_are_separated(defaults.max_unexplained),)
    members = _plan_members(
        max(1, settings.n_members), defaults.member_tol, defaults.trial_progress, member_rules
    )

    rule = Rule(
        lambda results: "members" not in results or results["members"].is_refitted,
        "members as trained have no leave-one-out predictions",
    )
    weights = PlannedStage("weights", "maximise_leave_one_out_score", {}, [rule])
    return [modes, linear, members, weights]


def noise_is_low(size: TableSize, defaults: PoolDefaults) -> Rule:
    """Rule of members: the modes find little noise, of few rows hardly any."""
    max_fraction = defaults.modes.max_noise_fraction
    if size.n_rows <= defaults.modes.small_sample_rows:
        max_fraction = defaults.modes.negligible_noise_fraction
    return Rule(
        lambda results: results["modes"].noise_fraction() <= max_fraction,
        f"more than {100 * max_fraction:.0f} % of the variance of the targets is noise",
    )


def members_are_affordable(size: TableSize, settings: PoolSettings, defaults: PoolDefaults) -> Rule:
    """Rule of members: their effective noise can be computed in time.

    The noise and the leave-one-out predictions of a member cost two eigendecompositions in the
    smaller of the spaces of rows and weights.

    Parameters
    ----------
    size : TableSize
        Size of the table.
    settings : PoolSettings
        Parameters of the estimator.
    defaults : PoolDefaults
        Constants, among them the largest affordable work.
    """
    network = settings.members_model.network
    n_residuals = len(evenly_spaced_rows(size.n_rows)) * network.n_outputs
    smaller, larger = sorted((n_residuals, network.layout.n_params))

    def holds(results: Results) -> bool:
        n_members = min(settings.n_members, results["modes"].n_modes)
        cost = n_members * 2.0 * smaller**2 * (larger + defaults.eigenvector_cost * smaller)
        return cost <= defaults.modes.max_work

    return Rule(holds, "the noise of the members would take too long")


def trial_is_incomplete(n_members: int) -> Rule:
    """Rule of members: the trial has fewer of them than the mixture can use."""

    def holds(results: Results) -> bool:
        # Neither modes nor members outvote the other.
        n_usable = min(n_members, results["modes"].n_modes)
        return results["trial members"].n_members < n_usable

    return Rule(holds, "the trial members are all that the mixture can use")


def trial_members_gain(min_gain: float) -> Rule:
    """Rule of members: trial members gain nearly as much as modes over the linear model."""

    def holds(results: Results) -> bool:
        baseline, density, weight = results["trial members"].leave_one_out()
        return "members" in select_components(baseline, density, weight, min_gain)

    percentage = f"{100 * min_gain:.0f} %"
    reason = f"trial members gain less than {percentage} of what modes gain over the linear model"
    return Rule(holds, reason)


def classes_are_separated(max_unexplained: float) -> Rule:
    """Rule of members that can't be refitted: classes hardly overlap.

    Members as trained predict classes that overlap with too much certainty.
    """

    def holds(results: Results) -> bool:
        modes = results["modes"]
        loss = modes.held_out_loss
        return loss is not None and bool(loss <= max_unexplained * modes.class_entropy)

    reason = (
        "refitting members would take too long, and the held-out loss of the modes is above "
        f"{100 * max_unexplained:.0f} % of the entropy of the classes"
    )
    return Rule(holds, reason)
