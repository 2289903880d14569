"""Forged files: every object checks its fields, and a file takes about as much memory as it has."""

import json
import resource
import time
from copy import deepcopy

import numpy as np
import pytest
import torch
from files import rewrite
from fits import FITS, fitted
from safetensors.numpy import save as write

import skbayes_sym as sk
from skbayes_sym import load, save
from skbayes_sym.models import Gaussian, StudentT
from skbayes_sym.models.augmentations.augmentation import Augerino
from skbayes_sym.models.augmentations.images import Contrast, Hue
from skbayes_sym.models.likelihoods.counts import NegativeBinomial
from skbayes_sym.models.likelihoods.noise import Heteroscedastic
from skbayes_sym.models.priors import LayerScales, Normal
from skbayes_sym.saving.files import checksum
from skbayes_sym.saving.values import Decoder, Encoder, saved_classes
from skbayes_sym.stacking.tree_arrays import TreeArrays
from skbayes_sym.symmetry.gaps.unit_gap import ExactUpTo, Importance, InfoNCE, Soules
from skbayes_sym.symmetry.group import Product, Trivial
from skbayes_sym.symmetry.units import Units

CHEAP = ["linear-gaussian", "laplace-full", "factors"]
# Two trees of one split each: roots 0 and 1, leaves 2 to 5.
SPLIT = TreeArrays(
    n_trees=2, column=np.array([0, 1, -1, -1, -1, -1]), threshold=np.zeros(2),
    leaf=np.array([0, 1, 1, 0]), values=np.ones((2, 2)),
)  # fmt: skip
OBJECTS = [
    SPLIT,
    Units(torch.arange(6).reshape(2, 3)), ExactUpTo(3, Importance(4)), InfoNCE(4), Soules(),
    Hue((3, 4, 4)), Contrast((1, 4, 4)), Heteroscedastic(), StudentT(), Normal(2.0), LayerScales(),
    Product((Units(torch.arange(6).reshape(2, 3)),)), Trivial(),
    Gaussian(), NegativeBinomial(), Augerino(),
    sk.Annealing(), sk.HMC(), Importance(2),
]  # fmt: skip


def encoded_objects(names):
    """Every object of a class that files may name, once per class, with its file's arrays."""
    found = {}
    for value in [*(vars(fitted(name)) for name in names), *OBJECTS]:
        encoder = Encoder()
        for part in value.values() if isinstance(value, dict) else [value]:
            try:
                encoded = encoder.encode(part, "value")
            except TypeError:
                continue
            for noun in nouns_within(encoded):
                found.setdefault(noun["name"], (noun, encoder.arrays))
    return found


def nouns_within(encoded):
    if isinstance(encoded, dict):
        if encoded.get("kind") == "object":
            yield encoded
        encoded = list(encoded.values())
    if isinstance(encoded, list):
        for item in encoded:
            yield from nouns_within(item)


def wrong_values(value, arrays):
    """Values that no field has in place of this one, with arrays that change for it."""
    if isinstance(value, bool):
        return [("a number", 10**12, {}), ("text", "x", {})]
    if isinstance(value, int):
        return [("-1", -1, {}), ("10**12", 10**12, {}), ("text", "x", {})]
    if isinstance(value, float):
        return [("text", "x", {}), ("a dictionary", {"kind": "dict", "items": []}, {})]
    if not isinstance(value, dict) or value["kind"] not in ("array", "tensor"):
        return []
    array = arrays[value["name"]]
    changed = {
        "one axis more": array[None],
        "another dtype": array.astype(np.complex64),
        "an endless axis": np.zeros((10**12, 0, *array.shape[1:]), array.dtype),
    }
    if array.dtype.kind == "f" and array.size:
        changed["nan"] = np.full_like(array, np.nan)
    if array.dtype.kind == "i" and array.size:
        changed["floats"] = array + 0.5
        changed["negative"] = np.full_like(array, -5)
        if array.dtype == np.int64:
            changed["far beyond"] = np.full_like(array, 10**12)
    return [(how, value, {value["name"]: new}) for how, new in changed.items()]


def decode(noun, arrays):
    return Decoder(deepcopy(arrays), 10**6).decode(noun)


def check_every_field(names):
    objects = encoded_objects(names)
    n_refused = 0
    accepted = []
    for name, (noun, arrays) in objects.items():
        decode(noun, arrays)
        for field, value in noun["fields"].items():
            for how, wrong, new in wrong_values(value, arrays):
                forged = {**noun, "fields": {**noun["fields"], field: wrong}}
                began = time.process_time()
                try:
                    decode(forged, {**arrays, **new})
                except (ValueError, TypeError, LookupError):
                    n_refused += 1
                else:
                    accepted.append(f"{name}.{field}: {how}")
                assert time.process_time() - began < 0.5, (name, field, how)
    assert not accepted
    return objects, n_refused


def test_every_object_checks_its_fields():
    objects, n_refused = check_every_field(CHEAP)
    assert len(objects) >= 20
    assert n_refused >= 140


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_object_of_every_fit_checks_its_fields():
    objects, _ = check_every_field(FITS)
    unseen = set(saved_classes()) - set(objects)
    assert unseen <= {
        "make_column_selector", "Bernoulli", "MAP", "NaturalHeteroscedastic", "Ordinal",
        "Identity", "Composed", "AffineBasis", "GaussianPrior", "Exact", "VI",
        "KroneckerPreconditioner", "LayerCurvature", "WideLayerCurvature", "DensePreconditioner",
        "Poisson",
        "FeatureEncoder", "CountsPredictor", "LogPredictor", "DateEncoding", "RatePredictor",
    }  # fmt: skip


# A chain of 30,000 splits, each with a leaf as its first child.
CHAIN = np.ravel([[0] + 30_000 * [-1], 30_001 * [0]], order="F")[1:]
TREES = {
    "no trees": {"n_trees": 0},
    "more trees than roots": {"n_trees": 3},
    "leaves only": {"column": lambda a: np.full_like(a, -1)},
    "splits only": {"column": np.zeros_like},
    "a child before its parent": {"column": lambda a: a[::-1]},
    "columns before the first": {"column": lambda a: a - 9},
    "a threshold more": {"threshold": lambda a: np.zeros(len(a) + 1)},
    "a leaf less": {"leaf": lambda a: a[:-1]},
    "a leaf beyond the values": {"leaf": lambda a: a + 1},
    "a leaf before the values": {"leaf": lambda a: a - 1},
    "an endless depth": {
        "n_trees": 1,
        "column": lambda _: np.append(CHAIN[:-1], -1),
        "threshold": lambda _: np.zeros(30_000),
        "leaf": lambda _: np.zeros(30_001, dtype=int),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", TREES)
def test_trees_are_trees(case):
    noun, arrays = encoded_objects([])["TreeArrays"]
    noun, arrays = deepcopy(noun), dict(arrays)
    for field, change in TREES[case].items():
        if callable(change):
            name = noun["fields"][field]["name"]
            arrays[name] = change(arrays[name])
        else:
            noun["fields"][field] = change
    began = time.process_time()
    with pytest.raises(ValueError, match="TreeArrays"):
        decode(noun, arrays)
    assert time.process_time() - began < 5.0  # seconds, on a busy machine too


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model"
    save(fitted("linear-gaussian"), path)
    return path


ATTRIBUTES = {
    "empty containers": {"kind": "list", "items": [{"kind": "list", "items": []}] * 300_000},
    "numbers": {"kind": "list", "items": list(range(1000, 1_500_000))},
    "strings of no shape": {"kind": "strings", "dtype": "<U1", "shape": [-1], "items": ["a"]},
    "strings of a part": {"kind": "strings", "dtype": "<U1", "shape": [2], "items": ["a"]},
    "a network without pixels": {
        "kind": "network", "name": "cnn", "input_shape": [-1, 8, 8], "n_outputs": 2
    },
    "a network without outputs": {
        "kind": "network", "name": "cnn", "input_shape": [1, 8, 8], "n_outputs": 0
    },
}  # fmt: skip


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_values_are_charged_before_they_are_built(case, saved):
    rewrite(saved, lambda header: header["attributes"].update(extra_=ATTRIBUTES[case]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="is not a model"):
        load(saved)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown <= 4 * saved.stat().st_size + 2**24


def test_names_in_the_outer_header_are_charged(saved):
    text = json.dumps({})
    metadata = {"skbayes_sym": text, "skbayes_sym_sha256": checksum(text, {})}
    saved.write_bytes(write({}, metadata | {f"{i}": "" for i in range(100_000)}))
    with pytest.raises(ValueError, match="is not a model"):
        load(saved)
