"""Python callbacks in programs for a Helmway server: jax.debug.print, jax.debug.callback, jax.pure_callback,
jax.experimental.io_callback, jax.experimental.buffer_callback and the checks of checkify.

JAX lowers them to custom calls that name a function of the process by an index, which only a backend inside that
process can call; its client for servers refuses such programs. Here each of these primitives gets another lowering
rule, registered as any extension may (jax.interpreters.mlir.register_lowering). For a Helmway server it lets JAX's
own rule do its work and changes the attributes of the custom call that it made: a Helmway server answers it by
calling this process over a stream of its own (_callback_stream.py). For any other backend it is JAX's own rule.
"""

import copy
import functools

# XLA's partitioner looks for this name. JAX has another for callbacks that run on the shard of each device; its
# partitioner is inside jaxlib.
_TARGET = "xla_ffi_python_cpu_callback"
_PARTITIONED_TARGET = "xla_ffi_partitioned_python_cpu_callback"
_BUFFER_TARGET = "xla_buffer_python_cpu_callback"
# What the server gives to the devices of each session (helmway/net/python_callbacks.proto).
_KEY = "helmway_callback_key"

_targets: dict[str, str] = {}  # addresses of servers by the key of the session


def remember(client, target: str) -> None:
    """Notes the address of the server that a client of JAX is connected to."""
    if (key := _session_key(client)) is not None:
        _targets[key] = target


def server_key(module_context) -> str | None:
    """The key of the session with the Helmway server that a module is for, or None if it is for another backend."""
    if len(module_context.platforms) != 1 or module_context.backend is None:
        return None
    return _session_key(module_context.backend)


def register_rules() -> None:
    """Registers the lowering rules. Without them the client of JAX refuses callbacks."""
    from jax._src import buffer_callback, callback, checkify, debugging
    from jax._src.interpreters import mlir as mlir_internals
    from jax.interpreters import mlir

    for primitive in (
        callback.pure_callback_p,
        callback.io_callback_p,
        debugging.debug_callback_p,
        debugging.debug_print_p,
        checkify.check_p,
    ):
        specific = mlir_internals._platform_specific_lowerings["cpu"]
        entry = specific.get(primitive) or mlir_internals._lowerings[primitive]
        rule = functools.partial(_lower, entry.rule)
        mlir.register_lowering(primitive, rule, platform="cpu", inline=entry.inline)
    entry = mlir_internals._lowerings[buffer_callback.buffer_callback_p]
    rule = functools.partial(_lower_buffer_callback, entry.rule)
    mlir.register_lowering(buffer_callback.buffer_callback_p, rule, platform="cpu", inline=entry.inline)


def _session_key(client) -> str | None:
    devices = client.devices()
    return getattr(devices[0], _KEY, None) if devices else None


def _connection_for(module_context):
    """The connection to the server that the module is for, or None if it is for another backend."""
    key = server_key(module_context)
    if key is None:
        return None
    import jax
    from helmway import _callback_stream

    target = _targets.get(key) or jax.config.read("jax_backend_target")
    return _callback_stream.connection(target, key)


def _lower_buffer_callback(jax_rule, ctx, *args, input_output_aliases, **params):
    from helmway import _buffer_callback

    adapt = functools.partial(
        _buffer_callback.with_buffers, results=ctx.avals_out, aliases=dict(input_output_aliases)
    )
    return _lower(jax_rule, ctx, *args, adapt=adapt, input_output_aliases=input_output_aliases, **params)


def _lower(jax_rule, ctx, *args, adapt=lambda function: function, **params):
    """Lowers by JAX's rule. `adapt` makes a function of arrays of what the rule has as its callback."""
    connection = _connection_for(ctx.module_context)
    if connection is None:
        return jax_rule(ctx, *args, **params)
    from jaxlib.mlir import ir

    # JAX's rule notes its callback here instead of in the module, whose compilation would be refused, and puts
    # what it makes into a block of its own.
    module_context = copy.copy(ctx.module_context)
    module_context.host_callbacks = functions = []
    inner = ctx.replace(module_context=module_context)
    here = ir.InsertionPoint.current
    scratch = ir.Module.create(ir.Location.current)
    with ir.InsertionPoint(scratch.body):
        results = jax_rule(inner, *args, **params)
    handles = [connection.add(_with_x64(adapt(function))) for function in functions]
    for operation in list(scratch.body.operations):
        _redirect(operation, handles)
        operation.detach_from_parent()
        here.insert(operation)
    for handle in handles:
        ctx.module_context.add_keepalive(handle)
    if inner.tokens_out is not None:
        ctx.set_tokens_out(inner.tokens_out)
    return results


def _with_x64(function):
    """The function with the width of numbers that its program was traced with: it runs on another thread."""
    import jax

    enabled = jax.config.jax_enable_x64

    def run(*arguments):
        with jax.enable_x64(enabled):
            return function(*arguments)

    return run


def _redirect(operation, handles) -> None:
    """Turns JAX's custom call into ours."""
    from helmway import _callback_stream
    from jaxlib.mlir import ir

    attributes = operation.attributes
    if operation.operation.name != "stablehlo.custom_call":
        return
    if ir.StringAttr(attributes["call_target_name"]).value not in (_TARGET, _PARTITIONED_TARGET, _BUFFER_TARGET):
        return
    config = ir.DictAttr(attributes["mhlo.backend_config"])
    handle = handles[ir.IntegerAttr(config["index"]).value]
    unsigned = ir.IntegerType.get_unsigned(64)
    attributes["call_target_name"] = ir.StringAttr.get(_TARGET)
    attributes["mhlo.backend_config"] = ir.DictAttr.get(
        {
            "callback": ir.IntegerAttr.get(unsigned, handle.index),
            "client": ir.IntegerAttr.get(unsigned, _callback_stream.CLIENT),
        }
    )
