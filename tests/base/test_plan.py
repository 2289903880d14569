"""Plans of default fits: stages and rules, and the plans that the user guide prints."""

import re
from pathlib import Path

import pytest

from skbayes_sym import BayesianMLPClassifier, BayesianMLPRegressor
from skbayes_sym.base.plan import PlannedStage, Rule, TableSize, execute, format_plan, never
from skbayes_sym.bayesian_mlp.defaults import PoolDefaults, PoolSettings
from skbayes_sym.bayesian_mlp.defaults import plan_fit as plan_mixture
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.stacking.defaults import StackSettings
from skbayes_sym.stacking.defaults import plan_fit as plan_stack
from skbayes_sym.stacking.members import MEMBERS

PAGE = Path(__file__).parents[2] / "docs/user_guide/auto.rst"

ACTIONS = {
    "add": lambda results, number: sum(results.values()) + number,
    "count": lambda results: len(results),
}


def test_stages_run_in_order_unless_a_rule_is_broken():
    is_small = Rule(lambda results: results["first"] < 10, "the first number is large")
    plan = [
        PlannedStage("first", "add", {"number": 20}),
        PlannedStage("second", "add", {"number": 1}, [is_small]),
        PlannedStage("third", "add", {"number": 1}, [never("it is too expensive")]),
        PlannedStage("fourth", "add", {"number": 2}),
    ]
    execution = execute(plan, ACTIONS)
    assert execution.results == {"first": 20, "fourth": 22}
    assert execution.skipped == {
        "second": "the first number is large",
        "third": "it is too expensive",
    }
    assert execution.unreached == []
    text = execution.format(plan, lambda name: f"result {execution.results[name]}")
    assert text.split("\n") == [
        "first (number=20): result 20",
        "second (number=1): skipped because the first number is large",
        "third (number=1): skipped because it is too expensive",
        "fourth (number=2): result 22",
    ]
    assert format_plan(plan[:2]).split("\n") == [
        "first: add(number=20)",
        "second: add(number=1)",
        "    skipped if the first number is large",
    ]


def test_a_stopped_plan_runs_only_its_last_stage():
    plan = [
        PlannedStage("first", "add", {"number": 1}),
        PlannedStage("second", "add", {"number": 1}),
        PlannedStage("last", "count", runs_after_stop=True),
    ]
    answers = iter([False, True])
    execution = execute(plan, ACTIONS, lambda: next(answers))
    assert execution.results == {"first": 1, "last": 1}
    assert execution.unreached == ["second"]


def numbers_of_rows(caption):
    """The numbers of rows for which a block in the user guide is the plan."""
    words = re.search(r", ([\d, and]+) rows", caption)[1]
    return [int(word.replace(",", "")) for word in words.split(" and ")]


def plan_by_caption(caption, n_rows):
    """Plan to which the caption of a block in the user guide belongs."""
    classes = re.search(r"(\d+) classes", caption)
    n_classes = int(classes[1]) if classes else 0
    size = TableSize(n_rows, 10, n_classes=n_classes, total_weight=float(n_rows))
    if "stack" in caption:
        members = {name: make_member() for name, make_member in MEMBERS.items()}
        return plan_stack(size, StackSettings(members))

    # The widths, and the numbers of modes and members, are those of the estimators.
    n_outputs = max(1, n_classes)
    if n_classes:
        estimator = BayesianMLPClassifier()
        likelihood = Categorical()
        width = GaussNewtonDefaults().choose_classification_width(
            n_rows, 10, n_outputs, estimator.n_modes
        )
    else:
        estimator = BayesianMLPRegressor()
        likelihood = Gaussian()
        width = GaussNewtonDefaults().choose_regression_width(n_rows, 10, n_outputs)
    settings = PoolSettings(
        estimator.n_modes,
        estimator.n_members,
        MLP(10, (width,), n_outputs, TANH),
        PoolDefaults().members_model(10, n_outputs, likelihood),
    )
    return plan_mixture(size, settings)


BLOCKS = re.findall(r":caption: (Plan of .*)\n\n((?:   .*\n)+)", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["stack", "mixture"])
def test_the_user_guide_prints_plans_of_three_sizes(kind):
    for task in ("regression", "classes"):
        captions = [text for text, _ in BLOCKS if kind in text and text.endswith(task)]
        sizes = [n_rows for caption in captions for n_rows in numbers_of_rows(caption)]
        assert sizes == [100, 1_000, 10_000]


@pytest.mark.parametrize(("caption", "block"), BLOCKS, ids=[caption for caption, _ in BLOCKS])
def test_plans_in_the_user_guide_are_those_of_the_code(caption, block):
    printed = re.sub(r"(?m)^   ", "", block).rstrip("\n")
    for n_rows in numbers_of_rows(caption):
        assert printed == format_plan(plan_by_caption(caption, n_rows))
