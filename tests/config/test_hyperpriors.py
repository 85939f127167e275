from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions

from softshare.config import Beta, Dirichlet, Gamma
from softshare.errors import ConfigError

LAW = settings(deadline=None, derandomize=True)


def log_prob(distribution: distributions.Distribution, value: Tensor) -> Tensor:
    return distribution.log_prob(value)


def f64(*values: float) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=torch.float64)


LOG_VARS = f64(-9.0, -7.8, -6.0, -1.0, 0.5)
LOG_MIXINGS = torch.log_softmax(
    torch.tensor([[3.0, 0.5, -1.0, 0.2], [0.0, 0.0, 0.0, 0.0], [-2.0, 1.0, 4.0, -3.0]], dtype=torch.float64), 1
)


def assert_equal_up_to_a_constant(ours: list[Tensor], log_probs: list[Tensor]) -> None:
    """Training sees only differences between points. The normalizing constant is left out."""
    assert all(v.shape == () for v in ours)
    mine, theirs = torch.stack(ours), -torch.stack(log_probs)
    torch.testing.assert_close(mine - mine[0], theirs - theirs[0], rtol=1e-9, atol=1e-9)


# Gamma


def test_gamma_is_a_density_over_the_precision() -> None:
    """Not over the log-variance: a Jacobian would make the factor alpha instead of alpha - 1."""
    for alpha, beta in ((5000.0, 2.0), (250.0, 0.1), (1.0, 3.0), (0.5, 0.5)):
        gamma, truth = Gamma(alpha, beta), distributions.Gamma(f64(alpha), f64(beta))
        ours = [gamma.neg_log_density(v) for v in LOG_VARS]
        assert_equal_up_to_a_constant(ours, [log_prob(truth, torch.exp(-v)) for v in LOG_VARS])


def test_a_gamma_adds_over_components_and_mixtures() -> None:
    for gamma in (Gamma(5000, 2), Gamma(0.5, 1)):
        matrix = torch.stack([LOG_VARS, LOG_VARS.flip(0) - 1])
        total = gamma.neg_log_density(matrix)
        assert total.shape == ()
        torch.testing.assert_close(total, torch.stack([gamma.neg_log_density(v) for v in matrix.flatten()]).sum())


def test_gamma_by_hand() -> None:
    """alpha 3, beta 2, variance 1/4: -(3 - 1) log 4 + 2 * 4, less its value at the mode, a precision of 1: 2."""
    value = Gamma(3, 2).neg_log_density(f64(math.log(0.25)))
    assert float(value) == pytest.approx(-2 * math.log(4) + 8 - 2, rel=1e-12)


def test_a_strong_gamma_keeps_its_precision_in_float32() -> None:
    """1 + x - exp(x) to the second order: alpha 1e6 and a log-variance 0.001 off its mode give 0.5 nats."""
    gamma = Gamma.from_std(0.03, 1000)
    value = gamma.neg_log_density(torch.tensor([2 * math.log(0.03) + 1e-3]))
    assert float(value) == pytest.approx(0.5, rel=2e-3)


def test_gamma_draws_the_variance_to_its_mode() -> None:
    gamma = Gamma.from_std(0.05, 10)
    log_var = f64(2 * math.log(0.05)).requires_grad_()
    (slope,) = torch.autograd.grad(gamma.neg_log_density(log_var), log_var)
    assert abs(float(slope)) < 1e-9 * gamma.alpha
    for other in (0.04, 0.06):
        assert float(gamma.neg_log_density(f64(2 * math.log(other)))) > float(gamma.neg_log_density(log_var.detach()))


# Appendix B: the Gamma by its mode and variance


def test_from_std_by_hand() -> None:
    """std 0.05 is the paper's example: mode 400. At strength 2 the variance is 200^2, so 200^2 b^2 - 400 b - 1 = 0."""
    gamma = Gamma.from_std(0.05, 2)
    beta = (400 + math.sqrt(400**2 + 4 * 200**2)) / (2 * 200**2)
    assert gamma.beta == pytest.approx(beta, rel=1e-12)
    assert gamma.alpha == pytest.approx(3 + 2 * math.sqrt(2), rel=1e-12)
    assert (gamma.alpha - 1) / gamma.beta == pytest.approx(400, rel=1e-12)
    assert gamma.alpha / gamma.beta**2 == pytest.approx(200**2, rel=1e-12)


@LAW
@given(st.floats(1e-4, 10), st.floats(0.05, 1e4))
def test_from_std_has_the_mode_and_variance_of_appendix_b(std: float, strength: float) -> None:
    gamma = Gamma.from_std(std, strength)
    mode = 1 / std**2
    assert (gamma.alpha - 1) / gamma.beta == pytest.approx(mode, rel=1e-9)
    assert gamma.alpha / gamma.beta**2 == pytest.approx((mode / strength) ** 2, rel=1e-9)
    assert gamma.std == pytest.approx(std, rel=1e-9)
    assert gamma.strength == pytest.approx(strength, rel=1e-9)


def test_from_std_as_torch_reads_the_two_numbers() -> None:
    gamma = Gamma.from_std(0.1, 5)
    truth = distributions.Gamma(f64(gamma.alpha), f64(gamma.beta))
    assert float(truth.variance) == pytest.approx((100 / 5) ** 2, rel=1e-9)
    assert float(truth.mode) == pytest.approx(100, rel=1e-9)


def test_the_std_of_the_authors_values_and_of_a_gamma_without_a_mode() -> None:
    for gamma in (Gamma(5000, 2), Gamma(250, 0.1)):
        assert gamma.std == pytest.approx(0.02, rel=3e-3)
        assert gamma.std == pytest.approx(((gamma.alpha - 1) / gamma.beta) ** -0.5, rel=1e-12)
    assert Gamma(0.5, 1).std == Gamma(1, 1).std == math.inf


# Beta and Dirichlet


def test_beta_is_on_the_zero_mixing() -> None:
    for alpha, beta in ((900.0, 100.0), (2.0, 0.5), (1.0, 1.0)):
        truth = distributions.Beta(f64(alpha), f64(beta))
        ours = [Beta(alpha, beta).neg_log_density(m) for m in LOG_MIXINGS]
        assert_equal_up_to_a_constant(ours, [log_prob(truth, m[0].exp()) for m in LOG_MIXINGS])


def test_dirichlet_is_on_all_mixings() -> None:
    for zero, free in ((1000.0, 3.0), (0.5, 0.9), (1.0, 1.0)):
        truth = distributions.Dirichlet(f64(zero, free, free, free))
        ours = [Dirichlet(zero, free).neg_log_density(m) for m in LOG_MIXINGS]
        assert_equal_up_to_a_constant(ours, [log_prob(truth, m.exp()) for m in LOG_MIXINGS])


def test_the_densities_of_several_mixtures_add() -> None:
    """Each row of (parts, J + 1) is a mixture. Value and gradient are those of the rows."""
    for prior in (Beta(9, 2), Dirichlet(7, 1.5)):
        together, alone = LOG_MIXINGS.clone().requires_grad_(), LOG_MIXINGS.clone().requires_grad_()
        value = prior.neg_log_density(together)
        rows = torch.stack([prior.neg_log_density(row) for row in alone])
        assert value.shape == ()
        torch.testing.assert_close(value, rows.sum())
        torch.testing.assert_close(torch.autograd.grad(value, together), torch.autograd.grad(rows.sum(), alone))


def test_beta_is_the_dirichlet_of_one_free_component() -> None:
    for share in (0.1, 0.5, 0.999):
        log_mixing = f64(share, 1 - share).log()
        ours, general = Beta(9, 2).neg_log_density(log_mixing), Dirichlet(9, 2).neg_log_density(log_mixing)
        torch.testing.assert_close(ours, general)


def test_gradients() -> None:
    """Compared with finite differences. The mixings come from logits, as in training."""
    log_vars = LOG_VARS[2:].clone().requires_grad_()
    assert torch.autograd.gradcheck(Gamma(3.5, 0.7).neg_log_density, log_vars)
    logits = f64(1.0, -0.5, 0.3).requires_grad_()
    for prior in (Beta(9, 2), Dirichlet(7, 1.5)):
        assert torch.autograd.gradcheck(lambda x, p=prior: p.neg_log_density(torch.log_softmax(x, 0)), logits)


# Bad values


def test_parameters_must_be_finite_and_positive() -> None:
    for make, names in (
        (Gamma, ("alpha", "beta")),
        (Beta, ("alpha", "beta")),
        (Dirichlet, ("zero", "free")),
        (Gamma.from_std, ("std", "strength")),
    ):
        for name in names:
            for bad in (0.0, -1.0, math.nan, math.inf):
                with pytest.raises(ConfigError, match=f"{name}.*above 0.*{bad}"):
                    make(**(dict.fromkeys(names, 2.0) | {name: bad}))
    for std, strength in ((1e-200, 1.0), (1e200, 1.0), (0.05, 1e200)):  # 1 / std^2 or strength^2 is beyond all floats
        with pytest.raises(ConfigError, match="finite number above 0"):
            Gamma.from_std(std, strength)


# Beta by its mode


@given(st.floats(1e-6, 1 - 1e-6), st.floats(3, 1e7))
@LAW
def test_a_beta_by_what_its_mode_leaves_to_the_free_components_and_its_count(free: float, count: float) -> None:
    beta = Beta.from_mode(free, count)
    assert beta.count == pytest.approx(count)
    assert beta.free == pytest.approx(free, rel=1e-3)

    def density(share: float) -> float:
        return float(beta.neg_log_density(torch.log(f64(1 - share, share))))

    assert density(free) <= min(density(0.9 * free), density(free + 0.1 * (1 - free)))
