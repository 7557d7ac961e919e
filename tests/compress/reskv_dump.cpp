// reskv_dump LAYER SPEC KEEP: condenses one dumped layer with the real condenser and prints, as one
// JSON object, what the residual stage was given, what it made of it, and what is stored. Used by
// tests/compare_reskv.py; the layer's format is in tools/selkv_reference.py.
#include <iostream>
#include <nlohmann/json.hpp>

#include "compress/layer_case.h"
#include "compress/layer_dump.h"
#include "methods/registry.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using Json = nlohmann::json;

Json to_json(const SharpnessGate& gate) { return {gate.low, gate.high, gate.least}; }

// Writes down every call of the stage. One thread only.
class RecordingResidual final : public Residual {
 public:
  RecordingResidual(std::shared_ptr<const Residual> inner, Json& record)
      : inner_(std::move(inner)), record_(record) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return inner_->queries_needed(n_tokens);
  }
  const std::vector<double>& parts() const override { return inner_->parts(); }

  std::vector<ResidualTrial> try_splits(HeadView& head,
                                        std::span<const HeadSplit> splits) const override {
    std::vector<ResidualTrial> trials = inner_->try_splits(head, splits);
    Json own = {{"scores", std::vector<float>(head.scores, head.scores + head.n_tokens)},
                {"splits", Json::array()}};
    for (std::size_t s = 0; s < splits.size(); ++s) {
      const HeadSplit& split = splits[s];
      const ResidualTrial& trial = trials[s];
      Json one = {{"kept", split.plan->kept},
                  {"n_residual", split.n_residual},
                  {"keys", trial.entries.keys},
                  {"values", trial.entries.values},
                  {"bias", trial.entries.bias},
                  {"gate", to_json(trial.entries.gate)},
                  {"error", trial.error},
                  {"energy", trial.energy},
                  {"evicted_mass", trial.evicted_mass},
                  {"restored_mass", trial.restored_mass}};
      one["main_bias"] = std::vector<float>(split.bias.begin(), split.bias.end());
      one["absorbed"] =
          split.merge == nullptr ? std::vector<std::uint32_t>() : split.merge->absorbed;
      own["splits"].push_back(std::move(one));
    }
    record_["heads"].push_back(std::move(own));
    return trials;
  }

  std::vector<std::size_t> choose(
      std::span<const std::vector<ResidualTrial>> trials,
      std::span<const std::vector<std::uint8_t>> usable) const override {
    std::vector<std::size_t> chosen = inner_->choose(trials, usable);
    record_["chosen"] = chosen;
    return chosen;
  }

 private:
  std::shared_ptr<const Residual> inner_;
  Json& record_;
};

void run(const std::string& path, const std::string& spec, const std::string& keep) {
  const test::LayerDump dump = test::read_layer_dump(path);
  Method method = builtin_methods().parse(spec);
  if (method.residual == nullptr)
    throw Error(ErrorCode::kInvalidArgument, "the method has no residual stage");
  Json record = {{"heads", Json::array()}};
  method.residual = std::make_shared<RecordingResidual>(method.residual, record);
  Condenser condenser(method, Budget::parse(keep), {dump.shape}, dump.dense.size(), 1);
  SerialExecutor serial;
  const FrozenLayer frozen = test::condense_only(condenser, dump.dense, dump.observed, serial);
  record["spec"] = method.spec;
  record["m"] = condenser.entries_per_head();
  for (std::size_t h = 0; h < dump.shape.kv.n_kv_heads; ++h) {
    const auto rows = test::HeadRows::residual(frozen, h);
    Json stored = {{"kept", test::kept_positions(frozen, h)}, {"gate", to_json(frozen.gate(h))}};
    for (const Half x : rows.keys) stored["keys"].push_back(to_float(x));
    for (const Half x : rows.values) stored["values"].push_back(to_float(x));
    stored["bias"] = std::vector<float>(rows.bias, rows.bias + rows.n);
    record["stored"].push_back(std::move(stored));
  }
  std::cout << record.dump() << "\n";
}

}  // namespace
}  // namespace precis

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: reskv_dump LAYER SPEC KEEP\n";
    return 2;
  }
  try {
    precis::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::cerr << "reskv_dump: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
