#ifndef HELMWAY_WORKER_PYTHON_PROGRAMS_TESTING_H_
#define HELMWAY_WORKER_PYTHON_PROGRAMS_TESTING_H_

// Python functions as a client would send them, for tests. They need HELMWAY_PYTHON, with jax and
// cloudpickle.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "helmway/base/host_memory.h"
#include "helmway/program/sharding.h"
#include "helmway/wire/ifrt_types.pb.h"

namespace helmway::worker {

inline std::string TestPython() {
  const char* python = std::getenv("HELMWAY_PYTHON");
  return python == nullptr ? "" : python;
}

// Of four floats over the devices 0 and 1 of a host, where each function takes one such array and returns
// one. Their names and their pickles; made once.
inline const std::map<std::string, std::string>& PickledFunctions() {
  static const auto* made = [] {
    constexpr char kScript[] = R"py(
import base64, os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from jax._src.lib import xla_client
from jax.experimental.colocated_python import serialization
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
spec = jax.ShapeDtypeStruct((4,), np.float32, sharding=halves)
def add_one(x):
  return x + 1
def fail(x):
  raise ValueError("no such row")
def leave(x):
  import os
  os._exit(5)
def sleep(x):
  import time
  time.sleep(1000)
def keep(x):
  import sys
  sys.helmway_kept = getattr(sys, "helmway_kept", 0) + 1
  return x + sys.helmway_kept
def numpy_array(x):
  return np.zeros(4, np.float32)
def say(x):
  print("a line from Python", flush=True)
  return x
def unreadable(x):
  return x
class Unreadable:
  def __reduce__(self):
    return eval, ("1 / 0",)
unreadable.__dict__["cause"] = Unreadable()
leaves, tree = jax.tree_util.tree_flatten(((spec,), {}))
out_leaves, out_tree = jax.tree_util.tree_flatten(spec)
devices = xla_client.DeviceList(tuple(jax.devices()))
for f in (add_one, fail, leave, sleep, keep, numpy_array, say, unreadable):
  text = serialization._serialize((f, tree, tuple(leaves), out_tree, tuple(out_leaves), devices))
  print(f.__name__, base64.b64encode(text).decode())
)py";
    auto* programs = new std::map<std::string, std::string>();
    const std::string command = absl::StrCat("'", TestPython(), "' -c '", kScript, "'");
    FILE* output = popen(command.c_str(), "r");
    std::string text;
    char piece[4096];
    size_t got;
    while (output != nullptr && (got = fread(piece, 1, sizeof(piece), output)) > 0) text.append(piece, got);
    EXPECT_TRUE(output != nullptr && pclose(output) == 0) << command;
    for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      EXPECT_TRUE(words.size() == 2 && absl::Base64Unescape(words[1], &(*programs)[words[0]])) << line;
    }
    return programs;
  }();
  return *made;
}

// The program of such a function.
inline std::string PythonProgramOf(const std::string& name) {
  xla::OpSharding halves;
  halves.set_type(xla::OpSharding::OTHER);
  halves.add_tile_assignment_dimensions(2);
  halves.add_tile_assignment_devices(0);
  halves.add_tile_assignment_devices(1);
  xla::ifrt::ArraySpecProto spec;
  spec.mutable_dtype()->set_kind(xla::ifrt::DTypeProto::KIND_F32);
  spec.mutable_shape()->add_dims(4);
  auto sharding = program::Sharding::FromOpSharding(std::vector<int32_t>{0, 1}, halves, std::nullopt);
  EXPECT_TRUE(sharding.ok()) << sharding.status();
  *spec.mutable_sharding() = (*sharding)->Encode();
  xla::ifrt::CustomCallProgramProto program;
  program.set_type("jax_colocated_python_v0.0.1");
  program.set_name(name);
  program.set_serialized_program_text(PickledFunctions().at(name));
  program.mutable_devices()->add_device_ids(0);
  program.mutable_devices()->add_device_ids(1);
  *program.add_input_specs() = spec;
  *program.add_output_specs() = spec;
  return program.SerializeAsString();
}

// Bytes that live as long as the program.
inline base::HostBytes Lasting(const std::string& text) {
  auto owner = std::make_shared<const std::string>(text);
  const auto* data = reinterpret_cast<const uint8_t*>(owner->data());
  return {owner, data, static_cast<int64_t>(owner->size()), false};
}

}  // namespace helmway::worker

#endif  // HELMWAY_WORKER_PYTHON_PROGRAMS_TESTING_H_
