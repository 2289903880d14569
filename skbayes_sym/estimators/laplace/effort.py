"""How many units and restarts so many rows are worth, where Gauss-Newton steps find the modes."""

from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP

# Multiplications that "auto" takes Gauss-Newton steps for: some twenty seconds of one core; and
# those that it takes where there is a choice: three to six seconds.
MOST_WORK, USUAL_WORK = 1e12, 8e10
STEPS = 100  # of a restart in regression
FEWEST_MODES, MOST_MODES = 3, 10  # worth finding at all

# hidden_layer_sizes="auto" and prior=None: beyond so many rows forty units and a scale a column
# predict better (airfoil: .1 nats per row), below twenty units and a scale a layer do.
MANY_ROWS, NARROW, WIDE = 1000, 20, 40


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


def restarts(given: int | str, n_rows: int, network: MLP) -> int:
    """``n_restarts`` as a number."""
    if not isinstance(given, str):
        return given
    return affordable_modes(MOST_MODES, n_rows, network) or FEWEST_MODES


def automatic_width(n_rows: int, n_inputs: int, n_outputs: int) -> int:
    """Hidden units: more where there are more rows and time for them."""
    wide = MLP(n_inputs, (WIDE,), n_outputs, TANH)
    affordable = FEWEST_MODES * _work_of_one(n_rows, wide) <= MOST_WORK
    return WIDE if n_rows > MANY_ROWS and affordable else NARROW


def _work_of_one(n_rows: int, network: MLP) -> float:
    """Multiplications for one mode, about."""
    return work(1, STEPS, n_rows * network.n_outputs, network.layout.n_params)
