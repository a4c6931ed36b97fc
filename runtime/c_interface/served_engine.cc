#include "runtime/c_interface/served_engine.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/c_interface/engine_files.h"
#include "runtime/c_interface/include/tensorwright.h"
#include "runtime/c_interface/open_options.h"
#include "runtime/c_interface/sampling_json.h"
#include "runtime/core/base/error.h"
#include "runtime/core/base/host.h"
#include "runtime/core/base/topology.h"
#include "runtime/core/engine/cache_size.h"
#include "runtime/core/engine/stats_fields.h"
#include "runtime/core/executor/cpu_executor.h"
#include "runtime/core/speculation/ngram_proposer.h"

namespace tensorwright {
namespace {

// Puts each value that it is called with into an object, by name.
struct IntoJson {
  Json& object;

  template <typename Value>
  void operator()(const char* name, const Value& value) const {
    object[name] = value;
  }
  void operator()(const char* name, const std::vector<EngineStats::Blocks>& groups) const {
    Json& all = object[name] = Json::array();
    for (const EngineStats::Blocks& blocks : groups) {
      all.push_back(Json::object());
      visit_blocks(blocks, IntoJson{all.back()});
    }
  }
};

// Fills in what the caller left open, as runtime/engine/executors.py does for engines of target cpu.
void resolve(OpenOptions* options, const EngineFiles& files) {
  OpenOptions& o = *options;
  if (!o.max_num_tokens) o.max_num_tokens = kDefaultMaxNumTokens;
  if (!o.max_batch_size) o.max_batch_size = std::min(kDefaultMaxBatchSize, *o.max_num_tokens);
  if (!o.max_prefill_chunk) o.max_prefill_chunk = *o.max_num_tokens;
  if (!o.enable_prefix_caching) o.enable_prefix_caching = true;
  const bool has_states = files.needs().state_bytes > 0;
  if (o.jump_forward.value_or(false) && has_states)
    throw Error("InvalidOptionError",
                "[engine] jump_forward must be left out for a model with recurrent layers, got true; states "
                "cannot be taken back where a step has to wait for a mask");
  if (o.speculative && has_states)
    throw Error("InvalidOptionError",
                "[engine] speculative must be left out for a model with recurrent layers, got '" +
                    o.speculative->method + "'; states cannot be taken back behind a wrong proposal");
  o.jump_forward = o.jump_forward.value_or(true) && !has_states;
  for (const auto& [name, count] :
       {std::pair("max_batch_size", *o.max_batch_size), std::pair("max_num_tokens", *o.max_num_tokens),
        std::pair("max_prefill_chunk", *o.max_prefill_chunk), std::pair("threads", o.threads.value_or(1))}) {
    if (count < 1)
      throw Error("InvalidOptionError", std::string("[engine] ") + name + " must be at least 1, got " +
                                            std::to_string(count) + "; raise it");
  }
  if (!o.threads) o.threads = default_threads();
  if (numa_of(o.numa) == Numa::split || numa_of(o.numa) == Numa::interleave) {
    if (o.load != "copy")
      throw Error("InvalidOptionError",
                  "[engine] numa must be auto or off with load 'map', got '" + o.numa +
                      "'; pages of a mapped file belong to all processes that map it, so "
                      "they cannot be placed: set load to \"copy\"");
  }
}

// Divides the memory, and notes what became of it in the options.
EngineOptions size_engine(OpenOptions* options, const CacheNeeds& needs, int64_t available) {
  OpenOptions& o = *options;
  if (o.kv_cache_memory) {
    check_cache_bytes(needs, *o.kv_cache_memory, available);
  } else {
    o.kv_cache_memory = default_cache_bytes(needs, *o.max_batch_size, available, *o.enable_prefix_caching);
  }
  const std::optional<int32_t> snapshots = *o.enable_prefix_caching ? o.state_snapshots : 0;
  const CacheShares shares = share_cache(needs, *o.kv_cache_memory, *o.max_batch_size, snapshots);
  o.max_batch_size = shares.sequences;
  o.state_snapshots = shares.snapshots;
  EngineOptions sized;
  sized.kv_cache_bytes = shares.kv_bytes;
  sized.max_batch_size = shares.sequences;
  sized.max_num_tokens = *o.max_num_tokens;
  sized.max_queue = o.max_queue_size;
  sized.max_prompt_rows = o.max_prompt_logprob_rows;
  sized.prefix_cache = *o.enable_prefix_caching;
  sized.state_snapshots = shares.snapshots;
  sized.jump_forward = *o.jump_forward;
  sized.itl_goal_s = o.itl_goal.value_or(0);
  sized.ageing_s = o.priority_ageing.value_or(0);
  sized.max_chunk = *o.max_prefill_chunk;
  if (o.speculative) {
    sized.speculation.tokens = o.speculative->tokens;
    sized.speculation.max_rows = o.speculative->rows;
  }
  return sized;
}

std::unique_ptr<Proposer> make_proposer(const std::optional<ReadSpeculation>& asked) {
  if (!asked) return nullptr;
  if (asked->method == "ngram") return std::make_unique<NgramProposer>(asked->min_match);
  return std::make_unique<NgramProposer>(asked->min_match, asked->remembered);
}

Json model_defaults(const EngineFiles& files) {
  Json params = default_params();
  params.update(files.generation_defaults());
  return params;
}

std::string facts_text(const EngineFiles& files, const OpenOptions& options, const Engine& engine) {
  const Json& config = files.config();
  Json facts = {
      {"abi_version", TW_ABI_VERSION},
      {"version", tw_version()},
      {"engine_version", config.value("tensorwright_version", Json())},
      {"target", config.value("target", Json())},
      {"dtype", config.value("dtype", Json())},
      {"model", config.value("model", Json())},
      {"limits", config.value("limits", Json())},
      {"eos_token_ids", files.eos_token_ids()},
      {"options", options_json(options)},
      {"refused_options", refused_options()},
      {"sampling_params", default_params()},
      {"refused_sampling_params", refused_params()},
      {"model_sampling_params", model_defaults(files)},
  };
  visit_facts(engine, IntoJson{facts["cache"] = Json::object()});
  return facts.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

ServedEngine::ServedEngine(const std::string& path, std::string_view text) : process_(getpid()) {
  OpenOptions options = read_options(text);
  const EngineFiles files(path);
  resolve(&options, files);
  const int64_t available = available_memory();
  const EngineOptions sized = size_engine(&options, files.needs(), available);
  validate_options(sized);  // before threads are started and weights are read
  CpuExecutorOptions executor;
  executor.threads = *options.threads;
  executor.load = load_mode(options.load);
  executor.numa = numa_of(options.numa);
  executor.populate = static_cast<size_t>(populated_bytes(available));
  auto cpu = std::make_unique<CpuExecutor>(files.plan(), files.weights(), executor);
  files.check_unchanged();
  files.check_plan(cpu->facts());
  engine_ = std::make_unique<Engine>(std::move(cpu), sized, make_proposer(options.speculative));
  board_ = std::make_unique<EventBoard>(*engine_);
  eos_token_ids_ = files.eos_token_ids();
  facts_ = facts_text(files, options, *engine_);
}

int64_t ServedEngine::submit(std::vector<int32_t> tokens, std::string_view params, MaskWords first_mask) {
  ReadParams read = read_params(params);
  if (const auto last = read.truncate_prompt; last && static_cast<size_t>(*last) < tokens.size())
    tokens.erase(tokens.begin(), tokens.end() - *last);
  Request request;
  request.prompt = std::move(tokens);
  request.sampling = std::move(read.sampling);
  request.sampling.eos_token_ids = TokenSet(eos_token_ids_);
  request.sampling.guided = !first_mask.empty();
  request.first_mask = std::move(first_mask);
  request.sampling.max_tokens = read.max_tokens ? *read.max_tokens : room_for(request);
  request.id = ++last_request_;
  const int64_t id = request.id;
  board_->submit(std::move(request));
  return id;
}

// Returns the most tokens that can follow a prompt: as many as the model's length and the cache have room
// for, which the checks of a request know. 1 where there is no room: the checks then say what is too long.
int32_t ServedEngine::room_for(const Request& request) const {
  int32_t fits = 1, beyond = engine_->facts().max_seq_len;
  Request tried = request;
  tried.sampling.min_tokens = 0;  // it is compared with max_tokens once that is known
  const auto is_possible = [&](int32_t tokens) {
    tried.sampling.max_tokens = tokens;
    try {
      engine_->check(tried);
    } catch (const Error& error) {
      if (error.type() == "PromptTooLongError") return false;
      throw;
    }
    return true;
  };
  while (beyond - fits > 1) {
    const int32_t middle = fits + (beyond - fits) / 2;
    (is_possible(middle) ? fits : beyond) = middle;
  }
  return fits;
}

std::string ServedEngine::stats() const {
  Json stats = Json::object();
  visit_stats(engine_->stats(), engine_->facts().block_size, IntoJson{stats});
  stats["stopped"] = engine_->stopped();
  stats["cause"] = engine_->cause();
  return stats.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool ServedEngine::is_here() const { return process_ == getpid(); }

void ServedEngine::check_process() const {
  if (is_here()) return;
  throw Error(
      "ForkedEngineError",
      "[engine] an engine must be used in the process that opened it, got a call from a fork, where its "
      "threads do not run; open the engine after the fork");
}

}  // namespace tensorwright
