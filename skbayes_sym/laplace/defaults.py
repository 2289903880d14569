"""Constants behind "auto" for Gauss-Newton steps: numbers of units, restarts and steps."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from skbayes_sym.laplace.gauss_newton import is_row_space_smaller
from skbayes_sym.laplace.initialization import MODES_PER_FOLD
from skbayes_sym.models.networks.mlp import MLP, TANH


def gauss_newton_cost(
    n_restarts: int, max_iter: int, n_rows: int, n_params: int, n_outputs: int = 1
) -> float:
    """Estimate the number of multiplications of all Gauss-Newton systems.

    Parameters
    ----------
    n_restarts : int
        Number of restarts R.
    max_iter : int
        Number of steps I of each.
    n_rows : int
        Number of rows N.
    n_params : int
        Number of weights P.
    n_outputs : int, default=1
        Number of outputs O of which every row has derivatives.

    Returns
    -------
    float

    Notes
    -----
    R I (N P^2 + P^3). For few rows, with M = N O derivatives, R I (4 M^2 P + 2 M^3), because the
    products are computed again for every diagonal, and ten systems of all weights at the end.
    """
    m = n_rows * n_outputs
    in_weight_space = float(n_restarts * max_iter * (n_rows * n_params**2 + n_params**3))
    if not is_row_space_smaller(m, n_params):
        return in_weight_space
    step = 4.0 * m**2 * n_params + 2.0 * m**3
    return min(in_weight_space, n_restarts * (max_iter * step + 10.0 * n_params**3))


Value = TypeVar("Value")


def resolve_auto(value: Value | str, default: Value) -> Value:
    """Return the default if a parameter is a string such as "auto", and its value otherwise."""
    return default if isinstance(value, str) else value


def make_network(network: MLP, width: int) -> MLP:
    """Return the network with another number of hidden units."""
    return MLP(network.n_inputs, (width,), network.n_outputs, network.activation)


@dataclass(frozen=True)
class GaussNewtonDefaults:
    """Constants behind "auto".

    Work is measured in multiplications; 5e10 take one core about a second.

    Attributes
    ----------
    max_work : float
        Largest work of Gauss-Newton steps, some twenty seconds.
    target_work : float
        Work of the restarts where their number can be chosen.
    validation_work : float
        Largest work of cross-validating one width.
    min_modes, max_modes : int
        Smallest and largest number of restarts.
    steps, min_steps : int
        Steps of a restart in regression. Small systems make ``steps`` (1,000 rows without noise:
        0.05 nats per row better than after 50). Large ones make fewer, and predict equally well.
    small_sample_rows : int
        Up to so many rows, ``min_steps`` are made: the evidences of small samples fall from there
        on while the scales drift.
    negligible_noise_fraction : float
        Small samples make all steps if eight units leave at most this fraction of the variance
        unexplained (yacht: 100 steps are 0.3 nats per row better, energy: 0.02).
    extra_steps_factor : int
        So many times as many steps are added while the evidence rises steeply, which it does where
        there is hardly any noise.
    subsample_rows : int
        With more rows, the search uses so many of them, and a few final steps use all. Of 10,000
        rows x 8 columns of a smooth function with noise, new rows are then 0.002 nats per row more
        likely than after a search with all rows, in 0.6 of the time. In the same time there can be
        more units (10,000 rows of rented bikes: 0.09 nats per row).
    max_final_steps : int
        Largest number of the final steps.
    final_work : float
        Work of the final steps.
    large_data_rows : int
        With ``hidden_layer_sizes="auto"`` and ``prior="learn"`` and more rows than this, one scale
        per column predicts better than one per layer, wherever at most ``max_noise_fraction`` of
        the targets' variance is noise. Forty units then predict better than twenty (airfoil: 0.1
        nats per row), if there are enough rows per weight and enough time.
    default_width, large_data_width : int
        These numbers of units.
    max_noise_fraction : float
        Largest noise for which the network is widened.
    pilot_rows : int
        Largest number of rows of the two modes that estimate the noise.
    pilot_steps : int
        Steps of these modes, unless their evidence still rises steeply.
    rows_per_weight : int
        Smallest number of targets per weight of the wider network.
    ample_rows_per_weight, ample_rows : int
        With so many targets per weight, and more rows than these, the network is widened for any
        noise.
    alternative_work : float
        Largest work of a network where "auto" has an alternative: a wider one instead of the
        default, or one that is narrower but not the narrowest.
    narrower_widths : tuple of int
        Where many columns make even three modes of twenty units take too long, fewer units trained
        by Gauss-Newton steps predict better than twenty trained by Adam, by 0.12 to 0.74 nats per
        row.
    max_rows_per_weight : int
        Narrower networks aren't considered with more targets per weight.
    ard_rows_per_weight : int
        One scale per column needs so many targets per weight. At 1.4 it was 0.06 to 0.22 nats per
        row worse than one scale per layer.
    widths : tuple of int
        Numbers of units that are cross-validated. Three or eight predict better wherever held-out
        rows aren't more likely under more units: on noisy tables of some hundred rows, twenty units
        fit the noise (Friedman's third function: 0.1 nats per row; suburbs: 0.05; 90 rows x 100
        columns: 0.5). With eight units, the held-out rows also decide between scales per layer and
        per column.
    max_unexplained_fraction : float
        Where eight units are better than three and leave at most this fraction of the variance
        unexplained, twenty are used without being validated. They have always been better than
        eight (concrete, energy, yacht).
    folds : int
        Number of folds.
    min_rows : int
        Smallest number of rows for which the width is validated.
    max_validated_rows_per_weight : int
        Largest number of targets per weight for which the width is validated.
    validation_steps : int
        Conservative steps, enough to compare widths and to continue from.
    validation_extra_steps : int
        Further steps while the evidence rises steeply (parkinsons: an error of 1.2 instead of 2.8).
    validation_tol : float
        Smallest tolerance, nats per unit of weight.
    classification_max_iter, large_classification_max_iter : int
        Steps of a mode of classification, for up to ``large_n_params`` weights and for more. For
        large networks fewer steps are enough, and each costs much more.
    classification_final_steps : int
        Steps of all rows after a search with a subsample, including those that count as made.
    min_subsample_rows, subsample_rows_per_weight : int
        The subsample has so many rows, or so many per weight if these are more.
    large_n_params : int
        Number of weights beyond which a classification network counts as large.
    max_classification_modes : int
        Largest number of restarts in classification. More than four gain little.
    classification_work : float
        Work of the restarts in classification, some 25 seconds of one core.
    label_noise_cost : float
        Factor on the work if noisy labels are allowed for.
    """

    max_work: float = 1e12
    target_work: float = 8e10
    validation_work: float = 1e11
    min_modes: int = 3
    max_modes: int = 10

    steps: int = 100
    min_steps: int = 50
    small_sample_rows: int = 500
    negligible_noise_fraction: float = 0.01
    extra_steps_factor: int = 2
    subsample_rows: int = 4000
    max_final_steps: int = 8
    final_work: float = 5e11

    large_data_rows: int = 1000
    default_width: int = 20
    large_data_width: int = 40
    max_noise_fraction: float = 0.2
    pilot_rows: int = 2000
    pilot_steps: int = 25
    rows_per_weight: int = 4
    ample_rows_per_weight: int = 20
    ample_rows: int = 10_000
    alternative_work: float = 4e11
    narrower_widths: tuple[int, ...] = (10, 5)
    max_rows_per_weight: int = 10
    ard_rows_per_weight: int = 2

    widths: tuple[int, ...] = (3, 8, 20)
    max_unexplained_fraction: float = 0.15
    folds: int = 5
    min_rows: int = 10
    max_validated_rows_per_weight: int = 20
    validation_steps: int = 24
    validation_extra_steps: int = 76
    validation_tol: float = 1e-3

    classification_max_iter: int = 60
    large_classification_max_iter: int = 30
    classification_final_steps: int = 40
    min_subsample_rows: int = 2000
    subsample_rows_per_weight: int = 4
    large_n_params: int = 1000
    max_classification_modes: int = 4
    classification_work: float = 4e11
    label_noise_cost: float = 2.5

    def choose_width(
        self, n_rows: int, n_inputs: int, n_outputs: int, is_affordable: Callable[[MLP], bool]
    ) -> int:
        """Choose the initial width for ``hidden_layer_sizes="auto"``.

        Parameters
        ----------
        n_rows, n_inputs, n_outputs : int
            Size of the data and of the network.
        is_affordable : callable
            Returns whether there is time for enough modes of a network.

        Returns
        -------
        int
            20 units, or 10 or 5 where columns are many.
        """
        for width in (self.default_width, *self.narrower_widths):
            network = MLP(n_inputs, (width,), n_outputs, TANH)
            max_targets = self.max_rows_per_weight * network.layout.n_params
            if width < self.default_width and n_rows * n_outputs > max_targets:
                break
            if is_affordable(network):
                return width
        return self.default_width

    def max_network_work(self, network: MLP) -> float:
        """Largest work of a network for "auto": less where a narrower one can be tried."""
        if network.hidden_layer_sizes[0] in self.narrower_widths[:-1]:
            return self.alternative_work
        return self.max_work

    def choose_regression_width(self, n_rows: int, n_inputs: int, n_outputs: int) -> int:
        """Choose the initial width in regression, with time for a few modes.

        Parameters
        ----------
        n_rows, n_inputs, n_outputs : int
            Size of the data and of the network.
        """

        def is_affordable(network: MLP) -> bool:
            mode_cost = self.mode_cost(n_rows, network)
            return self.min_modes * mode_cost <= self.max_network_work(network)

        return self.choose_width(n_rows, n_inputs, n_outputs, is_affordable)

    def choose_classification_width(
        self, n_rows: int, n_inputs: int, n_outputs: int, n_modes: int
    ) -> int:
        """Choose the initial width in classification.

        Parameters
        ----------
        n_rows, n_inputs, n_outputs : int
            Size of the data and of the network.
        n_modes : int
            Number of modes for which there must be time, at most two.

        Returns
        -------
        int
        """
        n = min(n_modes, 2)

        def is_affordable(network: MLP) -> bool:
            return self.affordable_classification_modes(n, n_rows, network)[0] == n

        return self.choose_width(n_rows, n_inputs, n_outputs, is_affordable)

    def affordable_modes(self, max_modes: int, n_rows: int, network: MLP) -> int:
        """Number of modes that take some seconds of one core, up to ``max_modes``.

        The smallest number may take longer. It is 0 if even these take too long.

        Parameters
        ----------
        max_modes : int
            Largest number of modes.
        n_rows : int
            Number of rows.
        network : MLP
            Network of the modes.
        """
        mode_cost = self.mode_cost(n_rows, network)
        n_min = min(self.min_modes, max_modes)
        if n_min * mode_cost > self.max_work:
            return 0
        return min(max_modes, max(n_min, int(self.target_work / mode_cost)))

    def choose_n_restarts(
        self, n_restarts: int | str, n_rows: int, network: MLP, max_modes: int | None = None
    ) -> int:
        """Choose the number of restarts in regression.

        Parameters
        ----------
        n_restarts : int or "auto"
            An int is returned as it is.
        n_rows : int
        network : MLP
        max_modes : int, optional
            Largest number for "auto".

        Returns
        -------
        int
        """
        if not isinstance(n_restarts, str):
            return n_restarts
        if max_modes is None:
            max_modes = self.max_modes
        n_affordable = self.affordable_modes(max_modes, n_rows, network)
        return n_affordable or min(self.min_modes, max_modes)

    def regression_steps(self, n_rows: int, network: MLP, *, has_low_noise: bool = False) -> int:
        """Number of Gauss-Newton steps of a mode of regression.

        ``has_low_noise`` tells for a small sample that its noise is negligible.

        Parameters
        ----------
        n_rows : int
            Number of rows.
        network : MLP
            Network of the mode.
        has_low_noise : bool, default=False
            Whether the noise of a small sample is negligible.
        """
        if n_rows <= self.small_sample_rows and not has_low_noise:
            return self.min_steps
        n_derivatives = min(n_rows, self.subsample_rows) * network.n_outputs
        step_cost = gauss_newton_cost(self.min_modes, 1, n_derivatives, network.layout.n_params)
        return min(self.steps, max(self.min_steps, int(self.target_work / step_cost)))

    def final_steps(self, n_rows: int, network: MLP) -> int:
        """Number of steps of all rows after a search with a subsample, 0 if there is none."""
        if n_rows <= self.subsample_rows:
            return 0
        n_derivatives = n_rows * network.n_outputs
        step_cost = gauss_newton_cost(self.min_modes, 1, n_derivatives, network.layout.n_params)
        return min(self.max_final_steps, max(1, int(self.final_work / step_cost)))

    def mode_cost(self, n_rows: int, network: MLP) -> float:
        """Work of one mode of regression."""
        n_params = network.layout.n_params
        steps = self.regression_steps(n_rows, network)
        n_derivatives = min(n_rows, self.subsample_rows) * network.n_outputs
        search_cost = gauss_newton_cost(1, steps, n_derivatives, n_params)
        final_steps = self.final_steps(n_rows, network)
        if not final_steps:
            return search_cost
        final_cost = gauss_newton_cost(1, final_steps, n_rows * network.n_outputs, n_params)
        return search_cost + final_cost

    def wider_network(self, n_rows: int, network: MLP) -> MLP | None:
        """Network for large data with little noise and one scale per column.

        Returns a wider one, the same one, or None if there are too few rows or too little time.
        """
        wide = make_network(network, self.large_data_width)
        n_targets = n_rows * network.n_outputs
        is_default = network.hidden_layer_sizes == (self.default_width,)
        if n_rows <= self.large_data_rows or not is_default:
            return None

        has_rows = n_targets >= self.rows_per_weight * wide.layout.n_params
        search_cost = self.mode_cost(min(n_rows, self.subsample_rows), wide)
        has_time = self.min_modes * search_cost <= self.alternative_work
        if has_rows and has_time and self.affordable_modes(self.min_modes, n_rows, wide):
            return wide

        has_rows = n_targets >= self.ard_rows_per_weight * network.layout.n_params
        has_time = self.affordable_modes(self.min_modes, n_rows, network) > 0
        if has_rows and has_time:
            return network
        return None

    def has_ample_rows(self, n_rows: int, network: MLP) -> bool:
        """Whether there are so many rows that a network can't overfit, whatever the noise is."""
        min_targets = self.ample_rows_per_weight * network.layout.n_params
        return n_rows > self.ample_rows and n_rows * network.n_outputs >= min_targets

    def can_validate(self, network: MLP, n_targets: int) -> bool:
        """Whether there is time to cross-validate a network with two modes per fold."""
        n_restarts = MODES_PER_FOLD * self.folds
        n_params = network.layout.n_params
        cost = gauss_newton_cost(n_restarts, self.validation_steps, n_targets, n_params)
        return cost <= self.validation_work

    def cross_validates_width(self, n_rows: int, network: MLP) -> bool:
        """Whether "auto" chooses the width by cross-validation."""
        n_targets = n_rows * network.n_outputs
        if network.hidden_layer_sizes != (self.default_width,) or n_rows < self.min_rows:
            return False
        if n_targets > self.max_validated_rows_per_weight * network.layout.n_params:
            return False
        return self.can_validate(make_network(network, self.widths[-2]), n_targets)

    def classification_steps(self, n_params: int) -> int:
        """Number of Gauss-Newton steps of a mode of classification."""
        if n_params <= self.large_n_params:
            return self.classification_max_iter
        return self.large_classification_max_iter

    def affordable_classification_modes(
        self, max_modes: int, n_rows: int, network: MLP
    ) -> tuple[int, bool]:
        """Return how many modes take some seconds of one core, and if label noise is allowed for.

        With more rows than weights, allowing for label noise has priority: on noisy labels one mode
        that is the better of two starts predicts better than four modes of one start (3,000 rows x
        20 columns: by 0.001 to 0.027 nats).

        Parameters
        ----------
        max_modes : int
            Largest number of modes.
        n_rows : int
            Number of rows.
        network : MLP
            Network of the modes.
        """
        n_params = network.layout.n_params
        n_steps = self.classification_steps(n_params)
        mode_cost = gauss_newton_cost(1, n_steps, n_rows, n_params, network.n_outputs)
        n_modes = min(max_modes, int(self.classification_work / mode_cost))
        noisy_cost = self.label_noise_cost * mode_cost
        n_noisy_modes = min(max_modes, int(self.classification_work / noisy_cost))
        if n_noisy_modes and n_rows >= n_params:
            return n_noisy_modes, True
        return n_modes, n_noisy_modes == n_modes

    def classification_restarts(self, n_rows: int, network: MLP) -> int:
        """Number of restarts in classification for ``n_restarts="auto"``.

        It is one if there are more rows than weights and no time to allow for label noise.
        """
        n_modes, allows_label_noise = self.affordable_classification_modes(
            self.max_classification_modes, n_rows, network
        )
        if allows_label_noise or n_rows < network.layout.n_params:
            return max(1, n_modes)
        return 1
