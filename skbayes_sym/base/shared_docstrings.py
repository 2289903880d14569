"""Descriptions of parameters and attributes that several estimators share, each written once.

In the docstring of an estimator the line ::

    device, random_state, verbose : as in every estimator

stands for the entries of these names in `WORDS`, and ``tol : as in LaplaceRegressor`` for the one
of that class; indented lines below are added to the last. `in_full` writes them out.
"""

import re
from collections.abc import Mapping
from inspect import cleandoc, signature
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type)

WORDS = {
    "every estimator": """
device : str
    "cpu", "cuda", "cuda:1", ...; "auto" takes CUDA if it is there and a step large enough.
random_state : int, RandomState instance or None
    Source of all randomness. None is fresh entropy at every call; the global state is left alone.
verbose : int
    0 logs nothing above level DEBUG, 1 a summary to stderr, 2 also the progress.
warm_start : bool
    Whether `fit` goes on from the previous one.
summary_ : str
    What was fitted to data of this size, in one line.
columns_in_ : Columns or None
    How words and missing values become numbers; None where there were none.
n_iter_ : int
    Steps made.
stop_reason_ : {"max_iter", "tol", "callback", "interrupted"}
    Why training ended.
classes_ : ndarray of shape (n_classes,)
    Class labels.
x_mean_, x_scale_ : ndarray of shape (n_features,)
    Standardisation of the inputs.
y_mean_, y_scale_ : ndarray of shape (n_targets,)
    Scaling of the targets.
device_, dtype_ : str
    Where and in which precision the model was fitted.
n_features_in_ : int
    Number of features seen in `fit`.
feature_names_in_ : ndarray of shape (n_features,)
    Their names, if ``X`` had string column names.
""",
    "every network": """
hidden_layer_sizes : int or sequence of int
    Widths of the hidden layers; ``()`` is a linear model.
activation : {"relu", "tanh", "sigmoid", "softplus", "identity"}
    Activation of the hidden layers.
network : "mlp", torch.nn.Module or Network
    "mlp" is made of ``hidden_layer_sizes`` and ``activation``. A module of Linear and Conv2d
    layers and elementwise activations is taken as an architecture: it is copied, and its
    weights are drawn anew at their own scale.
prior : "learn", float, sequence of float or Prior
    Prior of the weights and biases, in standardised units: the standard deviation of normals,
    one number, one per layer or one per parameter; or an object. "learn" is ``LayerScales()``,
    one learned scale per layer's weights and per layer's biases; ``ARD()`` learns one per column
    of ``X`` besides: `relevance_`.
max_iter : int
    Largest number of optimiser steps.
prior_scale_ : ndarray of shape (n_groups,)
    Prior standard deviation of every group of weights, where scales are learned.
prior_groups_ : ndarray of shape (n_groups,)
    Names of the groups of weights that share one.
feature_importances_ : ndarray of shape (n_features,)
    Means of `relevance_`, as shares of 1.
network_ : MLP
    Architecture, with ``forward(theta, x)`` and ``symmetry()``.
symmetry_ : SymmetryGroup
    The part of the network's group that the prior keeps.
""",
    "every Laplace approximation": """
n_jobs : int or None
    Processes that share the work (joblib); the result does not depend on it. Restarts of large
    networks, or of classes, are shared, and refitted members. Processes take some three seconds
    to start, and callbacks hear of their ends only.
n_modes_ : int
    Distinct modes, none of them another's symmetric copy. This and the arrays over modes are
    there where Gauss-Newton steps found some.
multiplicity_modes_ : ndarray of shape (n_modes,)
    Restarts that ended in each mode or a copy of it: in proportion to them it counts.
log_evidence_std_error_ : float
    Monte Carlo standard error of `log_evidence_`, nats: of the sum over symmetric copies, which is
    averaged over draws of the posterior. 0 where no copies are counted, nan where transformations
    are averaged over.
log_evidence_side_ : {"exact", "lower"}
    Side on which `log_evidence_` lies, in expectation, of Laplace's approximation summed over the
    modes that were found and all their copies. "exact" up to 50,000 copies (six units of a
    layer). "lower" with more, and where one mode is counted without copies. It says nothing about
    the error of Laplace's approximation, which is no bound.
log_evidence_modes_ : ndarray of shape (n_modes,)
    Laplace's estimate of log p(y | X) of every mode, nats. Its error exceeds the differences, so
    modes aren't weighed by it.
prior_scale_modes_ : ndarray of shape (n_modes, n_groups)
    Prior standard deviations of every mode; only where they are learned.
relevance_ : ndarray of shape (n_modes, n_features)
    Scale of the weights from every column of ``X``; only under ``ARD()``.
noise_std_modes_ : ndarray of shape (n_modes, n_targets)
    Standard deviation of each mode's noise, in the units of ``y``.
log_evidence_curve_ : ndarray of shape (n_updates,)
    That of the mode whose evidence is largest, after every update.
widths_ : ndarray of shape (n_widths,)
    Numbers of hidden units that were cross-validated; only where "auto" asked for it.
width_scores_ : ndarray of shape (n_widths,)
    Mean log density of the rows held out under each, nats per row in the units of ``y``.
variance_scale_ : float
    Factor on the variance of the logits in predictions; after Gauss-Newton steps only.
""",
    "every regressor": """
likelihood : str or Likelihood
    Distribution of a target given the network's outputs; "auto" is normal noise, as
    ``noise_std`` says. "heteroscedastic" (noise that changes with the input), "student_t"
    (heavy tails), "poisson" and "negative_binomial" (counts) are the objects of these names.
noise_std : "learn", float or sequence of float
    Standard deviation of the observation noise in the units of ``y``; one number or one per
    target. "learn" estimates it.
standardize : bool or {"X", "y"}
    Whether to centre and scale the columns of ``X`` and ``y`` first; "X" and "y" do one of
    them. Everything reported is in the units of ``y``.
noise_std_ : float or ndarray of shape (n_targets,)
    Standard deviation of the noise, in the units of ``y``; of another likelihood its scale, if
    it has one.
likelihood_ : Likelihood
    The one that was given, with what was learned of it, in standardised units; its parameters
    lead with an axis of draws where they were drawn. Not of "auto".
""",
    "every classifier": """
likelihood : str or Likelihood
    Distribution of a target given the network's outputs; "auto" is the softmax of one output
    per class, ``Categorical()``. "bernoulli" is the logistic curve of one output for two.
standardize : bool
    Whether to centre and scale the columns of ``X`` first.
""",
}

# Names, type, and the indented lines of an entry; a line that stands for others.
_ENTRY = re.compile(r"^(\w+(?:, \w+)*) : (.*)((?:\n +.*)*)", re.MULTILINE)
_AS_IN = re.compile(r"^(\w+(?:, \w+)*) : as in (.*)((?:\n +.*)*)", re.MULTILINE)
_DEFAULT = re.compile(r", default=.*$")


def _entries(doc: str) -> dict[str, tuple[str, str, str]]:
    """Names, type and words of the entry that describes a name."""
    entries = _ENTRY.findall(doc.split("\nSee Also\n")[0])
    return {name: entry for entry in entries for name in entry[0].split(", ")}


_ENTRIES = {source: _entries(doc) for source, doc in WORDS.items()}


def in_full(estimator: Kind) -> Kind:
    """Write out what a docstring has "as in" other estimators; the types' defaults are its own.

    Raises
    ------
    ValueError
        If there is no such entry.
    """
    if estimator.__doc__ is None:  # python -OO
        return estimator
    defaults = {name: p.default for name, p in signature(estimator).parameters.items()}

    def written_out(match: re.Match[str]) -> str:
        names, source, addition = match.groups()
        return "\n".join(_copies(names.split(", "), source, defaults)) + addition

    estimator.__doc__ = _AS_IN.sub(written_out, cleandoc(estimator.__doc__))
    _ENTRIES[estimator.__name__] = _entries(estimator.__doc__)
    return estimator


def _copies(names: list[str], source: str, defaults: Mapping[str, Any]) -> list[str]:
    """Entries of names, those that one entry describes together."""
    entries, shared = [], ""
    for name in names:
        if name not in _ENTRIES.get(source, {}):
            raise ValueError(f"{name!r} isn't described in {source!r}.")
        together, kind, words = _ENTRIES[source][name]
        if name in defaults and not kind.endswith("optional"):
            default = defaults[name]
            shown = f'"{default}"' if isinstance(default, str) else repr(default)
            kind = f"{_DEFAULT.sub('', kind)}, default={shown}"
        if together != shared:
            entries.append(f"{name} : {kind}{words}")
        else:
            entries[-1] = re.sub(" : ", f", {name} : ", entries[-1], count=1)
        shared = together
    return entries
