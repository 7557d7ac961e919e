// selkv_dump LAYER SPEC KEEP RESULT: condenses one dumped layer with the real condenser and writes
// what every stage did. Formats: tools/selkv_reference.py. Used by tests/compare_selkv.py.
#include <iostream>

#include "compress/layer_case.h"
#include "compress/layer_dump.h"
#include "methods/registry.h"
#include "methods/selkv.h"
#include "support/head_rows.h"

namespace precis {
namespace {

// What the stages returned, head by head. One thread only.
struct Record {
  std::vector<std::vector<float>> scores;
  std::vector<HeadPlan> plans;
  std::vector<HeadMerge> merges;
  std::vector<SelkvRoutes> routes;
};

class RecordingScorer final : public Scorer {
 public:
  RecordingScorer(std::shared_ptr<const Scorer> inner, Record& record)
      : inner_(std::move(inner)), record_(record) {}
  void score(HeadView& head, std::span<float> scores) const override {
    inner_->score(head, scores);
    record_.scores.emplace_back(scores.begin(), scores.end());
  }
  std::size_t queries_needed(std::size_t n_tokens) const override {
    return inner_->queries_needed(n_tokens);
  }

 private:
  std::shared_ptr<const Scorer> inner_;
  Record& record_;
};

class RecordingSelector final : public Selector {
 public:
  RecordingSelector(std::shared_ptr<const Selector> inner, Record& record)
      : inner_(std::move(inner)), record_(record) {}
  Protection protection() const override { return inner_->protection(); }
  std::vector<HeadPlan> select(const LayerTable& table) const override {
    record_.plans = inner_->select(table);
    return record_.plans;
  }

 private:
  std::shared_ptr<const Selector> inner_;
  Record& record_;
};

class RecordingMerger final : public Merger {
 public:
  RecordingMerger(std::shared_ptr<const Merger> inner, std::size_t block, SelkvGate gate,
                  Record& record)
      : inner_(std::move(inner)), block_(block), gate_(gate), record_(record) {}
  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    record_.routes.push_back(route_evicted(head, plan, block_, gate_));
    record_.merges.push_back(inner_->merge(head, plan));
    return record_.merges.back();
  }
  std::size_t queries_needed(std::size_t n_tokens) const override {
    return inner_->queries_needed(n_tokens);
  }

 private:
  std::shared_ptr<const Merger> inner_;
  std::size_t block_;
  SelkvGate gate_;
  Record& record_;
};

// The value of a parameter of the merge stage in a canonical SPEC.
std::string merge_parameter(const std::string& spec, const std::string& key) {
  const std::size_t at = spec.find(key + "=", spec.find("merge=selkv("));
  PRECIS_CHECK(at != std::string::npos, spec);
  const std::size_t begin = at + key.size() + 1;
  return spec.substr(begin, spec.find_first_of(",)", begin) - begin);
}

template <class T>
void write_array(std::ostream& out, const std::vector<T>& array) {
  test::write_bytes(out, array.data(), array.size() * sizeof(T));
}

template <class Container, class Count>
std::string counts(const Container& heads, Count count) {
  std::string text;
  for (const auto& head : heads) text += (text.empty() ? "" : ", ") + std::to_string(count(head));
  return "[" + text + "]";
}

void write_result(const std::string& path, const Condenser& condenser, const Record& record,
                  const FrozenLayer& frozen) {
  std::ofstream out(path, std::ios::binary);
  const CompressionReport& report = condenser.report();
  out << "{\"format\": \"precis-condensed\", \"version\": 1, \"spec\": \"" << report.method
      << "\", \"m\": " << condenser.entries_per_head() << ", \"bytes\": " << report.kept_bytes
      << ", \"n_routed\": " << report.n_routed << ", \"n_dropped\": " << report.n_dropped
      << ", \"n_floored\": " << report.n_floored
      << ", \"kept\": " << counts(record.plans, [](const HeadPlan& p) { return p.kept.size(); })
      << ", \"targets\": "
      << counts(record.plans, [](const HeadPlan& p) { return p.targets.size(); })
      << ", \"evicted\": "
      << counts(record.routes, [](const SelkvRoutes& r) { return r.tokens.size(); }) << "}\n";
  for (std::size_t h = 0; h < record.plans.size(); ++h) {
    const HeadPlan& plan = record.plans[h];
    write_array(out, record.scores[h]);
    write_array(out, plan.kept);
    write_array(out, plan.targets);
    if (!record.routes.empty()) {
      write_array(out, record.routes[h].tokens);
      write_array(out, record.routes[h].slots);
      write_array(out, record.routes[h].gates);
      write_array(out, record.merges[h].mass_ratio);
    }
    const test::HeadRows held(frozen, h);
    const EntryView entries = held.view();
    const std::size_t bytes = entries.n * frozen.shape().head_dim * sizeof(Half);
    PRECIS_CHECK(entries.n == plan.kept.size(), entries.n, " vs ", plan.kept.size());
    test::write_bytes(out, entries.keys, bytes);
    test::write_bytes(out, entries.values, bytes);
    std::vector<float> bias(entries.n, 0.0f);
    if (entries.bias != nullptr) bias.assign(entries.bias, entries.bias + entries.n);
    write_array(out, bias);
    for (std::size_t i = 0; i < entries.n; ++i)
      PRECIS_CHECK(frozen.position(h, i) == static_cast<std::int32_t>(plan.kept[i]), i);
  }
  out.flush();
  if (!out) throw Error(ErrorCode::kIo, concat("cannot write ", path));
}

void run(const std::string& layer, const std::string& spec, const std::string& keep,
         const std::string& result) {
  const test::LayerDump dump = test::read_layer_dump(layer);
  Method method = builtin_methods().parse(spec);
  if (method.is_full()) throw Error(ErrorCode::kInvalidArgument, "full does nothing to look at");
  Record record;
  method.scorer = std::make_shared<RecordingScorer>(method.scorer, record);
  method.selector = std::make_shared<RecordingSelector>(method.selector, record);
  if (method.merger != nullptr) {
    const std::string gate = merge_parameter(method.spec, "gate");
    method.merger = std::make_shared<RecordingMerger>(
        method.merger, std::stoul(merge_parameter(method.spec, "block")),
        gate == "one"    ? SelkvGate::kOne
        : gate == "zero" ? SelkvGate::kZero
                         : SelkvGate::kCosine,
        record);
  }
  Condenser condenser(method, Budget::parse(keep), {dump.shape}, dump.dense.size(), 1);
  if (condenser.keeps_everything())
    throw Error(ErrorCode::kInvalidArgument, concat("kept whole: ", *condenser.report().skipped));
  SerialExecutor serial;
  const FrozenLayer frozen = test::condense_only(condenser, dump.dense, dump.observed, serial);
  write_result(result, condenser, record, frozen);
}

}  // namespace
}  // namespace precis

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: selkv_dump LAYER SPEC KEEP RESULT\n";
    return 2;
  }
  try {
    precis::run(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& error) {
    std::cerr << "selkv_dump: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
