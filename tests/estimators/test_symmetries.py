"""Every fitted estimator tells the group of its model, and its network has it."""

import pytest
import torch
from fits import FITS, fitted
from torch.testing import assert_close

from skbayes_sym.estimators.networks import NetworkEstimator
from skbayes_sym.models.networks.mlp import MLP

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# A stack of anyone's models has no parameters of its own.
WITH_GROUPS = [name for name in FITS if not name.startswith("stack")]


@pytest.mark.parametrize("name", WITH_GROUPS)
def test_the_group_leaves_the_network_unchanged(name, generator):
    model = fitted(name)
    group = model.symmetry_
    assert group.log_order >= 0.0
    if not isinstance(model, NetworkEstimator) or not isinstance(model.network_, MLP):
        return  # laws of `cases.GROUPS`, and those of modules, say the rest
    network = model.network_
    assert group.log_order > 0.0
    theta = network.init(3, generator=generator)
    x = torch.randn(5, network.n_inputs, generator=generator, dtype=torch.float64)
    moved = group.act(group.sample((3,), generator=generator), theta)
    assert_close(network.forward(moved, x), network.forward(theta, x), rtol=0, atol=1e-12)
