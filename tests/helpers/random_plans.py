"""Random allocation plans, for sweeps."""

from __future__ import annotations

import random

from hopper_matmul.scopes import BUFFERS, PLACES, Scope, ScopePlan


def random_plan(rng: random.Random) -> ScopePlan:
    """Returns a well-formed plan of one to four scopes, legal or not."""
    while True:
        held = [[] for _ in range(rng.randint(1, 4))]
        for buffer in BUFFERS:
            rng.choice(held).append(buffer)
        places = sorted((rng.choice(PLACES) for _ in held), key=PLACES.index)
        scopes = []
        for place, holds in zip(places, held, strict=True):
            if holds:
                is_acc_alone = holds == ["accumulator"]
                scopes.append(
                    Scope(
                        place=place,
                        holds=tuple(holds),
                        collective=rng.random() < (0.15 if is_acc_alone else 0.85),
                        shared={"ring", "epilogue"} <= set(holds) and rng.random() < 0.4,
                    )
                )
        try:
            return ScopePlan(name="random", scopes=tuple(scopes))
        except ValueError:
            continue
