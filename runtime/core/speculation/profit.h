// Says whether proposals pay: compares what a token takes in steps with proposals, and in steps without, of
// as many decoding sequences. The estimates behind the lengths (length_policy.h) may be wrong; this is the
// time itself.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace tensorwright {

class Profit {
 public:
  // Whether proposals may be made for a step of so many decoding sequences. Call it once a step. It says no
  // while they do not pay, for longer each time; at first; and now and then, so that the time without them is
  // known. Steps that are never counted, beside prefills or with masks to wait for, do not keep it from yes.
  bool allows(int32_t decodes);
  // Returns for how many steps of so many sequences allows() will still say no.
  int32_t pause_left(int32_t decodes) const { return sizes_[index(decodes)].left; }
  // Counts a step of decodes alone. proposed: it had proposals; made: the tokens that it gave; seconds: with
  // the time that the proposals took.
  void observe(int32_t decodes, bool proposed, int32_t made, double seconds);

 private:
  // The seconds of a token over the last steps: the sum of their seconds by the sum of their tokens. An older
  // step counts less. A step of four times the mean, when something else had the processor, counts as that.
  class Rate {
   public:
    void add(int32_t made, double seconds);
    int32_t counted() const { return counted_; }
    double per_token() const { return seconds_ / made_; }
    // Returns the variance of per_token(), as that of a ratio of two means is estimated (Cochran 1977,
    // section 6.4), and at least that of steps that scatter by a twentieth.
    double variance() const;

   private:
    int32_t counted_ = 0;
    double steps_ = 0, seconds_ = 0, made_ = 0;
    double seconds_squared_ = 0, product_ = 0, made_squared_ = 0;
  };
  struct OfSize {
    Rate plain, with;
    int32_t asked = 0, pause = kFirstPause, left = 0, since_plain = 0;
    bool loses() const;
  };
  static constexpr int32_t kFirstPause = 64, kLongestPause = 1024;
  static constexpr int32_t kPlainAtFirst = 3, kPlainEvery = 128;
  static constexpr int32_t kTries = 8;      // steps with proposals before they are judged
  static constexpr int32_t kRevision = 16;  // steps of a pause before the judgement is looked at again
  static constexpr double kTolerated = 1.01, kDeviations = 2;

  static std::size_t index(int32_t decodes);

  std::array<OfSize, 8> sizes_;  // of 1, 2, 3 to 4, 5 to 8, ..., more than 64 sequences
};

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROFIT_H_
