"""An error shows the line of the program that caused it, and a program's memory does not grow with its requests."""

import textwrap

import pytest
import raw_client

from conftest import run_python
from raw_client import DATA_LOSS, OK, Connection, array_spec, device_id, message, on_device

CONTEXT = "type.googleapis.com/ifrt.UserContext"

FAILING = textwrap.dedent(
    """
    import jax, numpy as np, jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), "x"), PartitionSpec("x"))
    donate = jax.jit(lambda a, b: a + b, donate_argnums=0)
    double = jax.jit(lambda a: a * 2)
    donate(jnp.ones(4), jnp.ones(4)), double(jnp.ones(4))

    def culprit():
        x = jax.device_put(np.ones(4, np.float32), sharding)
        y = jax.make_array_from_single_device_arrays((4,), sharding, [x.addressable_shards[0].data])
        return donate(x, y)

    def innocent(x):
        return jax.device_put(double(double(x)), jax.devices()[1])

    failed = culprit()
    later = innocent(failed)
    for use in (np.asarray, jax.block_until_ready, lambda x: np.asarray(jax.jit(lambda a: a - 1)(x))):
        for x in (failed, later):
            try:
                use(x)
            except jax.errors.JaxRuntimeError as error:
                text = str(error)
                assert text.startswith("INVALID_ARGUMENT: Attempt to use a buffer that was previously donated"), text
                assert "(culprit)" in text and "innocent" not in text and "UserContext" not in text, text
            else:
                raise AssertionError("no error")
    # What fails where it is called says so as ever.
    gone = jnp.ones(3) + 0
    gone.delete()
    try:
        double(gone)
    except RuntimeError as error:
        assert "UserContext" not in str(error), error
    """
)

GROWTH = textwrap.dedent(
    """
    import gc, jax, numpy as np, jax.numpy as jnp

    def resident_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    increment = jax.jit(lambda a: a + 1)
    x = jnp.ones(4)

    def work(rounds):
        for _ in range(rounds):
            y = increment(x)
            np.asarray(y)
            jax.device_put(jax.device_put(np.ones(4, np.float32), jax.devices()[1]), jax.devices()[2])
            z = jnp.asarray(1.0)
            z.delete()
        jax.block_until_ready(y)
        gc.collect()
        return resident_kib()

    before = work(2000)
    after = work(ROUNDS)
    print((after - before) * 1024 / ROUNDS)
    """
)


def test_errors_show_the_line_that_caused_them(server):
    run_python(FAILING, env=server.environment())


@pytest.mark.one_jax
def test_memory_of_a_client_does_not_grow_with_its_requests(server):
    # A client that is told nothing keeps more than 2000 bytes for these requests.
    done = run_python(GROWTH.replace("ROUNDS", "5_000"), env=server.environment())
    assert float(done.stdout) < 600


def test_what_a_client_is_told_to_forget(server):
    with Connection(server.address) as connection:
        stream = connection.stream().start()
        sent, forgotten, numbers = [], [], []

        def call(context, **member):
            request = stream.request(**member)
            request.request_metadata.user_context_id = context
            sent.append(context)
            stream.send_bytes(request.SerializeToString())
            return look(stream.response(request.request_metadata.op_id))

        def look(response):
            metadata = response.response_metadata
            counted = metadata.status.code == OK and response.WhichOneof("response") not in (
                "delete_array_response", "destruct_array_response",
            )
            if counted:
                numbers.append(metadata.seq_num)
            else:
                assert not metadata.seq_num and not metadata.destroyed_user_context_ids
            forgotten.extend(metadata.destroyed_user_context_ids)
            return response

        ready = message("CheckValueReadyRequest")
        call(0, check_value_ready_request=ready())
        connection.store(stream.session_id, 10, [bytes(16)]).result()
        call(101, make_array_from_host_buffer_request=stream.make_array_request(10))
        call(102, check_value_ready_request=ready(value_handles=[10]))
        # An array of the wrong size fails, and so do its copies; it is their first cause.
        connection.store(stream.session_id, 11, [bytes(4)]).result()
        call(103, make_array_from_host_buffer_request=stream.make_array_request(11))
        call(104, copy_arrays_request=message("CopyArraysRequest")(
            array_handles=[11], device_ids=[device_id(1)], result_handles=[12], copy_semantics=1
        ))
        for context, handle in ((105, 11), (106, 12)):
            status = call(context, check_value_ready_request=ready(value_handles=[handle])).response_metadata.status
            assert status.payload[CONTEXT] == b"103"
        # A request that fails at once, and what its results say.
        status = call(107, copy_arrays_request=message("CopyArraysRequest")(
            array_handles=[4711], device_ids=[device_id(1)], result_handles=[13]
        )).response_metadata.status
        assert status.code == raw_client.NOT_FOUND and not status.payload
        status = call(108, check_value_ready_request=ready(value_handles=[13])).response_metadata.status
        assert status.code == raw_client.NOT_FOUND and status.payload[CONTEXT] == b"107"
        # An error that the client gives keeps what it says.
        errors = message("MakeErrorArraysRequest")(array_specs=[array_spec(on_device(0))] * 2, array_handles=[14, 15])
        errors.error.code, errors.error.payload[CONTEXT] = DATA_LOSS, b"77"
        call(109, make_error_arrays_request=errors)
        status = call(110, check_value_ready_request=ready(value_handles=[15])).response_metadata.status
        assert status.payload[CONTEXT] == b"77"
        # Deletions, with the check that follows.
        deletion = look(stream.call(delete_array_request=message("DeleteArrayRequest")(array_handle=[10])))
        check = stream.call(check_future_request=message("CheckFutureRequest")(
            future_handle=deletion.delete_array_response.deletion_future_handle
        ))
        assert not check.response_metadata.seq_num and not check.response_metadata.destroyed_user_context_ids
        look(stream.call(destruct_array_request=message("DestructArrayRequest")(array_handle=[10, 11, 12, 13])))
        for context in range(120, 125):
            call(context, check_value_ready_request=ready())
        stream.cancel()
    assert numbers == list(range(len(numbers)))
    # Not those of requests that failed or made what failed: errors may still name them.
    assert sorted(forgotten) == [101, 102, 120, 121, 122, 123, 124]
