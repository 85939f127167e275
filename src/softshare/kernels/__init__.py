"""The mixture's negative log-likelihood: `mixture_nll_ref` is the definition, the others what is called."""

from softshare.kernels.choice import find_sweep, mixture_assign
from softshare.kernels.mixture import log_joint, mixture_nll, mixture_nll_grad_, mixture_nll_ref
from softshare.kernels.sample import sampled

__all__ = [
    "find_sweep",
    "log_joint",
    "mixture_assign",
    "mixture_nll",
    "mixture_nll_grad_",
    "mixture_nll_ref",
    "sampled",
]
