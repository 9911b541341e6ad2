"""Ordinary layers learn by Adam what Gaussian layers behind them learn by inference, in one loop."""

import torch
from torch import nn

import torchtagi as tagi
from torchtagi.experiments import data


def test_a_torch_trunk_and_a_gaussian_head_learn_digits_together() -> None:
    """With gradients of the wrong sign a tenth of the digits would be right; with none to the trunk about 60 %."""
    train, test = data.load("mnist", "train"), data.load("mnist", "test")
    torch.manual_seed(0)
    trunk = nn.Sequential(
        *(nn.Conv2d(1, 24, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(24, 48, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(768, 128), nn.ReLU()),
    )
    likelihood = tagi.HierarchicalClassification(10, noise_std=0.1, learn_noise=True)
    head = tagi.nn.Linear(128, likelihood.outputs)
    adam, update = torch.optim.Adam(trunk.parameters(), 2e-3), tagi.Update(head)
    for batch in torch.randperm(len(train.labels))[:10_000].split(16):
        loss = likelihood(head(trunk(train.images[batch])), train.labels[batch])
        loss.backward()
        adam.step()
        update.step()
        adam.zero_grad()
        update.zero_grad()
    with torch.no_grad():
        predicted = likelihood.predict(head(trunk(test.images[:1000])))
    right = (predicted.labels == test.labels[:1000]).double().mean().item()
    assert right >= 0.97
