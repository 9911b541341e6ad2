"""The README's code runs as written, and does what it says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_code_blocks_run_and_learn():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README block {number}", "exec"), names)
        if number == 0:
            assert names["error"] < 0.13, "the first example's fit: its noise is 0.1"
            assert 0.85 < names["inside"] < 0.995, "95 % intervals hold about that share of the data"
        if number == 1:
            prediction, digits = names["prediction"], names["digits"]
            assert (prediction.probs.sum(1) - 1).abs().max() < 1e-5
            assert (prediction.labels == digits.labels[2048:2112]).float().mean() >= 0.8
        if number == 3:
            assert names["x"].posterior().var.max() < 1, "an observation leaves less uncertainty than the prior"
    net, average, x = names["net"], names["average"], names["x"]
    assert (average.net(x).mean - net(x).mean).abs().max() < 1e-5, "the mean of one posterior is that posterior"
