"""Scaling laws: functional forms, fits, and intervals for parameters and predictions.

    Chinchilla    L(N, D) = E + A / N^alpha + B / D^beta                       (Hoffmann et al. 2022, eq. 2)
    Kaplan        L(N, D) = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D  (Kaplan et al. 2020, eq. 1.5)
    power         L(x) = (x_c / x)^alpha                                       (Kaplan et al. 2020, eqs. 1.1 to 1.3)
    power+floor   L(x) = E + A / x^alpha

A fit minimises sum_i Huber_delta(log L(N_i, D_i) - log L_i) with L-BFGS from many starts, as in approach 3 of Hoffmann
et al. Three things differ. The starts are a grid of the exponents alone: for given exponents the other parameters are
linear and are solved for. N and D are divided by their geometric means, which makes the problem well conditioned. And
delta is 0.01, not 0.001: small runs differ between seeds by several thousandths, and squares use the data best.

Intervals come from a parametric bootstrap: losses are drawn around the fit and fitted again, `draws` times. The noise
is that of the residuals, with the remaining degrees of freedom. A few residuals determine it poorly, so every draw has
its own noise level (s^2 df / chi^2_df), which gives intervals as wide as Student's t. The interval of a *new run*
includes the noise of that run. It is valid only if the form is: it cannot foresee a bend that the runs do not show.

Papers: Kaplan et al. 2020, arXiv:2001.08361; Hoffmann et al. 2022, arXiv:2203.15556; Besiroglu et al. 2024,
arXiv:2404.10102 (an approach 3 fit that stops too early is off by far more than its interval).
"""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from scipy.optimize import minimize, nnls
from threadpoolctl import threadpool_limits

from allyouneed.errors import DataError
from allyouneed.lab.statistics import LEVEL

DELTA = 0.01  # of log L: larger residuals count linearly, not quadratically
STARTS = 8  # number of grid points to start from, the best ones
EXPONENTS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.1, 1.5)
LEAST, MOST = 1e-3, 3.0  # exponents
DRAWS = 300

Array = np.ndarray[Any, np.dtype[np.float64]]


class Form(ABC):
    """A law with free parameters. Variables and loss are logarithms; the variables are centred."""

    name: str
    variables: tuple[str, ...]
    parameters: tuple[str, ...]  # as named in papers

    @abstractmethod
    def evaluate(self, theta_J: Array, x_KP: Array) -> tuple[Array, Array]:
        """Return log L (P) and its derivatives with respect to the parameters (J, P)."""

    @abstractmethod
    def starts(self, x_KP: Array, y_P: Array) -> list[Array]:
        """Return starting parameters, one for each point of a grid of exponents."""

    @abstractmethod
    def natural(self, theta_J: Array, centre_K: Array) -> tuple[float, ...]:
        """Return the parameters as printed in papers, for variables that are not centred."""

    @abstractmethod
    def theta(self, natural: Sequence[float], centre_K: Array) -> Array:
        """Invert `natural`."""

    @property
    @abstractmethod
    def bounds(self) -> list[tuple[float | None, float | None]]:
        """Return the bounds of the parameters."""


@final
class SumForm(Form):
    """L = E + sum_k A_k / x_k^alpha_k; theta = (log E, log A_1, alpha_1, log A_2, alpha_2)."""

    def __init__(self, name: str, variables: Sequence[str], parameters: Sequence[str]) -> None:
        self.name, self.variables, self.parameters = name, tuple(variables), tuple(parameters)

    def evaluate(self, theta_J: Array, x_KP: Array) -> tuple[Array, Array]:
        a_K1, alpha_K1 = theta_J[1::2, None], theta_J[2::2, None]
        terms = np.vstack([np.full((1, x_KP.shape[1]), theta_J[0]), a_K1 - alpha_K1 * x_KP])
        top_P = terms.max(axis=0)
        log_loss_P = top_P + np.log(np.exp(terms - top_P).sum(axis=0))
        share = np.exp(terms - log_loss_P)
        slopes_JP = np.empty((theta_J.size, x_KP.shape[1]))
        slopes_JP[0], slopes_JP[1::2], slopes_JP[2::2] = share[0], share[1:], -share[1:] * x_KP
        return log_loss_P, slopes_JP

    def starts(self, x_KP: Array, y_P: Array) -> list[Array]:
        found = []
        for exponents in itertools.product(EXPONENTS, repeat=len(x_KP)):
            alpha_K1 = np.array(exponents)[:, None]
            # Each row is divided by its loss, to minimise relative errors.
            rows = np.vstack([np.exp(-y_P)[None], np.exp(-alpha_K1 * x_KP - y_P)]).T
            log_weights = np.log(np.maximum(nnls(rows, np.ones(len(y_P)))[0], 1e-3 * math.exp(y_P.min())))
            theta_J = np.empty(1 + 2 * len(x_KP))
            theta_J[0], theta_J[1::2], theta_J[2::2] = log_weights[0], log_weights[1:], exponents
            found.append(theta_J)
        return found

    def natural(self, theta_J: Array, centre_K: Array) -> tuple[float, ...]:
        values = [math.exp(theta_J[0])]
        for a, alpha, centre in zip(theta_J[1::2], theta_J[2::2], centre_K, strict=True):
            values += [math.exp(a + alpha * centre), float(alpha)]
        return tuple(values)

    def theta(self, natural: Sequence[float], centre_K: Array) -> Array:
        values = [math.log(natural[0])]
        for a, alpha, centre in zip(natural[1::2], natural[2::2], centre_K, strict=True):
            values += [math.log(a) - alpha * centre, alpha]
        return np.array(values)

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        return [(-12.0, None), *[(-20.0, None), (LEAST, MOST)] * len(self.variables)]


@final
class KaplanForm(Form):
    """L = ((N_c / N)^(alpha_N / alpha_D) + D_c / D)^alpha_D; theta = (log N_c, alpha_N, log D_c, alpha_D)."""

    name = "Kaplan"
    variables = ("N", "D")
    parameters = ("N_c", "alpha_N", "D_c", "alpha_D")

    def evaluate(self, theta_J: Array, x_KP: Array) -> tuple[Array, Array]:
        n_c, alpha_n, d_c, alpha_d = theta_J
        size_P, data_P = alpha_n / alpha_d * (n_c - x_KP[0]), d_c - x_KP[1]
        both_P = np.logaddexp(size_P, data_P)
        share_P = np.exp(size_P - both_P)
        slopes = [share_P * alpha_n, share_P * (n_c - x_KP[0]), alpha_d * (1 - share_P), both_P - share_P * size_P]
        return alpha_d * both_P, np.array(slopes)

    def starts(self, x_KP: Array, y_P: Array) -> list[Array]:
        found = []
        for alpha_n, alpha_d in itertools.product(EXPONENTS, repeat=2):
            ratio = alpha_n / alpha_d
            rows = np.exp(np.vstack([-ratio * x_KP[0], -x_KP[1]]) - y_P / alpha_d).T
            scale = rows.max()
            weights = np.maximum(nnls(rows / scale, np.ones(len(y_P)))[0] / scale, 1e-6 / scale)
            found.append(np.array([math.log(weights[0]) / ratio, alpha_n, math.log(weights[1]), alpha_d]))
        return found

    def natural(self, theta_J: Array, centre_K: Array) -> tuple[float, ...]:
        n_c, alpha_n, d_c, alpha_d = theta_J.tolist()
        return (_exp(n_c + centre_K[0]), alpha_n, _exp(d_c + centre_K[1]), alpha_d)

    def theta(self, natural: Sequence[float], centre_K: Array) -> Array:
        n_c, alpha_n, d_c, alpha_d = natural
        return np.array([math.log(n_c) - centre_K[0], alpha_n, math.log(d_c) - centre_K[1], alpha_d])

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        return [(None, None), (LEAST, MOST), (None, None), (LEAST, MOST)]


@final
class PowerForm(Form):
    """L = (x_c / x)^alpha; theta = (log L in the middle, alpha). A straight line in logarithms."""

    name = "power"
    parameters = ("x_c", "alpha")

    def __init__(self, variable: str) -> None:
        self.variables = (variable,)

    def evaluate(self, theta_J: Array, x_KP: Array) -> tuple[Array, Array]:
        return theta_J[0] - theta_J[1] * x_KP[0], np.array([np.ones_like(x_KP[0]), -x_KP[0]])

    def starts(self, x_KP: Array, y_P: Array) -> list[Array]:
        slope, middle = np.polyfit(x_KP[0], y_P, 1)
        return [np.array([middle, max(-slope, LEAST)])]

    def natural(self, theta_J: Array, centre_K: Array) -> tuple[float, ...]:
        return (_exp(theta_J[0] / theta_J[1] + centre_K[0]), float(theta_J[1]))

    def theta(self, natural: Sequence[float], centre_K: Array) -> Array:
        return np.array([natural[1] * (math.log(natural[0]) - centre_K[0]), natural[1]])

    @property
    def bounds(self) -> list[tuple[float | None, float | None]]:
        return [(None, None), (LEAST, MOST)]


CHINCHILLA = SumForm("Chinchilla", ("N", "D"), ("E", "A", "alpha", "B", "beta"))
KAPLAN = KaplanForm()


def floored(variable: str) -> SumForm:
    """Return the form E + A / x^alpha of one variable."""
    return SumForm("power+floor", (variable,), ("E", "A", "alpha"))


@dataclass(frozen=True)
class Law:
    """A form with its parameters."""

    form: Form
    theta_J: Array
    centre_K: Array

    @classmethod
    def of(cls, form: Form, *natural: float) -> "Law":
        """Build the law from parameters as printed in papers."""
        centre_K = np.zeros(len(form.variables))
        return cls(form, form.theta(natural, centre_K), centre_K)

    def loss(self, *values: Any) -> Any:
        """Return L at N and D (or the form's other variables); arrays give an array of the broadcast shape."""
        shape = np.broadcast_shapes(*(np.shape(value) for value in values))
        flat = np.array([np.broadcast_to(np.log(value), shape).ravel() for value in values])
        found = np.exp(self.form.evaluate(self.theta_J, flat - self.centre_K[:, None])[0])
        return found.reshape(shape) if shape else float(found[0])

    @property
    def named(self) -> dict[str, float]:
        """Return the parameters as printed in papers."""
        return dict(zip(self.form.parameters, self.form.natural(self.theta_J, self.centre_K), strict=True))


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 3) -> str:
        """Format for tables: 0.34 (0.30 to 0.39)."""
        return f"{self.value:.{digits}g} ({self.low:.{digits}g} to {self.high:.{digits}g})"


@dataclass(frozen=True)
class Fit:
    """A law fitted to runs, and the laws fitted to bootstrap draws."""

    law: Law
    noise: float  # standard deviation of log L of one run
    theta_RJ: Array = field(repr=False)
    noise_R: Array = field(repr=False)

    def estimates(self, level: float = LEVEL) -> dict[str, Estimate]:
        """Return the parameters with their intervals."""
        drawn = [self.law.form.natural(theta_J, self.law.centre_K) for theta_J in self.theta_RJ]
        return {
            name: estimate(value, [draw[place] for draw in drawn], level)
            for place, (name, value) in enumerate(self.law.named.items())
        }

    def drawn(self, *values: Any) -> Array:
        """Return the losses by the bootstrap laws, one row for each."""
        laws = [Law(self.law.form, theta_J, self.law.centre_K) for theta_J in self.theta_RJ]
        return np.array([law.loss(*values) for law in laws])

    def predict(self, *values: float, level: float = LEVEL, seed: int = 0) -> Estimate:
        """Predict the loss of a new run; the interval includes the run's own noise."""
        wobble_R = np.random.default_rng([seed, 1]).standard_normal(len(self.noise_R)) * self.noise_R
        return estimate(self.law.loss(*values), self.drawn(*values) * np.exp(wobble_R), level)


def estimate(value: float, drawn: Any, level: float = LEVEL) -> Estimate:
    """Return a value with the percentiles of its draws."""
    ends = [(1 - level) / 2, (1 + level) / 2]
    # "nearest", since draws may be infinite, which cannot be interpolated.
    low, high = np.nanquantile(np.asarray(drawn, dtype=np.float64), ends, method="nearest")
    return Estimate(float(value), float(low), float(high))


def fit_law(form: Form, values: Sequence[Any], losses: Any, delta: float = DELTA) -> Law:
    """Fit the law to the losses. `values`: for each variable, one number per run."""
    x_KP, y_P = np.log(np.asarray(values, dtype=np.float64)), np.log(np.asarray(losses, dtype=np.float64))
    if y_P.size < len(form.parameters):
        raise DataError(f"{form.name}: {len(form.parameters)} parameters need at least as many runs; found {y_P.size}")
    centre_K = x_KP.mean(axis=1)
    x_KP = x_KP - centre_K[:, None]
    with _one_blas_thread():
        return Law(form, _descend(form, x_KP, y_P, form.starts(x_KP, y_P), delta), centre_K)


def fit(form: Form, values: Sequence[Any], losses: Any, draws: int = DRAWS, seed: int = 0) -> Fit:
    """Fit the law with bootstrap intervals, which need at least one more run than there are parameters."""
    law = fit_law(form, values, losses)
    x_KP = np.log(np.asarray(values, dtype=np.float64)) - law.centre_K[:, None]
    y_P, found_P = np.log(np.asarray(losses, dtype=np.float64)), form.evaluate(law.theta_J, x_KP)[0]
    freedom = y_P.size - len(form.parameters)
    if freedom < 1:
        raise DataError(f"{form.name}: intervals need more than {len(form.parameters)} runs; found {y_P.size}")
    noise = math.sqrt(float(((y_P - found_P) ** 2).sum()) / freedom)
    generator = np.random.default_rng(seed)
    noise_R = noise * np.sqrt(freedom / generator.chisquare(freedom, draws))
    drawn_RP = found_P + noise_R[:, None] * generator.standard_normal((draws, y_P.size))
    with _one_blas_thread():
        theta_RJ = np.array([_descend(form, x_KP, drawn_P, [law.theta_J], DELTA) for drawn_P in drawn_RP])
    return Fit(law, noise, theta_RJ, noise_R)


def _one_blas_thread() -> AbstractContextManager[object]:
    """Return a context in which BLAS uses one thread: a fit solves thousands of small systems."""
    limits: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return limits


def _descend(form: Form, x_KP: Array, y_P: Array, starts: list[Array], delta: float) -> Array:
    """Return the parameters with the lowest Huber loss that L-BFGS finds from the best starts."""

    def objective(theta_J: Array) -> tuple[float, Array]:
        log_loss_P, slopes_JP = form.evaluate(theta_J, x_KP)
        # In units of delta: L-BFGS would consider an objective of 1e-6 converged before the first step.
        apart_P = (log_loss_P - y_P) / delta
        clipped_P = np.clip(apart_P, -1, 1)
        return float((clipped_P * (apart_P - clipped_P / 2)).sum()), slopes_JP @ clipped_P / delta

    bounds = form.bounds
    low_J = np.array([-np.inf if low is None else low for low, _ in bounds])
    high_J = np.array([np.inf if high is None else high for _, high in bounds])
    starts = sorted((np.clip(start, low_J, high_J) for start in starts), key=lambda start: objective(start)[0])
    best: Any = None
    for start in starts[:STARTS]:
        options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-11, "gtol": 1e-7}
        found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        if best is None or found.fun < best.fun:
            best = found
    return np.asarray(best.x, dtype=np.float64)


def _exp(value: float) -> float:
    """Return exp(value), or infinity on overflow: the constant of a nearly flat law tends to infinity."""
    return math.exp(value) if value < 700 else math.inf
