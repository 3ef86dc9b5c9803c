"""What a time depends on, and the name of the study that follows from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.seam import MeasureProtocol

# Python, Optuna and autotune itself do not change what runs on the GPU, so they are recorded, but name no study.
_TOOLS_THAT_MATTER = ("jax", "jaxlib", "driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Everything that makes two times comparable. Two runs that agree on all of it share a study.

    Attributes:
        target: Name of the kernel family.
        problem: The problem's columns.
        space: Values of each knob after narrowing.
        protocol: How times are taken.
        device: Fields of the device, such as its kind and SM count.
        toolchain: Versions by tool; "jax", "jaxlib" and "driver" are part of the study's name.
        sources: Digest of the kernel's sources; an edited kernel starts a study of its own.
        evaluator: "gpu", "lower", or "replay" followed by the digest of the recorded space.
        title: The problem in words, for the readable part of the name.
    """

    target: str
    problem: Mapping[str, Any]
    space: Mapping[str, Sequence[Any]]
    protocol: MeasureProtocol
    device: Mapping[str, Any]
    toolchain: Mapping[str, str | None]
    sources: str
    evaluator: str
    title: str

    def digest(self) -> str:
        """Returns the first 16 hex digits of the SHA-256 of all that matters to a time."""
        identity = {
            "target": self.target,
            "problem": dict(self.problem),
            "space": {name: list(values) for name, values in self.space.items()},
            "protocol": dataclasses.asdict(self.protocol),
            "device": dict(self.device),
            "toolchain": {tool: self.toolchain.get(tool) for tool in _TOOLS_THAT_MATTER},
            "sources": self.sources,
            "evaluator": self.evaluator,
        }
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def study_name(self) -> str:
        """Returns a name that a reader recognises and that no other study has; safe as a file name."""
        device = str(self.device.get("kind", "device"))
        readable = "-".join(
            _slug(part) for part in (self.target, self.title, device, self.evaluator.split(":")[0])
        )
        return f"{readable[:120]}-{self.digest()}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_").lower()
