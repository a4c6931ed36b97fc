// Says whether proposals pay: compares what a token takes in steps with proposals, and in steps without, of
// as many decoding sequences. The estimates behind the lengths (length_policy.h) may be wrong; this is the
// time itself.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_

#include <array>
#include <cstdint>

namespace tensorwright {

class Profit {
 public:
  // Whether proposals may be made for a step of so many decoding sequences. Call it once a step. It says no
  // while they do not pay, for longer each time; at first; and now and then, so that the time without them is
  // known. Steps that are never counted, beside prefills or with masks to wait for, do not keep it from yes.
  bool allows(int32_t decodes);
  // Counts a step of decodes alone. proposed: it had proposals; made: the tokens that it gave; seconds: with
  // the time that the proposals took.
  void observe(int32_t decodes, bool proposed, int32_t made, double seconds);

 private:
  // A mean in which a new time counts a fifth. One that is four times the mean, when something else had the
  // processor, counts as that.
  struct Mean {
    double value = 0;
    int32_t counted = 0;
    void add(double time);
  };
  struct OfSize {
    Mean plain, with;
    int32_t asked = 0, pause = kFirstPause, left = 0, since_plain = 0;
  };
  static constexpr int32_t kFirstPause = 64, kLongestPause = 1024;
  static constexpr int32_t kPlainAtFirst = 3, kPlainEvery = 128;
  static constexpr int32_t kTries = 8;        // steps with proposals before they are judged
  static constexpr double kTolerated = 1.01;  // how much longer they may take, since times scatter

  OfSize& of(int32_t decodes);

  std::array<OfSize, 8> sizes_;  // of 1, 2, 3 to 4, 5 to 8, ..., more than 64 sequences
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_
