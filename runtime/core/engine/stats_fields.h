// Lists the statistics of an engine by name, for whoever reports them: Python's bindings and the C interface.
#ifndef TENSORWRIGHT_RUNTIME_CORE_ENGINE_STATS_FIELDS_H_
#define TENSORWRIGHT_RUNTIME_CORE_ENGINE_STATS_FIELDS_H_

#include <cstdint>
#include <vector>

#include "runtime/core/engine/engine.h"

namespace tensorwright {

// Calls visit(name, value) for each statistic of the blocks of one cache group.
template <typename Visit>
void visit_blocks(const EngineStats::Blocks& blocks, const Visit& visit) {
  visit("window", blocks.window);
  visit("chunked", blocks.chunked);
  visit("sink_tokens", blocks.sink_tokens);
  visit("kv_budget", blocks.kv_budget);
  visit("total_blocks", blocks.total);
  visit("free_blocks", blocks.free);
  visit("cached_blocks", blocks.cached);
  visit("used_blocks", blocks.used);
}

// Calls visit(name, value) for each statistic: a number, a list of numbers, or the blocks of all groups
// (visit_blocks). block_size: the positions of a block.
template <typename Visit>
void visit_stats(const EngineStats& s, int32_t block_size, const Visit& visit) {
  visit("total_blocks", s.total_blocks);
  visit("free_blocks", s.free_blocks);
  visit("cached_blocks", s.cached_blocks);
  visit("used_blocks", s.used_blocks);
  visit("block_size", block_size);
  visit("groups", s.groups);
  visit("waste_slots", s.waste_slots);
  visit("max_waste_slots_per_sequence", s.steps.max_waste_slots);
  visit("running", s.running);
  visit("waiting", s.waiting);
  visit("evictions", s.evictions);
  visit("requests_finished", s.finished);
  visit("requests_aborted", s.aborted);
  visit("requests_timed_out", s.timed_out);
  visit("requests_failed", s.failed);
  visit("steps", s.steps.steps);
  visit("steps_rolled_back", s.steps.rolled_back);
  visit("preemptions", s.steps.preemptions);
  visit("resumed_kept_tokens", s.steps.resumed_kept_tokens);
  visit("resumed_computed_tokens", s.steps.resumed_computed_tokens);
  visit("resumed_fetches", s.fetches.resumed);
  visit("resumed_passed_over", s.fetches.resumed_passed_over);
  visit("generated_tokens", s.generated_tokens);
  visit("sat_out", s.sat_out);
  visit("steps_ahead", s.steps_ahead);
  visit("forced_tokens", s.forced_tokens);
  visit("requests_late", s.late);
  visit("steps_over_itl_goal", s.steps_over_goal);
  visit("prefill_share", s.pace.prefill);
  visit("paced_places", s.pace.places);
  visit("state_slots", s.state_slots);
  visit("used_state_slots", s.used_state_slots);
  visit("state_snapshots", s.state_snapshots);
  visit("state_snapshots_taken", s.snapshots.taken);
  visit("state_snapshots_evicted", s.snapshots.evicted);
  visit("state_snapshot_hits", s.steps.snapshot_hits);
  visit("invariant_checks", s.invariant_checks);
  visit("invariant_violations", s.invariant_violations);
  visit("prefill_tokens", s.steps.prefill_tokens);
  visit("decode_tokens", s.steps.decode_tokens);
  visit("prefix_lookup_tokens", s.steps.prefix_lookup_tokens);
  visit("prefix_hit_tokens", s.steps.prefix_hit_tokens);
  visit("drafts", s.speculation.drafts);
  visit("draft_tokens", s.speculation.proposed);
  visit("accepted_tokens", s.speculation.accepted);
  visit("accepted_at",
        std::vector<int64_t>(s.speculation.accepted_at.begin(), s.speculation.accepted_at.end()));
  visit("draft_failures", s.speculation.failures);
  visit("draft_seconds", s.speculation.propose_s);
  visit("pinned_prefixes", s.pins.prefixes);
  visit("pinned_bytes", s.pins.bytes);
  visit("pinned_room", s.pins.room);
  visit("tier_memory_bytes", s.tiers.memory_bytes);
  visit("tier_memory_blocks", s.tiers.memory_blocks);
  visit("tier_memory_hits", s.tiers.memory_hits);
  visit("tier_memory_evicted", s.tiers.memory_evicted);
  visit("tier_disk_bytes", s.tiers.disk.bytes);
  visit("tier_disk_blocks", s.tiers.disk.blocks);
  visit("tier_disk_hits", s.tiers.disk_hits);
  visit("tier_disk_evicted", s.tiers.disk.evicted);
  visit("tier_disk_read_bytes", s.tiers.disk.read_bytes);
  visit("tier_disk_written_bytes", s.tiers.disk.written_bytes);
  visit("tier_disk_failed_writes", s.tiers.disk.failed_writes);
  visit("tier_disk_dropped", s.tiers.disk.dropped);
  visit("tier_lost", s.tiers.lost);
  visit("prefix_fetches", s.fetches.fetches);
  visit("prefix_fetches_failed", s.fetches.failed);
  visit("prefix_fetches_passed_over", s.fetches.passed_over);
  visit("prefix_fetch_tokens", s.fetches.tokens);
  visit("prefix_fetch_seconds", s.fetches.seconds);
}

// Calls visit(name, value) for each fact of the model and its cache: a number, or a list of numbers.
template <typename Visit>
void visit_facts(const Engine& engine, const Visit& visit) {
  const ModelFacts& f = engine.facts();
  visit("vocab_size", f.vocab_size);
  visit("max_seq_len", f.max_seq_len);
  visit("block_size", f.block_size);
  visit("block_bytes", f.block_bytes);
  visit("group_windows", f.group_windows);
  visit("state_bytes", f.state_bytes);
  visit("chunk_multiple", f.chunk_multiple);
  visit("chunk_stop", f.chunk_stop());
  visit("sparse_prefill", f.sparse_prefill);
  visit("draft_vocab", f.draft_vocab);
  visit("hidden_width", f.hidden_width);
  std::vector<int32_t> blocks;
  for (const GroupShape& group : engine.groups()) blocks.push_back(group.blocks);
  visit("blocks", blocks);
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_ENGINE_STATS_FIELDS_H_
