// tensorwright.h as a program of C sees it: an engine in a folder, requests from several threads, wrong
// arguments, and handles of engines that are closed. The core is linked besides to write the engine.
#include <stdlib.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/c_interface/include/tensorwright.h"
#include "runtime/core/base/xxh3.h"
#include "tests/cpp/check.h"
#include "tests/cpp/failing_calls.h"
#include "tests/cpp/toy_plan.h"

using namespace tw_test;

namespace {

// The folder of a toy engine, removed at the end.
class EngineFolder {
 public:
  EngineFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tensorwright_c_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no folder for the engine");
    path_ = name;
    ToyPlan plan;
    const std::vector<std::byte> bytes = plan.bytes();
    write("cpu/plan.bin", std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    write("cpu/weights.bin", std::string(plan.data.data(), plan.data.size()));
    const std::string block = std::to_string(ToyPlan::kBlock * ToyPlan::kHeads * ToyPlan::kHeadDim * 4 * 2);
    write("config.json", R"({"format": "tensorwright-engine", "format_version": 1, "target": "cpu",
      "tensorwright_version": "0", "dtype": "float32", "build_options": {},
      "model": {"vocab_size": )" +
                             std::to_string(ToyPlan::kVocab) + R"(, "eos_token_ids": [36]},
      "limits": {"max_seq_len": )" +
                             std::to_string(ToyPlan::kMaxLen) + R"(, "block_size": )" +
                             std::to_string(ToyPlan::kBlock) + R"(, "kv_block_bytes": )" + block + "}}");
    seal();
  }
  ~EngineFolder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    files_[name] = text;
  }
  // Makes the checksums true.
  void seal() {
    std::string body;
    for (const auto& [name, text] : files_) body += line(text, name);
    std::ofstream(path_ / "checksums.txt") << body + line(body, ".");
  }

 private:
  static std::string line(const std::string& text, const std::string& name) {
    return tensorwright::xxh3_128_hex(text) + "  " + std::to_string(text.size()) + "  " + name + "\n";
  }
  std::filesystem::path path_;
  std::map<std::string, std::string> files_;
};

tw_engine* open_engine(const EngineFolder& folder,
                       const char* options = R"({"threads": 2, "kv_cache_memory": "1MiB"})") {
  tw_engine* engine = nullptr;
  tw_error* error = nullptr;
  if (tw_open(folder.path().c_str(), options, &engine, &error) != TW_OK)
    fail(__FILE__, __LINE__, tw_error_message(error));
  tw_error_free(error);
  return engine;
}

tw_request request_of(const std::vector<int32_t>& tokens, const char* params) {
  tw_request request = {};
  request.size = sizeof request;
  request.tokens = tokens.data();
  request.token_count = tokens.size();
  request.params = params;
  return request;
}

int64_t submit(tw_engine* engine, const std::vector<int32_t>& tokens, const char* params) {
  const tw_request request = request_of(tokens, params);
  int64_t number = 0;
  TW_CHECK_EQ(tw_submit(engine, &request, &number, nullptr), TW_OK);
  return number;
}

constexpr uint32_t kEveryToken[] = {~0u, 0x1f};  // of the 37 of a toy engine
constexpr size_t kEveryTokenWords = 2;

// Submits a request that waits for a mask before each of its tokens but the first.
int64_t submit_with_mask(tw_engine* engine, const std::vector<int32_t>& tokens, const char* params) {
  tw_request request = request_of(tokens, params);
  request.first_mask = kEveryToken;
  request.first_mask_words = kEveryTokenWords;
  int64_t number = 0;
  TW_CHECK_EQ(tw_submit(engine, &request, &number, nullptr), TW_OK);
  return number;
}

// Returns how many tokens the next event of a request has.
size_t tokens_of_next_event(tw_engine* engine, int64_t number) {
  tw_events* events = nullptr;
  tw_event event = {};
  event.size = sizeof event;
  TW_CHECK_EQ(tw_wait(engine, number, 60, &events, nullptr), TW_OK);
  TW_CHECK_EQ(tw_events_get(events, 0, &event, nullptr), TW_OK);
  const size_t tokens = event.token_count;
  tw_events_free(events);
  return tokens;
}

bool has_finished_one(tw_engine* engine) {
  char* stats = nullptr;
  TW_CHECK_EQ(tw_stats(engine, &stats, nullptr), TW_OK);
  const bool finished = std::string(stats).find(R"("requests_finished":1)") != std::string::npos;
  tw_string_free(stats);
  return finished;
}

// Waits for a request until its end, and returns its tokens.
std::vector<int32_t> tokens_of(tw_engine* engine, int64_t number) {
  std::vector<int32_t> tokens;
  for (int32_t open = 1; open > 0;) {
    tw_events* events = nullptr;
    if (tw_wait(engine, number, 60, &events, nullptr) != TW_OK || tw_events_count(events) == 0) {
      fail(__FILE__, __LINE__, "no events");
      return tokens;
    }
    for (size_t i = 0; i < tw_events_count(events); ++i) {
      tw_event event = {};
      event.size = sizeof event;
      TW_CHECK_EQ(tw_events_get(events, i, &event, nullptr), TW_OK);
      tokens.insert(tokens.end(), event.tokens, event.tokens + event.token_count);
      open = event.open_completions;
    }
    tw_events_free(events);
  }
  return tokens;
}

// Returns the status of a call, and checks that its error says the same and something.
template <typename Call>
tw_status failure(const Call& call) {
  tw_error* error = nullptr;
  const tw_status status = call(&error);
  TW_CHECK(error != nullptr);
  TW_CHECK_EQ(tw_error_status(error), status);
  TW_CHECK(std::string(tw_error_message(error)).size() > 10);
  tw_error_free(error);
  return status;
}

constexpr char kGreedy[] = R"({"max_tokens": 20, "temperature": 0, "ignore_eos": true})";

}  // namespace

TW_TEST(the_hash_knows_its_definition) {
  TW_CHECK_EQ(tensorwright::xxh3_128_hex(std::span<const char>()), "99aa06d3014798d86001c324468d497f");
}

TW_TEST(threads_get_the_tokens_that_one_gets_alone) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  const std::vector<int32_t> alone = tokens_of(engine, submit(engine, {1, 2, 3}, kGreedy));
  TW_CHECK_EQ(alone.size(), 20u);
  std::vector<std::vector<int32_t>> found(6);
  std::vector<std::thread> threads;
  for (std::vector<int32_t>& tokens : found)
    threads.emplace_back([&] { tokens = tokens_of(engine, submit(engine, {1, 2, 3}, kGreedy)); });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int32_t>& tokens : found) TW_CHECK(tokens == alone);
  TW_CHECK_EQ(tw_close(engine, 0, nullptr), TW_OK);
}

TW_TEST(one_thread_hears_of_all_requests) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  std::map<int64_t, size_t> tokens;
  for (int32_t i = 0; i < 5; ++i) tokens[submit(engine, {i}, kGreedy)] = 0;
  for (size_t ended = 0; ended < tokens.size();) {
    tw_events* events = nullptr;
    TW_CHECK_EQ(tw_wait(engine, TW_ANY_REQUEST, 60, &events, nullptr), TW_OK);
    if (tw_events_count(events) == 0) break;
    for (size_t i = 0; i < tw_events_count(events); ++i) {
      tw_event event = {};
      event.size = sizeof event;
      tw_events_get(events, i, &event, nullptr);
      tokens[event.request] += event.token_count;
      ended += event.finish == TW_FINISH_LENGTH;
    }
    tw_events_free(events);
  }
  for (const auto& [number, count] : tokens) TW_CHECK_EQ(count, 20u);
  tw_close(engine, 0, nullptr);
}

TW_TEST(events_stay_until_there_is_memory_to_hand_them_over) {
  const EngineFolder folder;
  constexpr char kTold[] = R"({"max_tokens": 20, "temperature": 0, "ignore_eos": true, "logprobs": 3})";
  for (const bool any : {false, true}) {
    tw_engine* engine = open_engine(folder);
    const int64_t number = submit(engine, {1, 2, 3}, kTold);
    while (!has_finished_one(engine)) std::this_thread::yield();
    // Of the allocations of this thread the first fails, then the second, and so on until none is left.
    tw_events* events = nullptr;
    int failures = 0;
    for (tw_status status = TW_OUT_OF_MEMORY; status != TW_OK && failures < 1000;) {
      tw_error* error = nullptr;
      {
        const FailCall fail_one(Call::kAllocation, failures + 1, /*lasting=*/false, /*here=*/true);
        status = tw_wait(engine, any ? TW_ANY_REQUEST : number, 60, &events, &error);
      }
      if (status == TW_OK) break;
      ++failures;
      TW_CHECK_EQ(status, TW_OUT_OF_MEMORY);
      TW_CHECK(events == nullptr);
      tw_error_free(error);
    }
    TW_CHECK(failures > 20);  // each of the logprobs takes memory
    TW_CHECK_EQ(tw_events_count(events), 1u);
    tw_event event = {};
    event.size = sizeof event;
    TW_CHECK_EQ(tw_events_get(events, 0, &event, nullptr), TW_OK);
    TW_CHECK_EQ(event.token_count, 20u);
    TW_CHECK_EQ(event.logprob_count, 20u);
    for (size_t i = 0; i < event.logprob_count; ++i)
      TW_CHECK_EQ(event.logprobs[i].entries[0].token, event.tokens[i]);
    TW_CHECK_EQ(event.finish, TW_FINISH_LENGTH);
    TW_CHECK_EQ(event.open_completions, 0);
    tw_events_free(events);
    tw_close(engine, 0, nullptr);
  }
}

TW_TEST(a_request_goes_on_while_its_engine_is_closed) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  const int64_t number = submit_with_mask(engine, {1}, R"({"max_tokens": 1000, "ignore_eos": true})");
  TW_CHECK_EQ(tokens_of_next_event(engine, number), 1u);
  std::thread closes([&] { TW_CHECK_EQ(tw_close(engine, -1, nullptr), TW_OK); });
  const std::vector<int32_t> prompt = {1};
  const tw_request other = request_of(prompt, R"({"max_tokens": 1})");
  int64_t taken = 0;
  while (tw_submit(engine, &other, &taken, nullptr) == TW_OK) std::this_thread::yield();
  int alive = 0;
  TW_CHECK_EQ(tw_set_mask(engine, number, 0, 1, kEveryToken, kEveryTokenWords, &alive, nullptr), TW_OK);
  TW_CHECK_EQ(alive, 1);
  TW_CHECK_EQ(tokens_of_next_event(engine, number), 1u);
  TW_CHECK_EQ(tw_cancel(engine, number, TW_ALL_COMPLETIONS, &alive, nullptr), TW_OK);
  TW_CHECK_EQ(alive, 1);
  closes.join();
}

TW_TEST(closing_wakes_who_waits_and_the_handle_means_nothing_then) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  // It sits out all steps, for its mask never comes: who waits for it is woken by the closing alone.
  const int64_t number = submit_with_mask(engine, {1}, R"({"max_tokens": 1000, "ignore_eos": true})");
  std::atomic<bool> has_begun = false;
  tw_finish finish = TW_FINISH_NONE;
  std::thread waits([&] {
    tw_events* events = nullptr;
    while (finish == TW_FINISH_NONE && tw_wait(engine, number, -1, &events, nullptr) == TW_OK) {
      tw_event event = {};
      event.size = sizeof event;
      TW_CHECK_EQ(tw_events_get(events, tw_events_count(events) - 1, &event, nullptr), TW_OK);
      finish = event.finish;
      tw_events_free(events);
      has_begun = true;
    }
  });
  while (!has_begun) std::this_thread::yield();
  TW_CHECK_EQ(tw_drain(engine, 0, nullptr), TW_OK);
  waits.join();
  TW_CHECK_EQ(finish, TW_FINISH_ABORT);
  TW_CHECK_EQ(tw_close(engine, 0, nullptr), TW_OK);
  char* json = nullptr;
  tw_events* events = nullptr;
  int alive = 1;
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_stats(engine, &json, error); }), TW_CLOSED);
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_facts(engine, &json, error); }), TW_CLOSED);
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_wait(engine, number, 0, &events, error); }),
              TW_CLOSED);
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_cancel(engine, number, -1, &alive, error); }),
              TW_CLOSED);
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_close(engine, 0, error); }), TW_CLOSED);
  TW_CHECK_EQ(alive, 0);
  TW_CHECK_EQ(tw_close(nullptr, 0, nullptr), TW_OK);
}

TW_TEST(wrong_arguments_are_refused) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  const std::string path = folder.path();
  int64_t number = 0;
  const std::vector<int32_t> prompt = {1};
  tw_request request = request_of(prompt, nullptr);
  tw_event event = {};
  event.size = sizeof event;
  tw_events* events = nullptr;
  TW_CHECK_EQ(tw_wait(engine, TW_ANY_REQUEST, 0, &events, nullptr), TW_OK);
  TW_CHECK_EQ(tw_events_count(events), 0u);
  const auto refused = [&](const auto& call) { TW_CHECK_EQ(failure(call), TW_INVALID_ARGUMENT); };
  tw_engine* other = nullptr;
  refused([&](tw_error** error) { return tw_open(nullptr, nullptr, &other, error); });
  refused([&](tw_error** error) { return tw_open(path.c_str(), nullptr, nullptr, error); });
  refused([&](tw_error** error) { return tw_submit(engine, nullptr, &number, error); });
  refused([&](tw_error** error) { return tw_submit(engine, &request, nullptr, error); });
  refused([&](tw_error** error) { return tw_wait(engine, TW_ANY_REQUEST, 0, nullptr, error); });
  refused([&](tw_error** error) { return tw_events_get(events, 0, &event, error); });
  refused([&](tw_error** error) { return tw_events_get(nullptr, 0, &event, error); });
  event.size = 8;
  refused([&](tw_error** error) { return tw_events_get(events, 0, &event, error); });
  request.size = 0;
  refused([&](tw_error** error) { return tw_submit(engine, &request, &number, error); });
  request.size = sizeof request;
  request.tokens = nullptr;
  refused([&](tw_error** error) { return tw_submit(engine, &request, &number, error); });
  request.tokens = prompt.data();
  request.first_mask_words = 2;
  refused([&](tw_error** error) { return tw_submit(engine, &request, &number, error); });
  tw_events_free(events);
  tw_close(engine, 0, nullptr);
}

TW_TEST(a_struct_of_a_newer_header_is_taken_if_its_new_members_are_0) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  const std::vector<int32_t> prompt = {1};
  struct Newer {
    tw_request known;
    int64_t added;
  } newer = {request_of(prompt, kGreedy), 0};
  newer.known.size = sizeof newer;
  int64_t number = 0;
  TW_CHECK_EQ(tw_submit(engine, &newer.known, &number, nullptr), TW_OK);
  TW_CHECK_EQ(tokens_of(engine, number).size(), 20u);
  newer.added = 1;
  TW_CHECK_EQ(failure([&](tw_error** error) { return tw_submit(engine, &newer.known, &number, error); }),
              TW_INVALID_ARGUMENT);
  tw_close(engine, 0, nullptr);
}

TW_TEST(masks_of_the_caller_choose_the_tokens) {
  const EngineFolder folder;
  tw_engine* engine = open_engine(folder);
  const std::vector<int32_t> prompt = {1};
  const uint32_t only_7[2] = {1u << 7, 0}, only_33[2] = {0, 1u << 1};
  tw_request request = request_of(prompt, R"({"max_tokens": 2, "temperature": 0})");
  request.first_mask = only_7;
  request.first_mask_words = 2;
  int64_t number = 0;
  int alive = 0;
  TW_CHECK_EQ(tw_submit(engine, &request, &number, nullptr), TW_OK);
  TW_CHECK_EQ(tw_set_mask(engine, number, 0, 1, only_33, 2, &alive, nullptr), TW_OK);
  TW_CHECK_EQ(alive, 1);
  TW_CHECK(tokens_of(engine, number) == std::vector<int32_t>({7, 33}));
  TW_CHECK_EQ(
      failure([&](tw_error** error) { return tw_set_mask(engine, number, 0, 1, only_33, 1, &alive, error); }),
      TW_INVALID_REQUEST);
  tw_close(engine, 0, nullptr);
}

TW_TEST(damaged_engines_are_refused) {
  tw_engine* engine = nullptr;
  const auto open_fails = [&](const EngineFolder& folder) {
    TW_CHECK_EQ(
        failure([&](tw_error** error) { return tw_open(folder.path().c_str(), nullptr, &engine, error); }),
        TW_ENGINE_ERROR);
    TW_CHECK(engine == nullptr);
  };
  {
    EngineFolder folder;
    std::filesystem::resize_file(folder.path() + "/cpu/plan.bin", 100);
    open_fails(folder);
  }
  {
    EngineFolder folder;  // a plan that is cut and whose checksum is true
    folder.write("cpu/plan.bin", "plan");
    folder.seal();
    open_fails(folder);
  }
  {
    EngineFolder folder;
    folder.write("config.json", "{\"format\"");
    folder.seal();
    open_fails(folder);
  }
}

TW_TEST_MAIN()
