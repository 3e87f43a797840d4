"""A pytest plugin for JAX's own tests: makes ready what a program for a Helmway server needs, and nothing else.

Loaded with `-p jax_parity_backend`, before JAX is used. Does nothing on another backend.
"""

import os

if "proxy" in os.environ.get("JAX_PLATFORMS", ""):
    import pathwaysutils
    from helmway import _jax_plugin

    # JAX calls this entry point itself when it makes its backends; JAX's tests compare its settings before and after
    # each test, so it must have happened before the first.
    _jax_plugin.initialize()
    pathwaysutils.initialize()
