"""What makes two lowered modules the same: their operations, not their names, counters or source lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from jax.experimental.mosaic import gpu as mosaic_gpu
from jaxlib.mlir import ir

DIGEST_DIGITS = 32
# A kernel's own module travels as bytecode inside of a custom call. jax 0.11.2 numbers the kernels of a process in
# this attribute, so that two lowerings of one kernel differ; it names debug dumps and nothing else.
_DUMP_NAME = "mosaic_gpu.dump_basename"
_CONFIG, _KERNEL = "mhlo.backend_config", "module"
_ARGUMENTS, _TYPE, _ALIAS = "arg_attrs", "function_type", "tf.aliasing_output"


def module_digest(stage: Any) -> str:
    """Returns the SHA-256 of a lowered module, first 32 hex digits; the same for the same operations.

    Args:
        stage: A `jax.stages.Lowered`. Locations in the source do not count, nor does the kernel's number.
    """
    module = stage.compiler_ir("stablehlo")
    digest = hashlib.sha256()
    with module.context:
        digest.update(_outer_text(module).encode())
        for bytecode in _kernels(module):
            digest.update(b"\0" + _kernel_text(bytecode).encode())
    return digest.hexdigest()[:DIGEST_DIGITS]


def digest_with(digest: str, operand: Any) -> str:
    """Returns the digest of a module together with the run-time knobs that it is given.

    Args:
        digest: Of the module.
        operand: What the knobs are given as, a numpy array.
    """
    return hashlib.sha256(digest.encode() + operand.tobytes()).hexdigest()[:DIGEST_DIGITS]


def _outer_text(module: Any) -> str:
    """Returns the text of the module around the kernels, without what names them."""
    copy = ir.Module.parse(module.operation.get_asm(enable_debug_info=False))
    for call in _custom_calls(copy):
        config = call.attributes[_CONFIG]
        kept = {entry.name: entry.attr for entry in config if entry.name not in ("kernel_hash", _KERNEL)}
        call.attributes[_CONFIG] = ir.DictAttr.get(kept)
    _drop_room(copy)
    return copy.operation.get_asm(enable_debug_info=False)


def _drop_room(module: Any) -> None:
    """Takes the last argument of the main function away where it only lends its memory to the result.

    Where a result is put is no part of what is computed: a module has the digest that it has without.
    """
    main = next(each for each in module.body.operations if each.attributes["sym_name"].value == "main")
    block = main.regions[0].blocks[0]
    last = len(block.arguments) - 1
    attributes = list(main.attributes[_ARGUMENTS]) if _ARGUMENTS in main.attributes else []
    if len(attributes) <= last or _ALIAS not in attributes[last] or any(block.arguments[last].uses):
        return
    block.erase_argument(last)
    signature = ir.FunctionType(main.attributes[_TYPE].value)
    main.attributes[_TYPE] = ir.TypeAttr.get(ir.FunctionType.get(signature.inputs[:-1], signature.results))
    main.attributes[_ARGUMENTS] = ir.ArrayAttr.get(attributes[:-1])


def _kernels(module: Any) -> Iterator[bytes]:
    for call in _custom_calls(module):
        yield ir.StringAttr(call.attributes[_CONFIG][_KERNEL]).value_bytes


def _custom_calls(module: Any) -> list[Any]:
    found = []

    def visit(operation: Any) -> ir.WalkResult:
        if _CONFIG in operation.attributes:
            config = operation.attributes[_CONFIG]
            if isinstance(config, ir.DictAttr) and _KERNEL in config:
                found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _kernel_text(bytecode: bytes) -> str:
    """Returns the text of a kernel's module; the caller has entered a context that holds the gpu dialects."""
    mosaic_gpu.dialect.register_dialect(ir.Context.current)
    ir.Context.current.allow_unregistered_dialects = True  # the bytecode is of a stable, unregistered dialect
    kernel = ir.Module.parse(bytecode)
    if _DUMP_NAME in kernel.operation.attributes:
        del kernel.operation.attributes[_DUMP_NAME]
    return kernel.operation.get_asm(enable_debug_info=False)
