"""Fitted estimators through pickle, joblib and skops: arrays only, and the same predictions."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from fits import FITS, assert_predicts_as, fitted

# Too few steps to converge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

every_fit = pytest.mark.parametrize("name", FITS)

# What `skops.io.load` has to be told to trust besides this package's own classes.
TRUSTED_ELSEWHERE = {
    "sklearn.utils._bunch.Bunch",
    "torch.relu", "torch.relu_", "torch.tanh", "torch.tanh_", "torch.sigmoid", "torch.sigmoid_",
    "torch._C._nn.softplus",
}  # fmt: skip


class NoTensors(pickle.Pickler):
    """Refuses tensors, wherever they hide; a module's architecture ("meta") holds no numbers."""

    def reducer_override(self, value):
        if isinstance(value, torch.Tensor) and not value.is_meta:
            raise AssertionError(f"a tensor of shape {tuple(value.shape)} in the fitted state")
        return NotImplemented


@every_fit
def test_pickle_holds_no_tensor_and_no_cache(name):
    model = fitted(name)
    assert_predicts_as(name, model)  # fills the cache
    payload = io.BytesIO()
    NoTensors(payload, protocol=5).dump(model)
    restored = pickle.loads(payload.getvalue())
    assert "_cache" not in vars(restored)
    assert_predicts_as(name, restored)
    if hasattr(getattr(model, "posterior_", None), "log_prob"):
        theta = restored.posterior_.sample(2, generator=torch.Generator().manual_seed(0))
        expected = model.posterior_.log_prob(theta)
        assert torch.isfinite(expected).all()
        assert torch.equal(restored.posterior_.log_prob(theta), expected)


@pytest.mark.long
@every_fit
def test_skops_with_the_documented_types(name):
    skops = pytest.importorskip("skops.io")
    if name == "lila-cnn":
        pytest.skip("skops doesn't take torch modules")
    payload = skops.dumps(fitted(name))
    types = skops.get_untrusted_types(data=payload)
    elsewhere = {t for t in types if not t.startswith("skbayes_sym.")}
    assert elsewhere <= TRUSTED_ELSEWHERE
    restored = skops.loads(payload, trusted=types)
    assert_predicts_as(name, restored)


def test_chains_go_on_from_a_pickle_as_from_the_model():
    case = FITS["mcmc-regressor"]
    model = copy.deepcopy(fitted("mcmc-regressor"))
    model.set_params(sampler__warm_start=True, sampler__n_warmup=0)
    again = pickle.loads(pickle.dumps(model))
    for each in (model, again):
        each.fit(case.X, case.y)
    np.testing.assert_array_equal(model.samples_, again.samples_)
    assert not np.array_equal(model.samples_, fitted("mcmc-regressor").samples_)
