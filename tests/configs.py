"""Any configuration, for laws that hold for all of them."""

from __future__ import annotations

import typing
from typing import Any

from hypothesis import strategies as st

from softshare.config import (
    Beta,
    CompressConfig,
    Dirichlet,
    EncodeConfig,
    Gamma,
    MergeConfig,
    PriorConfig,
    RetrainConfig,
    Rule,
    SimplifyConfig,
)
from softshare.config.stages import WITHOUT_A_WIDTH
from softshare.config.text import HINTS

positive = st.floats(min_value=1e-300, max_value=1e300)
at_least_0 = st.floats(0, 1e9)
shares = st.floats(0, 1)
gammas = st.none() | st.builds(Gamma, positive, positive)


def _choices(*names: str) -> dict[str, st.SearchStrategy[Any]]:
    return {name: st.sampled_from(typing.get_args(HINTS[name])) for name in names}


def _config(stages: tuple[Any, ...], width: float | None, length: dict[str, Any]) -> CompressConfig:
    """A width replaces the initial standard deviation and the precision priors."""
    config = CompressConfig(*stages).override(**length)
    without: dict[str, Any] = dict.fromkeys(WITHOUT_A_WIDTH)
    return config if width is None else config.override(**{"width": width, **without})


configs = st.builds(
    _config,
    st.tuples(
        st.builds(
            PriorConfig,
            **_choices("mixtures", "init", "backend", "method"),
            components=st.integers(1, 1000),
            width=st.none(),
            init_std=st.none() | positive,
            zero_mixing=st.floats(0, 1, exclude_min=True, exclude_max=True),
            mixing_prior=st.none() | st.builds(Beta, positive, positive) | st.builds(Dirichlet, positive, positive),
            zero_precision_prior=gammas,
            free_precision_prior=gammas,
            lr_means=at_least_0,
            lr_log_vars=at_least_0,
            lr_mixing=at_least_0,
            sample_one_in=st.integers(1),
            rules=st.lists(st.builds(Rule, st.text(min_size=1), st.booleans())).map(tuple),
        ),
        st.builds(
            RetrainConfig,
            **_choices("optimizer", "schedule", "scaling"),
            tau=at_least_0,
            tau_warmup=shares,
            lr_weights=positive,
            weight_decay=at_least_0,
            hard_from=shares,
            zeroing=at_least_0,
            distill=shares,
            seed=st.integers(-(2**63), 2**64 - 1),
            capture=st.booleans(),
        ),
        st.builds(MergeConfig, at_least_0),
        st.builds(SimplifyConfig, st.booleans()),
        st.builds(EncodeConfig, **_choices("codec", "codebook_dtype", "rest_dtype", "names")),
    ),
    st.none() | positive,
    st.sampled_from(["steps", "epochs"]).flatmap(lambda name: st.builds(lambda n: {name: n}, st.integers(1))),
)
