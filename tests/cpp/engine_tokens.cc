// Runs an engine on requests of token ids, and prints what it answers:
//   engine_tokens ENGINE_DIRECTORY THREADS
// A line is a completion: its tokens, and the bits of their logprobs and of those of the next likeliest
// tokens. So two machines, or a processor and its emulator, compute the same if they print the same.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "plugins/common/dispatch.h"
#include "runtime/core/base/error.h"
#include "runtime/core/engine/engine.h"
#include "runtime/core/executor/cpu_executor.h"

using namespace tensorwright;

namespace {

constexpr int32_t kAnswer = 12;
constexpr int32_t kPrompts[] = {3, 17, 70};  // lengths, below and above a block and a chunk

Request request_of(int64_t id, int32_t length, int32_t vocabulary) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < length; ++i)
    request.prompt.push_back((static_cast<int32_t>(id) * 7919 + i * 104729 + i * i * 31) % vocabulary);
  request.sampling.max_tokens = kAnswer;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 2;
  request.sampling.temperature = id % 2 == 0 ? 0.0 : 0.8;  // greedy, or drawn with a seed
  request.sampling.seed = 42;
  return request;
}

void print(int64_t id, const Event& event) {
  std::printf("%ld:", static_cast<long>(id));
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    std::printf(" %d", event.tokens[i]);
    for (const TokenLogprob& one : event.logprobs.at(i)) {
      uint64_t bits;
      std::memcpy(&bits, &one.logprob, sizeof bits);
      std::printf("/%d=%016lx", one.token, static_cast<unsigned long>(bits));
    }
  }
  std::printf(" %s%s\n", event.finish.c_str(), event.error.c_str());
}

void answer(const std::string& folder, int threads) {
  CpuExecutorOptions how;
  how.threads = threads;
  auto executor = std::make_unique<CpuExecutor>(folder + "/cpu/plan.bin", folder + "/cpu/weights.bin", how);
  for (const DispatchChoice& choice : executor->dispatch())
    std::fprintf(stderr, "%s\n", choice.taken.c_str());
  const int32_t vocabulary = executor->facts().vocab_size;
  EngineOptions options;
  options.kv_cache_bytes = int64_t{64} << 20;
  options.max_batch_size = 4;
  options.max_num_tokens = 32;
  Engine engine(std::move(executor), options);
  int64_t alive = 0;
  for (int32_t length : kPrompts) engine.submit(request_of(alive++, length, vocabulary));
  std::map<int64_t, Event> answers;
  while (alive > 0) {
    for (Event& event : engine.wait_events(1.0)) {
      Event& whole = answers[event.request_id];
      whole.tokens.insert(whole.tokens.end(), event.tokens.begin(), event.tokens.end());
      whole.logprobs.insert(whole.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
      whole.finish = event.finish, whole.error = event.error;
      if (!event.finish.empty()) --alive;
    }
  }
  for (const auto& [id, event] : answers) print(id, event);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "engine_tokens ENGINE_DIRECTORY THREADS\n");
    return 2;
  }
  try {
    answer(argv[1], std::atoi(argv[2]));
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.type().c_str(), error.what());
    return 1;
  }
  return 0;
}
