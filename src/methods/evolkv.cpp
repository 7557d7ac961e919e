// EvolKV: Yu, Chai, "EvolKV: Evolutionary KV Cache Compression for LLM Inference", arXiv
// 2509.08315: the budgets of the layers are searched offline, once per model and task, by an
// evolution strategy that sees nothing but what the task scores. The entries within a layer are
// chosen by another method, SnapKV in the paper.
//
// `precis eval evolve` is the search (eval/budget_search.h has what it does and how it differs from
// the paper's) and writes a file of shares, one a layer that can be condensed.
//
//   layers=evolkv(path="budgets.json")   these shares. The file is read when the SPEC is, and the
//                                        canonical SPEC has the shares themselves:
//                                        layers=weights(list=...,fit=exact).
//
// Deviation: the search minimises KL to the full cache on a text; the paper's is for a task's
// score.
//
// There is no preset: without the budgets of a model there is no method.
#include "compress/method.h"

namespace precis {

void register_evolkv(Registry& registry);

void register_evolkv(Registry& registry) {
  registry.add_file_stage({StageKind::kLayers, "evolkv", "arXiv 2509.08315",
                           "budgets of layers from a file that 'precis eval evolve' has searched",
                           [](const std::vector<double>& shares) {
                             return "layers=weights(list=" + print_numbers(shares) + ",fit=exact)";
                           }});
}

}  // namespace precis
