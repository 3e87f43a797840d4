#include "helmway/cluster/group_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/cluster/all_of.h"

namespace helmway::cluster {

GroupSession::GroupSession(WorkerGroup* group, SessionId id, std::shared_ptr<CallbackSink> callbacks,
                           const std::vector<std::shared_ptr<WorkerLife>>& lives)
    : group_(group), id_(id), callbacks_(std::move(callbacks)), dirty_(lives.size()) {
  for (const LifeRef& life : lives) parts_.push_back({life, life->link->OpenSession(id, callbacks_)});
}

GroupSession::LinkRef GroupSession::PartAt(WorkerIndex worker) {
  base::MutexLock lock(&mu_);
  return parts_[worker].link;
}

GroupSession::LinkRef GroupSession::PartOf(BufferId buffer) {
  WorkerIndex worker = 0;
  base::MutexLock lock(&mu_);
  buffers_.ForEach(
      {buffer, 1, {}}, [&](BufferId, uint32_t, WorkerIndex w) { worker = w; }, [](BufferId, uint32_t) {});
  return parts_[worker].link;
}

void GroupSession::WatchWorkers() {
  for (WorkerIndex w = 0; w < size(); ++w) Watch(w, PartAt(w));
}

void GroupSession::Watch(WorkerIndex worker, const LinkRef& link) {
  link->WhenLost([weak = weak_from_this(), worker](const absl::Status& status) {
    if (const auto self = weak.lock()) self->FailSendsOf(worker, status);
  });
  link->WhenPeerLost([weak = weak_from_this(), worker](const PeerAddress& peer, const absl::Status& status) {
    if (const auto self = weak.lock()) self->FailSendsBetween(worker, peer, status);
  });
  link->WhenPythonSays([weak = weak_from_this(), worker](const std::string& text) {
    const auto self = weak.lock();
    for (WorkerIndex other = 0; self != nullptr && other < self->size(); ++other) {
      if (other != worker) self->PartAt(other)->TellPython(text);
    }
  });
}

void GroupSession::AddTargets(const BufferTargets& targets) {
  std::vector<WorkerIndex> workers;
  for (size_t i = 0; i < targets.size();) {
    const BufferId first = targets[i].buffer;
    workers.clear();
    for (; i < targets.size() && targets[i].buffer == first + workers.size(); ++i) {
      const int w = group_->WorkerOf(targets[i].device);
      workers.push_back(static_cast<WorkerIndex>(std::max(w, 0)));
    }
    buffers_.Add(first, static_cast<uint32_t>(workers.size()), std::make_shared<const Placement>(workers));
  }
}

void GroupSession::AddNames(const BufferNames& names, const std::vector<WorkerIndex>& workers) {
  if (names.list.empty()) {
    buffers_.Add(names.first, names.count, std::make_shared<const Placement>(workers));
    return;
  }
  for (size_t i = 0; i < names.list.size(); ++i) {
    buffers_.Add(names.list[i], 1, std::make_shared<const Placement>(absl::MakeConstSpan(&workers[i], 1)));
  }
}

GroupSession::ByWorker<BufferTargets> GroupSession::SplitTargets(const BufferTargets& targets) const {
  ByWorker<BufferTargets> split(size());
  for (const BufferTarget& target : targets) {
    if (const int w = group_->WorkerOf(target.device); w >= 0) split.at(w).push_back(target);
  }
  return split;
}

void GroupSession::FindWorkers(const BufferNames& names, std::vector<WorkerIndex>* workers) {
  size_t i = 0;
  buffers_.ForEach(
      names,
      [&](BufferId, uint32_t n, WorkerIndex w) {
        for (; n > 0 && i < workers->size(); --n) (*workers)[i++] = w;
      },
      [&](BufferId, uint32_t n) { i += n; });
}

void GroupSession::Declare(DeclareBuffers command) {
  TakeReturned();
  {
    base::MutexLock lock(&mu_);
    AddTargets(command.targets);
  }
  SplitTargets(command.targets).ForEach([this](WorkerIndex w, BufferTargets part) {
    PartAt(w)->Declare({std::move(part)});
  });
}

void GroupSession::Fill(HostContents contents) {
  TakeReturned();
  ByWorker<BufferTargets> split = SplitTargets(contents.targets);
  // Bytes that go to several workers belong to none of them alone.
  if (split.count() > 1) contents.bytes.exclusive = false;
  split.ForEach([&](WorkerIndex w, BufferTargets targets) {
    HostContents part = contents;
    part.targets = std::move(targets);
    PartAt(w)->Fill(std::move(part));
  });
}

void GroupSession::Fail(const BufferTargets& targets, const absl::Status& status) {
  TakeReturned();
  SplitTargets(targets).ForEach(
      [&](WorkerIndex w, const BufferTargets& part) { PartAt(w)->Fail(part, status); });
}

void GroupSession::Delete(const std::vector<BufferNames>& buffers) {
  TakeReturned();
  ByWorker<std::vector<BufferNames>> split(size());
  {
    base::MutexLock lock(&mu_);
    for (const BufferNames& names : buffers) {
      ByWorker<BufferNames> pieces(size());
      buffers_.Remove(
          names,
          [&](BufferId first, uint32_t count, WorkerIndex w) {
            AppendNames(first, count, &pieces.at(static_cast<int>(w)));
          },
          [](BufferId, uint32_t) {});
      pieces.ForEach([&](WorkerIndex w, BufferNames piece) {
        split.at(static_cast<int>(w)).push_back(std::move(piece));
      });
    }
  }
  split.ForEach([this](WorkerIndex w, const std::vector<BufferNames>& part) { PartAt(w)->Delete(part); });
}

void GroupSession::Read(BufferId buffer, ReadFormat format,
                        absl::AnyInvocable<void(absl::StatusOr<base::HostBytes>)> done) {
  PartOf(buffer)->Read(buffer, std::move(format), std::move(done));
}

void GroupSession::Await(const std::vector<BufferNames>& buffers, StatusCallback done) {
  // Runs of buffers on one worker, in the order of all, so that the first error is the first.
  std::vector<std::pair<WorkerIndex, std::vector<BufferNames>>> runs;
  auto add = [&](BufferId first, uint32_t count, WorkerIndex w) {
    if (runs.empty() || runs.back().first != w) runs.emplace_back(w, std::vector<BufferNames>());
    runs.back().second.push_back({first, count, {}});
  };
  {
    base::MutexLock lock(&mu_);
    for (const BufferNames& names : buffers) {
      buffers_.ForEach(names, add, [&](BufferId first, uint32_t count) {
        add(first, count, runs.empty() ? 0 : runs.back().first);
      });
    }
  }
  if (runs.empty()) return done(absl::OkStatus());
  if (runs.size() == 1) return PartAt(runs[0].first)->Await(runs[0].second, std::move(done));
  auto all = std::make_shared<AllOf>(runs.size(), std::move(done));
  for (size_t i = 0; i < runs.size(); ++i) {
    PartAt(runs[i].first)->Await(runs[i].second, [all, i](const absl::Status& status) {
      all->Give(i, status);
    });
  }
}

void GroupSession::Copy(CopyBuffers command) {
  TakeReturned();
  const size_t count = command.devices.size();
  std::vector<WorkerIndex> to;
  for (const DeviceId device : command.devices) {
    to.push_back(static_cast<WorkerIndex>(std::max(group_->WorkerOf(device), 0)));
  }
  // A source that nobody has: the worker of the result will say so.
  std::vector<WorkerIndex> from = to;
  {
    base::MutexLock lock(&mu_);
    FindWorkers(command.sources, &from);
    AddNames(command.results, to);
    PutBehind(command.results, command.sources);
  }
  ByWorker<CopyBuffers> copies(size());
  ByWorker<ReceiveBuffers> receives(size());
  std::map<std::pair<WorkerIndex, WorkerIndex>, std::pair<SendBuffers, BufferTargets>> sends;
  for (size_t i = 0; i < count; ++i) {
    if (from[i] == to[i]) {
      CopyBuffers& copy = copies.at(static_cast<int>(to[i]));
      AppendNames(command.sources.at(i), 1, &copy.sources);
      AppendNames(command.results.at(i), 1, &copy.results);
      copy.devices.push_back(command.devices[i]);
      copy.memory_kind = command.memory_kind;
      copy.default_layout = command.default_layout;
      copy.user_context = command.user_context;
      continue;
    }
    ReceiveBuffers& receive = receives.at(static_cast<int>(to[i]));
    AppendNames(command.results.at(i), 1, &receive.results);
    receive.devices.push_back(command.devices[i]);
    receive.memory_kind = command.memory_kind;
    receive.default_layout = command.default_layout;
    auto& [send, targets] = sends[{from[i], to[i]}];
    AppendNames(command.sources.at(i), 1, &send.sources);
    AppendNames(command.results.at(i), 1, &send.results);
    targets.push_back({command.results.at(i), command.devices[i]});
  }
  copies.ForEach([this](WorkerIndex w, CopyBuffers copy) { PartAt(w)->Copy(std::move(copy)); });
  receives.ForEach([this](WorkerIndex w, ReceiveBuffers receive) { PartAt(w)->Receive(std::move(receive)); });
  for (auto& [way, sent] : sends) {
    auto& [send, targets] = sent;
    const auto [source, target] = way;
    SendAcross(source, target, std::move(send), std::move(targets));
  }
}

void GroupSession::SendAcross(WorkerIndex source, WorkerIndex target, SendBuffers send,
                              BufferTargets targets) {
  uint64_t number;
  LinkRef source_link;
  Part receiver;
  {
    base::MutexLock lock(&mu_);
    number = next_sending_++;
    sending_[number] = {source, target, targets};
    source_link = parts_[source].link;
    receiver = parts_[target];
  }
  send.to = receiver.life->link->peer_address();
  const BufferNames results = send.results;
  if (send.to.address.empty()) {
    receiver.link->Fail(targets,
                        absl::UnimplementedError("a worker without an address takes nothing from others"));
  } else {
    source_link->Send(std::move(send));
  }
  // Here, or failed: either way nobody needs to be told any more. A source that was lost before this knew of
  // it is asked again.
  receiver.link->Await({results}, [weak = weak_from_this(), number](const absl::Status&) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    base::MutexLock lock(&self->mu_);
    self->sending_.erase(number);
  });
  source_link->Await({}, [weak = weak_from_this(), source](const absl::Status& status) {
    const auto self = weak.lock();
    if (self != nullptr && absl::IsDataLoss(status)) self->FailSendsOf(source, status);
  });
}

template <typename Predicate>
void GroupSession::FailSendsIf(Predicate concerned, const absl::Status& status) {
  std::vector<Sending> failed;
  {
    base::MutexLock lock(&mu_);
    for (const auto& [number, sending] : sending_) {
      if (concerned(sending)) failed.push_back(sending);
    }
  }
  for (const Sending& sending : failed) PartAt(sending.to)->Fail(sending.targets, status);
}

void GroupSession::FailSendsOf(WorkerIndex from, const absl::Status& status) {
  FailSendsIf([from](const Sending& sending) { return sending.from == from; }, status);
}

void GroupSession::FailSendsBetween(WorkerIndex worker, const PeerAddress& peer, const absl::Status& status) {
  const auto is_peer = [&](WorkerIndex other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return parts_[other].life->link->peer_address() == peer;
  };
  FailSendsIf(
      [&](const Sending& sending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return (sending.from == worker && is_peer(sending.to)) ||
               (sending.to == worker && is_peer(sending.from));
      },
      absl::DataLossError(absl::StrCat("lost on the way between two workers, one of them at ", peer.address,
                                       ": ", status.message())));
}

void GroupSession::Assemble(AssembleBuffers command) {
  TakeReturned();
  const size_t num_sources = command.sources.size();
  std::vector<WorkerIndex> worker_of_source(num_sources, 0);
  {
    base::MutexLock lock(&mu_);
    FindWorkers(command.sources, &worker_of_source);
    for (const AssembleBuffers::Result& result : command.results) {
      AddTargets(result.targets);
      if (behind_.empty()) continue;
      BufferNames names;
      for (const BufferTarget& target : result.targets) AppendNames(target.buffer, 1, &names);
      PutBehind(names, command.sources);
    }
  }
  ByWorker<AssembleBuffers> parts(size());
  auto part_of = [&](WorkerIndex w) -> AssembleBuffers& {
    AssembleBuffers& part = parts.at(static_cast<int>(w));
    part.element_type = command.element_type;
    part.memory_kind = command.memory_kind;
    part.minor_to_major = command.minor_to_major;
    return part;
  };
  // Blocks of a worker's buffers that other workers want: cut out there, under a name of this group's own,
  // and sent.
  struct Cut {
    AssembleBuffers cut;  // on the source
    SendBuffers send;
    ReceiveBuffers receive;  // on the target
    BufferTargets targets;
  };
  std::map<std::pair<WorkerIndex, WorkerIndex>, Cut> cuts;  // source, target

  for (const AssembleBuffers::Result& result : command.results) {
    SplitTargets(result.targets).ForEach([&](WorkerIndex w, BufferTargets own) {
      AssembleBuffers& part = part_of(w);
      AssembleBuffers::Result wanted;
      wanted.dims = result.dims;
      for (const BufferBlock& block : result.blocks) {
        BufferBlock local = block;
        local.source = static_cast<uint32_t>(part.sources.size());
        const WorkerIndex from = worker_of_source[block.source];
        BufferId source = command.sources.at(block.source);
        if (from != w) {
          Cut& cut = cuts[{from, w}];
          const BufferId name = next_own_name_.fetch_add(2, std::memory_order_relaxed);
          const DeviceId there = group_->FirstDeviceOf(from);
          AssembleBuffers::Result piece;
          piece.targets.push_back({name, there});
          piece.dims = block.shape;
          piece.blocks.push_back({static_cast<uint32_t>(cut.cut.sources.size()), block.source_origin,
                                  Dims(block.shape.size(), 0), block.shape});
          AppendNames(source, 1, &cut.cut.sources);
          cut.cut.element_type = command.element_type;
          cut.cut.results.push_back(std::move(piece));
          // A name belongs to one worker, so the piece has another one where it arrives.
          source = name + 1;
          AppendNames(name, 1, &cut.send.sources);
          AppendNames(source, 1, &cut.send.results);
          AppendNames(source, 1, &cut.receive.results);
          cut.receive.devices.push_back(own[0].device);
          cut.targets.push_back({source, own[0].device});
          local.source_origin.assign(block.shape.size(), 0);
        }
        AppendNames(source, 1, &part.sources);
        wanted.blocks.push_back(std::move(local));
      }
      wanted.targets = std::move(own);
      part.results.push_back(std::move(wanted));
    });
  }
  std::vector<std::pair<WorkerIndex, BufferNames>> temporary;
  for (auto& [way, cut] : cuts) {
    const auto [from, to] = way;
    temporary.emplace_back(from, cut.send.sources);
    temporary.emplace_back(to, cut.send.results);
    PartAt(from)->Assemble(std::move(cut.cut));
    PartAt(to)->Receive(std::move(cut.receive));
    SendAcross(from, to, std::move(cut.send), std::move(cut.targets));
  }
  parts.ForEach([this](WorkerIndex w, AssembleBuffers part) { PartAt(w)->Assemble(std::move(part)); });
  // What was commanded before keeps them for as long as it needs them.
  for (auto& [w, names] : temporary) PartAt(w)->Delete({names});
}

void GroupSession::Bitcast(BitcastBuffers command) {
  TakeReturned();
  const size_t count = command.dims.size();
  std::vector<WorkerIndex> workers(count, 0);
  {
    base::MutexLock lock(&mu_);
    FindWorkers(command.sources, &workers);
    AddNames(command.results, workers);
    PutBehind(command.results, command.sources);
  }
  ByWorker<BitcastBuffers> parts(size());
  for (size_t i = 0; i < count; ++i) {
    BitcastBuffers& part = parts.at(static_cast<int>(workers[i]));
    AppendNames(command.sources.at(i), 1, &part.sources);
    AppendNames(command.results.at(i), 1, &part.results);
    part.dims.push_back(std::move(command.dims[i]));
    part.element_type = command.element_type;
    part.minor_to_major = command.minor_to_major;
  }
  parts.ForEach([this](WorkerIndex w, BitcastBuffers part) { PartAt(w)->Bitcast(std::move(part)); });
}

void GroupSession::Close() {
  std::vector<LinkRef> links;
  {
    base::MutexLock lock(&mu_);
    closed_ = true;
    for (const Part& part : parts_) links.push_back(part.link);
    for (const auto& [worker, returning] : returning_) links.push_back(returning->link);
    returning_.clear();
    held_.clear();
  }
  for (const LinkRef& link : links) link->Close();
}

}  // namespace helmway::cluster
