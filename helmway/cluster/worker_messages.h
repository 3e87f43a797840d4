#ifndef HELMWAY_CLUSTER_WORKER_MESSAGES_H_
#define HELMWAY_CLUSTER_WORKER_MESSAGES_H_

// The values of worker_link.h as messages of worker.proto, and back. What comes from a message is checked for
// its form only: the names and numbers in it mean what the receiver says.

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "helmway/cluster/worker.pb.h"
#include "helmway/cluster/worker_link.h"

namespace helmway::cluster {

// Version of the protocol between proxies and workers. A log:
//   1  2026-11-29  first
//   2  2026-11-29  launches have places in an order over all sessions
//   3  2026-11-30  a worker describes itself as it does to the resource manager
//   4  2026-11-30  compiled programs come with an outline
//   5  2026-11-30  workers on one host share memory
//   6  2026-11-30  programs are loaded with their outline, and say whether they call Python
//   7  2026-11-30  Python functions of the client on the workers' hosts
//   8  2026-11-30  messages of a stream take a connection of their own
inline constexpr uint32_t kWorkerProtocol = 8;

// Code, text and payloads. OK is an absent message.
proto::StatusProto ToProto(const absl::Status& status);
absl::Status FromProto(const proto::StatusProto& message);

proto::Names ToProto(const BufferNames& names);
BufferNames FromProto(const proto::Names& message);

// Without the bytes, and without on_done.
proto::Declare ToProto(const DeclareBuffers& command);
DeclareBuffers FromProto(const proto::Declare& message);
proto::Fill ToProto(const HostContents& contents);
HostContents FromProto(const proto::Fill& message);
proto::Execute ToProto(const Launch& launch);
Launch FromProto(const proto::Execute& message);
proto::Copy ToProto(const CopyBuffers& command);
CopyBuffers FromProto(const proto::Copy& message);
proto::Assemble ToProto(const AssembleBuffers& command);
AssembleBuffers FromProto(const proto::Assemble& message);
proto::Bitcast ToProto(const BitcastBuffers& command);
BitcastBuffers FromProto(const proto::Bitcast& message);
proto::Send ToProto(const SendBuffers& command);
SendBuffers FromProto(const proto::Send& message);
proto::Receive ToProto(const ReceiveBuffers& command);
ReceiveBuffers FromProto(const proto::Receive& message);
proto::PythonFunction ToProto(const PythonFunction& function);
PythonFunction FromProto(const proto::PythonFunction& message);
// Without the serialized program.
proto::Load ToProto(const LoadProgram& command);
LoadProgram FromProto(const proto::Load& message);
proto::CollectivePart ToProto(const CollectivePart& part);
CollectivePart FromProto(const proto::CollectivePart& message);
proto::Program ToProto(const CompiledProgram& program);
CompiledProgram FromProto(const proto::Program& message);

void AddTargets(const BufferTargets& targets, google::protobuf::RepeatedPtrField<proto::Target>* messages);
BufferTargets TargetsFrom(const google::protobuf::RepeatedPtrField<proto::Target>& messages);

}  // namespace helmway::cluster

#endif  // HELMWAY_CLUSTER_WORKER_MESSAGES_H_
