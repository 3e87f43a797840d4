"""Helmway: one Python process drives many devices, with unmodified JAX.

    import helmway

    with helmway.local(devices=8):
        import jax
        print(jax.devices())

`start()` and `LocalCluster.stop()` do the same without a block, for notebooks.
"""

from helmway._local import LocalCluster, local, start

__all__ = ["LocalCluster", "local", "start"]
__version__ = "0.1.0"
