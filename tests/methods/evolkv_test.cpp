// Budgets of layers from a file, as SPECs write them. What the files themselves say is tested in
// tests/report/budget_file_test.cpp.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compress/condenser.h"
#include "methods/registry.h"

namespace precis {
namespace {

std::vector<double> read_two(const std::string& path) {
  if (path != "my budgets, (2).json") throw Error(ErrorCode::kIo, "cannot read '" + path + "'");
  return {1.5, 0.5};
}

std::string error_of(const std::string& spec, const Registry::ReadNumbers& read,
                     ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    builtin_methods().parse(spec, read);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << spec;
    return error.what();
  }
  ADD_FAILURE() << spec << " was accepted";
  return "";
}

TEST(Evolkv, SpecHasWhatTheFileSays) {
  const Registry registry = builtin_methods();
  const Method method =
      registry.parse("snapkv layers=evolkv( path = \"my budgets, (2).json\" )", read_two);
  EXPECT_NE(method.spec.find(" layers=weights(list=1.5-0.5,fit=exact)"), std::string::npos);
  EXPECT_EQ(method.spec.find("my budgets"), std::string::npos);
  // Without the file.
  EXPECT_EQ(registry.parse(method.spec).spec, method.spec);
  EXPECT_EQ(method.layers->entries(2, 10, {}), (std::vector<double>{15, 5}));
  // A name needs no quotes.
  const Method plain = registry.parse("snapkv layers=evolkv(path=b.json)",
                                      [](const std::string& path) -> std::vector<double> {
                                        EXPECT_EQ(path, "b.json");
                                        return {1, 2, 3};
                                      });
  EXPECT_EQ(plain.layers->entries(3, 6, {}), (std::vector<double>{3, 6, 9}));
}

TEST(Evolkv, SharesAreOfOneModel) {
  const Method method =
      builtin_methods().parse("snapkv layers=evolkv(path=\"my budgets, (2).json\")", read_two);
  const LayerShape shape{{2, 64}, 3, {0.125f, 0}};
  try {
    Condenser(method, Budget::parse("50%"), std::vector<LayerShape>(4, shape), 300, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string message = error.what();
    EXPECT_NE(message.find("2 layers, but 4 layers"), std::string::npos) << message;
  }
  Condenser(method, Budget::parse("50%"), std::vector<LayerShape>(2, shape), 300, 1);
}

TEST(Evolkv, RefusesWhatItCannotRead) {
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::string good = "snapkv layers=evolkv(path=\"x\")";
  contains(error_of(good, {}), "no files are read here");
  contains(error_of(good, {}), "column 8");
  contains(error_of(good, read_two, ErrorCode::kIo), "cannot read 'x'");
  for (const char* bad : {"snapkv layers=evolkv", "snapkv(layers=evolkv)",
                          "snapkv layers=evolkv(file=x)", "snapkv layers=evolkv(path=x,list=1)"})
    contains(error_of(bad, read_two), "path=\"FILE\"");
  contains(error_of("snapkv layers=evolkv(path=x,path=x)", read_two), "given twice");
  contains(error_of("snapkv layers=evolkv(path=\"x)", read_two), "no end");
  contains(error_of("snapkv layers=evolkv(path=\"\")", read_two), "empty");
  contains(error_of("snapkv layers=evolkv(path=\"a\nb\")", read_two), "control character");
  contains(error_of("snapkv layers=evolkv(path=a/b)", read_two), "expected ',' or ')'");
  contains(error_of("snapkv layers=evolk(path=x)", read_two), "evolkv");
  // Quotes are for paths.
  contains(error_of("snapkv(window=\"32\")", read_two), "is no text");
  contains(error_of("snapkv layers=weights(list=\"1\")", read_two), "is no text");
  contains(error_of("snapkv(select=\"layer\")", read_two), "is no text");
  // Numbers that no layers=weights takes are refused whoever read them.
  for (const std::vector<double>& bad :
       {std::vector<double>{}, {-1}, {1e-5, 1}, {std::numeric_limits<double>::quiet_NaN()}})
    error_of(good, [&](const std::string&) { return bad; });
  contains(error_of(
               good, [](const std::string&) { return std::vector<double>(300, 1 / 3.0); },
               ErrorCode::kUnsupported),
           "fewer digits");
}

}  // namespace
}  // namespace precis
