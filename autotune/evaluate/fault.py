"""A candidate's own failure inside a worker, on its way to becoming a `Failed`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autotune.seam import Failed, FailureReason, Lowered

DETAIL_CHARACTERS = 300
CUT = " ... "


class CandidateError(Exception):
    """Ends the work on one candidate.

    Attributes:
        loses_context: The CUDA context may be broken: nothing more can be measured in this process.
    """

    def __init__(self, reason: FailureReason, detail: str, *, loses_context: bool = False):
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.loses_context = loses_context

    def failed(self, lowered: Lowered | None) -> Failed:
        return Failed(reason=self.reason, detail=self.detail, lowered=lowered)


def one_line(text: str) -> str:
    """Returns `text` with every run of white space as one blank; of a long text the beginning and the end.

    Runtime errors begin with their kind and end with their cause; a dump of the program stands between.
    """
    line = " ".join(text.split())
    if len(line) <= DETAIL_CHARACTERS:
        return line
    half = (DETAIL_CHARACTERS - len(CUT)) // 2
    return line[:half] + CUT + line[-half:]


def describe(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")


@contextmanager
def charged_to(step: FailureReason) -> Iterator[None]:
    """Turns any exception of the block into a CandidateError.

    Args:
        step: "lower" or "compile", the reason given; or "launch": errors of the runtime there are told apart
            into "memory" and "launch", and what Python itself raises is an "error". A card without room is
            "memory" in every step.
    """
    try:
        yield
    except CandidateError:
        raise
    except MemoryError as error:
        raise CandidateError("memory", describe(error)) from None
    except Exception as error:  # noqa: BLE001 - the candidate's failure becomes a value
        raise _fault(error, step) from None


def _fault(error: Exception, step: FailureReason) -> CandidateError:
    import jax

    if step != "launch":
        # XLA also calls a block's shared memory a resource that is exhausted, and that is no question of room.
        has_no_room = isinstance(error, jax.errors.JaxRuntimeError) and "ut of memory" in str(error)
        return CandidateError("memory" if has_no_room else step, describe(error))
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return CandidateError("error", describe(error))
    # The status code opens the text of every runtime error; jax has no field for it (0.11.2, 0.12.0).
    if str(error).startswith("RESOURCE_EXHAUSTED"):
        return CandidateError("memory", describe(error))
    # An illegal access is sticky: every later call in this context fails with it, so the process must go.
    return CandidateError("launch", describe(error), loses_context=True)
