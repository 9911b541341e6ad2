"""GAN and infoGAN by closed-form inference (paper §3.3, Figures 1 and 2)."""
