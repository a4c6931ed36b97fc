// Pinned prefixes: whatever runs beside them, their blocks stay, no block is lost, and tokens are those of a
// request alone.
#include "runtime/core/engine/prefix_pins.h"

#include "runtime/core/engine/engine.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

// An engine in which pins may hold `room` blocks of each group.
EngineCore make_core(const FakeBehaviour& behaviour, int32_t blocks, int32_t room) {
  EngineOptions o = options(blocks, 4, 16, std::max<int64_t>(behaviour.groups, 1));
  o.pinned_bytes = o.kv_cache_bytes / blocks * room;
  return EngineCore(fake(behaviour), o);
}

std::vector<FakeBehaviour> families() {
  FakeBehaviour dense, sliding, chunked;
  sliding.groups = 2, sliding.window = 9;
  chunked.groups = 2, chunked.window = 8, chunked.chunked = true;
  return {dense, sliding, chunked};
}

// Runs one request. Unlike run_core() it leaves the blocks of pins in use.
Outcome run_beside_pins(EngineCore& core, const Request& request) {
  Outcomes outcomes;
  core.add(request, Clock::now());
  while (!core.idle()) {
    std::vector<Event> events;
    core.step(&events);
    collect(std::move(events), &outcomes);
  }
  core.check();
  return outcomes[request.id];
}

}  // namespace

TW_TEST(a_pinned_prefix_survives_a_crowd_that_takes_all_other_blocks) {
  for (const FakeBehaviour& behaviour : families()) {
    EngineCore core = make_core(behaviour, 40, 10);
    const Tokens prefix = numbers(3, 8 * kBlockSize);
    run_core(core, {request(1, prefix, 1)});
    TW_CHECK_EQ(core.pins().pin(1, prefix, ""), 8);
    TW_CHECK_EQ(core.pins().stats().prefixes, 1);
    core.check();
    for (int64_t id = 10; id < 30; ++id) {
      const Request other = request(id, numbers(static_cast<int32_t>(id), 50), 20);
      const Outcome alone = solo(other, behaviour.groups, behaviour.window, false, behaviour.chunked);
      TW_CHECK(same(run_beside_pins(core, other), alone));
    }
    TW_CHECK(core.stats().evictions > 0);
    Tokens longer = prefix;
    longer.push_back(5);
    TW_CHECK_EQ(core.transfer().extent(longer, "").blocks, 8);
    TW_CHECK_EQ(core.transfer().extent(longer, "other").blocks, 0);
    core.pins().unpin(1);
    core.pins().unpin(1);
    core.check();
    for (const EngineStats::Blocks& group : core.stats().groups) TW_CHECK_EQ(group.used, 0);
  }
}

TW_TEST(pins_have_their_room_and_share_blocks) {
  EngineCore core = make_core({}, 40, 5);
  const Tokens one = numbers(3, 4 * kBlockSize), other = numbers(4, 2 * kBlockSize);
  run_core(core, {request(1, one, 1), request(2, other, 1)});
  TW_CHECK_EQ(core.pins().pin(1, one, ""), 4);
  TW_CHECK_EQ(core.pins().pin(2, std::span(one).first(2 * kBlockSize), ""), 2);
  const int64_t bytes = core.pins().stats().bytes;
  TW_CHECK_EQ(bytes, 4 * core.facts().block_bytes[0]);
  TW_CHECK_ERROR(core.pins().pin(3, other, ""), "InvalidRequestError");
  TW_CHECK_EQ(core.pins().stats().prefixes, 2);
  core.pins().unpin(1);
  TW_CHECK_EQ(core.pins().stats().bytes, bytes / 2);
  TW_CHECK_EQ(core.pins().pin(3, other, ""), 2);
  // What the cache lacks, or what is less than a block, is not pinned.
  TW_CHECK_EQ(core.pins().pin(4, numbers(9, 2 * kBlockSize), ""), 0);
  TW_CHECK_EQ(core.pins().pin(4, std::span(one).first(kBlockSize - 1), ""), 0);
  TW_CHECK_EQ(core.pins().stats().prefixes, 2);
  core.check();
  core.pins().end();
  TW_CHECK_EQ(core.pins().stats().bytes, 0);
  core.check();
}

TW_TEST(requests_must_fit_what_pins_leave) {
  EngineOptions o = options(40, 4, 16, 1);
  o.pinned_bytes = o.kv_cache_bytes / 40 * 30;
  Engine engine(fake({}), o);
  engine.submit(request(1, numbers(3, 10 * kBlockSize), 1));
  TW_CHECK_ERROR(engine.submit(request(2, numbers(3, 10 * kBlockSize + 1), 1)), "PromptTooLongError");
  o.pinned_bytes = o.kv_cache_bytes;
  TW_CHECK_ERROR(EngineCore(fake({}), o), "InvalidOptionError");
  o.pinned_bytes = 1;
  TW_CHECK_ERROR(EngineCore(fake({}), o), "InvalidOptionError");
  o.pinned_bytes = o.kv_cache_bytes / 2, o.prefix_cache = false;
  TW_CHECK_ERROR(EngineCore(fake({}), o), "InvalidOptionError");
}

TW_TEST_MAIN()
