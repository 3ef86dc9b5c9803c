"""Live buffers of a known pattern on both sides of a buffer that comes and goes, to catch stray writes and reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

# A tile of 256 rows that runs over the end of a matrix with 2,048 bfloat16 columns writes 1 MiB of it.
POST_BYTES = 2**20
PATTERN = 0xFF  # read as a float of any width it is NaN, so that a stray read shows in the result
TRIES = 64
PLUG_BYTES = 2**30  # all plugs of one kind together: a result of gigabytes gets one try
ALIGNMENT = 256  # jax's allocator rounds sizes up to it (XLA's BFC allocator, kMinAllocationSize)


class Fence:
    """Lays `posts` around holes as large as a result, and finds out whether a post was written to.

    XLA's allocator gives each buffer the smallest free piece that fits it, from its front. So one block is taken
    for all and given back; smaller pieces elsewhere are plugged until posts and holes fall into the block in turn;
    then the holes are freed, and the next buffers of this size go there. Whether they did is known by address, so
    `encloses` never guesses; a post is checked wherever it lies.

    Args:
        hole_bytes: Size of the result.
        holes: How many; a temporary of the candidate may take one.
        compile_program: From a function and its argument types to a program, as in `bench`.
    """

    def __init__(self, hole_bytes: int, holes: int, compile_program: Callable[..., Callable[..., Any]]):
        self._hole_bytes = hole_bytes
        self._holes = holes
        post = jax.ShapeDtypeStruct((POST_BYTES,), jnp.uint8)
        self._post = compile_program(lambda: jnp.full(post.shape, PATTERN, post.dtype))
        # In words, since some results have more bytes than an int32 can count.
        self._hole = compile_program(lambda: jnp.zeros((-(-hole_bytes // 4),), jnp.uint32))
        # A free piece is split only where twice the size asked for fits into it (XLA's BFC allocator, SplitChunk).
        block_words = (POST_BYTES + self._hole_room) * (holes + 2) // 4
        self._block = compile_program(lambda: jnp.zeros((block_words,), jnp.uint32))
        self._count = compile_program(_count_changed, *[post] * (holes + 1))
        self._posts: list[Array] = []
        self._places: set[int] = set()

    @property
    def _hole_room(self) -> int:
        return -(-self._hole_bytes // ALIGNMENT) * ALIGNMENT

    def lay(self) -> None:
        """Allocates the posts, once; runs on the GPU."""
        if self._posts:
            return
        block = jax.block_until_ready(self._block())
        place = block.unsafe_buffer_pointer()
        block.delete()
        plugs: list[Array] = []
        posts = [_placed(self._post, POST_BYTES, place, plugs)]
        holes = []
        for _ in range(self._holes):
            place += POST_BYTES
            holes.append(_placed(self._hole, self._hole_room, place, plugs))
            place += self._hole_room
            posts.append(_placed(self._post, POST_BYTES, place, plugs))
        starts = [post.unsafe_buffer_pointer() for post in posts]
        for index, hole in enumerate(holes):
            start = hole.unsafe_buffer_pointer()
            if starts[index] + POST_BYTES == start and start + self._hole_room == starts[index + 1]:
                self._places.add(start)
        for buffer in (*holes, *plugs):
            buffer.delete()
        self._posts = posts

    def encloses(self, address: int) -> bool:
        """Returns whether a buffer of the result's size at `address` has a post right before and right after it."""
        return address in self._places

    def broken(self) -> int:
        """Returns how many bytes of the posts have changed, and mends them."""
        changed = int(self._count(*self._posts))
        if changed:
            # Posts in other places would enclose nothing: laid anew, all of them.
            self._posts, self._places = [], set()
            self.lay()
        return changed


def _placed(make: Callable[[], Array], size: int, place: int, plugs: list[Array]) -> Array:
    """Returns a buffer at `place`, or after some tries one elsewhere; what came before it plugs other pieces."""
    for _ in range(max(1, min(TRIES, PLUG_BYTES // size))):
        buffer = jax.block_until_ready(make())
        if buffer.unsafe_buffer_pointer() == place:
            return buffer
        plugs.append(buffer)
    return plugs.pop()


def _count_changed(*posts: Array) -> Array:
    return sum(jnp.sum(post != PATTERN) for post in posts)
