"""A Gaussian process over the errors of a cost model: of one problem, and of near ones as far as they are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.search.rows import LegalRows
from autotune.search.searcher import Knobs

# Of the logarithm of times: which part of a model's error adds up knob by knob, and what two configurations share of
# the rest for each knob that differs; the noise of a screening; what errors of problems one doubling apart share.
BY_KNOB = 0.5
SHARED = 0.75
NOISE_SD = 0.01
SHARED_NEARBY = 0.9


class Features:
    """Configurations as vectors whose product counts the knobs that two share; ordered knobs share in part."""

    def __init__(self, rows: LegalRows) -> None:
        self._rows = rows
        self._tables = []
        for j, values in enumerate(rows.choices):
            count = len(values)
            if count < 2:
                self._tables.append(None)
                continue
            if rows.is_ordered(j):
                steps = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
                alike = 0.5**steps
            else:
                alike = np.eye(count)
            self._tables.append(np.linalg.cholesky(alike + 1e-9 * np.eye(count)).astype(np.float32))
        self.knobs = sum(table is not None for table in self._tables)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the features of rows, (count, features) of float32."""
        return self.of_codes(self._rows.codes_of(rows))

    def of_codes(self, codes: np.ndarray) -> np.ndarray:
        """Returns the features of codes, legal or not, (count, features) of float32."""
        parts = [table[codes[:, j]] for j, table in enumerate(self._tables) if table is not None]
        return np.concatenate(parts, axis=1) if parts else np.zeros((len(codes), 1), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Errors of near problems, (count,), with the features of their configurations.

    Attributes:
        alike: (count,) what such a problem's error shares with this one's for the same configuration.
        problem: (count,) which of the problems, from 1.
    """

    features: np.ndarray
    errors: np.ndarray
    alike: np.ndarray
    problem: np.ndarray

    @classmethod
    def of(
        cls,
        rows: LegalRows,
        features: Features,
        neighbours: Sequence[tuple[float, Sequence[tuple[Knobs, float]]]],
    ) -> Heard:
        found = [
            (codes, error, SHARED_NEARBY**distance, problem)
            for problem, (distance, errors) in enumerate(neighbours, start=1)
            for knobs, error in errors
            if (codes := rows.encode(knobs)) is not None
        ]
        codes = np.array([one[0] for one in found], dtype=np.uint8).reshape(len(found), len(rows.names))
        return cls(
            features=features.of_codes(codes),
            errors=np.array([one[1] for one in found], dtype=np.float64),
            alike=np.array([one[2] for one in found], dtype=np.float64),
            problem=np.array([one[3] for one in found], dtype=np.int64),
        )


class Process:
    """A Gaussian process over the errors of a model's logarithms.

    Args:
        features: (seen, features) of what was seen.
        errors: (seen,) by how much the logarithm of the time was above the model's.
        error_sd: Standard deviation of a single error.
        alike: (seen,) what the error of the problem it was measured on shares with this one's; 1 for this one.
        problem: (seen,) which problem that is, 0 for this one. What they do not share with this one, two problems do
            not share with each other.
    """

    def __init__(
        self,
        features: np.ndarray,
        errors: np.ndarray,
        error_sd: float,
        alike: np.ndarray,
        problem: np.ndarray,
    ) -> None:
        self._features, self._error_sd, self._alike = features, error_sd, np.ones(len(features))
        self._mean = float(errors.mean()) if len(errors) else 0.0
        if len(features):
            of_one = problem[:, None] == problem
            own = self._shared(features) * np.where(of_one, 1.0, np.outer(alike, alike))
            own += NOISE_SD**2 * np.eye(len(features))
            self._alike = alike
            self._inverse = np.linalg.inv(own)
            self._weights = self._inverse @ (errors - self._mean)

    def _shared(self, features: np.ndarray) -> np.ndarray:
        """Returns the covariance of errors with those seen, (count, seen)."""
        alike = features @ self._features.T
        most = float((self._features[0] ** 2).sum())
        together = np.exp((most - alike) * math.log(SHARED))
        return self._error_sd**2 * self._alike * (BY_KNOB * alike / most + (1 - BY_KNOB) * together)

    def error(self, features: np.ndarray) -> np.ndarray:
        """Returns the expected errors, (count,)."""
        if not len(self._features):
            return np.zeros(len(features))
        return self._mean + self._shared(features) @ self._weights

    def predict(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the expected errors and their standard deviations, (count,) each."""
        if not len(self._features):
            return np.zeros(len(features)), np.full(len(features), self._error_sd)
        shared = self._shared(features)
        known = np.einsum("ij,ij->i", shared @ self._inverse, shared)
        return self._mean + shared @ self._weights, np.sqrt(np.maximum(self._error_sd**2 - known, 1e-12))
