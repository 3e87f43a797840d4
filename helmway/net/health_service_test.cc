#include "helmway/net/health_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "helmway/net/grpc_server.h"
#include "helmway/net/health.grpc.pb.h"
#include "helmway/net/message_stream.h"

namespace helmway::net {
namespace {

using ::grpc::health::v1::Health;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

// Beside nothing, and beside another service that has all other calls.
class HealthServiceTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::vector<PolledService*> polled;
    if (GetParam()) {
      other_ = MessageStreamService::Create({});
      polled.push_back(other_.get());
    }
    auto server = GrpcServer::Start("127.0.0.1:0", {}, polled);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = Health::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials()));
  }
  static HealthCheckRequest Of(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }

  std::unique_ptr<MessageStreamService> other_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_P(HealthServiceTest, TheServerServesAndNothingElseIsKnown) {
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    HealthCheckResponse response;
    EXPECT_TRUE(stub_->Check(&context, Of(""), &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  }
  grpc::ClientContext context;
  HealthCheckResponse response;
  EXPECT_EQ(stub_->Check(&context, Of("other"), &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_P(HealthServiceTest, AWatchLastsUntilEitherSideGoes) {
  for (const auto& [service, status] : {std::pair("", HealthCheckResponse::SERVING),
                                        std::pair("other", HealthCheckResponse::SERVICE_UNKNOWN)}) {
    grpc::ClientContext context;
    HealthCheckResponse response;
    const auto reader = stub_->Watch(&context, Of(service));
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_EQ(response.status(), status);
    context.TryCancel();
    EXPECT_FALSE(reader->Read(&response));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  grpc::ClientContext context;
  HealthCheckResponse response;
  const auto reader = stub_->Watch(&context, Of(""));
  ASSERT_TRUE(reader->Read(&response));
  server_->Shutdown();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
}

INSTANTIATE_TEST_SUITE_P(Queues, HealthServiceTest, ::testing::Bool(),
                         [](const auto& queue) { return queue.param ? "OfAnother" : "ItsOwn"; });

}  // namespace
}  // namespace helmway::net
