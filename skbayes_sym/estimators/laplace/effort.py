"""How many units and restarts so many rows are worth, where Gauss-Newton steps find the modes."""

from skbayes_sym.models.networks.mlp import MLP

# Multiplications that "auto" takes Gauss-Newton steps for: some twenty seconds of one core; and
# those that it takes where there is a choice: three to six seconds.
MOST_WORK, USUAL_WORK = 1e12, 8e10
STEPS = 100  # of a restart in regression
FEWEST_MODES, MOST_MODES = 3, 10  # worth finding at all

# hidden_layer_sizes="auto" and prior=None: beyond so many rows forty units and a scale a column
# predict better (airfoil: .1 nats per row), below twenty units and a scale a layer do, and wherever
# more than this share of the targets' variance is noise.
MANY_ROWS, NARROW, WIDE = 1000, 20, 40
MOST_NOISE = 0.2


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


def is_wide_worth(n_rows: int, wide: MLP) -> bool:
    """Whether there are rows for a wide network, and time."""
    return n_rows > MANY_ROWS and FEWEST_MODES * _work_of_one(n_rows, wide) <= MOST_WORK


def _work_of_one(n_rows: int, network: MLP) -> float:
    """Multiplications for one mode, about."""
    return work(1, STEPS, n_rows * network.n_outputs, network.layout.n_params)
