"""Messages made from the schemas of the source tree by protoc, at run time."""

import pathlib
import shutil
import subprocess
import tempfile

from google.protobuf import descriptor_pb2, descriptor_pool

ROOT = pathlib.Path(__file__).resolve().parent.parent


def pool_of(*schemas):
    """A descriptor pool with these files (paths below the root of the tree) and what they import."""
    protoc = shutil.which("protoc")
    assert protoc, "these tests need protoc (Debian: protobuf-compiler)"
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "schemas.binpb"
        subprocess.run(
            [protoc, f"--proto_path={ROOT}", "--include_imports", f"--descriptor_set_out={out}", *schemas],
            cwd=ROOT,
            check=True,
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool
