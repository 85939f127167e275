"""The mixture's negative log-likelihood, by `mixture_nll_ref` its definition, and the arg-max of its terms."""

from softshare.kernels.assign import index_dtype, mixture_assign, quantize_, sum_by_component
from softshare.kernels.choice import find_sweep
from softshare.kernels.mixture import log_joint, mixture_nll, mixture_nll_grad_, mixture_nll_ref
from softshare.kernels.sample import sampled

__all__ = [
    "find_sweep",
    "index_dtype",
    "log_joint",
    "mixture_assign",
    "mixture_nll",
    "mixture_nll_grad_",
    "mixture_nll_ref",
    "quantize_",
    "sampled",
    "sum_by_component",
]
