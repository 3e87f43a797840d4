"""pathwaysutils, unmodified, on Helmway: its registration, its view of devices, its slice health check."""

import pytest
from conftest import DEVICES, cpu_environment, run_python

ADD = "print(len(jax.devices()), jax.devices()[0].client.runtime_type, int(jax.numpy.arange(4).sum()))"
EXPECTED = f"{DEVICES} proxy/pathways 6\n"


@pytest.mark.parametrize(
    "prelude",
    [
        "",
        "import pathwaysutils; pathwaysutils.initialize()",
        "import pathwaysutils; pathwaysutils.initialize(); pathwaysutils.initialize()",
        "from helmway import _jax_plugin; _jax_plugin.initialize()\nimport pathwaysutils; pathwaysutils.initialize()",
        "import pathwaysutils; pathwaysutils.initialize()\nfrom helmway import _jax_plugin; _jax_plugin.initialize()",
    ],
    ids=["without", "initialize", "twice", "after the plugin", "before the plugin"],
)
def test_start(server, prelude):
    assert run_python(f"{prelude}\nimport jax\n{ADD}", env=server.environment()).stdout == EXPECTED


def test_late_import_after_jax_was_used(server):
    script = f"import jax\n{ADD}\nimport pathwaysutils\nprint(bool(pathwaysutils.is_pathways_backend_used()))"
    assert run_python(script, env=server.environment()).stdout == EXPECTED + "True\n"


def test_does_not_think_that_cpu_is_pathways():
    script = "import pathwaysutils; pathwaysutils.initialize(); print(bool(pathwaysutils.is_pathways_backend_used()))"
    assert run_python(script, env=cpu_environment()).stdout == "False\n"


def test_attributes_of_devices(server):
    script = """if True:
        import jax
        devices = jax.devices()
        print(sorted({d.slice_index for d in devices}), len({d.colocation_id for d in devices}))
        print({d.virtual_task_index for d in devices}, {d.platform for d in devices}, {d.device_kind for d in devices})
    """
    assert run_python(script, env=server.environment()).stdout == f"[0] {DEVICES}\n{{0}} {{'cpu'}} {{'cpu'}}\n"


def test_elastic_manager_finds_the_slice_healthy(server):
    script = """if True:
        import pathwaysutils
        pathwaysutils.initialize()
        from pathwaysutils.elastic import elastic, manager
        made = manager.Manager()
        print(made.total_slice_count, sorted(made.active_slice_indices), made.default_device.id)
        print(sorted(elastic.get_active_slice_indices(made.slice_to_devices)))
    """
    assert run_python(script, env=server.environment()).stdout == "1 [0] 0\n[0]\n"
