"""Units, restarts and steps by the number of rows, where Gauss-Newton steps find the modes."""

from collections.abc import Callable
from dataclasses import dataclass

from skbayes_sym.laplace.gauss_newton import is_row_space_smaller
from skbayes_sym.laplace.initialization import MODES_A_FOLD
from skbayes_sym.models.networks.mlp import MLP, TANH


def gauss_newton_cost(
    n_restarts: int, max_iter: int, n_rows: int, n_params: int, n_outputs: int = 1
) -> float:
    """Multiplications of all Gauss-Newton systems, about.

    R I (N P^2 + P^3); where rows are few, M = N O derivatives, R I (4 M^2 P + 2 M^3), since every
    diagonal asks for products anew, and ten systems of all weights at the end.
    """
    m = n_rows * n_outputs
    of_weights = float(n_restarts * max_iter * (n_rows * n_params**2 + n_params**3))
    if not is_row_space_smaller(m, n_params):
        return of_weights
    step = 4.0 * m**2 * n_params + 2.0 * m**3
    return min(of_weights, n_restarts * (max_iter * step + 10.0 * n_params**3))


def make_network(network: MLP, width: int) -> MLP:
    """A network of another number of hidden units."""
    return MLP(network.n_inputs, (width,), network.n_outputs, network.activation)


@dataclass(frozen=True)
class GaussNewtonDefaults:
    """Numbers behind "auto"; work is in multiplications, 5e10 a second of one core."""

    # Work of Gauss-Newton steps, some twenty seconds; where there is a choice; to choose a width.
    max_work: float = 1e12
    target_work: float = 8e10
    validation_work: float = 1e11
    doubtful_work: float = 2.4e10  # of the usual width where some units are no better than few
    fewest_modes: int = 3  # worth finding at all
    max_modes: int = 10

    # Steps of a regression's restart: small systems make all (1,000 rows without noise: .05 nats
    # per row better than after 50); large ones fewer, and predict as well. So do few rows, whose
    # evidences fall from there on while scales drift, unless eight units leave hardly anything
    # unexplained (yacht: 100 steps are .3 better, energy .02). Twice as many again while the
    # evidence rises steeply: where there is hardly any noise.
    steps: int = 100
    fewest_steps: int = 50
    small_sample_rows: int = 500
    negligible_noise_fraction: float = 0.01
    more: int = 2
    # Beyond so many rows these are searched, and a few steps go on with all: within .0005 nats per
    # row of the evidence that thirty reach, at a quarter of the work (40,000 rows x 20 columns).
    searched_rows: int = 10_000
    last_steps: int = 8
    last_work: float = 5e11

    # Evidences say too little of which mode predicts better, so modes count alike. But one whose
    # evidence and left-out rows are both behind the best by this many nats per row has collapsed,
    # and predicts worse by about as much.
    most_behind: float = 0.25

    # hidden_layer_sizes="auto", prior="learn": beyond so many rows a scale a column predicts better
    # than a scale a layer, wherever at most this share of the targets' variance is noise; and forty
    # units better than twenty (airfoil: .1 nats per row), given so many rows a weight and time.
    many_rows: int = 1000
    default_width: int = 20
    wide: int = 40
    max_noise_fraction: float = 0.2
    pilot_rows: int = 2000  # that two modes judge the noise by, at most
    rows_a_weight: int = 4
    plenty_a_weight: int = 20  # whatever the noise, beyond `searched_rows`
    other_work: float = 4e11

    # Where many columns make even three modes of twenty units take too long, fewer units found by
    # Gauss-Newton steps predict better than twenty trained by Adam, by .12 to .74 nats per row.
    fewer: tuple[int, ...] = (10, 5)
    most_rows_a_weight: int = 10
    # A scale a column needs two rows a weight: at 1.4 it was .06 to .22 worse than a scale a layer.
    rows_a_column_weight: int = 2

    # Three or eight units predict better wherever held-out rows aren't more likely under more
    # units: on noisy tables of some hundred rows twenty follow the noise (Friedman's
    # third function: .1 nats per row; suburbs: .05; 90 rows x 100 columns: .5). Where eight gain
    # over three and leave little unexplained, twenty have always gained over eight (concrete,
    # energy, yacht). Of eight units rows held out say, too, whether scales are a layer's or a
    # column's.
    widths: tuple[int, ...] = (3, 8, 20)
    most_unexplained: float = 0.15
    folds: int = 5
    fewest_rows: int = 10
    most_rows_asked: int = 20  # numbers to learn from a weight
    # Wary steps, enough to compare widths and to go on from; and more while the evidence rises
    # steeply (parkinsons: an error of 1.2 for 2.8).
    rough_steps: int = 24
    rough_more: int = 76
    rough_tol: float = 1e-3  # nats per unit of weight

    # Modes of labels: beyond 1,000 weights fewer steps do, and each costs much more; beyond four
    # modes classes gain little. Work is some 25 seconds of one core; noisy labels take more.
    labels_steps: int = 60
    labels_steps_of_many: int = 30
    labels_last_steps: int = 40  # of all rows, after a search of some, whose first count
    fewest_labels_rows: int = 2000  # that are searched first,
    labels_rows_a_weight: int = 4  # and a weight
    many_weights: int = 1000
    most_labels_modes: int = 4
    labels_work: float = 4e11
    tries: float = 2.5

    def units(
        self, n_rows: int, n_inputs: int, n_outputs: int, in_time: Callable[[MLP], bool]
    ) -> int:
        """``hidden_layer_sizes="auto"`` to begin with: twenty, or fewer where columns are many.

        ``in_time`` says whether enough modes of a network are found in time.
        """
        for width in (self.default_width, *self.fewer):
            network = MLP(n_inputs, (width,), n_outputs, TANH)
            most = self.most_rows_a_weight * network.layout.n_params
            if width < self.default_width and n_rows * n_outputs > most:
                break
            if in_time(network):
                return width
        return self.default_width

    def max_network_work(self, network: MLP) -> float:
        """Work of a network whose width "auto" may take: less where fewer units can be tried."""
        is_fewer = network.hidden_layer_sizes[0] in self.fewer[:-1]
        return self.other_work if is_fewer else self.max_work

    def choose_regression_width(self, n_rows: int, n_inputs: int, n_outputs: int) -> int:
        """`units` of regression: a few modes, in time."""

        def in_time(network: MLP) -> bool:
            each = self.mode_cost(n_rows, network)
            return self.fewest_modes * each <= self.max_network_work(network)

        return self.units(n_rows, n_inputs, n_outputs, in_time)

    def choose_classification_width(
        self, n_rows: int, n_inputs: int, n_outputs: int, n_modes: int
    ) -> int:
        """`units` of classification: two modes at most, in time."""
        n = min(n_modes, 2)
        return self.units(
            n_rows, n_inputs, n_outputs,
            lambda network: self.affordable_classification_modes(n, n_rows, network)[0] == n,
        )  # fmt: skip

    def affordable_modes(self, most: int, n_rows: int, network: MLP) -> int:
        """Modes that some seconds of one core are enough for; a few may take longer."""
        each = self.mode_cost(n_rows, network)
        few = min(self.fewest_modes, most)
        if few * each > self.max_work:
            return 0
        return min(most, max(few, int(self.target_work / each)))

    def choose_n_restarts(
        self, asked: int | str, n_rows: int, network: MLP, most: int | None = None
    ) -> int:
        """``n_restarts`` as a number, at most ``most`` where it is "auto"."""
        if not isinstance(asked, str):
            return asked
        most = self.max_modes if most is None else most
        return self.affordable_modes(most, n_rows, network) or min(self.fewest_modes, most)

    def regression_steps(self, n_rows: int, network: MLP, *, is_clear: bool = False) -> int:
        """Gauss-Newton steps of a mode of regression; of few rows all where it is clear."""
        if n_rows <= self.small_sample_rows and not is_clear:
            return self.fewest_steps
        n_numbers = min(n_rows, self.searched_rows) * network.n_outputs
        few = gauss_newton_cost(self.fewest_modes, 1, n_numbers, network.layout.n_params)
        return min(self.steps, max(self.fewest_steps, int(self.target_work / few)))

    def final_steps(self, n_rows: int, network: MLP) -> int:
        """Steps with all rows, after a search of `searched_rows`; 0 where these are all."""
        if n_rows <= self.searched_rows:
            return 0
        n_numbers = n_rows * network.n_outputs
        n_params = network.layout.n_params
        few = gauss_newton_cost(self.fewest_modes, 1, n_numbers, n_params)
        return min(self.last_steps, max(1, int(self.last_work / few)))

    def mode_cost(self, n_rows: int, network: MLP) -> float:
        n_params = network.layout.n_params
        steps = self.regression_steps(n_rows, network)
        first = gauss_newton_cost(
            1, steps, min(n_rows, self.searched_rows) * network.n_outputs, n_params
        )
        last = self.final_steps(n_rows, network)
        return first + (
            gauss_newton_cost(1, last, n_rows * network.n_outputs, n_params) if last else 0.0
        )

    def wider_network(self, n_rows: int, network: MLP) -> MLP | None:
        """The network that many rows deserve under a scale a column, if there is time for it."""
        wide = make_network(network, self.wide)
        n_numbers = n_rows * network.n_outputs
        if n_rows <= self.many_rows or network.hidden_layer_sizes != (self.default_width,):
            return None
        has_rows = n_numbers >= self.rows_a_weight * wide.layout.n_params
        searched = self.mode_cost(min(n_rows, self.searched_rows), wide)
        in_time = self.fewest_modes * searched <= self.other_work
        if has_rows and in_time and self.affordable_modes(self.fewest_modes, n_rows, wide):
            return wide
        has_rows = n_numbers >= self.rows_a_column_weight * network.layout.n_params
        in_time = self.affordable_modes(self.fewest_modes, n_rows, network) > 0
        return network if has_rows and in_time else None

    def has_many_rows(self, n_rows: int, network: MLP) -> bool:
        """Whether rows are so many that noise can't be followed."""
        enough = self.plenty_a_weight * network.layout.n_params
        return n_rows > self.searched_rows and n_rows * network.n_outputs >= enough

    def validates(self, network: MLP, n_numbers: int, *, doubtful: bool = False) -> bool:
        """Whether folds of a network, two modes each, are found in time."""
        n_restarts = MODES_A_FOLD * self.folds
        n_params = network.layout.n_params
        needed = gauss_newton_cost(n_restarts, self.rough_steps, n_numbers, n_params)
        return needed <= (self.doubtful_work if doubtful else self.validation_work)

    def cross_validates_width(self, n_rows: int, network: MLP) -> bool:
        """Whether rows are held out to choose the width of "auto"."""
        n_numbers = n_rows * network.n_outputs
        if network.hidden_layer_sizes != (self.default_width,) or n_rows < self.fewest_rows:
            return False
        if n_numbers > self.most_rows_asked * network.layout.n_params:
            return False
        return self.validates(make_network(network, self.widths[-2]), n_numbers)

    def classification_steps(self, n_params: int) -> int:
        """Gauss-Newton steps of a mode of classification."""
        return self.labels_steps if n_params <= self.many_weights else self.labels_steps_of_many

    def affordable_classification_modes(
        self, most: int, n_rows: int, network: MLP
    ) -> tuple[int, bool]:
        """Modes that some seconds of one core are enough for, and whether for tries too.

        Of more rows than weights tries come first: a mode found in the better of two ways predicts
        noisy labels better than four found in one (3,000 rows x 20 columns: by .001 to .027 nats).
        """
        n_params = network.layout.n_params
        each = gauss_newton_cost(
            1, self.classification_steps(n_params), n_rows, n_params, network.n_outputs
        )
        n_modes, n_tried = (
            min(most, int(self.labels_work / (share * each))) for share in (1.0, self.tries)
        )
        if n_tried and n_rows >= n_params:
            return n_tried, True
        return n_modes, n_tried == n_modes

    def classification_restarts(self, n_rows: int, network: MLP) -> int:
        """``n_restarts="auto"``: of more rows than weights what tries have time for, or one."""
        n_modes, tries = self.affordable_classification_modes(
            self.most_labels_modes, n_rows, network
        )
        has_time = tries or n_rows < network.layout.n_params
        return max(1, n_modes) if has_time else 1
