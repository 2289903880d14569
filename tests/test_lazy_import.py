"""Names of the package are imported when they are first used."""

import subprocess
import sys

import pytest

import skbayes_sym

MOST_MODULES = 106  # a third of the 318 that `import skbayes_sym` loaded before names were lazy


def test_every_name_is_there_and_listed():
    assert set(skbayes_sym._MODULES) == set(skbayes_sym.__all__) <= set(dir(skbayes_sym))
    for name in skbayes_sym.__all__:
        assert getattr(skbayes_sym, name).__name__ == name
    for name in skbayes_sym._ROOMS:
        assert getattr(skbayes_sym, name).__name__ == f"skbayes_sym.{name}"
    with pytest.raises(AttributeError, match="no attribute 'BayesianForest'"):
        skbayes_sym.BayesianForest  # noqa: B018


def test_a_linear_model_loads_no_sampler_and_no_inspection():
    code = (
        "import sys\nfrom skbayes_sym import BayesianLinearRegressor\n"
        "print(*(m for m in sys.modules if m.startswith('skbayes_sym')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = run.stdout.split()
    assert 10 < len(modules) <= MOST_MODULES
    for room in ("inspection", "model_selection", "saving", "inference.sampling"):
        assert not any(m.startswith(f"skbayes_sym.{room}") for m in modules), room
