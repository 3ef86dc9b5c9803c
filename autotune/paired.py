"""Tests on paired samples that stay honest however often one looks: plain arithmetic without a dependency.

Two lanes of a race are compared by the logarithm of their times' ratio, round by round, which cancels what both
share: the clock, the heat, the neighbours. Looking after every few rounds and stopping at the first p below 5%
would err far more often than in 5 of 100 races. So look number j may spend only 5% * 6 / (pi^2 j^2), divided by the
number of ordered pairs of lanes, of which any may be the one that is looked at. The sum over all looks and pairs is
5% (the union bound), whatever the stopping rule and however the samples of two looks depend on each other.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

ALPHA = 0.05
# Differences below this are a tie. One kernel's median of 20 calls, repeated, wandered by 3.6% on an H200; pairing
# takes out what all lanes share, and what is left under half a percent is called noise.
TIE = 0.005
FEWEST_ROUNDS = 5


def log_ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Returns log(numerator / denominator) round by round; the shorter lane ends the pairing."""
    return [math.log(a / b) for a, b in zip(numerator, denominator, strict=False)]


def p_above(differences: Sequence[float], bound: float) -> float:
    """Returns the one-sided p of Student's t test that the mean of `differences` is not above `bound`.

    Rounds follow each other within milliseconds, so their noise may be correlated. The test therefore runs on means
    of blocks once there are enough of them, of which neighbours depend on each other far less. A chain of calls that
    something held up (9.2 us in place of 5.3, one sample of 30) says nothing of the kernel: such differences are moved
    to where the others end.
    """
    values = block_means(_within_reach(differences))
    if len(values) < 2:
        return 1.0
    mean = math.fsum(values) / len(values)
    deviation = statistics.stdev(values)
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return 0.0 if mean > bound else 1.0
    return student_upper_tail((mean - bound) / (deviation / math.sqrt(len(values))), len(values) - 1)


# In median absolute deviations, of which a normal distribution has 1 in 20,000 beyond six.
_REACH = 6.0
_MOST_OUT = 0.1  # of all: where more are far out, that is how the lane is, and no accident
_LEAST_REACH = 1e-6  # differences are logarithms of times, which no clock tells to a millionth


def _within_reach(values: Sequence[float]) -> Sequence[float]:
    """Returns the values, with a few that are far out moved to `_REACH` deviations from the median."""
    if not values:
        return values
    middle = statistics.median(values)
    reach = max(_LEAST_REACH, _REACH * statistics.median(abs(value - middle) for value in values))
    if sum(abs(value - middle) > reach for value in values) > _MOST_OUT * len(values):
        return values
    return [min(max(value, middle - reach), middle + reach) for value in values]


BLOCKS = 20


def block_means(values: Sequence[float]) -> list[float]:
    """Returns means of at least `BLOCKS` runs of neighbouring values, or the values where there are fewer."""
    size = max(1, len(values) // BLOCKS)
    whole = len(values) // size
    edges = [index * len(values) // whole for index in range(whole + 1)] if whole else [0]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def spending(look: int, lanes: int) -> float:
    """Returns the level that look number `look` (from 1) may use for one ordered pair of `lanes` lanes."""
    return ALPHA * 6 / (math.pi**2 * look**2) / max(1, lanes * (lanes - 1))


def behind[Lane](samples: Mapping[Lane, Sequence[float]], look: int, lanes: int) -> list[Lane]:
    """Returns the lanes that are slower than the leader by more than a tie, beyond doubt at this look.

    Args:
        samples: Times of the lanes still running, in us; equal indices belong to one round.
        lanes: How many lanes the race began with.
    """
    rounds = min((len(times) for times in samples.values()), default=0)
    if rounds < FEWEST_ROUNDS or len(samples) < 2:
        return []
    leader = min(samples, key=lambda lane: statistics.fmean(math.log(time) for time in samples[lane]))
    level = spending(look, lanes)
    return [
        lane
        for lane, times in samples.items()
        if lane != leader and p_above(log_ratios(times, samples[leader]), math.log1p(TIE)) < level
    ]


def student_upper_tail(t: float, freedom: int) -> float:
    """Returns P(T > t) of Student's distribution, by the incomplete beta function (Abramowitz, Stegun 26.7.1)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return half if t >= 0 else 1.0 - half


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # The continued fraction converges quickly on this side; the other follows by symmetry.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Evaluates the continued fraction of the incomplete beta function by Lentz's method (A. and S. 26.5.8)."""
    tiny = 1e-300
    c, d = 1.0, 1.0 / _nonzero(1.0 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _nonzero(1.0 + term * d, tiny)
            c = _nonzero(1.0 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _nonzero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
