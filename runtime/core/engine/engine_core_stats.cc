// What the engine tells of itself: its load, its counters, and the spans of its timeline.
#include "runtime/core/engine/engine_core.h"

namespace tensorwright {

// Returns the group of layers that see most positions.
size_t EngineCore::widest_group() const noexcept {
  const auto width = [&](size_t j) { return shapes_[j].window == 0 ? INT32_MAX : shapes_[j].window; };
  size_t widest = 0;
  for (size_t i = 1; i < shapes_.size(); ++i) {
    if (width(i) > width(widest)) widest = i;
  }
  return widest;
}

EngineLoad EngineCore::load() const noexcept {
  const BlockAllocator& blocks = kv_->group(static_cast<int32_t>(widest_group()));
  return {scheduler_->running(), scheduler_->waiting(), blocks.used(), blocks.total()};
}

EngineStats EngineCore::stats() const {
  EngineStats stats;
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const BlockAllocator& group = kv_->group(static_cast<int32_t>(i));
    stats.groups.push_back({shapes_[i].window, group.total(), group.free(), group.idle(), group.used(),
                            shapes_[i].chunked, shapes_[i].sink_tokens, shapes_[i].kept * kv_->block_size()});
  }
  const EngineStats::Blocks& blocks = stats.groups[widest_group()];
  stats.total_blocks = blocks.total;
  stats.free_blocks = blocks.free;
  stats.cached_blocks = blocks.cached;
  stats.used_blocks = blocks.used;
  stats.waste_slots = scheduler_->waste_slots();
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.evictions = kv_->evictions();
  stats.finished = finished_;
  stats.aborted = aborted_;
  stats.timed_out = timed_out_;
  stats.failed = failed_;
  stats.generated_tokens = generated_;
  stats.state_slots = kv_->state_slots();
  stats.used_state_slots = kv_->used_state_slots();
  stats.state_snapshots = kv_->snapshots();
  stats.snapshots = kv_->snapshot_stats();
  stats.sat_out = sat_out_;
  stats.steps_ahead = ahead_;
  stats.late = late_;
  stats.steps_over_goal = pace_.over();
  stats.pace = pace_.pace();
  stats.invariant_checks = checks_;
  stats.steps = scheduler_->stats();
  if (drafter_) stats.speculation = drafter_->stats();
  if (forced_) stats.forced_tokens = forced_->saved();
  if (tiers_) stats.tiers = tiers_->stats();
  if (fetches_) stats.fetches = fetches_->stats();
  stats.pins = pins_->stats();
  return stats;
}

// Returns what the timeline tells of a step that is not committed yet, without the times.
std::vector<Span> EngineCore::spans_of(const StepPlan& plan, int64_t number, int32_t rows) const {
  std::vector<Span> spans;
  spans.reserve(plan.chunks.size() + 1);
  Span span{.id = number};
  for (const PlannedChunk& chunk : plan.chunks) {
    Span share;
    share.id = chunk.sequence->id;
    share.kind = SpanKind::kShare;
    share.track = chunk.sequence->completion;
    share.a = chunk.tokens + chunk.drafted;
    share.b = chunk.sequence->computed;
    spans.push_back(share);
    ++span.b;
  }
  span.a = plan.tokens;
  span.c = rows;
  span.d = scheduler_->waiting();
  spans.push_back(span);
  return spans;
}

void EngineCore::keep_step(const StartedStep& step, Clock::time_point begin) noexcept {
  for (Span span : step.spans) {
    span.begin = Timeline::nanoseconds(begin), span.end = Timeline::nanoseconds(step.computed);
    timeline_->add(span);
  }
}

void EngineCore::keep_draws(const StartedStep& step) noexcept {
  Span span{Timeline::nanoseconds(step.computed), Timeline::now(), step.number, SpanKind::kSample};
  span.a = step.rows;
  span.b = kv_->group(static_cast<int32_t>(widest_group())).free();
  span.c = scheduler_->running();
  timeline_->add(span);
}

}  // namespace tensorwright
