#include "helmway/net/completion_thread.h"

#include <pthread.h>

#include "helmway/cluster/completion_tag.h"

namespace helmway::net {

CompletionThread::CompletionThread()
    : builder_(std::make_unique<grpc::ServerBuilder>()),
      queue_(builder_->AddCompletionQueue()),
      thread_([queue = queue_.get()] {
        pthread_setname_np(pthread_self(), "grpc-calls");
        void* tag;
        bool ok;
        while (queue->Next(&tag, &ok)) cluster::Run(tag, ok);
      }) {}

CompletionThread::~CompletionThread() {
  queue_->Shutdown();
  thread_.join();
}

}  // namespace helmway::net
