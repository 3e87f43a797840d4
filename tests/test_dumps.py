"""What `--xla_dump_to` and its companions leave in a directory or a bucket."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from conftest import clean_environment, run_python

PROGRAM = """if True:
    import jax, jax.numpy as jnp
    def train_step(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    jax.jit(train_step, donate_argnums=0)(jnp.ones((4, 2)), jnp.ones((3, 4))).block_until_ready()
    jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
"""

# Run with the bytecode, the compile options and the optimized program as arguments.
PARSE = """if True:
    import sys
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    from jax._src.lib import xla_client
    def read(path):
        with open(path, "rb") as file:
            return file.read()
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, read(sys.argv[1]))
        print("stablehlo.dot_general" in str(module))
        print("stablehlo.dot_general" in str(ir.Module.parse(read(sys.argv[2]).decode())))
    options = xla_client.CompileOptions.ParseFromString(read(sys.argv[3]))
    print(options.executable_build_options.num_partitions)
"""


def run(binary, *flags, program=PROGRAM, environment=None):
    done = subprocess.run(
        [binary, "up", "--minloglevel=0", *flags, "--", sys.executable, "-c", program],
        env=clean_environment(**(environment or {})), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def check_folder(folder, names):
    assert {"program.mlirbc", "program.mlir", "compile_options.pb", "compile_options.txt", "after_optimizations.txt",
            } <= set(names), names
    assert any(re.fullmatch(r"xla/module_\d+\.jit_train_step\..*before_optimizations\.txt", name) for name in names)
    assert any(re.fullmatch(r"xla/module_\d+\.jit_train_step\..*after_optimizations\.txt", name) for name in names)
    text = (folder / "after_optimizations.txt").read_text()
    assert text.startswith("HloModule jit_train_step")
    done = run_python(PARSE, str(folder / "program.mlirbc"), str(folder / "program.mlir"),
                      str(folder / "compile_options.pb"), env=clean_environment(JAX_PLATFORMS="cpu"))
    assert done.stdout == "True\nTrue\n1\n"


def test_a_directory_with_the_modules_that_were_asked_for(helmway_binary, tmp_path):
    flags = [f"--xla_dump_to={tmp_path}/dumps", "--xla_dump_hlo_as_text", "--xla_dump_hlo_module_re=train_s.ep"]
    done = run(helmway_binary, *flags, f"--python={sys.executable}")
    assert "HloModule" not in done.stdout
    indexes = list((tmp_path / "dumps/index").rglob("*.json"))
    assert [index.parent.name for index in indexes] == ["jit_train_step"]
    index = json.loads(indexes[0].read_text())
    assert index["module"] == "jit_train_step" and index["outcome"] == "OK" and index["missing"] == {}
    folder = tmp_path / "dumps" / index["folder"]
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(index["files"])
    check_folder(folder, names)
    assert {path.name for path in (tmp_path / "dumps").iterdir()} == {"index", index["folder"]}


def test_workers_in_processes_of_their_own_write_theirs_before_they_end(helmway_binary, tmp_path):
    run(helmway_binary, "--workers=2", f"--xla_dump_to={tmp_path}", "--xla_dump_hlo_module_re=train_step",
        f"--python={sys.executable}")
    (index,) = (tmp_path / "index/jit_train_step").iterdir()
    folder = tmp_path / json.loads(index.read_text())["folder"]
    check_folder(folder, [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()])


def test_a_bucket_and_a_cache_that_has_the_program_already(helmway_binary, tmp_path, front):
    scratch = [f"--gcs_scratch_location={tmp_path}/scratch", f"--python={sys.executable}"]
    run(helmway_binary, *scratch)
    flags = ["--xla_dump_to=gs://bucket/dumps", "--xla_dump_hlo_module_re=train_step"]
    done = run(helmway_binary, *scratch, *flags, environment=front.environment())
    assert re.search(r"Compile cache: .* 0 misses", done.stderr), done.stderr
    names = [name.removeprefix("dumps/") for name in front.objects("dumps/")]
    (folder,) = {name.split("/")[0] for name in names} - {"index"}
    for name in names:
        path = tmp_path / "got" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(front.read(f"dumps/{name}"))
    check_folder(tmp_path / "got" / folder,
                 [name.removeprefix(folder + "/") for name in names if name.startswith(folder)])


def test_a_program_may_ask_for_itself_below_the_scratch_location_only(helmway_binary, tmp_path):
    program = """if True:
        import jax, jax.numpy as jnp
        def named(x):
            return x + 1
        for place in %r:
            options = dict(xla_dump_to=place, xla_dump_hlo_as_text=True)
            try:
                print(jax.jit(named, compiler_options=options)(jnp.ones(3)).sum())
            except Exception as e:
                print("below its scratch location" in str(e))
    """ % ([f"{tmp_path}/elsewhere", f"{tmp_path}/scratch/../elsewhere", f"{tmp_path}/scratch/mine"],)
    done = run(helmway_binary, f"--gcs_scratch_location={tmp_path}/scratch", program=program)
    assert done.stdout == "True\nTrue\n6.0\n"
    assert not (tmp_path / "elsewhere").exists()
    assert list(pathlib.Path(tmp_path, "scratch/mine/index/jit_named").iterdir())


@pytest.mark.one_jax
def test_bad_flags_and_places_end_nothing(helmway_binary, tmp_path):
    done = run(helmway_binary, "--xla_dump_to=s3://nowhere", "--xla_dump_hlo_as_text")
    assert "no dumps: " in done.stderr and "s3://nowhere" in done.stderr
    done = run(helmway_binary, f"--xla_dump_to={tmp_path}", "--xla_dump_hlo_module_re=(")
    assert "no dumps: " in done.stderr
    (tmp_path / "file").write_text("")
    done = run(helmway_binary, f"--xla_dump_to={tmp_path}/file/below")
    assert "A dump could not be written" in done.stderr
    assert run(helmway_binary, "--xla_dump_hlo_as_text").stdout == ""
