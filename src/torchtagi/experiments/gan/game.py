"""One step of the game by inference: the paper's Figure 1 without codes, Figure 2 with them.

    1  D and P observe real images as real                                          (Figure 2a, real image)
    2  G draws once; D, P, Q observe its images as generated, and the codes they were drawn from    (Figure 2a)
    3  the updated D, P, Q are run again on the same images, observe "real" and the codes, and only G is updated by
       the message that reaches it through them                                                     (Figure 2b)

G's images enter with their means *and variances*. They are functions over any networks: a `Game` holds the players,
what their heads observe, and one `Update` a player.

In part 3 the predictive variance v is not G's alone: D, P and Q are uncertain too, and do not move. Marginalising
over them, the exact step of G's weights is S_G J_Gᵀ (K_G + K_F + R)⁻¹ r, K_F = J_F S_F J_Fᵀ the frozen networks'
share of the outputs' covariance over the batch, so the best length along G's message is

    α = Σ r·dm / (q_G + q_F + Σ R dm²),          q_F = dmᵀ K_F dm = Σ over frozen parameters of s g²

q_F is read from the messages on the frozen weights, which nobody applies. Its diagonal, Σ v_F dm², would take the
frozen share for noise that is independent from image to image; but a batch of generated images resembles itself,
one opinion of D is shared by all of them, and q_F is up to the batch's size times larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtagi.experiments.gan.freezing import frozen
from torchtagi.experiments.gan.heads import FAKE, REAL, CodeLikelihood, Heads
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.players import Players, Verdict
from torchtagi.gaussian import Gaussian, cat
from torchtagi.inference.update import Update


@dataclass
class Game:
    """The players with their updates, and the rules of the game that are not in the figures.

    `heads` are the likelihoods of D's part, `generator_heads` those of G's part (the same unless given): with a
    noise of its own, G's wish to pass for real is louder or quieter than D's labels.
    `label_noise` is the probability with which D is told the opposite of the truth about an image.
    `grain` is the standard deviation of a noise on every pixel that D sees, drawn anew each time (instance noise,
    Arjovsky and Bottou 2017): both kinds of images then overlap.
    `lead` is the largest lead of Pnet, (mean output for generated − mean output for real images)/2 of the last
    batch, at which D is still told labels; it learns the codes in any case.
    `joint` lets D learn from the real and the generated images as one batch instead of one after the other.
    `count_frozen` counts the uncertainty of the frozen networks in G's step.
    `count_sharing` counts that a convolution's weight acts at many places (`Update`).
    `memory` is the number of images that the players remember (`Update`).
    """

    players: Players
    space: LatentSpace
    heads: Heads
    generator_heads: Heads | None = None
    rule: str = "coherent"
    label_noise: float = 0.0
    grain: float = 0.0
    lead: float | None = None
    joint: bool = False
    count_frozen: bool = True
    count_sharing: bool = True
    memory: int | None = None
    discriminator_update: Update = field(init=False)
    generator_update: Update = field(init=False)

    def __post_init__(self) -> None:
        if not 0 <= self.label_noise < 0.5:
            raise ValueError(f"label_noise must lie in [0, 0.5), got {self.label_noise}")
        discriminator = self.players.discriminator
        if self.space.has_codes != (discriminator.codes is not None) or self.space.has_codes != (
            self.heads.codes is not None
        ):
            raise ValueError(
                "a latent space with codes needs a Qnet and a likelihood for them, one without neither"
            )
        options: dict[str, Any] = {"count_sharing": self.count_sharing, "horizon": self.memory}
        self.discriminator_update = Update(discriminator, self.rule, **options)
        self.generator_update = Update(
            self.players.generator,
            self.rule,
            outputs=discriminator,
            frozen=[discriminator] if self.count_frozen else (),
            **options,
        )

    def zero_grad(self) -> None:
        self.discriminator_update.zero_grad()
        self.generator_update.zero_grad()

    @property
    def gives_labels(self) -> bool:
        """Whether D is told labels now, or is too far ahead."""
        return self.lead is None or self.heads.lead.item() <= self.lead

    def look(self, images: Gaussian, codes_from: int | None = 0) -> Verdict:
        """D's verdict of images with grain."""
        if self.grain:
            images = images + with_grain(images.mean, self.grain)
        verdict: Verdict = self.players.discriminator(images, codes_from=codes_from)
        return verdict

    def label(self, z: Gaussian, value: float) -> Tensor:
        """The labels given to D: `value`, but for the share of them that lies."""
        labels = torch.full_like(z.mean, value)
        if self.label_noise:
            lies = torch.rand(z.shape).to(z.device) < self.label_noise
            labels = torch.where(lies, -labels, labels)
        evidence: Tensor = self.heads.reality(z, labels)
        return evidence


def with_grain(images: Tensor, grain: float) -> Tensor:
    """The noise of images with grain, drawn on the CPU, so that every device draws the same."""
    return grain * torch.randn(images.shape).to(images)


@dataclass(frozen=True)
class StepReport:
    """What happened in a step. Pnet's opinions are the mean outputs before it learned: −1 real, +1 generated."""

    real: float
    fake: float
    fooled: float  # Pnet's mean output on the same generated images after it learned
    code_error: float  # share of the categorical codes that Qnet read wrongly, before it learned
    discriminator_alpha: float
    generator_alpha: float
    generator_innovation: float  # mean r²/(v+R) in G's part
    largest_pixel: float  # |mean| of the generated images: a game that runs off shows here first


def step(game: Game, real: Tensor, latents: Latents, discriminates: bool = True) -> StepReport:
    """Parts 1, 2 and 3 with one batch of real images and one of latent points; with `discriminates=False` part 3
    alone."""
    images = generate(game, latents)
    real_opinion = fake_opinion = code_error = discriminator_alpha = float("nan")
    if discriminates:
        real_opinion, fake_opinion, code_error = teach_discriminator(game, real, images, latents)
        if game.discriminator_update.reports:
            discriminator_alpha = game.discriminator_update.reports[0]["alpha"]
    fooled = teach_generator(game, images, latents)
    report = game.generator_update.reports[0]
    return StepReport(
        real=real_opinion,
        fake=fake_opinion,
        fooled=fooled,
        code_error=code_error,
        discriminator_alpha=discriminator_alpha,
        generator_alpha=report["alpha"],
        generator_innovation=report["innovation"],
        largest_pixel=images.mean.detach().abs().max().item(),
    )


def generate(game: Game, latents: Latents) -> Gaussian:
    """G's images of these latent points, ready to bring a message back."""
    device = next(game.players.generator.parameters()).device
    images: Gaussian = game.players.generator(game.space.encode(latents.to(device)))
    return images


def teach_discriminator(game: Game, real: Tensor, images: Gaussian, latents: Latents) -> tuple[float, float, float]:
    """Parts 1 and 2. Returns Pnet's mean opinion of real and of generated images, and the share of the codes that
    Qnet read wrongly, each before it learned from them."""
    update = game.discriminator_update
    gives_labels = game.gives_labels
    game.zero_grad()
    evidence: list[Tensor] = []
    if game.joint and gives_labels:
        verdict = game.look(cat([Gaussian(real), images.detach()]), codes_from=len(real))
        of_real, of_images = verdict.reality[: len(real)], verdict.reality[len(real) :]
        evidence.append(game.label(of_real, REAL))
    else:
        of_real = game.look(Gaussian(real), codes_from=None).reality
        if gives_labels:
            game.label(of_real, REAL).backward()
            update.step()
            game.zero_grad()
        verdict = game.look(images.detach())
        of_images = verdict.reality
    real_opinion, fake_opinion = of_real.mean.mean().item(), of_images.mean.mean().item()
    if gives_labels:
        evidence.append(game.label(of_images, FAKE))
    code_error = float("nan")
    if game.heads.codes is not None:
        here = latents.to(verdict.codes.device)
        if game.space.categories:
            code_error = (game.heads.codes.read(verdict.codes) != here.categories).float().mean().item()
        evidence.append(game.heads.codes(verdict.codes, here))
    if evidence:
        torch.stack(evidence).sum().backward()
        update.step()
        game.zero_grad()
    game.heads.lead.fill_((fake_opinion - real_opinion) / 2)
    return real_opinion, fake_opinion, code_error


def teach_classes(game: Game, real: Tensor, classes: Tensor, likelihood: CodeLikelihood | None = None) -> None:
    """Qnet observes classes, (n, categorical codes), at real images (`gan.grouping`), as `likelihood` says or else
    as at generated ones. Pnet learns nothing."""
    likelihood = likelihood or game.heads.codes
    assert likelihood is not None
    game.zero_grad()
    likelihood.of_classes(game.look(Gaussian(real)).codes, classes).backward()
    game.discriminator_update.step()
    game.zero_grad()


def teach_generator(game: Game, images: Gaussian, latents: Latents) -> float:
    """Part 3: G learns from what the frozen D, P and Q say of its images. Returns Pnet's mean opinion of them."""
    heads = game.generator_heads or game.heads
    game.zero_grad()
    training = heads.training
    heads.eval()  # a learned noise is D's to learn
    try:
        with frozen(game.players.discriminator, deaf=not game.count_frozen):
            verdict = game.look(images)
            evidence = heads.label(verdict.reality, REAL)
            if heads.codes is not None:
                evidence = evidence + heads.codes(verdict.codes, latents.to(verdict.codes.device))
            evidence.backward()
    finally:
        heads.train(training)
    game.generator_update.step()
    game.zero_grad()
    return float(verdict.reality.mean.mean().item())
