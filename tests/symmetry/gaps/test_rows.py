"""Which gap is known of independent rows."""

import pytest
import torch

from skbayes_sym.symmetry.gaps.rotations import AnchoredRotationGap, IsotropicRotationGap
from skbayes_sym.symmetry.gaps.rows import row_gap
from skbayes_sym.symmetry.gaps.sign_flips import SignFlipGap
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units


def test_the_gap_of_rows_by_group():
    index = torch.arange(12).view(4, 3)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=True), IsotropicRotationGap)
    assert isinstance(row_gap(Orthogonal(index), is_isotropic=False), AnchoredRotationGap)
    one = row_gap(Orthogonal(index.view(12, 1)), is_isotropic=False)
    assert isinstance(one, SignFlipGap)
    assert (one.group.n_units, one.group.permutes, one.group.flips) == (1, False, True)
    flips = row_gap(Units(index.mT, permute=False, flip=True), is_isotropic=False)
    assert isinstance(flips, SignFlipGap)
    with pytest.raises(TypeError, match="no gap of independent rows is known under object"):
        row_gap(object(), is_isotropic=False)
