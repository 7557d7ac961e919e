// RocketKV, its first stage: Behnam, Fu, Zhao, Tsai, Yu, Tumanov, "RocketKV: Accelerating
// Long-Context LLM Inference via Two-Stage KV Cache Compression", arXiv 2502.14051, and the
// authors' code: SnapKV with a window of 32 and max pooling over 63 neighbours. The wide kernel
// keeps whole passages around what the window attends to.
//
// As in the authors' code attention is summed over the query heads of a KV head before it is
// pooled.
//
// Deviation: the second stage is missing. It evicts nothing: while decoding it picks the entries
//   that each query reads, by page-wise bounds of the keys.
// Deviation: the differences of snapkv.cpp hold here too.
#include "compress/method.h"

namespace precis {

void register_rocketkv(Registry& registry);

void register_rocketkv(Registry& registry) {
  registry.add_preset(
      {"rocketkv", "score=snapkv(window=32,pool=63,kind=max) select=head(recent=32,sinks=0)",
       "arXiv 2502.14051", "RocketKV's first stage: SnapKV that keeps wide neighbourhoods"});
}

}  // namespace precis
