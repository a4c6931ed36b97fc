// How an engine is made from an executor and options, and what it has beside its requests: the tiers of its
// cache and the log of its blocks.
#include "runtime/core/engine/engine_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/core/speculation/measure_steps.h"

namespace tensorwright {

Error as_error(const std::exception& error) {
  if (auto* typed = dynamic_cast<const Error*>(&error)) return *typed;
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return Error("OutOfMemoryError", "[engine] a step needs memory and got none; lower max_num_tokens");
  }
  return Error("TensorwrightError", std::string("[engine] a step failed: ") + error.what());
}

EngineCore::EngineCore(std::unique_ptr<Executor> executor, const EngineOptions& options, MaskSource* masks,
                       std::unique_ptr<Proposer> proposer)
    : executor_(std::move(executor)),
      beams_(executor_->facts().max_seq_len),
      pace_(options.itl_goal_s, options.max_num_tokens),
      samplers_(static_cast<size_t>(executor_->threads())),
      timeline_(options.timeline),
      masks_(masks),
      debug_lose_block_(options.debug_lose_block) {
  validate_options(options);
  const ModelFacts& facts = executor_->facts();
  require_whole_chunks(facts, options);
  shapes_ = share_blocks(facts, options);
  std::vector<int32_t> blocks;
  for (const GroupShape& shape : shapes_) blocks.push_back(shape.blocks);
  blocks.resize(facts.block_bytes.size());  // the executor has none of those that only count positions
  StateShape states;
  if (facts.state_bytes > 0)
    states = {options.max_batch_size, options.prefix_cache ? options.state_snapshots : 0};
  if (proposer && facts.state_bytes > 0) {
    throw Error("InvalidOptionError",
                "[engine] nothing can be proposed to a model with recurrent layers or a kv_budget, because "
                "states and "
                "scores of blocks cannot be taken back behind a wrong proposal; leave speculative out");
  }
  // No step has more rows than tokens.
  const int32_t prompt_rows = prompt_rows_of(facts, options);
  int64_t rows = int64_t{options.max_batch_size} + prompt_rows;
  rows = std::min<int64_t>(rows + (proposer ? options.speculation.max_rows : 0), options.max_num_tokens);
  executor_->allocate(blocks, options.max_num_tokens, static_cast<int32_t>(rows), options.max_batch_size,
                      states.sequences + states.snapshots);
  kv_ = std::make_unique<KvBlocks>(shapes_, facts.block_size, options.prefix_cache,
                                   PrefixTree::Hash{secret_hash}, states);
  kv_->on_gone([this](int32_t group, int32_t slot) { return executor_->gone_blocks(group, slot); });
  kv_->on_copy_state([this](int32_t from, int32_t to) { executor_->copy_state(from, to); });
  if (!facts.block_bytes.empty())
    kv_->on_copy([this](int32_t group, int32_t from, int32_t to) { executor_->copy_block(group, from, to); });
  scheduler_ = std::make_unique<Scheduler>(
      *kv_, SchedulerLimits{options.max_batch_size, options.max_num_tokens, options.max_chunk,
                            options.debug_preempt_every, options.debug_seed, prompt_rows, options.ageing_s,
                            facts.chunk_multiple, facts.chunk_stop()});
  // What is imported for nobody who waits here leaves as many blocks of a group as a step can take: one that
  // each sequence's chunk begins in, and those of a full step.
  const int32_t reserve = options.max_batch_size + kv_->blocks_for(options.max_num_tokens) + 1;
  transfer_ = std::make_unique<PrefixTransfer>(*kv_, *executor_, reserve);
  scheduler_->on_lack([this] { return transfer_->give_way(); });
  pins_ = std::make_unique<PrefixPins>(*kv_, pinned_room(facts, options), facts.block_bytes);
  // The states of recurrent layers could not be taken back if a step behind forced tokens had to wait.
  if (options.jump_forward && masks && facts.state_bytes == 0) {
    forced_ = std::make_unique<ForcedTokens>(*masks, facts.vocab_size, facts.max_seq_len, prompt_rows);
  }
  if (options.cache_events > 0) make_log(options);
  if (options.tiers.enabled()) make_tiers(options.tiers);
  if (!proposer) return;
  drafter_ = std::make_unique<Drafter>(std::move(proposer), options.speculation, facts.max_seq_len);
  drafter_->begin();
  measure_steps(
      facts, static_cast<int32_t>(rows), [this](const Step& step) { executor_->run(step); },
      [this](int32_t tokens, double seconds) {
        drafter_->observe_step({.tokens = tokens, .seconds = seconds});
      });
}

std::vector<GroupShape> EngineCore::groups_for_requests() const {
  std::vector<GroupShape> groups = shapes_;
  for (GroupShape& group : groups) group.blocks -= pins_->stats().room;
  return groups;
}

void EngineCore::make_log(const EngineOptions& options) {
  if (!kv_->remembers() || executor_->facts().state_bytes > 0)
    throw Error(
        "InvalidOptionError",
        "[engine] events tell of the blocks of a prefix cache of a model without recurrent layers or a "
        "kv_budget; set enable_prefix_caching, or leave cache_events out");
  cache_log_ =
      std::make_unique<CacheLog>(static_cast<size_t>(options.cache_events), executor_->facts().block_size);
  block_names_.emplace(options.tiers.secret);
  kv_->archive(*block_names_, nullptr);
  kv_->log_to(*cache_log_);
}

CacheLog& EngineCore::cache_log() {
  if (cache_log_) return *cache_log_;
  throw Error("InvalidRequestError",
              "[engine] this engine tells no events of its prefix cache; start it with cache_events");
}

void EngineCore::make_tiers(const TierOptions& options) {
  const ModelFacts& model = executor_->facts();
  if (!kv_->remembers() || model.state_bytes > 0 || model.block_bytes.empty())
    throw Error("InvalidOptionError",
                "[engine] tiers keep the blocks of a prefix cache of a model without recurrent layers or a "
                "kv_budget; set "
                "enable_prefix_caching, or leave prefix_cache_memory and prefix_cache_disk out");
  tiers_ = std::make_unique<BlockTiers>(options, model.block_bytes, cache_log_.get());
  kv_->archive(tiers_->hash(), [this](const PrefixTree::Node& node, size_t group) {
    const auto number = static_cast<int32_t>(group);
    tiers_->put({node.archived, number}, node.priority, executor_->facts().block_bytes[group],
                [&](char* to) { executor_->read_block(number, node.blocks[group], to); });
  });
  fetches_ = std::make_unique<PrefixFetches>(*kv_, *tiers_, model.block_bytes);
  scheduler_->on_start([this](const Sequence& sequence) { return fetches_->ask(sequence); });
}

void EngineCore::start_fetching(PrefixFetches::Visit visit) {
  if (fetches_) fetches_->start(std::move(visit));
}

void EngineCore::stop_fetching() {
  if (fetches_) fetches_->stop();
}

void EngineCore::save_prefixes(Clock::time_point until) {
  pins_->end();
  if (!tiers_) return;
  bool goes_on = true;
  for (int32_t group = 0; goes_on && group < kv_->groups(); ++group) {
    const int64_t bytes = executor_->facts().block_bytes[static_cast<size_t>(group)];
    kv_->visit_idle(group, [&](const PrefixTree::Node& node) {
      const auto fill = [&](char* to) {
        executor_->read_block(group, node.blocks[static_cast<size_t>(group)], to);
      };
      try {
        return goes_on = tiers_->save({node.archived, group}, node.priority, bytes, fill, until);
      } catch (const std::bad_alloc&) {  // what lies in memory already is written still
        return goes_on = false;
      }
    });
  }
  tiers_->close(until);
}

void EngineCore::end_tiers() {
  if (tiers_) tiers_->end();
}

std::vector<std::string> EngineCore::take_notices() {
  return tiers_ ? tiers_->take_notices() : std::vector<std::string>();
}

}  // namespace tensorwright
