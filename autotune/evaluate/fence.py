"""The memory that a candidate's result is written to: chosen beforehand, filled with poison, between two posts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# A tile of 256 rows that runs over the end of a matrix with 2,048 bfloat16 columns writes 1 MiB of it.
POST_BYTES = 2**20
PATTERN = 0xFF  # read as a float of any width it is NaN, so that a stray read shows in the result
TRIES = 64
TRIED_BYTES = 2**30  # all tries together: a result of gigabytes gets one
ALIGNMENT = 256  # jax's allocator rounds sizes up to it (XLA's BFC allocator, kMinAllocationSize)


class Fence:
    """Keeps one buffer of the result's type, the room, which is donated to each call of a candidate.

    A candidate is compiled with one more argument of the result's type that is never read and whose memory becomes
    the result's (see `steps.lower_candidate`). So its address is known before and after, and nothing is guessed of
    where an allocator puts things. The room is one that was found, by address, right between two posts of a known
    pattern: of some that were allocated in turn, which lie side by side as soon as all smaller gaps are filled.

    Args:
        result: Shape and dtype of the result.
        poison: Value of an element that was never written.
        compile_program: From a function, its argument types and `donate` (places of arguments) to a program.
    """

    def __init__(
        self,
        result: jax.ShapeDtypeStruct,
        poison: float | int,
        compile_program: Callable[..., Callable[..., Any]],
    ):
        self._room_bytes = math.prod(result.shape) * result.dtype.itemsize
        post = jax.ShapeDtypeStruct((POST_BYTES,), jnp.uint8)
        self._make_post = compile_program(lambda: jnp.full(post.shape, PATTERN, post.dtype))
        self._make_room = compile_program(lambda: jnp.full(result.shape, poison, result.dtype))
        # The same with an argument whose memory it takes.
        self._fill = compile_program(
            lambda room: jnp.full(result.shape, poison, result.dtype), result, donate=(0,)
        )
        self._count = compile_program(_count_changed, post, post)
        self._posts: tuple[Array, Array] | None = None
        self._room: Array | None = None
        self._enclosed_place: int | None = None

    def lay(self) -> None:
        """Finds a room and its posts where there is no room; runs on the GPU."""
        if self._room is None:
            self._find()

    def _find(self) -> None:
        """Keeps the first room of some tries that lies between two posts, else the last; gives the others back."""
        self._posts = self._room = self._enclosed_place = None
        posts, rooms = [_made(self._make_post)], []
        room_bytes = -(-self._room_bytes // ALIGNMENT) * ALIGNMENT
        for _ in range(max(1, min(TRIES, TRIED_BYTES // (room_bytes + POST_BYTES)))):
            rooms.append(_made(self._make_room))
            posts.append(_made(self._make_post))
            found = enclosed(rooms, posts, room_bytes)
            if found is not None:
                self._room, self._posts = found
                self._enclosed_place = self._room.unsafe_buffer_pointer()
                return
        self._room = rooms[-1]

    def poison(self) -> int:
        """Fills the room with poison and returns its address."""
        self.lay()
        self._room = jax.block_until_ready(self._fill(self._room))
        return self._room.unsafe_buffer_pointer()

    def take(self) -> Array:
        """Returns the room, to be donated; what becomes of it comes back by `keep`."""
        self.lay()  # where the call before took it and failed
        room, self._room = self._room, None
        return room

    def keep(self, result: Array) -> None:
        """Takes a result as the room of the next call, which will overwrite it."""
        self._room = result

    def encloses(self, address: int) -> bool:
        """Returns whether a result at `address` has a post right before and right after it."""
        return address == self._enclosed_place

    def changed(self) -> Array | int:
        """Launches what counts the bytes of the posts that have changed, and returns its result."""
        return 0 if self._posts is None else self._count(*self._posts)

    def mend(self) -> None:
        """Finds another room with posts, where those at hand were written to."""
        self._find()


def enclosed(
    rooms: Sequence[Array], posts: Sequence[Array], room_bytes: int
) -> tuple[Array, tuple[Array, Array]] | None:
    """Returns the first room that begins where a post ends and ends where one begins, with both; None without one."""
    starts = {post.unsafe_buffer_pointer(): post for post in posts}
    for room in rooms:
        place = room.unsafe_buffer_pointer()
        before, after = starts.get(place - POST_BYTES), starts.get(place + room_bytes)
        if before is not None and after is not None:
            return room, (before, after)
    return None


def _made(make: Callable[[], Array]) -> Array:
    return jax.block_until_ready(make())


def _count_changed(*posts: Array) -> Array:
    return sum(jnp.sum(post != PATTERN) for post in posts)
