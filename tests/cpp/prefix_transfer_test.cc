// Prefixes that go from one engine's cache to another's: the tokens behind them are those of one engine, and
// no block is lost, whatever fails and whenever an import is dropped.
#include "runtime/core/engine/prefix_transfer.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include "runtime/core/engine/engine.h"
#include "tests/cpp/engine_cases.h"

using namespace tensorwright;
using namespace tw_test;

namespace {

EngineCore make_core(FakeBehaviour behaviour, int32_t blocks = 100, int32_t batch = 4, int32_t tokens = 16) {
  EngineOptions o = options(blocks, batch, tokens, std::max<int64_t>(behaviour.groups, 1));
  o.state_snapshots = behaviour.states ? 8 : 0;
  return EngineCore(fake(behaviour), o);
}

std::vector<char> read_piece(EngineCore& from, const Tokens& tokens, PrefixPiece piece) {
  const std::vector<int64_t>& sizes = from.facts().block_bytes;
  const bool counts = static_cast<size_t>(piece.group) >= sizes.size();
  std::vector<char> bytes(counts ? 0 : static_cast<size_t>(sizes[static_cast<size_t>(piece.group)]));
  from.transfer().read(tokens, "", std::span(&piece, 1), bytes);
  return bytes;
}

std::vector<char> read_state(EngineCore& from, const Tokens& tokens) {
  std::vector<char> bytes(static_cast<size_t>(from.facts().state_bytes));
  from.transfer().read_state(tokens, "", bytes);
  return bytes;
}

// The full blocks of the prompt that `from` remembers.
Tokens offered(EngineCore& from, const Tokens& prompt) {
  const PrefixExtent extent = from.transfer().extent(prompt, "");
  return {prompt.begin(), prompt.begin() + extent.blocks * kBlockSize};
}

// Moves a prompt's prefix. Returns the number of its tokens.
int32_t move_prefix(EngineCore& from, EngineCore& to, const Tokens& prompt) {
  const Tokens tokens = offered(from, prompt);
  if (tokens.empty()) return 0;
  const PrefixNeeds needs = to.transfer().begin(tokens, "");
  for (const PrefixPiece& piece : needs.pieces)
    to.transfer().write(needs.import, std::span(&piece, 1), read_piece(from, tokens, piece));
  to.transfer().finish(needs.import, needs.state ? read_state(from, tokens) : std::vector<char>());
  to.check();
  return static_cast<int32_t>(tokens.size());
}

int64_t free_and_idle(const EngineCore& core) {
  int64_t blocks = 0;
  for (const EngineStats::Blocks& group : core.stats().groups) blocks += group.free + group.cached;
  return blocks;
}

std::vector<FakeBehaviour> families() {
  FakeBehaviour dense, two, sliding, chunked, windows, sinks;
  two.groups = 2;
  sliding.groups = 2, sliding.window = 9;
  chunked.groups = 2, chunked.window = 8, chunked.chunked = true;
  windows.groups = 1, windows.window = 9;
  sinks.groups = 2, sinks.window = 9, sinks.sink_tokens = 5;
  return {dense, two, sliding, chunked, windows, sinks, with_states(1), with_states(2, 9), with_states(0)};
}

}  // namespace

TW_TEST(the_tokens_behind_a_prefix_that_came_are_those_of_one_engine) {
  for (const FakeBehaviour& behaviour : families()) {
    EngineCore prefill = make_core(behaviour), decode = make_core(behaviour);
    const Tokens prompt = numbers(3, 41);
    run_core(prefill, {request(1, prompt, 1)});
    TW_CHECK_EQ(move_prefix(prefill, decode, prompt), 40);
    const Outcome there = run_core(decode, {request(2, prompt, 20)})[2];
    TW_CHECK_EQ(there.last.cached_tokens, 40);
    const Outcome alone = solo(request(2, prompt, 20), behaviour.groups, behaviour.window, behaviour.states,
                               behaviour.chunked, behaviour.sink_tokens);
    TW_CHECK(there.tokens == alone.tokens);
    decode.check();
  }
}

TW_TEST(what_is_there_already_is_not_moved_again) {
  for (const FakeBehaviour& behaviour : families()) {
    EngineCore prefill = make_core(behaviour), decode = make_core(behaviour);
    const Tokens prompt = numbers(3, 41);
    run_core(prefill, {request(1, prompt, 1)});
    move_prefix(prefill, decode, prompt);
    const PrefixNeeds needs = decode.transfer().begin(offered(prefill, prompt), "");
    TW_CHECK(needs.pieces.empty() && !needs.state);
    decode.transfer().finish(needs.import, {});
    decode.check();
  }
}

TW_TEST(a_longer_prefix_needs_only_the_blocks_behind_a_shorter_one) {
  EngineCore prefill = make_core({}), decode = make_core({});
  const Tokens prompt = numbers(3, 41);
  run_core(prefill, {request(1, prompt, 1)});
  run_core(decode, {request(1, Tokens(prompt.begin(), prompt.begin() + 18), 1)});
  const PrefixNeeds needs = decode.transfer().begin(offered(prefill, prompt), "");
  TW_CHECK_EQ(needs.pieces.size(), 6u);
  TW_CHECK_EQ(needs.pieces[0].index, 4);
  decode.transfer().drop(needs.import);
  decode.check();
}

TW_TEST(an_import_that_fails_changes_nothing) {
  for (const FakeBehaviour& behaviour : families()) {
    EngineCore prefill = make_core(behaviour), decode = make_core(behaviour);
    const Tokens prompt = numbers(3, 41);
    run_core(prefill, {request(1, prompt, 1)});
    const Tokens tokens = offered(prefill, prompt);
    PrefixTransfer& transfer = decode.transfer();
    const int64_t before = free_and_idle(decode);
    const std::vector<char> half(50);
    const auto begin = [&] { return transfer.begin(tokens, ""); };

    PrefixNeeds needs = begin();
    TW_CHECK_ERROR(transfer.write(needs.import, std::span(needs.pieces).first(1), half), "TransferError");
    TW_CHECK_ERROR(transfer.write(needs.import, {}, {}), "TransferError");  // it was dropped

    needs = begin();
    const PrefixPiece last = needs.pieces.back(), outside{0, 99}, group{9, 0};
    const std::vector<char> bytes = read_piece(prefill, tokens, last);
    transfer.write(needs.import, std::span(&last, 1), bytes);
    TW_CHECK_EQ(free_and_idle(decode), before - 1);
    decode.check();
    TW_CHECK_ERROR(transfer.write(needs.import, std::span(&last, 1), bytes), "TransferError");
    TW_CHECK_EQ(free_and_idle(decode), before);

    needs = begin();
    TW_CHECK_ERROR(transfer.write(needs.import, std::span(&outside, 1), bytes), "TransferError");
    needs = begin();
    TW_CHECK_ERROR(transfer.write(needs.import, std::span(&group, 1), bytes), "TransferError");
    needs = begin();
    TW_CHECK_ERROR(transfer.finish(needs.import, {}), "TransferError");  // blocks are missing
    needs = begin();
    if (behaviour.states) {
      for (const PrefixPiece& piece : needs.pieces)
        transfer.write(needs.import, std::span(&piece, 1), read_piece(prefill, tokens, piece));
      TW_CHECK_ERROR(transfer.finish(needs.import, half), "TransferError");
    } else {
      transfer.drop(needs.import);
    }
    TW_CHECK_EQ(transfer.imports(), 0u);
    TW_CHECK_EQ(free_and_idle(decode), before);
    TW_CHECK_EQ(transfer.extent(prompt, "").blocks, 0);
    decode.check();
  }
}

TW_TEST(an_executor_that_fails_at_any_write_leaves_nothing_behind) {
  for (const FakeBehaviour& behaviour : families()) {
    for (int32_t fails = 1; fails < 24; ++fails) {
      FakeBehaviour failing = behaviour;
      failing.fail_copies = fails;
      EngineCore prefill = make_core(behaviour), decode = make_core(failing);
      const Tokens prompt = numbers(3, 25);
      run_core(prefill, {request(1, prompt, 1)});
      try {
        TW_CHECK_EQ(move_prefix(prefill, decode, prompt), 24);
        TW_CHECK_EQ(decode.transfer().extent(prompt, "").blocks, 6);
      } catch (const std::runtime_error&) {
        TW_CHECK_EQ(decode.transfer().extent(prompt, "").blocks, 0);
      }
      TW_CHECK_EQ(decode.transfer().imports(), 0u);
      decode.check();
    }
  }
}

TW_TEST(a_block_that_was_known_and_is_evicted_meanwhile_ends_the_import) {
  EngineCore prefill = make_core({}), decode = make_core({}, 60);
  const Tokens prompt = numbers(3, 41);
  run_core(prefill, {request(1, prompt, 1)});
  run_core(decode, {request(1, Tokens(prompt.begin(), prompt.begin() + 18), 1)});
  const Tokens tokens = offered(prefill, prompt);
  const PrefixNeeds needs = decode.transfer().begin(tokens, "");
  for (const PrefixPiece& piece : needs.pieces)
    decode.transfer().write(needs.import, std::span(&piece, 1), read_piece(prefill, tokens, piece));
  for (int32_t i = 0; i < 3; ++i) {  // long prompts of others, until the oldest blocks are gone
    Tokens other = numbers(11 + i, 90);
    other[0] = i;
    decode.add(request(5 + i, other, 1), Clock::now());
    std::vector<Event> events;
    while (!decode.idle()) decode.step(&events);
    TW_CHECK_EQ(decode.transfer().imports(), 1u);
  }
  TW_CHECK_ERROR(decode.transfer().finish(needs.import, {}), "TransferError");
  decode.check();
}

TW_TEST(blocks_that_were_evicted_are_not_read) {
  EngineCore prefill = make_core({}, 30);
  const Tokens prompt = numbers(3, 41);
  run_core(prefill, {request(1, prompt, 1)});
  const Tokens tokens = offered(prefill, prompt);
  TW_CHECK_EQ(tokens.size(), 40u);
  run_core(prefill, {request(2, numbers(4, 100), 4)});
  TW_CHECK_ERROR(read_piece(prefill, tokens, {0, 9}), "TransferError");
  EngineCore recurrent = make_core(with_states());
  TW_CHECK_ERROR(read_state(recurrent, tokens), "TransferError");
}

TW_TEST(a_prefix_is_whole_blocks_and_imports_are_few) {
  EngineCore core = make_core({});
  TW_CHECK_ERROR(core.transfer().begin(numbers(1, 7), ""), "TransferError");
  TW_CHECK_ERROR(core.transfer().begin({}, ""), "TransferError");
  TW_CHECK_ERROR(core.transfer().begin(numbers(1, kMaxSeqLen), ""), "TransferError");
  for (size_t i = 0; i < PrefixTransfer::kMaxImports; ++i) core.transfer().begin(numbers(1, 8), "");
  TW_CHECK_ERROR(core.transfer().begin(numbers(1, 8), ""), "TransferError");
  EngineOptions o = options(100, 4, 16);
  o.prefix_cache = false;
  EngineCore forgets(fake(), o);
  TW_CHECK_ERROR(forgets.transfer().begin(numbers(1, 8), ""), "TransferError");
}

TW_TEST(salts_keep_prefixes_apart) {
  EngineCore prefill = make_core({}), decode = make_core({});
  const Tokens prompt = numbers(3, 41);
  Request salted = request(1, prompt, 1);
  salted.sampling.cache_salt = "a";
  run_core(prefill, {salted});
  TW_CHECK_EQ(prefill.transfer().extent(prompt, "").blocks, 0);
  TW_CHECK_EQ(prefill.transfer().extent(prompt, "a").blocks, 10);
}

TW_TEST(requests_come_before_imports) {
  // Ten blocks stay for a step: four sequences, four blocks of tokens, and one more.
  EngineCore prefill = make_core({}), decode = make_core({}, 30);
  const Tokens prompt = numbers(3, 101);
  run_core(prefill, {request(1, prompt, 1)});
  const Tokens tokens = offered(prefill, prompt);
  const PrefixNeeds needs = decode.transfer().begin(tokens, "");
  size_t written = 0;
  try {
    for (; written < needs.pieces.size(); ++written) {
      const PrefixPiece piece = needs.pieces[written];
      decode.transfer().write(needs.import, std::span(&piece, 1), read_piece(prefill, tokens, piece));
    }
  } catch (const Error& error) {
    TW_CHECK_EQ(error.type(), "TransferError");
  }
  TW_CHECK_EQ(written, 21u);  // of 25
  decode.check();

  const PrefixNeeds second = decode.transfer().begin(tokens, "");
  for (size_t i = 0; i < 20; ++i) {
    const PrefixPiece piece = second.pieces[i];
    decode.transfer().write(second.import, std::span(&piece, 1), read_piece(prefill, tokens, piece));
  }
  const Request own = request(3, numbers(9, 60), 30);
  TW_CHECK(run_core(decode, {own})[3].tokens == solo(own).tokens);
  TW_CHECK_EQ(decode.transfer().imports(), 0u);
  TW_CHECK_EQ(decode.stats().steps.preemptions, 0);
  decode.check();
}

TW_TEST(an_import_that_a_request_waits_for_takes_all_blocks_and_gives_its_last_ones) {
  EngineCore prefill = make_core({}), decode = make_core({}, 30);
  const Tokens prompt = numbers(3, 101);
  run_core(prefill, {request(1, prompt, 1)});
  const Tokens tokens = offered(prefill, prompt);
  const PrefixNeeds needs = decode.transfer().begin(tokens, "", true);
  for (const PrefixPiece& piece : needs.pieces)
    TW_CHECK(decode.transfer().write(needs.import, std::span(&piece, 1), read_piece(prefill, tokens, piece)));
  TW_CHECK_EQ(needs.pieces.size(), 25u);
  TW_CHECK_EQ(free_and_idle(decode), 5);
  const Request own = request(3, numbers(9, 30), 10);  // ten blocks
  Outcomes outcomes;
  decode.add(own, Clock::now());
  while (!decode.idle()) {
    std::vector<Event> events;
    decode.step(&events);
    collect(std::move(events), &outcomes);
    decode.check();
  }
  TW_CHECK(outcomes[3].tokens == solo(own).tokens);
  TW_CHECK_EQ(decode.stats().steps.preemptions, 0);
  TW_CHECK_EQ(decode.transfer().finish(needs.import, {}), 20);
  TW_CHECK_EQ(decode.transfer().extent(prompt, "").blocks, 20);
  decode.check();

  // What there is no room for is not written, and the import ends before it.
  EngineCore full = make_core({}, 30);
  const PrefixNeeds first = full.transfer().begin(tokens, "other", true);
  for (size_t i = 0; i < 20; ++i)
    full.transfer().write(first.import, std::span(&first.pieces[i], 1),
                          read_piece(prefill, tokens, first.pieces[i]));
  const PrefixNeeds second = full.transfer().begin(tokens, "", true);
  size_t written = 0;
  while (written < 25 && full.transfer().write(second.import, std::span(&second.pieces[written], 1),
                                               read_piece(prefill, tokens, second.pieces[written])))
    ++written;
  TW_CHECK_EQ(written, 10u);
  TW_CHECK_EQ(full.transfer().finish(second.import, {}), 10);
  full.transfer().drop(first.import);
  full.check();
}

// Two engines with small caches, random prompts that share beginnings, and prefixes that move piece by piece
// between the steps, are given up halfway, or come twice at once.
TW_TEST(transfers_between_the_steps_of_a_crowd_change_no_token) {
  int64_t moved = 0, hits = 0;
  for (int32_t seed = 0; seed < 40; ++seed) {
    const std::vector<FakeBehaviour> all = families();
    const FakeBehaviour behaviour = all[static_cast<size_t>(seed) % all.size()];
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    EngineCore prefill = make_core(behaviour, 45), decode = make_core(behaviour, 45);
    std::map<int64_t, Request> requests;
    Outcomes outcomes;
    std::vector<std::pair<PrefixNeeds, Tokens>> imports;
    std::vector<size_t> written;
    for (int64_t id = 1; id <= 60; ++id) {
      Tokens prompt = numbers(draw(3), 8 + draw(50));
      for (int32_t i = draw(static_cast<int32_t>(prompt.size())); i < static_cast<int32_t>(prompt.size());
           ++i)
        prompt[static_cast<size_t>(i)] = draw(5);
      run_core(prefill, {request(id, prompt, 1)});
      if (const Tokens tokens = offered(prefill, prompt); !tokens.empty() && imports.size() < 6) {
        imports.emplace_back(decode.transfer().begin(tokens, ""), tokens);
        written.push_back(0);
      }
      for (size_t i = 0; i < imports.size();) {
        auto& [needs, tokens] = imports[i];
        bool over = false;
        try {
          for (int32_t n = draw(8); n > 0 && written[i] < needs.pieces.size(); --n, ++written[i]) {
            const PrefixPiece piece = needs.pieces[written[i]];
            decode.transfer().write(needs.import, std::span(&piece, 1), read_piece(prefill, tokens, piece));
          }
          if (draw(12) == 0) {
            decode.transfer().drop(needs.import);
            over = true;
          } else if (written[i] == needs.pieces.size()) {
            decode.transfer().finish(needs.import,
                                     needs.state ? read_state(prefill, tokens) : std::vector<char>());
            over = true;
            ++moved;
          }
        } catch (const Error& error) {
          TW_CHECK_EQ(error.type(), "TransferError");
          decode.transfer().drop(needs.import);
          over = true;
        }
        decode.check();
        if (over) {
          imports.erase(imports.begin() + static_cast<std::ptrdiff_t>(i));
          written.erase(written.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
          ++i;
        }
      }
      requests.emplace(id, request(id, prompt, 1 + draw(12)));
      decode.add(requests.at(id), Clock::now());
      for (int32_t n = draw(6); n > 0; --n) {
        std::vector<Event> events;
        decode.step(&events);
        collect(std::move(events), &outcomes);
        decode.check();
      }
    }
    for (auto& [needs, tokens] : imports) decode.transfer().drop(needs.import);
    while (!decode.idle()) {
      std::vector<Event> events;
      decode.step(&events);
      collect(std::move(events), &outcomes);
    }
    decode.check();
    for (const auto& [id, r] : requests) {
      const Outcome alone = solo(r, behaviour.groups, behaviour.window, behaviour.states, behaviour.chunked,
                                 behaviour.sink_tokens);
      TW_CHECK(outcomes[id].tokens == alone.tokens);
    }
    hits += decode.stats().steps.prefix_hit_tokens;
    for (const EngineStats::Blocks& group : decode.stats().groups) TW_CHECK_EQ(group.used, 0);
  }
  TW_CHECK(moved > 100 && hits > 1000);
}

TW_TEST(work_between_steps_runs_on_the_loop_while_requests_go_on) {
  FakeBehaviour behaviour;
  behaviour.sleep_us = 200;
  Engine engine(fake(behaviour), options(100, 4, 16));
  engine.submit(request(1, numbers(1, 20), 90));
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n)
        engine.between_steps([&](EngineCore& core) { core.check(), ++ran; }, Engine::kVisitBytes, 30);
    });
  for (std::thread& thread : threads) thread.join();
  TW_CHECK_EQ(ran, 160);
  Outcomes outcomes;
  while (outcomes[1].last.finish.empty()) collect(engine.wait_events(1), &outcomes);
  TW_CHECK_EQ(outcomes[1].tokens.size(), 90u);
}

TW_TEST(what_work_throws_its_caller_gets) {
  Engine engine(fake(), options(100, 4, 16));
  const auto fail = [](EngineCore&) { throw Error("TransferError", "no"); };
  TW_CHECK_ERROR(engine.between_steps(fail, 0, 30), "TransferError");
  bool ran = false;
  engine.between_steps([&](EngineCore&) { ran = true; }, 0, 30);
  TW_CHECK(ran);
  TW_CHECK_THROWS(engine.between_steps([](EngineCore&) { throw std::logic_error("bug"); }, 0, 30),
                  std::logic_error);
  while (!engine.stopped()) engine.wait_events(0.01);
  TW_CHECK_ERROR(engine.between_steps([](EngineCore&) {}, 0, 30), "EngineStoppedError");
}

TW_TEST(work_that_the_loop_does_not_come_to_is_given_up) {
  EngineOptions o = options(100, 4, 16);
  o.debug_stepped = true;  // without a thread nobody comes
  Engine engine(fake(), o);
  bool ran = false;
  TW_CHECK_ERROR(engine.between_steps([&](EngineCore&) { ran = true; }, 0, 0.01), "TransferError");
  while (engine.turn()) {
  }
  TW_CHECK(!ran);
}

TW_TEST(a_shutdown_ends_the_wait) {
  EngineOptions o = options(100, 4, 16);
  o.debug_stepped = true;
  Engine engine(fake(), o);
  std::thread waits(
      [&] { TW_CHECK_ERROR(engine.between_steps([](EngineCore&) {}, 0, 600), "EngineStoppedError"); });
  engine.shutdown(false, 0);
  waits.join();
}

TW_TEST_MAIN()
