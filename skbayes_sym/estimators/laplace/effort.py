"""How many units and restarts so many rows are worth, where Gauss-Newton steps find the modes."""

from skbayes_sym.models.networks.mlp import MLP

# Multiplications that "auto" takes Gauss-Newton steps for: some twenty seconds of one core; and
# those that it takes where there is a choice: three to six seconds.
MOST_WORK, USUAL_WORK = 1e12, 8e10
FEWEST_MODES, MOST_MODES = 3, 10  # worth finding at all

# Of a restart in regression, "auto". Small systems make all of them (concrete: -2.86 nats per row
# after 50, -2.85 after 100, -3.00 after 30); large ones fewer, and predict as well (an arm of eight
# links and a ship's sixteen columns, 1,000 to 2,000 rows: .01 better after 50).
STEPS, FEWEST_STEPS = 100, 50

# hidden_layer_sizes="auto" and prior=None: beyond so many rows a scale a column predicts better
# than a scale a layer, wherever at most this share of the targets' variance is noise; and forty
# units better than twenty (airfoil: .1 nats per row), if there are so many rows a weight and time
# enough. Of 640 weights for 1,350 rows forty units were .07 worse, at three times the cost.
MANY_ROWS, NARROW, WIDE = 1000, 20, 40
MOST_NOISE, ROWS_A_WEIGHT, WIDE_WORK = 0.2, 4, 4e11


def work(n_restarts: int, max_iter: int, n_rows: int, n_params: int) -> float:
    """Multiplications of all Gauss-Newton systems, about: R I (N P^2 + P^3)."""
    return float(n_restarts * max_iter * (n_rows * n_params**2 + n_params**3))


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


def richer(n_rows: int, narrow: MLP) -> MLP | None:
    """What many rows deserve under a scale a column, if there is time for it."""
    wide = MLP(narrow.n_inputs, (WIDE,), narrow.n_outputs, narrow.activation)
    if n_rows <= MANY_ROWS:
        return None
    has_rows = n_rows * narrow.n_outputs >= ROWS_A_WEIGHT * wide.layout.n_params
    if has_rows and FEWEST_MODES * _work_of_one(n_rows, wide) <= WIDE_WORK:
        return wide
    return narrow if FEWEST_MODES * _work_of_one(n_rows, narrow) <= MOST_WORK else None


def _work_of_one(n_rows: int, network: MLP) -> float:
    """Multiplications for one mode, about."""
    n_targets, n_params = network.n_outputs, network.layout.n_params
    return work(1, steps(n_rows, network), n_rows * n_targets, n_params)
