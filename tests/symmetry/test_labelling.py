"""Steps of the coordinate descent: elements and draws agree, and no step fits worse."""

import pytest
import torch
from symmetry.planted import CASES, planted, product_of
from torch.testing import assert_close

from skbayes_sym.symmetry.labelling import Labelling

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_draws_are_where_their_elements_lead(case, generator):
    _, draws = planted(case, 30, 0.5, generator)
    given = Labelling.given(draws, case.group)
    assert_close(given.theta, draws, rtol=0, atol=0)
    reference = given.reference()
    anew = given.forward(reference)
    mask = torch.rand(30, generator=generator) < 0.5
    for labelling in (anew, anew.descended(reference, 10), anew.where(mask, given)):
        moved = product_of(case).act(labelling.elements, draws)
        assert_close(labelling.theta, moved, rtol=0, atol=0)


@every_case
@pytest.mark.parametrize("thorough", [True, False])
def test_every_draw_fits_at_least_as_well(case, thorough, generator):
    _, draws = planted(case, 30, 0.5, generator)
    given = Labelling.given(draws, case.group)
    reference = given.reference()
    improved, moved = given.improved(reference, thorough=thorough)
    before, after = given.log_prob(reference), improved.log_prob(reference)
    assert bool((after[moved] > before[moved]).all())
    assert_close(improved.theta[~moved], draws[~moved], rtol=0, atol=0)


@every_case
def test_planted_labels_come_back_from_the_planted_reference(case, generator):
    theta, draws = planted(case, 30, 0.02, generator)
    reference = Labelling.given(theta, case.group).reference()
    given = Labelling.given(draws, case.group)
    assert_close(given.forward(reference).descended(reference, 10).theta, theta, rtol=0, atol=0)
