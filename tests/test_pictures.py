"""The code of docs/pictures.md runs, and shows what its text says; the script that draws knows every picture."""

import re
import runpy
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


def test_what_the_pictures_show() -> None:
    text = (ROOT / "docs" / "pictures.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    for number, block in enumerate(blocks, 1):
        shorter = block.replace("epochs=50", "epochs=15")  # enough for what is asserted here
        exec(compile(shorter, f"pictures block {number}", "exec"), names)

    at = names["grid"][:, 0]
    gap, left, right = (at > 0.5) & (at < 1.5), (at > -3.5) & (at < -0.5), (at > 2.5) & (at < 3.5)
    learned, predicted = names["predictions"]["learned"], names["predictions"]["predicted"]
    assert learned.epistemic[gap].mean() > 5 * learned.epistemic[left | right].mean(), "the gap is seen"
    assert learned.aleatoric.std() < 1e-6, "one number"
    assert predicted.aleatoric[right].mean() > 1.5 * predicted.aleatoric[left].mean()
    assert (learned.mean[left] - torch.sin(1.5 * names["grid"][left])).abs().mean() < 0.15

    entropy = names["maps"].entropy.view_as(names["first"])
    points = torch.tensor(names["points"]).float()
    classified = names["classifier"].predict(points)
    assert (classified.labels != torch.tensor(names["labels"])).float().mean() < 0.05
    assert entropy[-1].max() > 0.6, "far off, the boundary is wide"
    assert classified.entropy.mean() < 0.25 < entropy.max()

    answer = names["found"].mean
    assert (names["average"].net(answer).mean - 1.5).abs() < 0.05
    assert (names["surface"](answer) - 1.5).abs() < 0.15
    assert (names["found"].var < 0.25).all()


def test_each_picture_of_the_page_has_a_function() -> None:
    drawn = runpy.run_path(str(ROOT / "benchmarks" / "picture.py"))["PICTURES"]
    shown = re.findall(r"\(figures/(\w+)\.png\)", (ROOT / "docs" / "pictures.md").read_text())
    assert sorted([*shown, "regression"]) == sorted(drawn)
    for name in drawn:
        assert (ROOT / "docs" / "figures" / f"{name}.png").stat().st_size < 120_000
