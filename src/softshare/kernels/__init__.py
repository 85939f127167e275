"""The mixture's negative log-likelihood: `mixture_nll_ref` is the definition, `mixture_nll` what everyone calls."""

from softshare.kernels.mixture import log_joint, mixture_assign, mixture_nll, mixture_nll_ref

__all__ = ["log_joint", "mixture_assign", "mixture_nll", "mixture_nll_ref"]
