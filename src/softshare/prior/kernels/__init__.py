"""The mixture's negative log-likelihood, which `mixture_nll_ref` defines, and the arg-max of its terms."""

from softshare.prior.kernels.assign import index_dtype, mixture_assign, quantize_, sum_by_component
from softshare.prior.kernels.choice import find_sweep
from softshare.prior.kernels.sample import sampled
from softshare.prior.kernels.sweep import log_joint, mixture_grads, mixture_nll, mixture_nll_grad_, mixture_nll_ref

__all__ = [
    "find_sweep",
    "index_dtype",
    "log_joint",
    "mixture_assign",
    "mixture_grads",
    "mixture_nll",
    "mixture_nll_grad_",
    "mixture_nll_ref",
    "quantize_",
    "sampled",
    "sum_by_component",
]
