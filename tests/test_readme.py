"""The README's code runs as written, and does what it says."""

import re
from pathlib import Path

import torch

README = Path(__file__).parent.parent / "README.md"


def test_code_blocks_run_and_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {}

    def run(number: int) -> None:
        exec(compile(blocks[number], f"README block {number}", "exec"), names)

    run(0)
    assert names["scores"]["error"] < 12
    assert (names["prediction"].probs.sum(1) - 1).abs().max() < 1e-5
    run(1)
    assert 0.9 < names["inside"] <= 1, "95 % intervals hold about that share of the data"
    run(2)
    assert (names["std"] > 0).all()
    run(3)
    assert names["report"]["innovation"] >= 0
    assert (tmp_path / "model.safetensors").is_file()
    run(4)
    assert names["z"].shape == (5, 2)
    run(5)
    assert names["loss"].isfinite()
    run(6)
    trained, net = names["trained"], names["net"]
    assert torch.equal(net[0].weight.mean, trained[0].weight)
