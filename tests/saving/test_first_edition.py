"""Words of the first edition, in those of the second; whole files are in `test_saving`."""

import numpy as np

from skbayes_sym.inference.samplers import SMC, Evidence
from skbayes_sym.models import Affine, Augerino, Invariances
from skbayes_sym.saving.first_edition import complete, translate


def test_satellites_of_invariances_become_parts_of_objects():
    parameters = {
        "image_shape": (4, 4), "network": "cnn", "hidden_layer_sizes": (50,), "activation": "relu",
        "invariances": "affine", "basis": "axis", "correlated": True, "objective": "augerino",
        "augerino_reward": 0.3, "learn_prior": True, "prior_scale": 4.5, "tol": 1e-2,
    }  # fmt: skip
    attributes = {
        "prior_precision_": np.array([4.0, 0.25]), "log_evidence_history_": np.arange(3.0),
        "invariance_history_": {"rotation": np.zeros(2)}, "_augmentation_": Affine("axis"),
        "_eta_": np.zeros(6), "_n_last_": None, "_eta_history_": [],
    }  # fmt: skip
    assert translate("LILAClassifier", parameters, attributes) == "LILAClassifier"
    assert parameters == {
        "image_shape": (4, 4), "network": "cnn", "invariances": Affine("axis", True),
        "objective": Augerino(0.3), "prior_scale": "learn", "tol": None,
    }  # fmt: skip
    assert attributes["prior_scale_"].tolist() == [0.5, 2.0]
    assert set(attributes) == {
        "prior_scale_", "log_evidence_curve_", "invariance_curve_", "augmentation_", "eta_",
    }  # fmt: skip


def test_numbers_of_transformations_join_their_families():
    parameters = {"invariances": "auto", "n_augmentations": 20, "invariance_learning_rate": 0.2}
    complete("LILAClassifier", parameters)
    assert parameters == {"invariances": Invariances("auto", 20, 0.2)}
    parameters = {"invariances": None, "n_augmentations": 20, "invariance_learning_rate": "auto"}
    complete("LILARegressor", parameters)
    assert parameters == {"invariances": None}  # they said nothing


def test_a_prior_that_was_given_stays():
    parameters = {"learn_prior": False, "prior_scale": 2.0, "network": "mlp", "activation": "tanh"}
    attributes = {"prior_precision_": np.array([0.25]), "_augmentation_": None, "_eta_": None}
    translate("LaplaceRegressor", parameters, attributes)
    assert parameters["prior_scale"] == 2.0
    assert parameters["activation"] == "tanh"
    assert attributes["prior_scale_"].tolist() == [2.0]


def sampled(**changes):
    parameters = {
        "sampler": "hmc", "n_islands": 2, "n_particles": 64, "mode_weights": "evidence",
        "remove_symmetries": True, "n_warmup": 60, "warm_start": True,
    }  # fmt: skip
    parameters |= changes
    translate("MCMCRegressor", parameters, {})
    assert "n_islands" not in parameters
    assert "n_particles" not in parameters
    return parameters


def test_islands_become_replicates_of_what_looks_for_modes():
    assert sampled()["mode_weights"] == Evidence(2, 64)
    assert sampled(mode_weights="chains")["mode_weights"] == "uniform"
    assert sampled(remove_symmetries=False)["mode_weights"] == "uniform"
    particles = sampled(sampler="smc")
    assert (particles["sampler"], particles["mode_weights"]) == (SMC(64, 2), "evidence")
    assert (particles["n_warmup"], particles["warm_start"]) == (None, False)  # had no meaning
    assert sampled(sampler="smc", mode_weights="chains")["mode_weights"] == "uniform"


def test_parameters_that_came_later_have_the_value_they_meant():
    old, new = {"sampler": "hmc"}, {"sampler": "hmc", "init": "laplace"}
    complete("MCMCRegressor", old)
    complete("MCMCRegressor", new)
    assert old["init"] == "prior"
    assert new["init"] == "laplace"
    particles = {"sampler": SMC(), "n_warmup": 1000}
    complete("MCMCClassifier", particles)
    assert (particles["init"], particles["n_warmup"]) == ("auto", None)
