// The bytes of a fuzzer as a row of decisions. When they are used up every further one is the first.
#ifndef TENSORWRIGHT_TESTS_FUZZ_CHOICES_H_
#define TENSORWRIGHT_TESTS_FUZZ_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace tw_fuzz {

class Choices {
 public:
  Choices(const uint8_t* data, size_t bytes) : at_(data), end_(data + bytes) {}

  // Of [0, end), end > 0: a byte where that is enough, so that a changed byte changes one decision.
  uint32_t below(uint32_t end) {
    uint32_t number = byte();
    for (uint32_t room = 256; room < end && room < (1u << 24); room <<= 8) number = number << 8 | byte();
    return number % end;
  }
  uint32_t between(uint32_t first, uint32_t last) { return first + below(last - first + 1); }
  bool one_in(uint32_t n) { return below(n) == n - 1; }
  template <typename T>
  T of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<uint32_t>(list.size()))];
  }
  bool empty() const { return at_ == end_; }

 private:
  uint8_t byte() { return at_ < end_ ? *at_++ : 0; }

  const uint8_t *at_, *end_;
};

}  // namespace tw_fuzz

#endif  // TENSORWRIGHT_TESTS_FUZZ_CHOICES_H_
