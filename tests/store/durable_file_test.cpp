#include "store/durable_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "store/cache_checks.h"

namespace precis::test {
namespace {

using Before = DurableFile::Before;

class DurableFileTest : public testing::TestWithParam<Before> {
 protected:
  std::string path() const { return folder_.file("file"); }
  ScratchFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Both, DurableFileTest, testing::Values(Before::kUnnamed, Before::kNamed),
                         [](const auto& tested) {
                           return tested.param == Before::kNamed ? "named" : "unnamed";
                         });

TEST_P(DurableFileTest, IsThereOnceItIsComplete) {
  write_bytes(path(), {'o', 'l', 'd'});
  {
    DurableFile file(path(), GetParam());
    file.write("1234", 4);
    file.write("56", 2);
    file.write_at(1, "xy", 2);
    EXPECT_EQ(read_bytes(path()), (Bytes{'o', 'l', 'd'}));
    file.commit();
    EXPECT_EQ(read_bytes(path()), (Bytes{'1', 'x', 'y', '4', '5', '6'}));
  }
  EXPECT_EQ(folder_.names().size(), 1u);
}

TEST_P(DurableFileTest, LeavesNothingWithoutCommit) {
  {
    DurableFile file(path(), GetParam());
    file.write("1234", 4);
    EXPECT_EQ(folder_.names().size(), GetParam() == Before::kNamed ? 1u : 0u);
  }
  EXPECT_TRUE(folder_.names().empty());
}

TEST_P(DurableFileTest, TwoAtOnceDoNotDisturbEachOther) {
  DurableFile first(path(), GetParam());
  DurableFile second(path(), GetParam());
  first.write("1", 1);
  second.write("2", 1);
  second.commit();
  EXPECT_EQ(read_bytes(path()), Bytes{'2'});
  first.commit();
  EXPECT_EQ(read_bytes(path()), Bytes{'1'});
  EXPECT_EQ(folder_.names().size(), 1u);
}

TEST_P(DurableFileTest, AFolderThatIsGoneIsSaid) {
  const std::string folder = folder_.file("folder");
  std::filesystem::create_directory(folder);
  DurableFile file(folder + "/file", GetParam());
  std::filesystem::remove_all(folder);
  EXPECT_THROW(file.commit(), Error);
}

TEST_P(DurableFileTest, HonoursTheUmaskAndReplacesLinks) {
  write_bytes(folder_.file("target"), {'t'});
  std::filesystem::create_symlink("target", path());
  const mode_t before = umask(027);
  {
    DurableFile file(path(), GetParam());
    file.commit();
  }
  umask(before);
  EXPECT_FALSE(std::filesystem::is_symlink(path()));
  EXPECT_EQ(read_bytes(folder_.file("target")), Bytes{'t'});
  struct stat info {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

}  // namespace
}  // namespace precis::test
