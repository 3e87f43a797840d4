"""Our schemas in helmway/wire are those of every supported jaxlib, number by number.

The descriptors embedded in an installed jaxlib are compared with what protoc makes of our .proto files: every
service, message, field (name, number, type, label, oneof, packing) and enum value that a session can carry.

HELMWAY_TEST_PYTHONS names the interpreters whose jaxlib to look at, separated like PATH (default: the running
one). Needs protoc on PATH.
"""

import copy
import functools
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2

_TESTS = pathlib.Path(__file__).resolve().parent
_ROOT = _TESTS.parent
sys.path.insert(0, str(_TESTS / "descriptors"))

import descriptor_index  # pylint: disable=wrong-import-position

# The service, what travels in call metadata, and what travels in byte fields, where no type leads to it.
ROOTS = (
    "xla.ifrt.proxy.GrpcIfrtService",
    "xla.ifrt.proxy.GrpcIfrtSessionMetadata",
    "xla.ifrt.proxy.GrpcHostBufferStoreMetadata",
    "xla.ifrt.XlaCompileOptionsProto",
    "xla.ifrt.XlaHostCallbackProto",
    "xla.ifrt.PjRtLayoutProto",
    "xla.ifrt.CompactLayoutProto",
    "xla.ifrt.HloShardingProto",
    "xla.ifrt.SingleDeviceShardingProto",
    "xla.ifrt.OpaqueShardingProto",
    "xla.ifrt.ConcreteShardingProto",
    "xla.ifrt.ConcreteEvenShardingProto",
    "xla.ifrt.ShardingParamShardingProto",
    "xla.ifrt.CustomCallProgramProto",
    "xla.ifrt.CustomCallCompileOptionsProto",
    "xla.ifrt.proto.StringArrayContents",
    "xla.ExecutableAndOptionsProto",
    "xla.HloModuleProtoWithConfig",
)

# Messages of which we declare a part on purpose; what we declare must still agree.
REDUCED = {
    "xla.DebugOptions",
    "xla.ExecutionOptions",
    "xla.ExecutableBuildOptionsProto",
    "xla.CompileOptionsProto",
    "xla.HloInstructionProto",
    "xla.HloComputationProto",
    "xla.HloModuleProto",
    "xla.HloModuleConfigProto",
}

# What of ours a release does not have: messages and enums by name, fields as (message, number), enum values
# as (enum, number). Each entry must really be missing there.
MISSING = {
    "0.10.2": {
        "xla.ifrt.CustomCallCompileOptionsProto",
        "xla.NamedShardingProto.ReductionOpProto",
        ("xla.ifrt.XlaCompileOptionsProto", 2),
        ("xla.ifrt.XlaCompileOptionsProto", 3),
        ("xla.CompileOptionsProto", 12),
        ("xla.NamedShardingProto", 8),
        ("xla.HloInstructionProto", 100),
        ("xla.HloInstructionProto", 102),
        ("xla.OriginalValueProto", 3),
        ("xla.PrecisionConfig.Algorithm", 14),
        ("xla.PrecisionConfig.Algorithm", 15),
        ("xla.ifrt.DTypeProto.Kind", 34),
        ("xla.ifrt.DTypeProto.Kind", 35),
    },
    "0.11.2": {
        ("xla.PrecisionConfig.Algorithm", 14),
        ("xla.PrecisionConfig.Algorithm", 15),
    },
    "0.12.0.1": {
        "xla.ifrt.ShardingParamProto",
        "xla.ifrt.ShardingParamShardingProto",
    },
}


def _pythons():
  return [p for p in os.environ.get("HELMWAY_TEST_PYTHONS", "").split(os.pathsep) if p] or [sys.executable]


@functools.lru_cache(maxsize=None)
def _jaxlib(python):
  """(version, FileDescriptorSet) of an interpreter's jaxlib."""
  version = subprocess.run(
      [python, "-c", "import importlib.metadata as m; print(m.version('jaxlib'))"],
      check=True, capture_output=True, text=True).stdout.strip()
  found = descriptor_pb2.FileDescriptorSet()
  # Run there, since that interpreter knows where its library is.
  data = subprocess.run([python, str(_TESTS / "descriptors" / "extract.py"), "-o", "/dev/stdout"],
                        check=True, capture_output=True).stdout
  found.ParseFromString(data)
  return version, found


@functools.lru_cache(maxsize=None)
def _our_files():
  protoc = shutil.which("protoc")
  assert protoc, "protoc is not on PATH; install protobuf-compiler"
  protos = sorted(str(p.relative_to(_ROOT)) for p in (_ROOT / "helmway" / "wire").glob("*.proto"))
  data = subprocess.run(
      [protoc, "--proto_path=.", "--include_imports", "--descriptor_set_out=/dev/stdout"] + protos,
      check=True, capture_output=True, cwd=_ROOT).stdout
  files = descriptor_pb2.FileDescriptorSet()
  files.ParseFromString(data)
  return files


def differences(ours, theirs, missing, reduced=frozenset(REDUCED), roots=ROOTS):
  """One line for each way in which our schemas disagree with a release, beyond what the tables allow."""
  lines = []
  unused = set(missing)

  def allowed(key):
    unused.discard(key)
    return key in missing

  own = {n for n in (*ours.services, *ours.messages, *ours.enums) if not n.startswith("google.protobuf.")}
  for name in sorted(own):
    if not any(name in table for table in (theirs.services, theirs.messages, theirs.enums)):
      if not allowed(name):
        lines.append("%s: not in jaxlib" % name)
      continue
    if name in ours.services:
      if ours.services[name] != theirs.services.get(name):
        lines.append("%s: %s, jaxlib has %s" % (name, ours.services[name], theirs.services.get(name)))
    elif name in ours.messages:
      mine, other = ours.messages[name], theirs.messages.get(name, {})
      for number in sorted(set(mine) | set(other)):
        if number not in other:
          if not allowed((name, number)):
            lines.append("%s %d: %s, jaxlib has no such field" % (name, number, mine[number]))
        elif number not in mine:
          if name not in reduced:
            lines.append("%s %d: absent, jaxlib has %s" % (name, number, other[number]))
        elif mine[number] != other[number]:
          lines.append("%s %d: %s, jaxlib has %s" % (name, number, mine[number], other[number]))
    else:
      mine, other = ours.enums[name], theirs.enums.get(name, {})
      for number in sorted(set(mine) | set(other)):
        if mine.get(number) != other.get(number) and not (number not in other and allowed((name, number))):
          lines.append("%s = %d: %s, jaxlib has %s" % (name, number, mine.get(number), other.get(number)))

  # Whatever a session can carry is ours too, except behind fields that a reduced message leaves out.
  walk = copy.copy(theirs)
  walk.messages = {
      name: {k: v for k, v in fields.items() if name not in reduced or k in ours.messages.get(name, {})}
      for name, fields in theirs.messages.items()
  }
  for name in sorted(walk.reachable(roots)):
    if name not in own and not name.startswith("google.protobuf."):
      lines.append("%s: jaxlib has it, helmway/wire does not" % name)
  for root in roots:
    if root not in own:
      lines.append("%s: not in helmway/wire" % root)
  lines += ["%s: listed as missing but present" % (key,) for key in sorted(unused, key=str)]
  return lines


@pytest.fixture(name="ours", scope="module")
def _ours():
  return descriptor_index.Index(_our_files())


@pytest.mark.parametrize("python", _pythons())
def test_schemas_agree(python, ours):
  version, files = _jaxlib(python)
  assert version in MISSING, "jaxlib %s has no entry in MISSING; supported: %s" % (version, sorted(MISSING))
  lines = differences(ours, descriptor_index.Index(files), MISSING[version])
  assert not lines, "helmway/wire and jaxlib %s differ:\n%s" % (version, "\n".join(lines))


def _message(files, full):
  for file in files.file:
    for message in file.message_type:
      if file.package + "." + message.name == full:
        return message
  raise KeyError(full)


def _change_number(files):
  _message(files, "xla.ifrt.proxy.CompileRequest").field[1].number = 12


def _change_type(files):
  field = _message(files, "xla.ifrt.proxy.CheckFutureRequest").field[0]
  field.type = descriptor_pb2.FieldDescriptorProto.TYPE_UINT64


def _change_name(files):
  _message(files, "xla.ifrt.Serialized").field[0].name = "kind"


def _change_label(files):
  field = _message(files, "xla.ifrt.ShapeProto").field[0]
  field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def _change_packing(files):
  _message(files, "xla.ifrt.proxy.CheckValueReadyRequest").field[0].options.ClearField("packed")


def _drop_oneof(files):
  fields = _message(files, "xla.ifrt.proxy.CompileResponse").field
  field = next(f for f in fields if f.name == "fingerprint_value")
  field.ClearField("oneof_index")


def _drop_field(files):
  del _message(files, "xla.ifrt.proxy.InitResponse").field[-1]


def _change_reduced(files):
  _message(files, "xla.ExecutableBuildOptionsProto").field[0].number = 500


def _change_enum(files):
  for file in files.file:
    for enum in file.enum_type:
      if enum.name == "ArrayCopySemantics":
        enum.value[1].number = 7


def _drop_message(files):
  for file in files.file:
    if file.package == "xla.ifrt":
      for i, message in enumerate(file.message_type):
        if message.name == "OpaqueShardingProto":
          del file.message_type[i]
          return


@pytest.mark.parametrize("mutate", [
    _change_number, _change_type, _change_name, _change_label, _change_packing, _drop_oneof, _drop_field,
    _change_reduced, _change_enum, _drop_message
])
def test_a_changed_schema_is_noticed(mutate):
  version, files = _jaxlib(_pythons()[0])
  mutated = descriptor_pb2.FileDescriptorSet()
  mutated.CopyFrom(_our_files())
  mutate(mutated)
  before = differences(descriptor_index.Index(_our_files()), descriptor_index.Index(files), MISSING[version])
  after = differences(descriptor_index.Index(mutated), descriptor_index.Index(files), MISSING[version])
  assert set(after) - set(before)


def test_a_stale_entry_of_the_table_is_noticed(ours):
  version, files = _jaxlib(_pythons()[0])
  table = MISSING[version] | {("xla.ifrt.ShapeProto", 1)}
  assert any("listed as missing" in line for line in differences(ours, descriptor_index.Index(files), table))
