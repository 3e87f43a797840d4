// Programs whose devices talk to each other, over two real workers with two devices each; what XLA itself
// does with the same programs and values on four devices of one process is what must come out, bit for bit.

#include "helmway/worker/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "helmway/pjrt/executable.h"
#include "helmway/wire/xla_compile_options.pb.h"
#include "helmway/worker/worker_group_testing.h"

namespace helmway::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

struct Type {
  const char* name;  // in MLIR
  pjrt::ElementType number;
  int bytes;
};
const Type kF32 = {"f32", pjrt::ElementType::kF32, 4};

// Whether devices are replicas or partitions.
enum class Mode { kReplicas, kPartitions };

std::string Options(Mode mode, const std::vector<cluster::DeviceId>& devices) {
  if (mode == Mode::kPartitions) return pjrt::TestCompileOptions(static_cast<int>(devices.size()), devices);
  xla::CompileOptionsProto options;
  auto& build = *options.mutable_executable_build_options();
  build.set_device_ordinal(-1);
  build.set_num_replicas(static_cast<int64_t>(devices.size()));
  build.set_num_partitions(1);
  auto& assignment = *build.mutable_device_assignment();
  assignment.set_replica_count(static_cast<int32_t>(devices.size()));
  assignment.set_computation_count(1);
  auto& ids = *assignment.add_computation_devices();
  for (const cluster::DeviceId device : devices) ids.add_replica_device_ids(device);
  return options.SerializeAsString();
}

// Builds a program of which every device runs `body` on an argument %x of its own.
class Program {
 public:
  Program(Mode mode, const Type& type, std::vector<int64_t> dims, int devices = 4)
      : mode_(mode), type_(type), devices_(devices), dims_(std::move(dims)) {}

  static std::string Shape(const Type& type, const std::vector<int64_t>& dims) {
    std::string text = "tensor<";
    for (const int64_t dim : dims) absl::StrAppend(&text, dim, "x");
    return absl::StrCat(text, type.name, ">");
  }

  // Adds an operation on %x whose result is an output, with a function of two scalars if it has one.
  void Add(const std::string& op, const std::string& region, const std::string& attributes,
           const std::vector<int64_t>& result) {
    const size_t n = results_.size();
    absl::StrAppend(&body_, "    %r", n, " = \"stablehlo.", op, "\"(%x) ");
    if (!region.empty()) {
      const std::string scalar = Shape(type_, {});
      absl::StrAppend(&body_, "({\n      ^bb0(%a: ", scalar, ", %b: ", scalar, "):\n        %s = stablehlo.",
                      region, " %a, %b : ", scalar, "\n        stablehlo.return %s : ", scalar, "\n    }) ");
    }
    absl::StrAppend(&body_, "{", attributes);
    if (mode_ == Mode::kPartitions) {
      absl::StrAppend(&body_, ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>");
      if (op == "all_reduce" || op == "all_gather" || op == "reduce_scatter") {
        absl::StrAppend(&body_, ", use_global_device_ids");
      }
    }
    absl::StrAppend(&body_, "} : (", Shape(type_, dims_), ") -> ", Shape(type_, result), "\n");
    results_.push_back(result);
  }

  // Every device doubles its argument first.
  void DoubleFirst() { doubles_ = true; }

  std::string Text() const {
    const bool partitions = mode_ == Mode::kPartitions;
    std::string text =
        absl::StrCat("module @collectives attributes {mhlo.num_partitions = ", partitions ? devices_ : 1,
                     " : i32, mhlo.num_replicas = ", partitions ? 1 : devices_,
                     " : i32} {\n  func.func public @main(%arg: ");
    auto whole = [&](std::vector<int64_t> dims) {
      if (partitions) dims[0] *= devices_;
      return dims;
    };
    auto tiles = [&](size_t rank) {
      return absl::StrCat("\"{devices=[", devices_, rank > 1 ? ",1" : "", rank > 2 ? ",1" : "", "]<=[",
                          devices_, "]}\"");
    };
    const std::string full = Shape(type_, whole(dims_)), part = Shape(type_, dims_);
    absl::StrAppend(&text, full,
                    partitions ? absl::StrCat(" {mhlo.sharding = ", tiles(dims_.size()), "}") : "", ") -> (");
    for (size_t r = 0; r < results_.size(); ++r) {
      absl::StrAppend(&text, r == 0 ? "" : ", ", Shape(type_, whole(results_[r])),
                      partitions ? absl::StrCat(" {mhlo.sharding = ", tiles(results_[r].size()), "}") : "");
    }
    absl::StrAppend(&text, ") {\n");
    if (partitions) {
      absl::StrAppend(&text,
                      "    %c = stablehlo.custom_call @Sharding(%arg) {mhlo.sharding = ", tiles(dims_.size()),
                      "} : (", full, ") -> ", full,
                      "\n    %own = stablehlo.custom_call @SPMDFullToShardShape(%c) {mhlo.sharding = "
                      "\"{manual}\"} : (",
                      full, ") -> ", part, "\n");
    } else {
      absl::StrAppend(&text, "    %own = stablehlo.optimization_barrier %arg : ", part, "\n");
    }
    absl::StrAppend(&text, "    %x = stablehlo.",
                    doubles_ ? "add %own, %own : " : "optimization_barrier %own : ", part, "\n");
    absl::StrAppend(&text, body_);
    std::vector<std::string> names, types;
    for (size_t r = 0; r < results_.size(); ++r) {
      const std::string mine = Shape(type_, results_[r]), all = Shape(type_, whole(results_[r]));
      if (partitions) {
        absl::StrAppend(&text, "    %m", r, " = stablehlo.custom_call @Sharding(%r", r,
                        ") {mhlo.sharding = \"{manual}\"} : (", mine, ") -> ", mine, "\n    %o", r,
                        " = stablehlo.custom_call @SPMDShardToFullShape(%m", r,
                        ") {mhlo.sharding = ", tiles(results_[r].size()), "} : (", mine, ") -> ", all, "\n");
      }
      names.push_back(absl::StrCat(partitions ? "%o" : "%r", r));
      types.push_back(all);
    }
    absl::StrAppend(&text, "    return ", absl::StrJoin(names, ", "), " : ", absl::StrJoin(types, ", "),
                    "\n  }\n}\n");
    return text;
  }

 private:
  const Mode mode_;
  const Type type_;
  const int devices_;
  const std::vector<int64_t> dims_;
  bool doubles_ = false;
  std::string body_;
  std::vector<std::vector<int64_t>> results_;
};

std::string Groups(const std::string& lists, int groups, int members) {
  return absl::StrCat("replica_groups = dense<", lists, "> : tensor<", groups, "x", members, "xi64>");
}
const char kAll[] = "[[0, 1, 2, 3]]";

class CollectivesTest : public WorkerGroupTest {
 protected:
  explicit CollectivesTest(int workers = 2, int devices_per_worker = 2)
      : WorkerGroupTest(workers, devices_per_worker) {}

  // Values of moderate size, so that sums are finite.
  Bytes Values(const Type& type, int64_t elements) {
    Bytes bytes(static_cast<size_t>(elements * type.bytes));
    auto put = [&](int64_t i, auto value) {
      std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
    };
    std::uniform_real_distribution<double> real(-4, 4);
    for (int64_t i = 0; i < elements; ++i) {
      switch (type.number) {
        case pjrt::ElementType::kPred:
          put(i, static_cast<uint8_t>(random_() & 1));
          break;
        case pjrt::ElementType::kF16:
          put(i, static_cast<uint16_t>((random_() & 0x83ff) | ((12 + random_() % 6) << 10)));
          break;
        case pjrt::ElementType::kBF16:
          put(i, static_cast<uint16_t>((random_() & 0x807f) | ((124 + random_() % 6) << 7)));
          break;
        case pjrt::ElementType::kF32:
          put(i, static_cast<float>(real(random_)));
          break;
        case pjrt::ElementType::kF64:
          put(i, real(random_));
          break;
        case pjrt::ElementType::kC64:
          put(2 * i, static_cast<float>(real(random_)));
          put(2 * i + 1, static_cast<float>(real(random_)));
          break;
        case pjrt::ElementType::kC128:
          put(2 * i, real(random_));
          put(2 * i + 1, real(random_));
          break;
        default:
          for (int b = 0; b < type.bytes; ++b)
            bytes[static_cast<size_t>(i * type.bytes + b)] = random_() & 0xff;
      }
    }
    return bytes;
  }

  void PutBytes(cluster::BufferId id, const Type& type, const std::vector<int64_t>& dims, const Bytes& bytes,
                cluster::DeviceId device) {
    session_->Declare({.targets = {{id, device}}});
    cluster::HostContents contents;
    contents.targets = {{id, device}};
    contents.element_type = static_cast<cluster::ElementType>(type.number);
    contents.dims.assign(dims.begin(), dims.end());
    auto block = pool_->Allocate(static_cast<int64_t>(bytes.size()));
    ASSERT_TRUE(block.ok());
    std::memcpy(block->data, bytes.data(), bytes.size());
    contents.bytes = (*std::move(block)).Finish();
    session_->Fill(std::move(contents));
  }

  StatusAnswer Launch(cluster::LaunchId id, cluster::ExecutableId executable, cluster::BufferId arguments,
                      cluster::BufferId results, size_t num_results = 1, size_t num_devices = 0) {
    const auto devices = static_cast<uint32_t>(num_devices == 0 ? devices_.size() : num_devices);
    StatusAnswer done;
    cluster::Launch launch;
    launch.id = id;
    launch.executable = executable;
    launch.arguments = {{arguments, devices, {}}};
    for (size_t r = 0; r < num_results; ++r) launch.results.push_back({results + r * devices, devices, {}});
    launch.on_done = done;
    session_->Execute(std::move(launch));
    session_->Flush();
    return done;
  }

  absl::StatusOr<Bytes> ReadBytes(cluster::BufferId id) {
    ReadAnswer answer;
    session_->Read(id, {}, answer);
    if (!answer.Wait().ok()) return answer.Wait().status();
    return worker::Values<uint8_t>(*answer.Wait());
  }

  // Compares all outputs on all devices with those of XLA.
  void Compare(Mode mode, const Program& program, const Type& type, const std::vector<int64_t>& dims,
               size_t num_results) {
    SCOPED_TRACE(absl::StrCat(type.name, mode == Mode::kReplicas ? ", replicas" : ", partitions"));
    int64_t elements = 1;
    for (const int64_t dim : dims) elements *= dim;
    std::vector<Bytes> values;
    for (size_t d = 0; d < devices_.size(); ++d) values.push_back(Values(type, elements));

    auto compiled = CompileWith(++last_, program.Text(), Options(mode, devices_));
    ASSERT_TRUE(compiled.ok()) << compiled.status() << "\n" << program.Text();
    EXPECT_TRUE(compiled->has_collectives);
    const cluster::BufferId first = 1000 * last_;
    for (size_t d = 0; d < devices_.size(); ++d) PutBytes(first + d, type, dims, values[d], devices_[d]);
    const absl::Status status =
        Launch(static_cast<int64_t>(last_), last_, first, first + 100, num_results).Wait();
    ASSERT_TRUE(status.ok()) << status;

    const std::vector<std::vector<Bytes>> expected =
        RunHere(program.Text(), mode, type, dims, values, num_results);
    for (size_t r = 0; r < num_results; ++r) {
      for (size_t d = 0; d < devices_.size(); ++d) {
        const absl::StatusOr<Bytes> mine = ReadBytes(first + 100 + r * devices_.size() + d);
        ASSERT_TRUE(mine.ok()) << mine.status();
        EXPECT_EQ(*mine, expected[d][r]) << "output " << r << " of device " << d;
      }
    }
  }

  // The outputs by device, as XLA's own client with four devices gives them.
  std::vector<std::vector<Bytes>> RunHere(const std::string& code, Mode mode, const Type& type,
                                          const std::vector<int64_t>& dims, const std::vector<Bytes>& values,
                                          size_t num_results) {
    const auto count = static_cast<int64_t>(devices_.size());
    auto plugin = pjrt::Plugin::Load(std::getenv("HELMWAY_PJRT_PLUGIN"));
    EXPECT_TRUE(plugin.ok());
    auto client = pjrt::Client::Create(*plugin, {{"cpu_device_count", count}});
    EXPECT_TRUE(client.ok()) << client.status();
    std::vector<cluster::DeviceId> ids;
    for (int i = 0; i < count; ++i) ids.push_back(i);
    const std::string options = Options(mode, ids);
    auto executable = (*client)->Compile({.code = code, .serialized_options = options});
    EXPECT_TRUE(executable.ok()) << executable.status();
    std::vector<std::vector<Bytes>> outputs(devices_.size());
    if (!executable.ok()) return outputs;
    std::vector<std::thread> threads;
    for (size_t d = 0; d < devices_.size(); ++d) {
      threads.emplace_back([&, d] {
        const pjrt::Device* device = (*client)->devices()[d];
        auto argument = (*client)->BufferFromHost(
            {.data = values[d].data(), .type = type.number, .dims = dims, .device = device});
        ASSERT_TRUE(argument.ok()) << argument.status();
        std::vector<pjrt::Buffer*> arguments = {&argument->buffer};
        std::vector<pjrt::Buffer> results(num_results);
        pjrt::Event done;
        absl::Status status =
            (*executable)->ExecuteOn(device, arguments, absl::MakeSpan(results), &done, {.launch_id = 1});
        if (status.ok()) status = done.Await();
        ASSERT_TRUE(status.ok()) << status;
        for (const pjrt::Buffer& result : results) {
          Bytes bytes(*result.HostSizeBytes());
          auto copied = result.ToHost(bytes.data(), bytes.size());
          ASSERT_TRUE(copied.ok() && copied->Await().ok());
          outputs[d].push_back(std::move(bytes));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outputs;
  }

  // A sum of 2 numbers of each device over all.
  std::string SumProgram() {
    Program program(Mode::kPartitions, kF32, {2});
    program.Add("all_reduce", "add", Groups(kAll, 1, 4), {2});
    return program.Text();
  }

  std::mt19937 random_{12345};
  cluster::ExecutableId last_ = 0;
};

const Type kTypes[] = {{"i1", pjrt::ElementType::kPred, 1},
                       {"i8", pjrt::ElementType::kS8, 1},
                       {"ui8", pjrt::ElementType::kU8, 1},
                       {"i16", pjrt::ElementType::kS16, 2},
                       {"ui16", pjrt::ElementType::kU16, 2},
                       {"i32", pjrt::ElementType::kS32, 4},
                       {"ui32", pjrt::ElementType::kU32, 4},
                       {"i64", pjrt::ElementType::kS64, 8},
                       {"ui64", pjrt::ElementType::kU64, 8},
                       {"f16", pjrt::ElementType::kF16, 2},
                       {"bf16", pjrt::ElementType::kBF16, 2},
                       {"f32", pjrt::ElementType::kF32, 4},
                       {"f64", pjrt::ElementType::kF64, 8},
                       {"complex<f32>", pjrt::ElementType::kC64, 8},
                       {"complex<f64>", pjrt::ElementType::kC128, 16}};

TEST_F(CollectivesTest, AllReducesOfAllTypes) {
  for (const Type& type : kTypes) {
    const std::vector<int64_t> dims = {4, 3};
    Program program(Mode::kPartitions, type, dims);
    size_t results = 0;
    auto add = [&](const char* function, const std::string& groups) {
      program.Add("all_reduce", function, groups, dims);
      ++results;
    };
    const bool complex = type.number == pjrt::ElementType::kC64 || type.number == pjrt::ElementType::kC128;
    if (type.number == pjrt::ElementType::kPred) {
      add("and", Groups(kAll, 1, 4));
      add("or", Groups("[[0, 1], [2, 3]]", 2, 2));
    } else {
      add("add", Groups(kAll, 1, 4));
      add("multiply", Groups("[[0, 2], [1, 3]]", 2, 2));
      if (!complex) {
        add("minimum", Groups("[[0, 1], [2, 3]]", 2, 2));
        add("maximum", Groups("[[3, 1, 0, 2]]", 1, 4));
      }
    }
    Compare(Mode::kPartitions, program, type, dims, results);
  }
}

TEST_F(CollectivesTest, BytesMoveWhateverTheirType) {
  const Type types[] = {kTypes[0], kTypes[10], kF32, kTypes[14], {"f8E5M2", pjrt::ElementType::kF8E5M2, 1}};
  for (const Type& type : types) {
    for (const Mode mode : {Mode::kPartitions, Mode::kReplicas}) {
      if (mode == Mode::kReplicas && type.bytes != 2) continue;
      const std::vector<int64_t> dims = {8, 4, 3};
      Program program(mode, type, dims);
      program.Add("all_gather", "", absl::StrCat("all_gather_dim = 0 : i64, ", Groups(kAll, 1, 4)),
                  {32, 4, 3});
      program.Add("all_gather", "",
                  absl::StrCat("all_gather_dim = 1 : i64, ", Groups("[[0, 2], [3, 1]]", 2, 2)), {8, 8, 3});
      program.Add("all_gather", "",
                  absl::StrCat("all_gather_dim = 2 : i64, ", Groups("[[0, 1], [2, 3]]", 2, 2)), {8, 4, 6});
      program.Add(
          "all_to_all", "",
          absl::StrCat("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, ",
                       Groups(kAll, 1, 4)),
          {8, 4, 3});
      program.Add(
          "all_to_all", "",
          absl::StrCat("split_dimension = 1 : i64, concat_dimension = 2 : i64, split_count = 2 : i64, ",
                       Groups("[[2, 0], [1, 3]]", 2, 2)),
          {8, 2, 6});
      program.Add("collective_permute", "",
                  "source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>", dims);
      program.Add("collective_permute", "", "source_target_pairs = dense<[[0, 3], [1, 1]]> : tensor<2x2xi64>",
                  dims);
      Compare(mode, program, type, dims, 7);
    }
  }
}

TEST_F(CollectivesTest, ReduceScatter) {
  for (const Type& type : {kTypes[1], kTypes[9], kF32, kTypes[13]}) {
    const std::vector<int64_t> dims = {8, 4, 3};
    Program program(Mode::kPartitions, type, dims);
    program.Add("reduce_scatter", "add", absl::StrCat("scatter_dimension = 0 : i64, ", Groups(kAll, 1, 4)),
                {2, 4, 3});
    program.Add("reduce_scatter", "multiply",
                absl::StrCat("scatter_dimension = 1 : i64, ", Groups("[[0, 2], [3, 1]]", 2, 2)), {8, 2, 3});
    Compare(Mode::kPartitions, program, type, dims, 2);
  }
}

TEST_F(CollectivesTest, ReplicasReduce) {
  const std::vector<int64_t> dims = {8, 4};
  Program program(Mode::kReplicas, kF32, dims);
  program.Add("all_reduce", "add", Groups(kAll, 1, 4), dims);
  program.Add("all_reduce", "maximum", Groups("[[0, 3], [1, 2]]", 2, 2), dims);
  program.Add("reduce_scatter", "add", absl::StrCat("scatter_dimension = 0 : i64, ", Groups(kAll, 1, 4)),
              {2, 4});
  Compare(Mode::kReplicas, program, kF32, dims, 3);
}

// Above the size at which a reduction goes in two stages; also where it can't be shared out evenly, and where
// some devices have no share.
TEST_F(CollectivesTest, LargeOnes) {
  for (const int64_t elements : {100003, 8193, 300000}) {
    for (const Type& type : {kF32, Type{"f64", pjrt::ElementType::kF64, 8}}) {
      Program program(Mode::kPartitions, type, {elements});
      program.Add("all_reduce", "add", Groups(kAll, 1, 4), {elements});
      program.Add("all_reduce", "add", Groups("[[0, 2], [1, 3]]", 2, 2), {elements});
      program.Add("all_reduce", "minimum", Groups("[[0, 1], [2, 3]]", 2, 2), {elements});
      program.Add("all_gather", "", absl::StrCat("all_gather_dim = 0 : i64, ", Groups(kAll, 1, 4)),
                  {4 * elements});
      Compare(Mode::kPartitions, program, type, {elements}, 4);
    }
  }
}

// XLA's CPU client has none.
TEST_F(CollectivesTest, Broadcast) {
  Program program(Mode::kPartitions, kF32, {1});
  program.Add("collective_broadcast", "", Groups("[[2, 0, 1, 3]]", 1, 4), {1});
  program.Add("collective_broadcast", "", Groups("[[1, 0], [3, 2]]", 2, 2), {1});
  auto compiled = Compile(1, program.Text());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 4; ++d) Put(1 + d, {static_cast<float>(d)}, devices_[d]);
  ASSERT_TRUE(Launch(1, 1, 1, 11, 2).Wait().ok());
  const float first[] = {2, 2, 2, 2}, second[] = {1, 1, 3, 3};
  for (size_t d = 0; d < 4; ++d) {
    EXPECT_THAT(*Read(11 + d), ElementsAre(first[d]));
    EXPECT_THAT(*Read(15 + d), ElementsAre(second[d]));
  }
}

// The same instruction again and again in one run.
TEST_F(CollectivesTest, InLoops) {
  constexpr char kLoop[] = R"(
module @loop attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %limit = stablehlo.constant dense<50> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %quarter = stablehlo.constant dense<0.3> : tensor<f32>
    %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<f32>
      cond {
        %c = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %s = "stablehlo.all_reduce"(%v) ({
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %t = stablehlo.add %a, %b : tensor<f32>
            stablehlo.return %t : tensor<f32>
        }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<f32>) -> tensor<f32>
        %q = stablehlo.multiply %s, %quarter : tensor<f32>
        %p = "stablehlo.collective_permute"(%q) {
            source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}
            : (tensor<f32>) -> tensor<f32>
        %w = stablehlo.subtract %p, %v : tensor<f32>
        %n = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %n, %w : tensor<i32>, tensor<f32>
      }
    return %r#1 : tensor<f32>
  }
})";
  auto compiled = CompileWith(1, kLoop, Options(Mode::kReplicas, devices_));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::vector<Bytes> values;
  for (size_t d = 0; d < 4; ++d) {
    values.push_back(Values(kF32, 1));
    PutBytes(1 + d, kF32, {}, values[d], devices_[d]);
  }
  const absl::Status status = Launch(1, 1, 1, 11).Wait();
  ASSERT_TRUE(status.ok()) << status;
  const auto expected = RunHere(kLoop, Mode::kReplicas, kF32, {}, values, 1);
  for (size_t d = 0; d < 4; ++d) EXPECT_EQ(*ReadBytes(11 + d), expected[d][0]) << d;
}

// Nobody waits for one before the next is commanded.
TEST_F(CollectivesTest, AThousandLaunchesInAChain) {
  Program program(Mode::kPartitions, kF32, {2});
  program.Add("all_reduce", "maximum", Groups(kAll, 1, 4), {2});
  auto compiled = Compile(1, program.Text());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 4; ++d) Put(1 + d, {static_cast<float>(d), -static_cast<float>(d)}, devices_[d]);
  constexpr cluster::BufferId kLaunches = 1000;
  for (cluster::BufferId i = 0; i < kLaunches; ++i) {
    Launch(static_cast<int64_t>(i) + 1, 1, 1 + 4 * i, 5 + 4 * i);
  }
  EXPECT_THAT(*Read(4 * kLaunches + 1), ElementsAre(3, 0));
  EXPECT_THAT(*Read(4 * kLaunches + 4), ElementsAre(3, 0));
}

// The same without a chain: nothing but the order holds them.
TEST_F(CollectivesTest, ManyIndependentLaunches) {
  auto compiled = Compile(1, SumProgram());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 4; ++d) Put(1 + d, {1, static_cast<float>(d)}, devices_[d]);
  constexpr cluster::BufferId kLaunches = 300;
  for (cluster::BufferId i = 0; i < kLaunches; ++i) Launch(static_cast<int64_t>(i) + 1, 1, 1, 5 + 4 * i);
  for (cluster::BufferId i = 0; i < kLaunches; ++i) EXPECT_THAT(*Read(5 + 4 * i), ElementsAre(4, 6));
}

class FewThreadsTest : public CollectivesTest {
 protected:
  // XLA takes the number of its threads from there.
  FewThreadsTest() { setenv("NPROC", "2", /*overwrite=*/1); }
  ~FewThreadsTest() override { unsetenv("NPROC"); }

  // So many that the plugin gives the program a thread of its pool.
  static constexpr int64_t kLarge = 1 << 16;
  static std::vector<float> Large(float value) { return std::vector<float>(kLarge, value); }

  // Doubles numbers and sums them over all devices.
  static std::string SumOfDoubled(int devices, const std::string& group) {
    Program program(Mode::kPartitions, kF32, {kLarge}, devices);
    program.DoubleFirst();
    program.Add("all_reduce", "add", Groups(group, 1, devices), {kLarge});
    return program.Text();
  }
};

// The plugin keeps a thread for each run that waits in a collective. If two of one device begin, another
// device's part of the first may find none.
TEST_F(FewThreadsTest, RunsThatDoNotNeedEachOther) {
  const std::vector<std::vector<size_t>> places = {{0, 1, 2, 3}, {0, 3}, {1, 2}, {1, 3}};
  for (cluster::ExecutableId e = 1; e <= places.size(); ++e) {
    std::vector<cluster::DeviceId> devices;
    for (const size_t place : places[e - 1]) devices.push_back(devices_[place]);
    const auto count = static_cast<int>(devices.size());
    Answer<absl::StatusOr<cluster::CompiledProgram>> answer;
    session_->Compile({.executable = e,
                       .code = SumOfDoubled(count, count == 4 ? kAll : "[[0, 1]]"),
                       .options = Options(Mode::kPartitions, devices),
                       .devices = devices},
                      answer);
    ASSERT_TRUE(answer.Wait().ok()) << answer.Wait().status();
    for (size_t i = 0; i < devices.size(); ++i) Put(10 * e + i, Large(1), devices[i]);
  }
  cluster::LaunchId launch = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<StatusAnswer> answers;
    const cluster::BufferId first = 1000 + static_cast<cluster::BufferId>(round) * 100;
    cluster::ExecutableId last = 0;
    for (cluster::BufferId i = 0; i < 5; ++i) {
      last = 1 + random_() % places.size();
      answers.push_back(
          Launch(++launch, last, 10 * last, first + 10 * i, /*num_results=*/1, places[last - 1].size()));
    }
    for (const StatusAnswer& answer : answers) ASSERT_TRUE(answer.Wait().ok()) << answer.Wait();
    ASSERT_EQ(*Read(first + 40), Large(2.0F * static_cast<float>(places[last - 1].size())));
    session_->Delete({{first, 100, {}}});
  }
}

TEST_F(CollectivesTest, AFailedInputOfOneDeviceFailsAll) {
  auto compiled = Compile(1, SumProgram());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 3; ++d) Put(1 + d, {1, 2}, devices_[d]);
  session_->Declare({.targets = {{4, devices_[3]}}});
  StatusAnswer first = Launch(1, 1, 1, 11);
  StatusAnswer second = Launch(2, 1, 11, 21);  // of what the first would have made
  session_->Fail({{4, devices_[3]}}, absl::AbortedError("the first cause"));
  for (StatusAnswer* done : {&first, &second}) {
    EXPECT_EQ(done->Wait().code(), absl::StatusCode::kAborted);
    EXPECT_EQ(done->Wait().message(), "the first cause");
  }
  for (const cluster::BufferId first_id : {11, 21}) {
    for (cluster::BufferId id = first_id; id < first_id + 4; ++id) {
      const absl::Status status = Read(id).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << id << ": " << status;
      EXPECT_EQ(status.message(), "the first cause");
    }
  }
  // The devices go on.
  for (size_t d = 0; d < 4; ++d) Put(31 + d, {1, 2}, devices_[d]);
  ASSERT_TRUE(Launch(3, 1, 31, 41).Wait().ok());
  EXPECT_THAT(*Read(44), ElementsAre(4, 8));
}

TEST_F(CollectivesTest, ALostWorkerFailsWhoWaitsForIt) {
  auto compiled = Compile(1, SumProgram());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 4; ++d) Put(1 + d, {1, 2}, devices_[d]);
  ASSERT_TRUE(Launch(1, 1, 1, 11).Wait().ok());
  // The other worker never comes to this collective.
  for (size_t d = 0; d < 2; ++d) Put(21 + d, {1, 2}, devices_[d]);
  session_->Declare({.targets = {{23, devices_[2]}, {24, devices_[3]}}});
  StatusAnswer done = Launch(2, 1, 21, 31);
  StatusAnswer next = Launch(3, 1, 31, 41);
  EXPECT_FALSE(done.done());
  processes_[1]->server->Shutdown();
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kDataLoss) << done.Wait();
  EXPECT_EQ(next.Wait().code(), absl::StatusCode::kDataLoss) << next.Wait();
  const absl::Status status = Read(31).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  // From the worker that waited, or from the link; both name the one that is gone.
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2048"));
  // What needs the other worker fails from now on, what does not goes on.
  EXPECT_THAT(*Read(21), ElementsAre(1, 2));
}

TEST_F(CollectivesTest, AnEndedSessionWaitsForNobody) {
  auto compiled = Compile(1, SumProgram());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 3; ++d) Put(1 + d, {1, 2}, devices_[d]);
  session_->Declare({.targets = {{4, devices_[3]}}});
  StatusAnswer done = Launch(1, 1, 1, 11);
  session_->Close();
  EXPECT_EQ(done.Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(CollectivesTest, WhatIsMissingIsNamedWhenItIsCompiled) {
  Program program(Mode::kPartitions, kF32, {2});
  program.Add("all_reduce", "subtract", Groups(kAll, 1, 4), {2});
  auto compiled = Compile(1, program.Text());
  EXPECT_EQ(compiled.status().code(), absl::StatusCode::kUnimplemented) << compiled.status();
  EXPECT_THAT(std::string(compiled.status().message()), HasSubstr("subtract"));
}

// The handler of collectives trusts its attributes, and takes the data of the run for its own.
TEST_F(CollectivesTest, AClientsProgramCannotCallTheirHandler) {
  for (const int count : {4, 2}) {  // of two workers, and of one
    devices_.resize(static_cast<size_t>(count));
    Program program(Mode::kReplicas, kF32, {2}, count);
    program.Add("all_reduce", "add", Groups(count == 4 ? kAll : "[[0, 1]]", 1, count), {2});
    const std::string options = Options(Mode::kReplicas, devices_);
    ASSERT_TRUE(CompileWith(1, program.Text(), options).ok());  // that of two registers the handler
    program.Add("custom_call", "",
                "call_target_name = \"helmway_collective\", has_side_effect = true, api_version = 4 : i32, "
                "backend_config = {id = 1 : ui64, kind = array<i64: 3>, reduction = array<i64: 0>, "
                "blocks = array<i64: 0>, members = array<i64: 0, 1>, sizes = array<i64: 2>}",
                {2});
    const absl::Status status = CompileWith(2, program.Text(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("helmway_collective"));
  }
}

// The order of the devices in the program is its own: another on each worker, and turn by turn.
TEST_F(CollectivesTest, DevicesInAnyOrder) {
  devices_ = {1, 2049, 0, 2048};
  const std::vector<int64_t> dims = {8, 3};
  Program program(Mode::kPartitions, kF32, dims);
  program.Add("all_gather", "", absl::StrCat("all_gather_dim = 1 : i64, ", Groups("[[0, 2], [3, 1]]", 2, 2)),
              {8, 6});
  program.Add("reduce_scatter", "add", absl::StrCat("scatter_dimension = 0 : i64, ", Groups(kAll, 1, 4)),
              {2, 3});
  program.Add("collective_permute", "",
              "source_target_pairs = dense<[[0, 1], [1, 2], [2, 3]]> : tensor<3x2xi64>", dims);
  Compare(Mode::kPartitions, program, kF32, dims, 3);
}

TEST_F(CollectivesTest, OnOneDeviceOfEachWorker) {
  devices_ = {2049, 0};
  const std::vector<int64_t> dims = {4};
  Program program(Mode::kPartitions, kF32, dims, 2);
  program.Add("all_reduce", "add", Groups("[[0, 1]]", 1, 2), dims);
  program.Add("all_gather", "", absl::StrCat("all_gather_dim = 0 : i64, ", Groups("[[1, 0]]", 1, 2)), {8});
  Compare(Mode::kPartitions, program, kF32, dims, 2);
}

// Workers of one device, where the plugin runs short programs inside the call.
class OneDeviceEach : public CollectivesTest {
 protected:
  OneDeviceEach() : CollectivesTest(4, 1) {}
};

TEST_F(OneDeviceEach, AllKinds) {
  const std::vector<int64_t> dims = {8, 3};
  Program program(Mode::kPartitions, kF32, dims);
  program.Add("all_reduce", "add", Groups(kAll, 1, 4), dims);
  program.Add("all_gather", "", absl::StrCat("all_gather_dim = 1 : i64, ", Groups("[[0, 2], [3, 1]]", 2, 2)),
              {8, 6});
  program.Add("reduce_scatter", "add", absl::StrCat("scatter_dimension = 0 : i64, ", Groups(kAll, 1, 4)),
              {2, 3});
  program.Add("all_to_all", "",
              absl::StrCat("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 4 : i64, ",
                           Groups(kAll, 1, 4)),
              dims);
  Compare(Mode::kPartitions, program, kF32, dims, 4);
}

TEST_F(OneDeviceEach, ManyLaunches) {
  auto compiled = Compile(1, SumProgram());
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  for (size_t d = 0; d < 4; ++d) Put(1 + d, {1, static_cast<float>(d)}, devices_[d]);
  constexpr cluster::BufferId kLaunches = 200;
  for (cluster::BufferId i = 0; i < kLaunches; ++i) Launch(static_cast<int64_t>(i) + 1, 1, 1, 5 + 4 * i);
  for (cluster::BufferId i = 0; i < kLaunches; ++i) EXPECT_THAT(*Read(5 + 4 * i), ElementsAre(4, 6));
}

class FourWorkers : public CollectivesTest {
 protected:
  FourWorkers() : CollectivesTest(4, 2) {}
};

TEST_F(FourWorkers, SmallAndLarge) {
  for (const int64_t rows : {8, 80000}) {
    const std::vector<int64_t> dims = {rows, 3};
    Program program(Mode::kPartitions, kF32, dims, 8);
    program.Add("all_reduce", "add", Groups("[[0, 1, 2, 3, 4, 5, 6, 7]]", 1, 8), dims);
    program.Add("all_reduce", "add", Groups("[[0, 2, 4, 6], [1, 3, 5, 7]]", 2, 4), dims);
    program.Add("all_gather", "",
                absl::StrCat("all_gather_dim = 1 : i64, ", Groups("[[0, 1, 2, 3], [4, 5, 6, 7]]", 2, 4)),
                {rows, 12});
    program.Add("reduce_scatter", "add",
                absl::StrCat("scatter_dimension = 0 : i64, ", Groups("[[0, 1, 2, 3, 4, 5, 6, 7]]", 1, 8)),
                {rows / 8, 3});
    program.Add("collective_permute", "",
                "source_target_pairs = dense<[[0, 7], [7, 0], [1, 2], [5, 6]]> : tensor<4x2xi64>", dims);
    Compare(Mode::kPartitions, program, kF32, dims, 5);
  }
}

}  // namespace
}  // namespace helmway::worker
