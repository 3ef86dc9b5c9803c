"""Search: which configuration to try next. One seam, `Searcher`, behind which all samplers stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.search.searcher import Searcher


def make_searcher(settings: Any, space: Any, default_knobs: Sequence[Mapping[str, Any]]) -> Searcher:
    """Returns the searcher that `settings` names.

    Args:
        settings: `sampler` ("auto", "guided", "local", "tpe", "random" or "exhaustive") and `seed`. "auto"
            is "guided", and "guided" is "local" where the target predicts nothing.
        space: A target's space; its legal set is built here.
        default_knobs: Proposed before anything the sampler draws. Those outside the legal set are left out.

    Raises:
        ValueError: The sampler has no implementation.
    """
    from autotune.search.rows import LegalRows
    from autotune.search.shuffled import ShuffledSearcher

    rows = LegalRows(space)
    match settings.sampler:
        case "auto" | "guided" if rows.has_model:
            from autotune.search.guided import GuidedSearcher

            return GuidedSearcher(rows, default_knobs, settings.seed)
        case "auto" | "guided" | "local":
            from autotune.search.local import LocalSearcher

            return LocalSearcher(rows, default_knobs, settings.seed)
        case "tpe":
            from autotune.search.tpe import TpeSearcher

            return TpeSearcher(rows, default_knobs, settings.seed)
        case "random":
            return ShuffledSearcher(rows, default_knobs, settings.seed)
        case "exhaustive":
            return ShuffledSearcher(rows, default_knobs, settings.seed, by_binary=True)
        case other:
            raise ValueError(f"sampler={other!r}: allowed are auto, guided, local, tpe, random, exhaustive")
