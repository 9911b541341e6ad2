"""What a training of a GAN was asked for. Every knob that shifts the game's balance is a field here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from torchtagi.experiments.classify.config import describe_change
from torchtagi.experiments.gan.heads import CONTINUOUS_NOISES
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.experiments.runs.config import RunConfig, check_device, whole
from torchtagi.inference.update import RULES
from torchtagi.nn.affine import PRECISIONS

METHODS = ("tagi", "adam")
INFERENCE_ONLY = (
    *("rule", "reality_noise_std", "code_noise_std", "continuous_noise_std", "continuous_noise", "noise_decay"),
    *("noise_floor", "generator_reality_noise_std", "generator_code_noise_std", "generator_continuous_noise_std"),
    *("use_running", "lead", "joint", "count_frozen", "count_sharing", "memory", "real_code_noise_std"),
    *("relu_prior", "stride_prior", "output_gain", "code_gain", "var_gain", "precision"),
)
REAL_CODES = ("real_code_noise_std", "real_code_weight")  # by inference, and by backprop
BACKPROP_ONLY = (
    *("discriminator_lr", "generator_lr", "code_weight", "generator_code_weight", "continuous_weight"),
    "real_code_weight",
)


@dataclass(frozen=True)
class GanConfig(RunConfig):
    """Everything that decides what a run becomes; `configure_gan` fills it in.

    `INFERENCE_ONLY` and `BACKPROP_ONLY` list the fields that one method alone reads.
    """

    method: str
    """`tagi`, inference; `adam`, the same networks by backprop."""
    rule: str
    """The update's rule: coherent, paper or capped."""
    reality_noise_std: float
    """σ_P: larger makes Pnet's labels quieter, so that D learns slower to tell images apart."""
    code_noise_std: float
    """σ_Q of the categorical codes: smaller makes the codes louder beside the labels."""
    continuous_noise_std: float
    """σ of the continuous codes; where it is learned, its floor."""
    continuous_noise: str
    """`fixed`; `learned`, one noise a code from what Qnet misses; `predicted` by Qnet for each image."""
    noise_decay: float
    """Each epoch multiplies the noises by this (eq. 7) …"""
    noise_floor: float
    """… but not below this (0.3 in the authors' code)."""
    generator_reality_noise_std: float | None
    """σ_P in G's part; None is the same as D's. It decays alike."""
    generator_code_noise_std: float | None
    """σ_Q of the categorical codes in G's part; None is the same as D's. It decays alike."""
    generator_continuous_noise_std: float | None
    """σ of the continuous codes in G's part; None is the same as D's, learned or not. It decays alike."""
    use_running: bool
    """Normalise D with running statistics in training too: real and generated images on one scale."""
    label_noise: float
    """The probability with which D is told the opposite of the truth about an image."""
    grain: float = field(default=0.0, kw_only=True)
    """Standard deviation of a noise on every pixel that D sees, of real and generated images alike: without it the
    exactly constant paper of real digits gives them away."""
    lead: float | None
    """The largest lead of Pnet, half the distance of its mean outputs for generated and real images (1 is perfect),
    at which D still learns labels; the codes it learns always. None: no limit."""
    discriminator_every: int
    """D learns from every so-manieth batch only."""
    generator_steps: int
    """How often G learns in each batch; from the second time on with fresh latent points."""
    joint: bool
    """D learns from real and generated images in one step instead of one after the other."""
    count_frozen: bool
    """Count the frozen networks' uncertainty in G's line search (see `gan.game`)."""
    count_sharing: bool
    """Count that a convolution's weight acts at many places (`Update`)."""
    real_code_noise_std: float | None = field(default=None, kw_only=True)
    """Noise with which Qnet observes a class at a distorted copy of each real image: the one it reads of the image,
    every class as often as any other (`gan.grouping`). It decays alike. None: of real images it learns no codes."""
    memory: int | None = field(default=None, kw_only=True)
    """How many images the players remember (`Update`); None: all. What was learned of images that G no longer draws
    is not evidence of those it draws now."""
    relu_prior: bool
    """Prior means at He et al.'s scale, 2/fan_in, in all but each network's last layer."""
    stride_prior: bool
    """Count in G's transposed convolutions only the weights that reach an output pixel, a share 1/stride² of the
    kernel: prior means are larger by the stride. Otherwise every such layer halves what images differ by."""
    output_gain: float
    """Factor on the prior's standard deviations, means and variances, of G's last layer: how loud the first images
    are."""
    code_gain: float = field(default=1.0, kw_only=True)
    """Factor on the prior's standard deviations of the weights by which G hears codes: four nodes of a class beside
    62 noise units are drowned out, and the noise says which digit it is."""
    var_gain: float
    """Factor on the prior standard deviations of all weights, D's and G's: larger learns faster at first."""
    discriminator_lr: float
    generator_lr: float
    code_weight: float
    """λ of the categorical codes in the rival's loss."""
    generator_code_weight: float | None = field(default=None, kw_only=True)
    """λ of the categorical codes in the loss of the rival's G; None is the same as D's."""
    continuous_weight: float
    """λ of the continuous codes in the rival's loss."""
    real_code_weight: float | None = field(default=None, kw_only=True)
    """λ of the classes of real images in the rival's loss (`gan.grouping`); None: none."""
    average: int = field(default=0, kw_only=True)
    """Images are drawn, and codes read, by the mean of about so many states of the players, the last ones
    (`averaging`); 0: by the last. The game itself is played without it."""
    precision: str = field(default="float32", kw_only=True)
    """What convolutions multiply in (`multiply_in`)."""
    judge: str | None
    """Who reads the generated digits after each epoch: `quick`, a run folder of `tagi train mnist`, or nobody."""

    def __post_init__(self) -> None:
        find_gan_task(self.task)
        for name, value, known in (
            ("rule", self.rule, RULES),
            ("method", self.method, METHODS),
            ("continuous noise", self.continuous_noise, CONTINUOUS_NOISES),
            ("precision", self.precision, PRECISIONS),
        ):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        for name in ("epochs", "batch_size", "threads", "discriminator_every", "generator_steps"):
            whole(name, getattr(self, name), 1)
        for name in ("samples", "test_samples"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 2)
        if self.memory is not None:
            whole("memory", self.memory, 1)
        whole("average", self.average, 0)
        self.check_seed()
        for name in ("reality_noise_std", "code_noise_std", "continuous_noise_std", "noise_floor", "output_gain"):
            positive(name, getattr(self, name))
        for name in ("code_gain", "var_gain", "discriminator_lr", "generator_lr"):
            positive(name, getattr(self, name))
        own = ("generator_reality_noise_std", "generator_code_noise_std", "generator_continuous_noise_std")
        for name in (*own, "real_code_noise_std", "real_code_weight", "generator_code_weight", "lead"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in REAL_CODES:
            if getattr(self, name) is not None and not find_gan_task(self.task).space.categories:
                raise ValueError(f"{self.task} has no categorical codes: it takes no {name.replace('_', ' ')}")
        if not 0 < self.noise_decay <= 1:
            raise ValueError(f"noise decay must lie in (0, 1], got {self.noise_decay}")
        if not (self.grain >= 0 and math.isfinite(self.grain)):
            raise ValueError(f"grain must be finite and not negative, got {self.grain}")
        if not 0 <= self.label_noise < 0.5:
            raise ValueError(f"label noise must lie in [0, 0.5), got {self.label_noise}")

    def decayed(self, noise_std: float, epoch: int) -> float:
        """A noise in the epoch of that number, from 0: σ⁰ ηᵉ (eq. 7), not below the floor, nor raised by it."""
        return max(noise_std * self.noise_decay**epoch, min(self.noise_floor, noise_std))


NOT_IN_SETTING = ("task", "network", "setting", "seed", "epochs", "device", "threads", "precision", "judge")


def configure_gan(
    task: str,
    *,
    method: str = "tagi",
    paper: bool = False,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    **changes: Any,
) -> GanConfig:
    """Our defaults, or the paper's setting (§4, Appendix B), with `changes`; what differs shows in `setting`."""
    kind = find_gan_task(task)
    check_device(device)
    if paper and method != "tagi":
        raise ValueError("the paper's setting is that of its own method: --paper goes with method tagi")
    # A digit survives distortion; of a face's ten codes it is not known what they should be.
    groups = not paper and kind.has_digits and kind.qnet is not None
    # What a class is, Qnet learns from real images then, and hardly from generated ones; without them it has to.
    real_codes = groups and all(changes.get(name, 1.0) is not None for name in REAL_CODES)
    base: dict[str, Any] = {
        "task": task,
        "network": kind.network,
        "setting": "paper" if paper else "default" if method == "tagi" else method,
        "seed": seed,
        "device": device,
        "threads": torch.get_num_threads() if threads is None else threads,
        "method": method,
        "epochs": 50 if paper else kind.default_epochs,
        "batch_size": 16,
        "rule": "paper" if paper else "coherent",
        # docs/design.md says how these were chosen: D is quick to see what is wrong with digits, and slow with
        # faces, whose ten codes must not drown out the labels.
        "reality_noise_std": kind.reality_noise_std if paper else 3.0 if kind.has_digits else 1.0,
        "code_noise_std": kind.code_noise_std if paper else 20.0 if real_codes else 0.5 if kind.has_digits else 3.0,
        "continuous_noise_std": kind.code_noise_std if paper else 0.5,
        "continuous_noise": "fixed",
        "noise_decay": 0.975,
        "noise_floor": 0.3,
        "generator_reality_noise_std": None if paper else 1.0,
        "generator_code_noise_std": None if paper else 1.0 if real_codes else 2.0 if kind.has_digits else 3.0,
        "generator_continuous_noise_std": None,
        "use_running": True,
        "label_noise": 0.0,
        "grain": 0.0 if paper else 0.2,
        "lead": None,
        "discriminator_every": 1,
        "generator_steps": 1,
        "joint": not paper,
        "count_frozen": not paper,
        "count_sharing": not paper,
        "real_code_noise_std": 0.5 if groups and method == "tagi" else None,
        "memory": None if paper else 20_000,
        # Six layers deep, the faces' generator would start with images that hardly differ (docs/design.md).
        "relu_prior": not paper and not kind.has_digits,
        "stride_prior": not paper and not kind.has_digits,
        "output_gain": 1.0,
        "code_gain": 1.0 if paper else 2.0,
        "var_gain": 1.0,
        "discriminator_lr": 2e-4,  # Chen et al. (2016): 2e-4 for D and 1e-3 for G
        "generator_lr": 1e-3,
        "code_weight": 0.01 if real_codes and method == "adam" else 1.0,
        "generator_code_weight": 1.0 if real_codes and method == "adam" else None,
        "continuous_weight": 0.1,
        "real_code_weight": 1.0 if groups and method == "adam" else None,
        "average": 0 if paper else 500,
        "precision": "float32",
        "judge": "quick" if kind.has_digits else None,
        "samples": None,
        "test_samples": None,
    }
    unknown = [name for name in changes if name not in base]
    if unknown:
        raise ValueError(f"a game has no setting {', '.join(unknown)}")
    foreign = [name for name in changes if name in (BACKPROP_ONLY if method == "tagi" else INFERENCE_ONLY)]
    if foreign:
        raise ValueError(f"method {method} has no {', '.join(foreign)}")
    differing = [name for name in changes if name not in NOT_IN_SETTING and changes[name] != base[name]]
    setting = base["setting"] + "".join(describe_change(name, changes[name]) for name in differing)
    return GanConfig(**{**base, **changes, "setting": setting})


def positive(name: str, value: Any) -> None:
    if not (isinstance(value, int | float) and value > 0 and math.isfinite(value)):
        raise ValueError(f"{name.replace('_', ' ')} must be positive and finite, got {value!r}")
