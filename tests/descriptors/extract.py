"""Protobuf descriptors embedded in jaxlib.

libjax_common.so carries the serialized FileDescriptorProto of every protobuf file linked into it. This module
finds those blobs by their encoded file names, works out where each ends, and writes them as one
FileDescriptorSet.

  python extract.py [LIBRARY] -o jaxlib.binpb     (default: the library of the running interpreter's jaxlib)

Needs only the `protobuf` package.
"""

import argparse
import importlib.util
import mmap
import os
import re
import sys

from google.protobuf import descriptor_pb2

_NAMES = re.compile(rb"\x0a([\x05-\x7f])((?:xla/|tsl/|google/protobuf/)[A-Za-z0-9_./\-]*?\.proto)")
_BLOB_LIMIT = 4 << 20

# Wire type of each field number that a FileDescriptorProto may carry.
_WIRE_TYPES = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 0, 11: 0, 12: 2, 14: 0, 15: 2}
# Written right after `dependency`, so they say nothing about the order of what follows.
_OUT_OF_ORDER = (10, 11, 15)


def _varint(buf, pos, end):
  value = shift = 0
  while pos < end and shift < 64:
    byte = buf[pos]
    pos += 1
    value |= (byte & 0x7F) << shift
    if not byte & 0x80:
      return value, pos
    shift += 7
  raise ValueError("truncated varint")


def _field_ends(buf, start, end):
  """Yields the offsets at which a top-level field of the blob at `start` ends.

  protoc writes fields in ascending order, so a smaller number, a second name or an impossible wire type
  belongs to whatever follows the blob.
  """
  pos, last = start, 0
  while pos < end:
    try:
      tag, after = _varint(buf, pos, end)
      field, wire = tag >> 3, tag & 7
      if _WIRE_TYPES.get(field) != wire or field < last or (field == 1 and pos != start):
        return
      size, after = _varint(buf, after, end)
      if wire == 2:
        after += size
      if after > end:
        return
    except ValueError:
      return
    if field not in _OUT_OF_ORDER:
      last = field
    pos = after
    yield pos


def _parse_at(buf, start):
  """The FileDescriptorProto at `start`: the longest prefix that parses and declares something, or None."""
  ends = list(_field_ends(buf, start, min(len(buf), start + _BLOB_LIMIT)))
  for stop in reversed(ends):
    candidate = descriptor_pb2.FileDescriptorProto()
    try:
      candidate.ParseFromString(bytes(buf[start:stop]))
    except Exception:  # the class of a parse error depends on protobuf's implementation
      continue
    if candidate.package or candidate.message_type or candidate.enum_type or candidate.service:
      return candidate
  return None


def extract(path):
  """FileDescriptorSet with every descriptor found in the library, ordered by file name."""
  found = {}
  with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buf:
    for match in _NAMES.finditer(buf):
      name = match.group(2)
      if match.group(1)[0] != len(name):
        continue
      parsed = _parse_at(buf, match.start())
      if parsed is None or parsed.name != name.decode():
        continue
      old = found.get(parsed.name)
      if old is None or parsed.ByteSize() > old.ByteSize():
        found[parsed.name] = parsed
  out = descriptor_pb2.FileDescriptorSet()
  for name in sorted(found):
    out.file.add().CopyFrom(found[name])
  return out


def find_library():
  """Path of libjax_common.so of the running interpreter's jaxlib; SystemExit if there is none."""
  spec = importlib.util.find_spec("jaxlib")
  for root in (spec.submodule_search_locations or []) if spec else []:
    path = os.path.join(root, "libjax_common.so")
    if os.path.exists(path):
      return path
  raise SystemExit("this interpreter (%s) has no jaxlib with a libjax_common.so" % sys.executable)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("library", nargs="?")
  parser.add_argument("-o", "--output", required=True)
  args = parser.parse_args()
  found = extract(args.library or find_library())
  if not found.file:
    raise SystemExit("no descriptors found")
  with open(args.output, "wb") as f:
    f.write(found.SerializeToString())


if __name__ == "__main__":
  main()
