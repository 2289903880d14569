"""Work by the gradients made, whatever the machine."""

import torch

from skbayes_sym.inference.sampling.modes.confined import A_MOVE, Allowance


def test_chains_of_a_block_share_their_calls():
    """10 and 30 calls of 2 and 3 chains, one of which made only 20 of its gradients."""
    ledger = Allowance(1e6)
    made, moves = torch.tensor([10, 10, 30, 30, 20]), torch.tensor([2, 2, 3, 3, 3])
    calls, gradients = 10 + 30 + 20, 10 + 10 + 30 + 30 + 20
    alone = ledger.work(calls, 0.0) + gradients * 1e6
    assert ledger.of_moves(made, 0 * moves, 2) == alone
    assert ledger.of_moves(made, moves, 2) == alone + ledger.work(A_MOVE * (2 + 3 + 3), 0.0)
    together = ledger.work(10 + 30, 0.0) + gradients * 1e6  # blocks of three
    assert ledger.of_moves(torch.tensor([10, 10, 0, 30, 30, 20]), torch.zeros(6), 3) == together


def test_a_sum_that_shrinks():
    allowance = Allowance(1.0, 100.0)
    assert allowance.part(0.3) == 30.0
    allowance.left -= 170.0
    assert allowance.part(0.5) == 0.0
