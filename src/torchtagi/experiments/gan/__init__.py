"""GAN and infoGAN by closed-form inference (paper §3.3, Figures 1 and 2), and the same by backprop.

`step` has the discriminator step and the generator step, `tasks` the data, networks and constants of each GAN,
`training` the loop with checkpoints, measures and drawings behind `tagi gan`.
"""
