"""The prior: a learned Gaussian mixture over the weights (paper, section 2), and the kernels that compute it.

The hyper-priors on its parameters (appendix B) are settings: see `softshare.config.hyperpriors`.
"""
