"""The commands, called in this process, find MNIST read already."""

import os

import pytest

from torchtagi.experiments import data


@pytest.fixture(autouse=True)
def read_once(digits, monkeypatch):
    read = data.load_train_test

    def load_train_test(name, *arguments, **options):
        here = name == "mnist" and "TAGI_DATA" not in os.environ
        return digits if here else read(name, *arguments, **options)

    monkeypatch.setattr(data, "load_train_test", load_train_test)
