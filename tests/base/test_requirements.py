"""Needs of methods are data: the checks follow them, and so does the table of the user guide."""

from collections.abc import Mapping, Sequence
from inspect import getdoc, signature
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from cases import LaplaceNoise
from sklearn.utils.validation import has_fit_parameter

import skbayes_sym
from skbayes_sym.base.requirements import SOFTMAX, Method, Requirement, Requirements
from skbayes_sym.mcmc.fit import Sampling
from skbayes_sym.models import (
    MLP,
    TANH,
    BaseNetwork,
    Categorical,
    Gaussian,
    Likelihood,
    Model,
    NaturalHeteroscedastic,
    Normal,
    Prior,
)
from skbayes_sym.models.likelihoods.registry import (
    CLASSIFICATION_LIKELIHOODS,
    REGRESSION_LIKELIHOODS,
)
from skbayes_sym.symmetry import Trivial

PAGE = Path(__file__).parents[2] / "docs" / "user_guide" / "custom_model.rst"
BEGIN, END = (f".. compatibility: {word}\n" for word in ("begin", "end"))
LIKELIHOODS_PAGE = PAGE.parent / "likelihoods.rst"
LIKELIHOODS_MARKERS = (".. likelihoods: begin\n", ".. likelihoods: end\n")
REMEDY = f"write the tables of the user guide anew: PYTHONPATH=tests python {__file__}"

ESTIMATORS = [
    name
    for name in skbayes_sym.__all__
    if hasattr(getattr(skbayes_sym, name), "_scale_inputs")
    # Members of a stack have requirements of their own, and ratings have no network.
    and not name.startswith(("PredictiveStacking", "SymVIMatrixFactorization"))
]


def needs_of(name: str) -> dict[str, Requirements]:
    """Of an estimator's methods: one, or one an optimizer."""
    kind = getattr(skbayes_sym, name)
    if not hasattr(kind, "_gauss_newton"):
        made = get_type_hints(kind._make_method)["return"]
        # A sampler's may be one of two, which ask for the same.
        return {f"`{name}`": Sampling.requirements if made is Method else made.requirements}
    makers = {"gauss-newton": kind._gauss_newton, "adam": kind._adam}
    return {
        f'`{name}` (``optimizer="{how}"``)': get_type_hints(make)["return"].requirements
        for how, make in makers.items()
    }


NEEDS = {label: needs for name in ESTIMATORS for label, needs in needs_of(name).items()}


def rows() -> dict[str, Requirements]:
    """Estimators with the same needs in one row, in the order of the package."""
    found: dict[Requirements, list[str]] = {}
    for name, needs in NEEDS.items():
        found.setdefault(needs, []).append(name)
    return {", ".join(names): needs for needs, names in found.items()}


def table(rows: Mapping[str, Requirements]) -> str:
    """Needs by estimators as a table of the user guide (reStructuredText)."""
    columns = ("", *(name.capitalize() for name in Requirements._fields))
    cells = ((name, *(need.label for need in rows[name])) for name in rows)
    return list_table("34 20 26 20", [columns, *cells])


def likelihood_table(
    likelihoods: Mapping[str, Likelihood], rows: Mapping[str, Requirements]
) -> str:
    """Likelihoods, and the estimators that take each, as a table of the user guide."""
    cells: list[Sequence[str]] = [("", "A target, given the outputs", "Taken by")]
    for name, likelihood in likelihoods.items():
        summary = (getdoc(likelihood) or "").splitlines()[0]
        takers = [row for row, needs in rows.items() if needs.likelihood.is_met(likelihood)]
        cells.append((name, summary, ", ".join(takers)))
    return list_table("22 34 44", cells)


def list_table(widths: str, rows: Sequence[Sequence[str]]) -> str:
    lines = [
        ".. list-table::", "   :header-rows: 1", "   :stub-columns: 1", "   :class: sk-wrap",
        f"   :widths: {widths}", "",
    ]  # fmt: skip
    for cells in rows:
        lines += [f"   {' ' if i else '*'} - {cell}".rstrip() for i, cell in enumerate(cells)]
    return "\n".join(lines)


@pytest.mark.skipif(not PAGE.is_file(), reason="a checkout has the pages")
def test_the_user_guide_says_what_the_code_asks_for() -> None:
    assert replaced(PAGE, table(rows()), BEGIN, END) == PAGE.read_text(encoding="utf-8"), REMEDY
    assert len(ESTIMATORS) > 12


def replaced(page: Path, content: str, begin: str, end: str) -> str:
    """Text of a page with other content between two markers."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    return f"{before}{begin}\n{content}\n\n{end}{rest.partition(end)[2]}"


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_of_rows_takes_a_device_and_weights(name: str) -> None:
    kind = getattr(skbayes_sym, name)
    assert "device" in signature(kind).parameters
    assert has_fit_parameter(kind, "sample_weight")


def taken() -> str:
    """Likelihoods of numbers, then of classes, each with the estimators of its kind."""
    targets = named(REGRESSION_LIKELIHOODS)
    targets["``NaturalHeteroscedastic()``"] = NaturalHeteroscedastic()
    kinds = {"Regressor": targets, "Classifier": named(CLASSIFICATION_LIKELIHOODS)}
    tables = [
        likelihood_table(likelihoods, {k: v for k, v in NEEDS.items() if kind in k})
        for kind, likelihoods in kinds.items()
    ]
    return "\n\n".join(tables)


def named(likelihoods: Mapping[str, Likelihood]) -> dict[str, Likelihood]:
    return {f'``"{name}"``, ``{type(v).__name__}()``': v for name, v in likelihoods.items()}


@pytest.mark.skipif(not PAGE.is_file(), reason="a checkout has the pages")
def test_the_user_guide_says_who_takes_which_likelihood() -> None:
    content = taken()
    text = LIKELIHOODS_PAGE.read_text(encoding="utf-8")
    assert replaced(LIKELIHOODS_PAGE, content, *LIKELIHOODS_MARKERS) == text, REMEDY
    assert "MCMCRegressor" in content
    assert content.count("LayerwiseVIRegressor") == 1  # normal noise alone


class Plain(BaseNetwork):
    """A network of one's own that shows nothing of its inside."""

    layout = MLP(2, (3,), 1, TANH).layout
    n_outputs = 1

    def init(self, n, *, generator):
        raise NotImplementedError

    def forward(self, theta, x):
        raise NotImplementedError


class Heavy(Prior):
    def log_prob(self, theta):
        raise NotImplementedError

    def sample(self, n, *, generator):
        raise NotImplementedError


NETWORK = MLP(2, (3,), 1, TANH)
KNOWN = Model(NETWORK, Gaussian(), Normal(1.0).bind(NETWORK.layout), Trivial())
OWN = {
    "likelihood": LaplaceNoise(torch.zeros(1)), "network": Plain(), "prior": Heavy(),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("noun", OWN)
def test_what_is_not_any_is_refused_by_name_with_a_remedy(name: str, noun: str) -> None:
    needs = NEEDS[name]
    known = KNOWN._replace(likelihood=Categorical()) if needs.likelihood is SOFTMAX else KNOWN
    own = known._replace(**{noun: OWN[noun]})
    needs.check(known)
    need: Requirement = getattr(needs, noun)
    if need.label.startswith(("Any", "None")):
        needs.check(own)
    else:
        with pytest.raises(
            (TypeError, ValueError), match=f"^{noun}=.*{type(OWN[noun]).__name__}"
        ) as e:
            needs.check(own)
        assert str(e.value).endswith(need.remedy)


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE, table(rows()), BEGIN, END), encoding="utf-8")
    new = replaced(LIKELIHOODS_PAGE, taken(), *LIKELIHOODS_MARKERS)
    LIKELIHOODS_PAGE.write_text(new, encoding="utf-8")
