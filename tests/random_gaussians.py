"""Inputs for layers."""

import torch

from torchtagi import Gaussian


def random_gaussian(*shape: int, seed: int = 0, shift: float = 0.0) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = shift + torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64))
