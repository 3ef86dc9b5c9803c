"""What measuring on may still gain, by what a model expects of the candidates that would come next."""

from __future__ import annotations

import math

import numpy as np

NEXT = 16  # candidates: about as many as are in flight at once

_STEPS = 200
_erf = np.vectorize(math.erf, otypes=[float])


def expected_gain(best: float, mean: np.ndarray, sd: np.ndarray, noise_sd: float) -> float:
    """Returns by how much the best is expected to fall when the `NEXT` most promising candidates are measured.

    All are logarithms of times, so that a small gain is a share of the best time. A candidate is known through its
    measurement only: what it may turn out to gain is the gain of its expectation once it was measured, whose spread is
    less than that of the candidate itself. The candidates count as independent, which overstates the gain of those
    that are alike.

    Args:
        best: What the best so far is expected to take, not its luckiest sample.
        mean, sd: (count,) expectation and standard deviation of each candidate.
        noise_sd: Standard deviation of a measurement.
    """
    if not len(mean):
        return 0.0
    told_sd = sd**2 / np.sqrt(sd**2 + noise_sd**2)
    alone = _gain_of_one(best - mean, told_sd)
    chosen = np.argsort(-alone, kind="stable")[:NEXT]
    ahead, told_sd = (best - mean)[chosen], told_sd[chosen]
    most = float((ahead + 5 * told_sd).max())
    if most <= 0:
        return 0.0
    # The mean of what is never below 0 is the integral of the chance to exceed each value.
    gains = np.linspace(0.0, most, _STEPS)
    exceeded = 1 - np.prod(_normal_below((gains[:, None] - ahead) / told_sd), axis=1)
    return float(((exceeded[1:] + exceeded[:-1]) / 2).sum() * (gains[1] - gains[0]))


def _gain_of_one(ahead: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Returns the expected gain of each candidate by itself."""
    z = ahead / sd
    return ahead * _normal_below(z) + sd * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def _normal_below(z: np.ndarray) -> np.ndarray:
    return (1 + _erf(z / math.sqrt(2))) / 2
