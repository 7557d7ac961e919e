#include "base/fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace precis {
namespace {

struct Sample {
  int window = 32;
  double ratio = 0.25;
  std::string mode = "head";
  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "queries observed");
    v("ratio", ratio, 0.0, 1.0, "kept");
    v("mode", mode, {"head", "layer", "off"}, "who shares the bias");
  }
};

// The message of the error that setting a field throws; fails if none is thrown.
std::string rejection(const char* name, const char* text) {
  Sample sample;
  try {
    set_field(sample, name, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(sample.window, 32);
    EXPECT_EQ(sample.ratio, 0.25);
    EXPECT_EQ(sample.mode, "head");
    return error.what();
  }
  ADD_FAILURE() << name << " accepted " << text;
  return "";
}

TEST(Fields, ListsNameValueDomainHelp) {
  const std::vector<FieldInfo> list = list_fields(Sample{});
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0].name, "window");
  EXPECT_EQ(list[0].value, "32");
  EXPECT_EQ(list[0].domain, "1..4096");
  EXPECT_EQ(list[0].help, "queries observed");
  EXPECT_EQ(list[1].value, "0.25");
  EXPECT_EQ(list[1].domain, "0..1");
  EXPECT_EQ(list[2].value, "head");
  EXPECT_EQ(list[2].domain, "head|layer|off");
}

struct Listed {
  std::vector<double> list = {2, 1.5};
  template <class V>
  void fields(V&& v) {
    v("list", list, 0, 1e6, "numbers");
  }
};

TEST(Fields, ListsOfNumbersReadBack) {
  EXPECT_EQ(list_fields(Listed{})[0].value, "2-1.5");
  for (const char* text : {"0", "0.001-1e+06-3", "5-0-0.125", "1"}) {
    Listed listed;
    ASSERT_TRUE(set_field(listed, "list", text));
    Listed copy;
    const std::string printed = list_fields(listed)[0].value;
    ASSERT_TRUE(set_field(copy, "list", printed)) << printed;
    EXPECT_EQ(copy.list, listed.list) << text;
  }
  for (const char* text : {"", "-", "1-", "-1", "1--2", "1e-5", "0.0001", "1000001", "x", "1 2"}) {
    Listed listed;
    EXPECT_THROW(set_field(listed, "list", text), Error) << text;
    EXPECT_EQ(listed.list, (std::vector<double>{2, 1.5}));
  }
}

TEST(Fields, SetsWhatItLists) {
  Sample sample;
  EXPECT_TRUE(set_field(sample, "window", "4096"));
  EXPECT_TRUE(set_field(sample, "ratio", "1e-3"));
  EXPECT_TRUE(set_field(sample, "mode", "off"));
  EXPECT_EQ(sample.window, 4096);
  EXPECT_EQ(sample.ratio, 1e-3);
  EXPECT_EQ(sample.mode, "off");
  Sample copy;
  for (const FieldInfo& field : list_fields(sample)) set_field(copy, field.name, field.value);
  EXPECT_EQ(copy.window, sample.window);
  EXPECT_EQ(copy.ratio, sample.ratio);
  EXPECT_EQ(copy.mode, sample.mode);
}

TEST(Fields, UnknownNameIsANormalNo) {
  Sample sample;
  EXPECT_FALSE(set_field(sample, "windo", "1"));
  EXPECT_FALSE(set_field(sample, "", "1"));
}

TEST(Fields, RejectsWhatIsNotInTheDomain) {
  for (const char* text : {"0", "4097", "-1", "", " 1", "1 ", "1.5", "x", "99999999999999999999"})
    EXPECT_NE(rejection("window", text).find("1..4096"), std::string::npos) << text;
  for (const char* text : {"-0.1", "1.01", "nan", "inf", "", "0.5x", "1e999"})
    EXPECT_NE(rejection("ratio", text).find("0..1"), std::string::npos) << text;
  for (const char* text : {"Head", "", "head|layer"})
    EXPECT_NE(rejection("mode", text).find("head|layer|off"), std::string::npos) << text;
}

TEST(Fields, RejectionNamesFieldAndText) {
  const std::string message = rejection("window", "banana");
  EXPECT_NE(message.find("window"), std::string::npos) << message;
  EXPECT_NE(message.find("banana"), std::string::npos) << message;
}

TEST(Fields, NumbersPrintShortAndParseBack) {
  EXPECT_EQ(print_number(0.5), "0.5");
  EXPECT_EQ(print_number(3.0), "3");
  for (double x : {0.1, 1.0 / 3.0, 1e-300, -2.5e17, std::nextafter(1.0, 2.0)})
    EXPECT_EQ(std::stod(print_number(x)), x);
}

}  // namespace
}  // namespace precis
