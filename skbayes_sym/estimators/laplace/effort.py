"""How many units and restarts so many rows are worth, where Gauss-Newton steps find the modes."""

from collections.abc import Callable

from skbayes_sym.inference.laplace.search.systems import are_few
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP

# Multiplications that "auto" takes Gauss-Newton steps for: some twenty seconds of one core; and
# those that it takes where there is a choice: three to six seconds.
MOST_WORK, USUAL_WORK = 1e12, 8e10
FEWEST_MODES, MOST_MODES = 3, 10  # worth finding at all
MOST_CLASS_MODES = 4  # beyond, classes gain little

# Of a restart in regression, "auto". Small systems make all of them (concrete: -2.86 nats per row
# after 50, -2.85 after 100, -3.00 after 30); large ones fewer, and predict as well (an arm of eight
# links and a ship's sixteen columns, 1,000 to 2,000 rows: .01 better after 50).
STEPS, FEWEST_STEPS = 100, 50
MORE = 2  # times as many again while the evidence rises steeply: where there is hardly any noise

# hidden_layer_sizes="auto" and prior=None: beyond so many rows a scale a column predicts better
# than a scale a layer, wherever at most this share of the targets' variance is noise; and forty
# units better than twenty (airfoil: .1 nats per row), if there are so many rows a weight and time
# enough. Of 640 weights for 1,350 rows forty units were .07 worse, at three times the cost.
MANY_ROWS, NARROW, WIDE = 1000, 20, 40
MOST_NOISE, ROWS_A_WEIGHT, OTHER_WORK = 0.2, 4, 4e11

# Where many columns make even three modes of twenty units take too long, fewer units found by
# Gauss-Newton steps predict better than twenty trained by Adam (1,600 rows x 100 columns: ten are
# .17 nats per row ahead; 800 x 200: five are .74; 4,000 x 60: ten are .12). On these five do as
# well as ten.
FEWER, MOST_ROWS_A_WEIGHT = (10, 5), 10
# A scale a column needs two rows a weight: at 1.4 it was .06, .22 and .08 worse than a scale a
# layer, at 2.2 .02, .04 worse and .12 better (1,200 rows; columns that share twelve causes, of
# which five matter, that matter alike).
ROWS_A_COLUMN_WEIGHT = 2

# Three or eight units are enough wherever rows held out aren't more likely under more, and predict
# better then: on noisy tables of some hundred rows twenty follow the noise (Friedman's third
# function: .1 nats per row; suburbs: .05; 90 rows x 100 columns: .5). Where eight gain over three
# and leave little unexplained, twenty have always gained over eight (concrete, energy, yacht). Near
# a line eight are worse than either (150 rows x 8 columns: twenty are .05 ahead of three).
WIDTHS, MOST_UNEXPLAINED = (3, 8, NARROW), 0.15
FOLDS, FEWEST_ROWS, MOST_ROWS_ASKED = 5, 10, 20  # the last: numbers to learn from a weight
VALIDATION_WORK = 1e11

_ENDINGS = 10.0  # systems of all weights that a mode ends with, and is predicted with


def work(n_restarts: int, max_iter: int, n_rows: int, n_params: int, n_outputs: int = 1) -> float:
    """Multiplications of all Gauss-Newton systems, about.

    R I (N P^2 + P^3); where rows are few, M = N O derivatives, R I (4 M^2 P + 2 M^3), since every
    diagonal asks for products anew, and the systems of all weights at the end.
    """
    m = n_rows * n_outputs
    if are_few(m, n_params):
        step = 4.0 * m**2 * n_params + 2.0 * m**3
        return n_restarts * (max_iter * step + _ENDINGS * n_params**3)
    return float(n_restarts * max_iter * (n_rows * n_params**2 + n_params**3))


def units(n_rows: int, n_inputs: int, n_outputs: int, in_time: Callable[[MLP], bool]) -> int:
    """What ``hidden_layer_sizes="auto"`` begins with: twenty, or fewer where columns are many.

    Parameters
    ----------
    n_rows, n_inputs, n_outputs : int
    in_time : callable
        Whether enough modes of a network are found in time.
    """
    for width in (NARROW, *FEWER):
        network = MLP(n_inputs, (width,), n_outputs, TANH)
        most = MOST_ROWS_A_WEIGHT * network.layout.n_params
        if width < NARROW and n_rows * n_outputs > most:
            break
        if in_time(network):
            return width
    return NARROW


def most_work(network: MLP) -> float:
    """Of a network whose width "auto" may take: less where fewer units are still to be tried."""
    return OTHER_WORK if network.hidden_layer_sizes[0] in FEWER[:-1] else MOST_WORK


def units_of_numbers(n_rows: int, n_inputs: int, n_outputs: int) -> int:
    """`units` of regression: a few modes, in time."""

    def in_time(network: MLP) -> bool:
        return FEWEST_MODES * _work_of_one(n_rows, network) <= most_work(network)

    return units(n_rows, n_inputs, n_outputs, in_time)


def affordable_modes(most: int, n_rows: int, network: MLP) -> int:
    """How many modes some seconds of one core are enough for; a few may take longer."""
    each = _work_of_one(n_rows, network)
    few = min(FEWEST_MODES, most)
    if few * each > MOST_WORK:
        return 0
    return min(most, max(few, int(USUAL_WORK / each)))


def restarts(given: int | str, n_rows: int, network: MLP, most: int = MOST_MODES) -> int:
    """``n_restarts`` as a number, where "auto" is at most so many."""
    if not isinstance(given, str):
        return given
    return affordable_modes(most, n_rows, network) or min(FEWEST_MODES, most)


def steps(n_rows: int, network: MLP) -> int:
    """How many Gauss-Newton steps the modes of a network are given."""
    few = work(FEWEST_MODES, 1, n_rows * network.n_outputs, network.layout.n_params)
    return min(STEPS, max(FEWEST_STEPS, int(USUAL_WORK / few)))


def network_of(network: MLP, width: int) -> MLP:
    """The same of so many hidden units."""
    return MLP(network.n_inputs, (width,), network.n_outputs, network.activation)


def richer(n_rows: int, narrow: MLP) -> MLP | None:
    """What many rows deserve under a scale a column, if there is time for it."""
    wide = network_of(narrow, WIDE)
    if n_rows <= MANY_ROWS or narrow.hidden_layer_sizes != (NARROW,):
        return None
    has_rows = n_rows * narrow.n_outputs >= ROWS_A_WEIGHT * wide.layout.n_params
    if has_rows and FEWEST_MODES * _work_of_one(n_rows, wide) <= OTHER_WORK:
        return wide
    has_rows = n_rows * narrow.n_outputs >= ROWS_A_COLUMN_WEIGHT * narrow.layout.n_params
    in_time = FEWEST_MODES * _work_of_one(n_rows, narrow) <= MOST_WORK
    return narrow if has_rows and in_time else None


def _work_of_one(n_rows: int, network: MLP) -> float:
    """Multiplications for one mode, about."""
    n_targets, n_params = network.n_outputs, network.layout.n_params
    return work(1, steps(n_rows, network), n_rows * n_targets, n_params)
