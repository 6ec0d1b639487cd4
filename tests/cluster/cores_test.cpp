#include "trireme/cluster/cores.hpp"

#include "support/temp_dir.hpp"
#include "trireme/cluster/identity.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>

namespace trireme::cluster {
namespace {

class CgroupQuota : public ::testing::Test {
 protected:
  void put(const std::filesystem::path& file, std::string_view text) {
    std::filesystem::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text;
  }
  std::optional<double> quota(std::string_view membership) {
    return cgroup_quota(folder_.path(), membership);
  }

  testing::TempDir folder_;
};

TEST_F(CgroupQuota, is_absent_without_control_groups) {
  EXPECT_EQ(quota(""), std::nullopt);
  EXPECT_EQ(quota("0::/\n"), std::nullopt);
  EXPECT_EQ(quota("nonsense\n:\n::\n"), std::nullopt);
}

TEST_F(CgroupQuota, reads_version_2) {
  put("job/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota("0::/job\n"), 1.5);
  put("job/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/job\n"), std::nullopt);
}

TEST_F(CgroupQuota, is_the_smallest_of_the_group_and_its_parents) {
  put("slice/cpu.max", "200000 100000\n");
  put("slice/job/cpu.max", "800000 100000\n");
  put("slice/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/slice/job/step\n"), 2.0);
}

TEST_F(CgroupQuota, falls_back_to_the_root_that_a_container_sees) {
  put("cpu.max", "300000 100000\n");
  EXPECT_EQ(quota("0::/docker/0123abc\n"), 3.0);
}

TEST_F(CgroupQuota, reads_version_1_under_either_folder_name) {
  put("cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  put("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("12:memory:/job\n4:cpu,cpuacct:/job\n0::/\n"), 0.5);
  put("cpu/other/cpu.cfs_quota_us", "400000\n");
  put("cpu/other/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("4:cpu,cpuacct:/other\n"), 4.0);
  EXPECT_EQ(quota("5:cpuset:/job\n"), std::nullopt);
  put("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota("4:cpu,cpuacct:/job\n"), std::nullopt);
}

TEST(UsableCores, follow_the_affinity_mask) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), affinity_cores());
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(affinity_cores(), 1);
  EXPECT_EQ(usable_cores(), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace trireme::cluster
