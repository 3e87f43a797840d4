// Linked into every program of a build with ThreadSanitizer, and into no other. gRPC comes from the
// distribution and is not instrumented, so the order that it makes between threads is invisible. All of it
// that its users rely on passes through its C interface: an operation that a thread starts under a tag
// happens before what any thread does after it got the tag back. Here the functions of that interface say so,
// say that what is done inside them is gRPC's own (helmway/base/thread_sanitizer.h), and do what they did.
// The linker prefers a program's own functions to those of the libraries, also for calls from libgrpc++.
//
// With gRPC's callback interface a tag is a functor, and getting it back is a call of it on a thread of gRPC.
// The methods of a reactor are called in there and looked at. What is called otherwise is not: a service's
// own methods, which make the reactors, and OnDone.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <link.h>

#include <mutex>
#include <unordered_map>

#include "helmway/base/happens_before.h"
#include "helmway/base/thread_sanitizer.h"

namespace {

using ::helmway::base::ForeignCode;
using ::helmway::base::HappensAfter;
using ::helmway::base::HappensBefore;
using ::helmway::base::OwnCode;

// The owner of memory that gRPC gives up on any thread.
struct Owner {
  void (*destroy)(void*);
  void* user_data;
};

void DestroyOwner(void* data) {
  OwnCode own;
  HappensAfter(data);
  const Owner owner = *static_cast<Owner*>(data);
  delete static_cast<Owner*>(data);
  owner.destroy(owner.user_data);
}

// Book-keeping of this file, which must not order anybody's threads.
extern "C" void AnnotateIgnoreSyncBegin(const char* file, int line);
extern "C" void AnnotateIgnoreSyncEnd(const char* file, int line);
class Unseen {
 public:
  Unseen() { AnnotateIgnoreSyncBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreSyncEnd(__FILE__, __LINE__); }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  ForeignCode foreign_;
};

using Run = void (*)(grpc_completion_queue_functor*, int);

bool IsCode(const void* address) {
  const auto find = [](dl_phdr_info* module, size_t, void* wanted) -> int {
    const auto at = reinterpret_cast<ElfW(Addr)>(wanted);
    for (int i = 0; i < module->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = module->dlpi_phdr[i];
      const ElfW(Addr) begin = module->dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD && at >= begin && at < begin + segment.p_memsz) {
        return (segment.p_flags & PF_X) != 0 ? 1 : -1;
      }
    }
    return 0;
  };
  return dl_iterate_phdr(find, const_cast<void*>(address)) == 1;
}

// What functors did before they were told to come back by RunFunctor. Any thread.
class Functors {
 public:
  // A tag of libgrpc++ begins with a table of virtual functions, a functor with the function to call.
  void Add(void* tag) {
    Unseen unseen;
    std::lock_guard<std::mutex> lock(mu_);
    auto* functor = static_cast<grpc_completion_queue_functor*>(tag);
    const Run run = functor->functor_run;
    if (run == &RunFunctor) return;
    const auto [known, is_new] = is_code_.try_emplace(reinterpret_cast<const void*>(run));
    if (is_new) known->second = IsCode(known->first);
    if (!known->second) return;
    runs_[functor] = run;
    functor->functor_run = &RunFunctor;
  }

 private:
  static void RunFunctor(grpc_completion_queue_functor* functor, int ok);
  Run Find(grpc_completion_queue_functor* functor) {
    Unseen unseen;
    std::lock_guard<std::mutex> lock(mu_);
    return runs_.at(functor);
  }

  std::mutex mu_;
  std::unordered_map<const void*, bool> is_code_;
  // Not more than there were functors in memory at one time.
  std::unordered_map<grpc_completion_queue_functor*, Run> runs_;
};

Functors& AllFunctors() {
  static auto& all = *new Functors();
  return all;
}

void Functors::RunFunctor(grpc_completion_queue_functor* functor, int ok) {
  const Run run = AllFunctors().Find(functor);
  OwnCode own;
  HappensAfter(functor);
  run(functor, ok);
}

}  // namespace

// gRPC's own function of this name.
#define REAL(name) static auto* const real = reinterpret_cast<decltype(&(name))>(dlsym(RTLD_NEXT, #name))

// A function in which gRPC works.
#define INSIDE_GRPC(result, name, parameters, arguments) \
  result name parameters {                               \
    REAL(name);                                          \
    ForeignCode foreign;                                 \
    return real arguments;                               \
  }

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops, void* tag,
                                      void* reserved) {
  REAL(grpc_call_start_batch);
  AllFunctors().Add(tag);
  HappensBefore(tag);
  ForeignCode foreign;
  return real(call, ops, nops, tag, reserved);
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call, grpc_call_details* details,
                                         grpc_metadata_array* request_metadata,
                                         grpc_completion_queue* cq_bound_to_call,
                                         grpc_completion_queue* cq_for_notification, void* tag_new) {
  REAL(grpc_server_request_call);
  HappensBefore(tag_new);
  ForeignCode foreign;
  return real(server, call, details, request_metadata, cq_bound_to_call, cq_for_notification, tag_new);
}

grpc_call_error grpc_server_request_registered_call(
    grpc_server* server, void* registered_method, grpc_call** call, gpr_timespec* deadline,
    grpc_metadata_array* request_metadata, grpc_byte_buffer** optional_payload,
    grpc_completion_queue* cq_bound_to_call, grpc_completion_queue* cq_for_notification, void* tag_new) {
  REAL(grpc_server_request_registered_call);
  HappensBefore(tag_new);
  ForeignCode foreign;
  return real(server, registered_method, call, deadline, request_metadata, optional_payload, cq_bound_to_call,
              cq_for_notification, tag_new);
}

void grpc_server_shutdown_and_notify(grpc_server* server, grpc_completion_queue* cq, void* tag) {
  REAL(grpc_server_shutdown_and_notify);
  HappensBefore(tag);
  ForeignCode foreign;
  real(server, cq, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* cq, gpr_timespec deadline, void* reserved) {
  REAL(grpc_completion_queue_next);
  grpc_event event;
  {
    ForeignCode foreign;
    event = real(cq, deadline, reserved);
  }
  if (event.type == GRPC_OP_COMPLETE) HappensAfter(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* cq, void* tag, gpr_timespec deadline,
                                       void* reserved) {
  REAL(grpc_completion_queue_pluck);
  grpc_event event;
  {
    ForeignCode foreign;
    event = real(cq, tag, deadline, reserved);
  }
  if (event.type == GRPC_OP_COMPLETE) HappensAfter(tag);
  return event;
}

grpc_slice grpc_slice_new_with_user_data(void* p, size_t len, void (*destroy)(void*), void* user_data) {
  REAL(grpc_slice_new_with_user_data);
  auto* owner = new Owner{destroy, user_data};
  HappensBefore(owner);
  ForeignCode foreign;
  return real(p, len, &DestroyOwner, owner);
}

INSIDE_GRPC(void, grpc_init, (), ())
INSIDE_GRPC(void, grpc_shutdown, (), ())
INSIDE_GRPC(void, grpc_completion_queue_shutdown, (grpc_completion_queue * cq), (cq))
INSIDE_GRPC(void, grpc_completion_queue_destroy, (grpc_completion_queue * cq), (cq))
INSIDE_GRPC(void, grpc_call_unref, (grpc_call * call), (call))
INSIDE_GRPC(grpc_call_error, grpc_call_cancel, (grpc_call * call, void* reserved), (call, reserved))
INSIDE_GRPC(grpc_call_error, grpc_call_cancel_with_status,
            (grpc_call * call, grpc_status_code status, const char* description, void* reserved),
            (call, status, description, reserved))
INSIDE_GRPC(char*, grpc_call_get_peer, (grpc_call * call), (call))
INSIDE_GRPC(grpc_channel*, grpc_channel_create,
            (const char* target, grpc_channel_credentials* creds, const grpc_channel_args* args),
            (target, creds, args))
INSIDE_GRPC(void, grpc_channel_destroy, (grpc_channel * channel), (channel))
INSIDE_GRPC(grpc_call*, grpc_channel_create_call,
            (grpc_channel * channel, grpc_call* parent_call, uint32_t propagation_mask,
             grpc_completion_queue* cq, grpc_slice method, const grpc_slice* host, gpr_timespec deadline,
             void* reserved),
            (channel, parent_call, propagation_mask, cq, method, host, deadline, reserved))
INSIDE_GRPC(grpc_call*, grpc_channel_create_registered_call,
            (grpc_channel * channel, grpc_call* parent_call, uint32_t propagation_mask,
             grpc_completion_queue* cq, void* registered_call_handle, gpr_timespec deadline, void* reserved),
            (channel, parent_call, propagation_mask, cq, registered_call_handle, deadline, reserved))
INSIDE_GRPC(grpc_server*, grpc_server_create, (const grpc_channel_args* args, void* reserved),
            (args, reserved))
INSIDE_GRPC(int, grpc_server_add_http2_port,
            (grpc_server * server, const char* address, grpc_server_credentials* creds),
            (server, address, creds))
INSIDE_GRPC(void, grpc_server_start, (grpc_server * server), (server))
INSIDE_GRPC(void, grpc_server_cancel_all_calls, (grpc_server * server), (server))
INSIDE_GRPC(void, grpc_server_destroy, (grpc_server * server), (server))
INSIDE_GRPC(void, grpc_byte_buffer_destroy, (grpc_byte_buffer * buffer), (buffer))
INSIDE_GRPC(void, grpc_slice_unref, (grpc_slice slice), (slice))

}  // extern "C"
