"""What asks XLA's partitioner to call the process of the user, in programs for a Helmway server: functions with a
partitioning of their own (jax.experimental.custom_partitioning), and jax.debug.inspect_array_sharding.

JAX lowers them to custom calls about which only a compiler inside that process can ask; elsewhere the first are refused
and the second forgotten. Here the first are lowered as JAX does it on one device, as the operations that they consist
of, and XLA partitions these. The results are the same; how they are partitioned, and what a device sees of an operation
that XLA can't partition, is not what the function asks for. An inspection is answered where the sharding is known
before XLA partitions: over explicit axes, and where all axes are manual. A warning says what is not done, once for each
function. For any other backend the rules are JAX's own.
"""

import functools
import logging

_logger = logging.getLogger(__name__)

_warned: set[str] = set()


def register_rules() -> None:
    """Registers the lowering rules. Without them the server refuses such functions, and forgets inspections."""
    from jax._src import custom_partitioning, debugging
    from jax._src.interpreters import mlir as mlir_internals
    from jax.interpreters import mlir

    for primitive, lower in (
        (custom_partitioning.custom_partitioning_p, _lower_partitioning),
        (debugging.inspect_sharding_p, _lower_inspection),
    ):
        entry = mlir_internals._lowerings[primitive]
        mlir.register_lowering(primitive, functools.partial(lower, entry.rule), inline=entry.inline)


def _lower_partitioning(jax_rule, ctx, *args, call, **params):
    if not _is_for_server(ctx) or not _is_partitioned(ctx.module_context.axis_context):
        return jax_rule(ctx, *args, call=call, **params)
    from jax.extend import core
    from jax.interpreters import mlir

    _warn_once(
        f"the custom partitioning of {call.jaxpr.debug_info.func_src_info} is not used: "
        "XLA, on the server, partitions what it does"
    )
    return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(ctx, *args)


def _lower_inspection(jax_rule, ctx, value, *, callback):
    import numpy as np
    from jax._src import sharding_impls
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    axis_context = ctx.module_context.axis_context
    if not _is_for_server(ctx):
        return jax_rule(ctx, value, callback=callback)
    known = ctx.avals_in[0].sharding
    if not _is_partitioned(axis_context):
        if not isinstance(axis_context, sharding_impls.SPMDAxisContext):
            return jax_rule(ctx, value, callback=callback)
        callback(NamedSharding(axis_context.mesh, PartitionSpec()))
    elif (
        isinstance(axis_context, sharding_impls.ShardingContext)
        and axis_context.device_assignment
        and not known.mesh.empty
        and all(kind == AxisType.Explicit for kind in known.mesh.axis_types)
    ):
        devices = np.array(axis_context.device_assignment).reshape(known.mesh.axis_sizes)
        callback(NamedSharding(Mesh(devices, known.mesh.axis_names, known.mesh.axis_types), known.spec))
    else:
        _warn_once("jax.debug.inspect_array_sharding is not called: only XLA, on the server, knows the sharding")
    return []


def _is_for_server(ctx) -> bool:
    from helmway import _callbacks

    return _callbacks.server_key(ctx.module_context) is not None


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        _logger.warning("%s", text)


def _is_partitioned(axis_context) -> bool:
    """Whether XLA is to partition what is lowered; elsewhere JAX's own rule does as this one."""
    from jax._src import sharding_impls

    if isinstance(axis_context, sharding_impls.ShardingContext):
        return axis_context.num_devices > 1
    if isinstance(axis_context, sharding_impls.SPMDAxisContext):
        return set(axis_context.manual_axes) != set(axis_context.mesh.axis_names)
    return False
