#ifndef HELMWAY_WIRE_VERSIONS_H_
#define HELMWAY_WIRE_VERSIONS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "helmway/wire/ifrt_service.pb.h"

// The version numbers of the IFRT proxy protocol. Two numbers are settled at the start of a session, apart
// from each other: the protocol number (which requests and fields exist) and the serdes number (how IFRT
// types are written inside them). Source: observed behaviour of jaxlib 0.10.2, 0.11.2 and 0.12.0.1.
//
// Log of what is spoken:
//   2026-08  protocol 16 to 25, serdes 3 to 6: jaxlib 0.10.2 (serdes 3), 0.11.2 and 0.12.0.1 (serdes 3 to 6).
namespace helmway::wire {

// Protocol numbers, each named after what it switches on. At a lower number the thing is absent.
inline constexpr int kProtocolCompileDeviceIds = 16;       // CompileResponse.device_ids is read
inline constexpr int kProtocolReadFromDisk = 17;           // HostBufferReadFromDisk may be called
inline constexpr int kProtocolCostAnalysis = 18;           // LoadedExecutableCostAnalysisRequest
inline constexpr int kProtocolProgramText = 19;            // LoadedExecutableHumanReadableProgramTextRequest
inline constexpr int kProtocolMpmd = 20;                   // MPMD fields and requests
inline constexpr int kProtocolFetchExecuteResult = 21;     // run status; below it CheckFuture serves
inline constexpr int kProtocolDevicePlatformName = 22;     // InitResponse.Device.platform_name is read
inline constexpr int kProtocolMakeArrayLayout = 23;        // MakeArrayFromHostBufferRequest.layout
inline constexpr int kProtocolBitcastArrays = 24;          // BitcastArraysRequest
inline constexpr int kProtocolDestructDeleteOptions = 25;  // LoadedExecutableDestructRequest.delete_options

inline constexpr int kMinProtocolVersion = kProtocolCompileDeviceIds;
inline constexpr int kMaxProtocolVersion = kProtocolDestructDeleteOptions;

// Serdes numbers. Clients announce lower minimums than 3, but cannot write a program below it.
inline constexpr int kSerdesMixedPrograms = 3;      // StableHLO (as VHLO) and Shardy ops in one program
inline constexpr int kSerdesCompileOptions = 4;     // version_number 4 in the compile option payloads
inline constexpr int kSerdesAbstractArraySpec = 5;  // a type that the proxy protocol does not carry
inline constexpr int kSerdesRemapDeviceLists = 6;   // RemapPlanProto has the device-list form only

inline constexpr int kMinSerdesVersion = kSerdesMixedPrograms;
inline constexpr int kMaxSerdesVersion = kSerdesRemapDeviceLists;

// The jaxlib releases that speak a version in these ranges, for messages.
inline constexpr absl::string_view kSupportedJaxlibs = "0.10.2 to 0.12.0.1";

// The pair to answer to GetVersion: for each number the smaller of the client's and our maximum.
//
// The answer is always inside the client's range, since a client aborts its process on any other. If there is
// no number inside both ranges (or the client's range is empty or absent): INVALID_ARGUMENT with both ranges
// and the jaxlib releases that work.
absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> ChooseVersion(
    const xla::ifrt::proxy::GrpcGetVersionRequest& request);

// OK if a session may run at this pair, which the client echoes in its session metadata. Otherwise
// INVALID_ARGUMENT.
absl::Status CheckVersion(const xla::ifrt::proxy::IfrtProxyVersion& version);

}  // namespace helmway::wire

#endif  // HELMWAY_WIRE_VERSIONS_H_
