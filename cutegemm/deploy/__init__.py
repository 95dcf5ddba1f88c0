"""Building kernels ahead of time: which problems (`spec_file`, or a recorded run), their kernels planned and compiled
into a bundle (`builder`), and a bundle as a wheel (`wheel`). Nothing here needs a GPU or torch.
"""
