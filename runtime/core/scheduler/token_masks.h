// A mailbox for the token masks of guided completions, between the thread that computes them and the engine's
// loop. It knows neither grammars nor sequences.
#ifndef TENSORWRIGHT_RUNTIME_CORE_TOKEN_MASKS_H_
#define TENSORWRIGHT_RUNTIME_CORE_TOKEN_MASKS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tensorwright {

// [mask_words(vocab_size)]: token t is allowed if bit t % 32 of word t / 32 is set. Bits past the vocabulary
// mean nothing.
using MaskWords = std::vector<uint32_t>;
using SharedMask = std::shared_ptr<const MaskWords>;

constexpr size_t mask_words(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }

// Thread-safe, but only one thread may call take() and wait().
class TokenMasks {
 public:
  // Lets completions 0 .. n - 1 of the request get masks from now on. `first` is the mask of token 0 of each.
  void open(int64_t id, int32_t n, MaskWords first);
  void close(int64_t id, int32_t completion);  // drops the masks; nothing if it is not open
  void close_all();

  // Puts the mask of a completion's token number `generated`; of several masks for one token the last counts.
  // Returns false if the completion is not open. Throws Error{"InvalidRequestError"} if the token's mask was
  // taken already.
  bool put(int64_t id, int32_t completion, int32_t generated, MaskWords words);
  // Takes the mask of that token, null if it has not come. Masks of earlier tokens are dropped.
  SharedMask take(int64_t id, int32_t completion, int32_t generated);

  // Appends the tokens from number `generated` on that their masks force, one after the other and at most
  // `most`, until a mask has not come or leaves a choice. Returns whether the mask of `generated` has come.
  bool forced(int64_t id, int32_t completion, int32_t generated, int32_t most, std::vector<int32_t>* tokens);

  // Returns at `deadline`, or once a mask was put or wake() was called since the last wait() returned: then
  // true.
  bool wait(std::chrono::steady_clock::time_point deadline);
  void wake();

 private:
  struct Mask {
    SharedMask words;
    int32_t forced;  // the only token that the mask allows; -1: it allows none or several
  };
  struct Entry {
    int32_t next = 0;               // the first token whose mask was not taken
    std::map<int32_t, Mask> ahead;  // by token number, from next on
  };

  std::mutex mutex_;  // guards what follows
  std::condition_variable news_;
  bool told_ = false;                                     // something happened since the last wait()
  std::map<std::pair<int64_t, int32_t>, Entry> entries_;  // request, completion
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_TOKEN_MASKS_H_
