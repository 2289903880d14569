"""Matrices of log weights."""

import math

import torch

INF = math.inf


def random_log_weights(*shape, scale=1.0, seed=0):
    noise = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return scale * noise


def float64(value):
    return torch.tensor(value, dtype=torch.float64)
