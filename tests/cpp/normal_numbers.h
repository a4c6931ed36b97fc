// Draws random operands for tests of kernels.
#ifndef TENSORWRIGHT_TESTS_CPP_NORMAL_NUMBERS_H_
#define TENSORWRIGHT_TESTS_CPP_NORMAL_NUMBERS_H_

#include <cstddef>
#include <random>
#include <vector>

namespace tw_test {

// Returns `count` numbers of a normal distribution, which start at another place of one table for every seed.
// The table is drawn once: an emulator takes longer to draw numbers than to run most kernels on them. Its
// length is prime, so that rows of a matrix are not alike.
inline std::vector<float> normal(size_t count, unsigned seed) {
  static const std::vector<float> table = [] {
    std::mt19937 generator(1);
    std::normal_distribution<float> distribution;
    std::vector<float> numbers(65521);
    for (float& number : numbers) number = distribution(generator);
    return numbers;
  }();
  std::vector<float> values(count);
  size_t at = seed * size_t{1009} % table.size();
  for (float& value : values) {
    value = table[at];
    at = at + 1 == table.size() ? 0 : at + 1;
  }
  return values;
}

}  // namespace tw_test

#endif  // TENSORWRIGHT_TESTS_CPP_NORMAL_NUMBERS_H_
