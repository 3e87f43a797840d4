"""What jax.experimental.buffer_callback gives to its function, made from arrays of the host.

JAX's own Buffer and ExecutionContext can be made only inside jaxlib, by a backend of the process.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np


class Buffer:
    """A buffer of the program: what jax.experimental.buffer_callback.Buffer is on CPU. `array` is its memory."""

    def __init__(self, array: np.ndarray):
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype:
        return self._array.dtype

    @property
    def writeable(self) -> bool:
        return self._array.flags.writeable

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            if copy is False:
                raise ValueError(f"a buffer of {self.dtype} is not one of {np.dtype(dtype)} without a copy")
            return self._array.astype(dtype)
        return self._array.copy() if copy else self._array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class ExecutionContext:
    """What jax.experimental.buffer_callback.ExecutionContext is on CPU."""

    @property
    def stage(self):
        from jax.experimental import buffer_callback

        return buffer_callback.ExecutionStage.EXECUTE

    @property
    def stream(self):
        import jax

        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: XLA FFI GPU context is not available")


def with_buffers(function: Callable, results: Sequence, aliases: Mapping[int, int]) -> Callable:
    """A function of arrays that returns arrays, made from one that takes a context, its arguments and its results.

    `results`: the shape and dtype of each. `aliases`: by the number of an argument, the result that is to have the
    same memory.
    """

    def run(*arguments):
        outputs = [None] * len(results)
        inputs = [np.asarray(argument) for argument in arguments]
        for argument, result in aliases.items():
            # What came with the call may not be written.
            inputs[argument] = outputs[result] = inputs[argument].copy()
        for i, result in enumerate(results):
            if outputs[i] is None:
                outputs[i] = np.zeros(result.shape, result.dtype)
        given = []
        for array in inputs:
            view = array.view()
            view.flags.writeable = False
            given.append(Buffer(view))
        function(ExecutionContext(), *given, *map(Buffer, outputs))
        return tuple(outputs)

    return run
