#include "base/error.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace precis {
namespace {

TEST(Error, CarriesCodeAndMessage) {
  try {
    throw Error(ErrorCode::kFormat, concat("file ", 3, " of ", 2.5));
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "file 3 of 2.5");
    EXPECT_EQ(dynamic_cast<const Error&>(error).code(), ErrorCode::kFormat);
  }
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (ErrorCode code :
       {ErrorCode::kIo, ErrorCode::kFormat, ErrorCode::kUnsupported, ErrorCode::kInvalidArgument,
        ErrorCode::kOutOfMemory, ErrorCode::kCancelled, ErrorCode::kInternal})
    names.insert(error_code_name(code));
  EXPECT_EQ(names.size(), 7u);
  EXPECT_STREQ(error_code_name(ErrorCode::kInvalidArgument), "invalid_argument");
}

TEST(Check, PassesOnTrueAndEvaluatesOnce) {
  int calls = 0;
  PRECIS_CHECK(++calls == 1, "calls ", calls);
  PRECIS_CHECK(calls == 1);
  EXPECT_EQ(calls, 1);
}

TEST(CheckDeathTest, AbortsWithPlaceExpressionAndValues) {
  const int left = 3;
  EXPECT_DEATH(PRECIS_CHECK(left == 4, "left is ", left),
               "error_test.cpp:[0-9]+: check failed: left == 4: left is 3");
  EXPECT_DEATH(PRECIS_CHECK(left > 5), "check failed: left > 5");
}

}  // namespace
}  // namespace precis
