"""One step of a GAN by inference: the paper's Figure 1 without codes, Figure 2 with them.

    1  D and P observe real images as real                                          (Figure 2a, real image)
    2  G draws once; D, P, Q observe its images as generated, and the codes they were drawn from    (Figure 2a)
    3  the updated D, P, Q are run again on the same images, observe "real" and the codes, and only G is updated by
       the message that reaches it through them                                                     (Figure 2b)

1 and 2 are the discriminator step, 3 is the generator step. G's images enter with their means *and variances*.

In the generator step the predictive variance v is not G's alone: D, P and Q are uncertain too, and do not move.
Marginalising over them, the exact step of G's weights is S_G J_Gᵀ (K_G + K_F + R)⁻¹ r, K_F = J_F S_F J_Fᵀ the
frozen networks' share of the outputs' covariance over the batch, so the best length along G's message is

    α = Σ r·dm / (q_G + q_F + Σ R dm²),          q_F = dmᵀ K_F dm = Σ over frozen parameters of s g²

q_F is read from the messages on the frozen weights, which nothing applies. Its diagonal, Σ v_F dm², would take the
frozen share for noise that is independent from image to image; but generated images resemble each other, an error
of D is shared by all of them, and q_F is up to the batch's size times larger.
"""

from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.data import augment_affine
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.model import Gan, Report, likeliest
from torchtagi.experiments.gan.networks import DiscriminatorOutput, Networks, frozen
from torchtagi.experiments.gan.tasks import Constants, Noises
from torchtagi.gaussian import Gaussian, cat
from torchtagi.inference.update import Update
from torchtagi.likelihoods import Binary, HierarchicalClassification, Regression

DECAY, FLOOR = 0.975, 0.3  # of the noises (eq. 7); the floor is that of the authors' code
REAL, FAKE = -1.0, 1.0


def decayed(noise_std: float, epoch: int) -> float:
    """A noise in the epoch of that number, from 0: σ⁰ ηᵉ (eq. 7), not below the floor, nor raised by it."""
    return max(noise_std * DECAY**epoch, min(FLOOR, noise_std))


class Heads(nn.Module):
    """The likelihoods of both heads, with the noises of one kind of step.

    Pnet   −1 for a real image, +1 for a generated one, with noise σ_P
    Qnet   each category's path in its class tree with noise σ_Q, each continuous code with a noise of its own
    """

    def __init__(self, space: LatentSpace, noises: Noises) -> None:
        super().__init__()
        self.widths = space.category_widths
        self.labels = Binary(noises.labels)
        self.classes = nn.ModuleList(HierarchicalClassification(n, noises.codes) for n in space.categories)
        self.continuous = Regression(noises.continuous)

    def label_loss(self, z: Gaussian, value: float) -> Tensor:
        """The negative log-evidence of all images being `REAL` or `FAKE`."""
        loss: Tensor = self.labels(z, torch.full_like(z.mean, value))
        return loss

    def class_loss(self, z: Gaussian, classes: Tensor) -> Tensor:
        """The negative log-evidence of the classes (n, categorical codes)."""
        losses = [code(z[:, part], classes[:, k]) for k, (code, part) in enumerate(self.parts())]
        return torch.stack(losses).sum() if losses else z.mean.new_zeros(())

    def code_loss(self, z: Gaussian, latents: Latents) -> Tensor:
        """The negative log-evidence of all codes."""
        loss = self.class_loss(z, latents.categories)
        if latents.continuous.shape[1]:
            loss = loss + self.continuous(z[:, sum(self.widths) :], latents.continuous.to(z.dtype))
        return loss

    @torch.no_grad()
    def class_log_probs(self, z: Gaussian) -> list[Tensor]:
        """(n, classes) for each categorical code."""
        return [code.log_probs(z[:, part]) for code, part in self.parts()]

    def parts(self) -> list[tuple[HierarchicalClassification, slice]]:
        """Each categorical code's likelihood, and its share of Qnet's outputs, which begin with them."""
        starts = [sum(self.widths[:k]) for k in range(len(self.widths))]
        shares = [slice(start, start + width) for start, width in zip(starts, self.widths, strict=True)]
        return list(zip(self.classes, shares, strict=True))  # type: ignore[arg-type]

    def set_noises(self, noises: Noises) -> None:
        """For a decay (eq. 7)."""
        self.labels.noise_std = torch.tensor(noises.labels)
        self.continuous.noise_std = torch.tensor(noises.continuous)
        for code, _ in self.parts():
            code.noise_std = torch.tensor(noises.codes)


class TagiGan(Gan):
    """A GAN trained by inference: its networks, what their heads observe, and two updates."""

    def __init__(self, networks: Networks, space: LatentSpace, constants: Constants, batch_size: int = 16) -> None:
        super().__init__(networks, space, constants, batch_size)
        self.heads = Heads(space, constants.discriminator).to(self.device)
        self.generator_heads = Heads(space, constants.generator).to(self.device)
        self.state["heads"] = self.heads
        self.class_reader = self.heads
        if constants.pseudo_label_noise_std is not None:
            of_codes = constants.discriminator._replace(codes=constants.pseudo_label_noise_std)
            self.pseudo_label_heads, self.class_reader = (Heads(space, of_codes).to(self.device) for _ in range(2))
        options: dict[str, Any] = {"rule": "paper" if constants.paper else "coherent", "horizon": constants.horizon}
        discriminator = networks.discriminator
        self.discriminator_update = Update(discriminator, **options)
        self.generator_update = Update(networks.generator, outputs=discriminator, frozen=[discriminator], **options)

    def begin_epoch(self, epoch: int) -> None:
        self.networks.train()
        of_discriminator, of_generator = (
            Noises(*(decayed(std, epoch) for std in noises))
            for noises in (self.constants.discriminator, self.constants.generator)
        )
        self.heads.set_noises(of_discriminator)
        self.generator_heads.set_noises(of_generator)
        if self.constants.pseudo_label_noise_std is not None:
            codes = decayed(self.constants.pseudo_label_noise_std, epoch)
            self.pseudo_label_heads.set_noises(of_discriminator._replace(codes=codes))

    def step(self, real: Tensor, batch: int) -> Report:
        if self.pseudo_labels is not None:
            self.pseudo_label_step(augment_affine(real), self.pseudo_labels.of_batch(batch, len(real)))
        latents = self.space.sample(len(real)).to(real.device)
        images: Gaussian = self.networks.generator(self.space.encode(latents))
        report = self.discriminator_step(real, images.detach(), latents)
        report |= self.generator_step(images, latents)
        return {**report, "largest_pixel": images.mean.detach().abs().max().item()}

    def pseudo_label_step(self, images: Tensor, classes: Tensor) -> None:
        """Qnet observes classes (n, categorical codes) at real images. Pnet learns nothing."""
        codes = self.discriminate(Gaussian(images)).codes
        self.learn(self.discriminator_update, self.pseudo_label_heads.class_loss(codes, classes))

    def discriminator_step(self, real: Tensor, images: Gaussian, latents: Latents) -> Report:
        """Parts 1 and 2."""
        n = len(real)
        if self.constants.paper:
            of_real = self.discriminate(Gaussian(real), codes_from=None).labels
            self.learn(self.discriminator_update, self.heads.label_loss(of_real, REAL))
            output = self.discriminate(images)
            of_images = output.labels
            loss = self.heads.label_loss(of_images, FAKE)
        else:
            output = self.discriminate(cat([Gaussian(real), images]), codes_from=n)
            of_real, of_images = output.labels[:n], output.labels[n:]
            loss = self.heads.label_loss(of_real, REAL) + self.heads.label_loss(of_images, FAKE)
        report = {"real": of_real.mean.mean().item(), "fake": of_images.mean.mean().item()}
        if self.space.categories:
            read = likeliest(self.heads.class_log_probs(output.codes))
            report["code_error"] = (read != latents.categories).float().mean().item()
        if self.space.has_codes:
            loss = loss + self.heads.code_loss(output.codes, latents)
        self.learn(self.discriminator_update, loss)
        return {**report, "discriminator_alpha": self.discriminator_update.report["alpha"]}

    def generator_step(self, images: Gaussian, latents: Latents) -> Report:
        """Part 3: D, P and Q are frozen."""
        with frozen(self.networks.discriminator):
            output = self.discriminate(images)
            loss = self.generator_heads.label_loss(output.labels, REAL)
            if self.space.has_codes:
                loss = loss + self.generator_heads.code_loss(output.codes, latents)
            self.learn(self.generator_update, loss)
        own = self.generator_update.report
        fooled = output.labels.mean.mean().item()
        return {"fooled": fooled, "generator_alpha": own["alpha"], "generator_innovation": own["innovation"]}

    def discriminate(self, images: Gaussian, codes_from: int | None = 0) -> DiscriminatorOutput:
        output: DiscriminatorOutput = self.networks.discriminator(self.noisy(images), codes_from=codes_from)
        return output

    def learn(self, update: Update, loss: Tensor) -> None:
        loss.backward()
        update.step()
        # both: the messages of one step pass the networks of the other
        self.discriminator_update.zero_grad()
        self.generator_update.zero_grad()

    def class_log_probs(self, codes: Any) -> list[Tensor]:
        """With the noise of pseudo-labels, where there are any: with that of generated images' codes, which is
        large, all classes look alike. It does not decay for reading, or a network loaded would read otherwise."""
        return self.class_reader.class_log_probs(codes)

    def generated_probability(self, labels: Any) -> Tensor:
        return self.heads.labels.predict(labels)
