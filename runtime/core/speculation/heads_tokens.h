// The tokens that the heads of a plan say, and the checks that all kinds of heads share.
#ifndef TENSORWRIGHT_RUNTIME_CORE_HEADS_TOKENS_H_
#define TENSORWRIGHT_RUNTIME_CORE_HEADS_TOKENS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/base/error.h"
#include "runtime/core/interface/executor.h"

namespace tensorwright {

struct HeadsOptions {
  int32_t max_seqs = 1;              // sequences for which they propose at once
  int32_t max_tokens = 1;            // tokens of one pass, at least max_seqs
  std::vector<int32_t> tokens = {};  // the target's token for each that they propose; empty: the same
};

// Returns the columns of a feature. Throws Error{"InvalidOptionError"} for a model without heads.
inline int32_t feature_width(const ModelFacts& facts) {
  if (facts.draft_width > 0) return facts.draft_width;
  throw Error("InvalidOptionError",
              "[heads] the engine has no heads that propose tokens; build it with --heads, or choose another "
              "way to speculate");
}

// Returns the floats of a feature that is kept beside a sequence: none where the executor keeps features.
inline int32_t kept_columns(const ModelFacts& facts) {
  const int32_t width = feature_width(facts);
  return facts.feature_group < 0 ? width : 0;
}

// Returns how many tokens one pass says for a sequence: rows of logits have so many times the columns of a
// token. Throws Error{"EngineError"} for tokens that do not fit.
inline int32_t tokens_at_once(const ModelFacts& facts, const std::vector<int32_t>& tokens) {
  const auto columns = tokens.empty() ? int64_t{facts.vocab_size} : static_cast<int64_t>(tokens.size());
  const auto lacks = [&](int32_t token) { return token < 0 || token >= facts.vocab_size; };
  if (facts.draft_vocab >= columns && facts.draft_vocab % columns == 0 && std::ranges::none_of(tokens, lacks))
    return static_cast<int32_t>(facts.draft_vocab / columns);
  throw Error("EngineError", "[heads] the engine has " + std::to_string(tokens.size()) + " tokens for the " +
                                 std::to_string(facts.draft_vocab) +
                                 " that its heads propose, or one that the model lacks; build it again");
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_HEADS_TOKENS_H_
