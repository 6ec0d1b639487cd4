#include "trireme/base/error.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace trireme {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExitCode, is_the_one_that_job_scripts_read) {
  EXPECT_EQ(exit_code(ErrorKind::kUsage), 2);
  EXPECT_EQ(exit_code(ErrorKind::kConfig), 64);
  EXPECT_EQ(exit_code(ErrorKind::kCorrupt), 65);
  EXPECT_EQ(exit_code(ErrorKind::kEnvironment), 69);
  EXPECT_EQ(exit_code(ErrorKind::kInternal), 70);
  EXPECT_EQ(exit_code(ErrorKind::kDevice), 71);
  EXPECT_EQ(exit_code(ErrorKind::kIo), 74);
  EXPECT_EQ(exit_code(ErrorKind::kPeerLost), 75);
  EXPECT_EQ(exit_code(ErrorKind::kTimeout), 75);
  EXPECT_EQ(exit_code(ErrorKind::kOutOfMemory), 79);
  EXPECT_EQ(kExitPreempted, 85);
}

TEST(ErrorReport, says_kind_rank_host_step_message_cause_and_hint) {
  Error error(ErrorKind::kIo, "write x: no space", "free some space");
  error.rank = 3;
  error.host = "node7";
  error.step = 120;
  error.cause = "errno 28";
  EXPECT_EQ(error.report(),
            "error (io, rank 3 on node7, step 120): write x: no space\n"
            "  cause: errno 28\n"
            "  hint: free some space");
}

TEST(ErrorReport, leaves_out_what_is_not_known) {
  EXPECT_EQ(Error(ErrorKind::kTimeout, "too late").report(), "error (timeout): too late");
}

TEST(ErrorReport, names_a_place_in_the_source_only_for_internal_errors) {
  EXPECT_THAT(Error(ErrorKind::kInternal, "x").report(), HasSubstr("error_test.cpp:"));
  EXPECT_THAT(Error(ErrorKind::kConfig, "x").report(), Not(HasSubstr("error_test.cpp")));
}

TEST(Ensure, throws_internal_with_the_callers_place) {
  EXPECT_NO_THROW(ensure(true, "nothing"));
  try {
    ensure(false, "two is two");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::kInternal);
    EXPECT_THAT(error.report(), HasSubstr("two is two"));
    EXPECT_THAT(error.report(), HasSubstr("error_test.cpp:"));
  }
}

TEST(ThrowErrno, names_operation_path_and_reason) {
  const auto error_for = [](int code) {
    try {
      errno = code;
      throw_errno("write", "/x/y");
    } catch (const Error& error) {
      return error;
    }
  };
  EXPECT_EQ(error_for(ENOSPC).kind, ErrorKind::kIo);
  EXPECT_EQ(error_for(ENOSPC).message, "write /x/y: No space left on device (errno 28)");
  EXPECT_THAT(error_for(ENOSPC).hint, HasSubstr("free some space"));
  EXPECT_THAT(error_for(EACCES).hint, HasSubstr("may write to"));
  EXPECT_EQ(error_for(EIO).hint, "");
}

}  // namespace
}  // namespace trireme
